"""S003-6.2: what was recorded stays as it was recorded: no right to change it, and a trigger that refuses its owner too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql

from governance.local import postgres
from tests.governance.store import catalog

Connection = psycopg.Connection[Any]
RECORDS = (
    "action",
    "action_edit",
    "attention",
    "away",
    "cosignature",
    "doubt",
    "entry",
    "glass",
    "intent",
    "journal",
    "mandate",
    "node",
    "own_change",
    "policy_activation",
    "policy_edit",
    "receipt",
    "review",
    "spending",
    "verdict",
    "viewing",
    "vote",
    "word",
)
REFUSED = "TK001"


@pytest.fixture(scope="module", autouse=True)
def filled(database: postgres.Database, postgres_server: postgres.Postgres) -> None:
    with psycopg.connect(postgres_server.url(postgres.SUPERUSER, database.name)) as connection:
        catalog.fill(connection, "a")


def changes(table: str) -> dict[str, sql.Composed]:
    name = sql.Identifier(table)
    return {
        "update": sql.SQL("update {} set tenant = tenant").format(name),
        "delete": sql.SQL("delete from {}").format(name),
        "truncate": sql.SQL("truncate {} cascade").format(name),
    }


@pytest.fixture
def app(database: postgres.Database) -> Iterator[Connection]:
    with psycopg.connect(database.app_url) as connection:
        catalog.enter(connection, "a")
        yield connection
        connection.rollback()


@pytest.fixture
def owner(database: postgres.Database) -> Iterator[Connection]:
    with psycopg.connect(database.owner_url) as connection:
        catalog.enter(connection, "a")
        yield connection
        connection.rollback()


@pytest.mark.parametrize("deed", ["update", "delete", "truncate"])
@pytest.mark.parametrize("table", RECORDS)
def test_the_application_has_no_right_to_change_a_record(app: Connection, table: str, deed: str) -> None:
    assert catalog.count(app, table) == 1
    with pytest.raises(errors.InsufficientPrivilege, match="permission denied"), app.transaction():
        app.execute(changes(table)[deed])
    assert catalog.count(app, table) == 1


@pytest.mark.parametrize("role", ["tk_dispatch", "tk_sequencer"])
@pytest.mark.parametrize("table", RECORDS)
def test_no_role_that_it_can_enter_has_the_right_either(app: Connection, table: str, role: str) -> None:
    app.execute(sql.SQL("set local role {}").format(sql.Identifier(role)))
    for statement in changes(table).values():
        with pytest.raises(errors.InsufficientPrivilege), app.transaction():
            app.execute(statement)


@pytest.mark.parametrize("deed", ["update", "delete", "truncate"])
@pytest.mark.parametrize("table", RECORDS)
def test_a_trigger_refuses_the_owner(owner: Connection, table: str, deed: str) -> None:
    with pytest.raises(psycopg.DatabaseError, match=f"{table} is append-only") as caught, owner.transaction():
        owner.execute(changes(table)[deed])
    assert caught.value.sqlstate == REFUSED
    assert catalog.count(owner, table) == 1


def test_an_upsert_is_an_update(app: Connection, owner: Connection) -> None:
    row = catalog.row_for(owner, "journal", "a")
    names, marks = ", ".join(row), ", ".join(["%s"] * len(row))
    text = f"insert into journal ({names}) values ({marks}) on conflict (tenant, run, first_seq) do update set body = '\\x00'"
    for connection in (app, owner):
        with pytest.raises(psycopg.DatabaseError) as caught, connection.transaction():
            connection.execute(text, list(row.values()))
        assert caught.value.sqlstate in (REFUSED, errors.InsufficientPrivilege.sqlstate)


def test_the_triggers_are_on_and_there_is_one_kind_for_records(owner: Connection) -> None:
    found = owner.execute(
        "select c.relname::text, array_agg(t.tgname::text || ' ' || t.tgenabled::text || ' ' || p.proname order by t.tgname) "
        "from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_proc p on p.oid = t.tgfoid where not t.tgisinternal "
        "group by 1 order by 1"
    ).fetchall()
    both = ["append_only O refuse_change", "never_empty O refuse_change"]
    assert found == sorted([("checkpoint", ["note_once O note_once"]), *((name, both) for name in RECORDS)])


def test_a_success_is_recorded_once_per_effect_key(app: Connection, owner: Connection) -> None:
    """The last line against a second effect: another attempt under the same key cannot succeed again."""
    run = catalog.row_for(owner, "run", "a")["run"]
    for key, attempt, status in (("k", 1, "error"), ("k", 2, "ok"), ("other", 1, "ok")):
        row = {**catalog.row_for(owner, "receipt", "a"), "run": run, "key": key, "attempt": attempt, "status": status}
        catalog.insert(app, "receipt", row)
    again = {**catalog.row_for(owner, "receipt", "a"), "run": run, "key": "k", "attempt": 3, "status": "ok"}
    with pytest.raises(errors.UniqueViolation, match="receipt_success"), app.transaction():
        catalog.insert(app, "receipt", again)


def test_one_intent_per_effect_key_and_turn(app: Connection, owner: Connection) -> None:
    row = {**catalog.row_for(owner, "intent", "a"), "run": catalog.row_for(owner, "run", "a")["run"], "key": "one"}
    catalog.insert(app, "intent", row)
    with pytest.raises(errors.UniqueViolation, match="intent_pkey"), app.transaction():
        catalog.insert(app, "intent", {**row, "promise": "7"})


# --- the checkpoint ---------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(owner: Connection) -> Connection:
    """A checkpoint of size 7 that has not been signed."""
    owner.execute("insert into checkpoint (tenant, size, root, frontier) values ('a', 7, '\\x07', '{}')")
    return owner


def test_a_note_is_signed_once(checkpoint: Connection) -> None:
    sign = "update checkpoint set note = %s where tenant = 'a' and size = 7"
    checkpoint.execute(sign, (b"first",))
    checkpoint.execute(sign, (b"first",))
    for other in (b"second", None):
        with pytest.raises(psycopg.DatabaseError, match="written once") as caught, checkpoint.transaction():
            checkpoint.execute(sign, (other,))
        assert caught.value.sqlstate == REFUSED
    assert checkpoint.execute("select note from checkpoint where size = 7").fetchone() == (b"first",)


@pytest.mark.parametrize("change", ["root = '\\x08'", "size = 8", "frontier = '{a}'"])
@pytest.mark.parametrize("signed", [False, True])
def test_what_a_checkpoint_is_about_never_changes(checkpoint: Connection, change: str, signed: bool) -> None:
    if signed:
        checkpoint.execute("update checkpoint set note = 'n' where size = 7")
    with pytest.raises(psycopg.DatabaseError, match="written once"), checkpoint.transaction():
        checkpoint.execute(f"update checkpoint set {change} where size = 7")


def test_when_a_note_was_published_is_filled_in_later(checkpoint: Connection) -> None:
    checkpoint.execute("update checkpoint set note = 'n' where size = 7")
    checkpoint.execute("update checkpoint set published_at = clock_timestamp() where size = 7")


def test_the_application_removes_no_checkpoint(app: Connection) -> None:
    for statement in (
        "delete from checkpoint",
        "truncate checkpoint",
        "delete from bundle",
        "delete from chain",
        "delete from run",
    ):
        with pytest.raises(errors.InsufficientPrivilege), app.transaction():
            app.execute(statement)
