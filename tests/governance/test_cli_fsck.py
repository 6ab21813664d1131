"""`twokeys fsck`: silent about what is sound, and it names whatever a superuser has changed behind everybody's back."""

from __future__ import annotations

import psycopg
import pytest

from engine.errors import OperatorError
from governance.cli import frame
from governance.local import postgres
from tests.governance.test_cli import Cli, cli, operator
from tests.governance.test_cli_journal import finished
from tests.kit.world import World, parts, slack_sink, world

__all__ = ["cli", "parts", "slack_sink", "world"]

# (what is changed, the rule that it breaks); {0} names the run's rows, {1} its chain, {2} its approvals.
CHANGES = {
    "a journal's body": ("update journal set body = body || '\\x00' where {0} and first_seq = 0", "journal"),
    "a journal's row gone": ("delete from journal where {0} and first_seq = 0", "journal"),
    "the run's status": ("update run set status = 'Failed' where {0}", "projection"),
    "a step's state": ("update promise set state = 'canceled' where {0} and promise = '0'", "projection"),
    "a proposal": ("update action set body = body || '\\x00' where {0} and promise = '0' and rev = 1", "action"),
    "a question to policy": ("update verdict set input = input || '\\x20' where {0} and promise = '0' and n = 1", "verdict"),
    "a verdict about something else": ("update verdict set action_digest = '\\x00' where {0} and promise = '0' and n = 1", "verdict"),
    "an intent for something else": ("update intent set action_digest = '\\x00' where {0} and promise = '1'", "intent"),
    "a receipt's outcome": ("update receipt set status = 'error' where {0} and promise = '1'", "receipt"),
    "a receipt's bytes": ("update receipt set body = body || '\\x00' where {0} and promise = '1'", "receipt"),
    "a receipt gone": ("delete from receipt where {0} and promise = '1'", "receipt"),
    "a key of nobody": (
        "delete from vote where ctid in (select v.ctid from vote v join approval a using (tenant, approval) where {2} limit 1)", "approval",
    ),
    "an entry's text": ("update entry_pending set body = '{{}}' where {1} and chain_seq = 3", "chain"),
    "an entry gone": ("delete from entry_pending where {1} and chain_seq = 3", "chain"),
    "the evidence forgotten": ("delete from work where {0} and stage = 'seal'", "queue"),
}  # fmt: skip


def superuser(server: postgres.Postgres, database: postgres.Database, statement: str) -> None:
    with psycopg.connect(server.url(postgres.SUPERUSER, database.name)) as connection:
        connection.execute("set session_replication_role = replica")
        assert connection.execute(statement.encode()).rowcount == 1


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_behind_everybodys_back_is_named(
    world: World, postgres_server: postgres.Postgres, database: postgres.Database, change: str
) -> None:
    run = finished(world)
    assert list(world.parts.fsck.check(world.tenant, lambda: None)) == []
    statement, rule = CHANGES[change]
    which = f"tenant = '{world.tenant}' and "
    superuser(
        postgres_server,
        database,
        statement.format(f"{which}run = '{run}'", f"{which}chain = '{run}'", f"a.{which}a.run = '{run}'"),
    )
    found = list(world.parts.fsck.check(world.tenant, lambda: None))
    assert rule in {one.rule for one in found}, found
    assert {one.place for one in found} == {f"run/{run}"}


def test_the_log_is_hashed_again(world: World, postgres_server: postgres.Postgres, database: postgres.Database) -> None:
    """The head, and each signed checkpoint, say what the stored bytes say."""
    finished(world)
    while world.parts.log.step():
        pass
    assert list(world.parts.fsck.check(world.tenant, lambda: None)) == []
    superuser(
        postgres_server,
        database,
        f"update entry set body = body || ' ' where tenant = '{world.tenant}' and position = 2",
    )
    assert ("log", "tree") in {(one.place, one.rule) for one in world.parts.fsck.check(world.tenant, lambda: None)}
    superuser(postgres_server, database, f"update entry set body = rtrim(convert_from(body, 'UTF8'))::bytea where tenant = "
                                         f"'{world.tenant}' and position = 2")  # fmt: skip
    superuser(postgres_server, database, f"update audit_head set root = '\\x00' where tenant = '{world.tenant}'")
    assert [(one.place, one.rule) for one in world.parts.fsck.check(world.tenant, lambda: None)] == [("log", "tree")]


def test_a_run_that_nothing_will_ever_move_is_named(world: World) -> None:
    run = world.start()
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("delete from work where tenant = :tenant and run = :run", run=run)
    (found,) = world.parts.fsck.check(world.tenant, lambda: None)
    assert (found.place, found.rule) == (f"run/{run}", "queue")


def test_the_order_says_what_it_found_and_how_it_went(
    cli: Cli, world: World, postgres_server: postgres.Postgres, database: postgres.Database
) -> None:
    """0 and nothing on stdout when all is well, 1 with the list when not; an unknown tenant is no clean one."""
    run = finished(world)
    sound = cli("fsck", "--tenant", world.tenant, **operator(world))
    assert (sound.code, sound.out) == (0, "")
    superuser(postgres_server, database, f"update run set status = 'Failed' where tenant = '{world.tenant}'")
    found = cli("fsck", "--tenant", world.tenant, "-o", "json", **operator(world))
    assert found.code == frame.FAILED
    what = "the run is shown as Failed, its journal says Completed"
    assert found.data == [{"tenant": world.tenant, "place": f"run/{run}", "rule": "projection", "what": what}]
    assert cli("fsck", "--tenant", "nobody", **operator(world)).code != 0
    assert cli("fsck", **operator(world)).code == frame.FAILED


def test_a_database_that_is_gone_is_no_clean_bill(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: object, **__: object) -> object:
        raise OperatorError("the database does not answer", code="database")

    world.start()
    monkeypatch.setattr("governance.store.checks.held", down)
    with pytest.raises(OperatorError):
        list(world.parts.fsck.check(world.tenant, lambda: None))
