"""A journal that somebody broke in the database stops its own run, says where, and is never appended to; nobody else notices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from engine.canonical import decode, encode
from engine.errors import BrokenJournal
from engine.journal.events import Entry, decode_row, encode_row
from governance.local import postgres
from governance.store import cases, views
from governance.web import story
from tests.kit.seams import begin, notes, work
from tests.kit.world import World

Row = tuple[int, bytes]  # first sequence, body
WHERE = "where tenant = %s and run = %s"


def later(body: bytes) -> bytes:
    """Every event a microsecond later: a sound row that is not the one that was written."""
    return encode_row([Entry(entry.sequence, entry.timestamp + 1, entry.event) for entry in decode_row(body)])


def changed(body: bytes, **event: Any) -> bytes:
    """The first event with other fields, whatever a journal allows."""
    values = decode(body)
    values[0]["event"] |= event
    return encode(values)


def numbered(body: bytes, sequence: int) -> bytes:
    values = decode(body)
    values[0]["sequence"] = sequence
    return encode(values)


# What stands in the second row instead, and what is said about it; None: the row is gone.
BROKEN: dict[str, tuple[Callable[[bytes], bytes] | None, str]] = {
    "another time": (later, "does not hash to its head"),
    "an unknown type": (lambda body: changed(body, type="InvokePaused"), "'InvokePaused' is not an event type"),
    "an extra field": (lambda body: changed(body, note="x"), "has an unknown field 'note'"),
    "a number of 64 bits": (lambda body: numbered(body, 2**63), "is an integer of at most 53 bits"),
    "a longer form": (lambda body: b"\x98" + bytes((body[0] & 31,)) + body[1:], "not in its shortest form"),
    "a nesting bomb": (lambda _: b"\x81" * 100_000 + b"\x80", "nested at most 32 deep"),
    "nothing": (lambda _: b"", "the bytes end early"),
    "a gap": (None, "the row that follows starts at"),
}


@pytest.fixture
def superuser(database: postgres.Database, postgres_server: postgres.Postgres) -> Callable[..., None]:
    """What only somebody can do who holds the whole database: past the triggers that keep rows as they are."""

    def execute(statement: str, *values: object) -> None:
        with psycopg.connect(postgres_server.url(postgres.SUPERUSER, database.name)) as connection:
            connection.execute("set session_replication_role = replica")
            assert connection.execute(statement, values).rowcount == 1

    return execute


def everything(world: World, run: str) -> list[dict[str, Any]]:
    """All that a decision on a run would have written to."""
    journal = world.rows("select * from journal where tenant = :tenant and run = :run order by first_seq", run=run)
    votes = world.rows("select person, kind from vote where tenant = :tenant")
    row = world.rows(
        "select events, head, status, state, chain_seq from run where tenant = :tenant and run = :run", run=run
    )
    return [*journal, *votes, *row]


@pytest.mark.inconsistent(reason="a superuser has changed a journal")
@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_journal_stops_its_run_and_no_other(world: World, superuser: Callable[..., None], how: str) -> None:
    """Issue 3, P12: no key, no order and no worker adds anything to it; its page says why, and its place in the journal."""
    make, why = BROKEN[how]
    run = world.start()
    case = world.until(run, "waiting_approval")
    waiting = world.waiting(run)
    second = world.rows(
        "select first_seq, body, head from journal where tenant = :tenant and run = :run order by 1", run=run
    )[1]
    at, body = int(second["first_seq"]), bytes(second["body"])
    if make is None:
        superuser(f"delete from journal {WHERE} and first_seq = %s", world.tenant, run, at)
    else:
        superuser(f"update journal set body = %s {WHERE} and first_seq = %s", make(body), world.tenant, run, at)
    before = everything(world, run)

    assert world.press(waiting, "ana").code == "broken"
    with pytest.raises(BrokenJournal, match=f"entry {at}: "):
        world.parts.cancel.cancel(world.tenant, world.actor("rita"), run, "enough")
    with world.parts.database.unit(world.tenant) as unit:
        cases.queue_first(unit, case.origin)
    sound = begin(world, notes("sound", "sound"), "sound")
    world.drain()

    assert world.case(sound).state == "succeeded"
    assert [(item["stage"], item["state"], item["faults"]) for item in work(world, run)] == [("advance", "parked", 1)]
    with world.parts.database.unit(world.tenant, write=False) as unit:
        said = story.why(views.run(unit, run), views.steps(unit, run), [], unit.now()).text
    assert said.startswith("Is parked and waits for the operator: ")
    assert f"entry {at}: " in said
    assert why in said
    assert everything(world, run) == before


def test_a_journal_that_was_put_right_goes_on_and_has_lost_nothing(
    world: World, superuser: Callable[..., None]
) -> None:
    """The bytes as they were, from a backup: the run goes to its end, because nothing was added meanwhile."""
    run = world.start()
    case = world.until(run, "waiting_approval")
    row = world.rows("select first_seq, body from journal where tenant = :tenant and run = :run order by 1", run=run)[1]
    edit = f"update journal set body = %s {WHERE} and first_seq = %s"
    superuser(edit, later(bytes(row["body"])), world.tenant, run, row["first_seq"])
    with world.parts.database.unit(world.tenant) as unit:
        cases.queue_first(unit, case.origin)
    world.drain()
    assert [item["state"] for item in work(world, run)] == ["parked"]
    superuser(edit, bytes(row["body"]), world.tenant, run, row["first_seq"])
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update work set state = 'ready' where tenant = :tenant and state = 'parked'")
    world.approve(run, "ana")
    world.until(run, "waiting_approval")
    world.approve(run, "bo", "cleo")
    assert world.until(run, "succeeded").history.ended
