"""What is to be sent to Slack, durable until it was: rows in, the sender's answer back; and the inbox that makes a click count once."""

from __future__ import annotations

from typing import Any

from engine.canonical import jcs, read_json
from governance.store.unit import Unit


def put(unit: Unit, kind: str, ref: str, body: dict[str, Any]) -> None:
    """Queue one message in the transaction of the fact it tells."""
    unit.run(
        "with o as (insert into outbox (tenant, kind, ref, body) values (:tenant, :kind, :ref, :body) returning tenant, id) "
        "insert into outbox_due (tenant, id) select tenant, id from o",
        kind=kind, ref=ref, body=jcs(body),
    )  # fmt: skip
    unit.ring()


def put_home(unit: Unit, user: str) -> None:
    """Queue the Home tab of a person, unless it is queued already: it shows what is when it is sent."""
    if (
        unit.one(
            "select 1 from outbox where tenant = :tenant and ref = :ref and kind = 'home' and state = 'ready'", ref=user
        )
        is None
    ):
        put(unit, "home", user, {"user": user})


def take(unit: Unit, row_id: int) -> tuple[str, str, dict[str, Any], int] | None:
    """(kind, ref, body, tries) of one row, or None when it is gone or has been given up."""
    row = unit.one(
        "select kind, ref, body, tries from outbox where tenant = :tenant and id = :id and state = 'ready'", id=row_id
    )
    return None if row is None else (row[0], row[1], read_json(bytes(row[2])), int(row[3]))


def is_behind(unit: Unit, row_id: int, kind: str, ref: str) -> bool:
    """Whether an older row about the same card is still to be sent; a card waits only for older cards, a reply for everything."""
    if not ref:
        return False
    return (
        unit.one(
            "select 1 from outbox where tenant = :tenant and ref = :ref and id < :id and state = 'ready' and kind <> 'ephemeral' "
            "and (:kind <> 'card' or kind = 'card') limit 1",
            kind=kind,
            ref=ref,
            id=row_id,
        )
        is not None
    )


def sent(unit: Unit, row_id: int) -> None:
    """Done: the row goes."""
    unit.run("delete from outbox_due where tenant = :tenant and id = :id", id=row_id)
    unit.run("delete from outbox where tenant = :tenant and id = :id", id=row_id)


def again(unit: Unit, row_id: int, error: str, seconds: float, *, counts: bool) -> None:
    """Not yet: try again after this long. Only what Slack was asked counts as a try."""
    unit.run(
        "update outbox set tries = tries + :step, last_error = :error where tenant = :tenant and id = :id",
        id=row_id,
        error=error[:500],
        step=int(counts),
    )
    unit.run(
        "update outbox_due set eligible_at = clock_timestamp() + make_interval(secs => :s) where tenant = :tenant and id = :id",
        id=row_id, s=seconds,
    )  # fmt: skip


def failed(unit: Unit, row_id: int, error: str) -> None:
    """Slack refused it for good: kept and shown, never retried by itself."""
    unit.run(
        "update outbox set tries = tries + 1, state = 'failed', last_error = :error where tenant = :tenant and id = :id",
        id=row_id, error=error[:500],
    )  # fmt: skip
    unit.run("delete from outbox_due where tenant = :tenant and id = :id", id=row_id)


def answered(unit: Unit, dedupe: str) -> dict[str, Any] | None:
    """The answer that this click was given before."""
    row = unit.one("select answer from inbox where tenant = :tenant and dedupe = :dedupe", dedupe=dedupe)
    return None if row is None else read_json(bytes(row[0]))


def remember(unit: Unit, dedupe: str, answer: dict[str, Any]) -> None:
    """In the same transaction as the decision, so that a rolled-back click may be tried again."""
    unit.run(
        "insert into inbox (tenant, dedupe, answer) values (:tenant, :dedupe, :answer)",
        dedupe=dedupe,
        answer=jcs(answer),
    )


def failed_with(unit: Unit, ref: str, error: str) -> None:
    """A card that cannot be posted takes its replies with it: they would wait for it for ever."""
    rows = unit.all(
        "select id from outbox where tenant = :tenant and ref = :ref and state = 'ready' and kind <> 'ephemeral'",
        ref=ref,
    )
    for row in rows:
        failed(unit, row[0], error)
