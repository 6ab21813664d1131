"""P10: a row belongs to one tenant, and nobody who works for another one sees it, makes it or changes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql

from governance.local import postgres
from tests.governance.store import catalog
from tests.governance.store.catalog import enter

Connection = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def owned(database: postgres.Database, postgres_server: postgres.Postgres) -> list[str]:
    """The tables with a tenant, each with a row of `a` and a row of `b`."""
    with psycopg.connect(postgres_server.url(postgres.SUPERUSER, database.name)) as connection:
        return catalog.fill(connection, "a", "b")


@pytest.fixture
def app(database: postgres.Database, owned: list[str]) -> Iterator[Connection]:
    with psycopg.connect(database.app_url) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def owner(database: postgres.Database, owned: list[str]) -> Iterator[Connection]:
    with psycopg.connect(database.owner_url) as connection:
        yield connection
        connection.rollback()


def granted(connection: Connection, table: str, right: str) -> bool:
    """Whether the application may do this to the table, or to its tenant."""
    ask = "select has_column_privilege(%s, 'tenant', %s)" if right == "update" else "select has_table_privilege(%s, %s)"
    found = connection.execute(ask, (table, right)).fetchone()
    assert found is not None
    return bool(found[0])


def test_every_table_has_a_tenant_or_a_reason(app: Connection, owned: list[str]) -> None:
    without = {
        name
        for name in catalog.tables(app)
        if not app.execute(
            "select 1 from pg_attribute where attrelid = %s::regclass and attname = 'tenant' and attnotnull", (name,)
        ).fetchone()
    }
    assert without == set(catalog.UNOWNED)
    assert len(owned) >= 37


def test_without_a_tenant_there_are_no_rows(app: Connection, owned: list[str]) -> None:
    assert {name: catalog.count(app, name) for name in owned} == dict.fromkeys(owned, 0)
    # What a local setting leaves behind in a pooled connection is the empty text.
    enter(app, "")
    assert {name: catalog.count(app, name) for name in owned} == dict.fromkeys(owned, 0)


def test_a_tenant_sees_its_own_rows_and_no_others(app: Connection, owned: list[str]) -> None:
    for tenant in ("a", "b"):
        enter(app, tenant)
        for table in owned:
            seen = app.execute(sql.SQL("select distinct tenant from {}").format(sql.Identifier(table))).fetchall()
            assert seen == [(tenant,)], table


def test_a_tenant_that_does_not_exist_sees_nothing(app: Connection, owned: list[str]) -> None:
    enter(app, "a' or '1'='1")
    assert {catalog.count(app, name) for name in owned} == {0}


def test_no_row_is_made_for_another_tenant(app: Connection, owned: list[str]) -> None:
    enter(app, "a")
    kept_out = []
    for table in owned:
        said = "row-level security" if granted(app, table, "insert") else "permission denied"
        kept_out += [table] if said == "permission denied" else []
        with pytest.raises(errors.InsufficientPrivilege, match=said), app.transaction():
            catalog.insert(app, table, catalog.row_for(app, table, "c"))
    assert kept_out == ["checkpoint", "entry", "node"], "only the sequencer writes the log"


def test_no_row_is_handed_to_another_tenant(app: Connection, owned: list[str]) -> None:
    refused = []
    enter(app, "a")
    for table in owned:
        said = "row-level security" if granted(app, table, "update") else "permission denied"
        move = sql.SQL("update {} set tenant = 'c'").format(sql.Identifier(table))
        with pytest.raises(errors.InsufficientPrivilege, match=said), app.transaction():
            app.execute(move)
        refused.append(said)
    assert refused.count("row-level security") > 20


def test_nothing_of_another_tenant_is_changed_or_deleted_by_naming_it(app: Connection, owned: list[str]) -> None:
    tried = 0
    for table in owned:
        name = sql.Identifier(table)
        for right, statement in (
            ("update", sql.SQL("update {} set tenant = tenant where tenant = 'b'").format(name)),
            ("delete", sql.SQL("delete from {} where tenant = 'b'").format(name)),
        ):
            if not granted(app, table, right):
                continue
            enter(app, "a")
            assert app.execute(statement).rowcount == 0, (table, right)
            tried += 1
    assert tried > 25


def test_the_owner_is_bound_like_everybody_else(owner: Connection, owned: list[str]) -> None:
    """Forced: a migration or a report that runs as the owner leaks nothing either."""
    assert {name: catalog.count(owner, name) for name in owned} == dict.fromkeys(owned, 0)
    enter(owner, "a")
    assert {catalog.count(owner, name) for name in owned} == {1}
    for table in owned:
        with pytest.raises(errors.InsufficientPrivilege, match="row-level security"), owner.transaction():
            catalog.insert(owner, table, catalog.row_for(owner, table, "c"))


def test_a_view_shows_what_its_reader_may_see(app: Connection) -> None:
    """A view with its owner's rights would leak every tenant to whoever reads it."""
    found = catalog.views(app)
    assert found == ["step"]
    for view in found:
        options = app.execute("select reloptions from pg_class where oid = %s::regclass", (view,)).fetchone()
        assert options is not None
        assert "security_invoker=true" in options[0], view
        app.rollback()
        assert catalog.count(app, view) == 0
        enter(app, "a")
        assert app.execute(sql.SQL("select distinct tenant from {}").format(sql.Identifier(view))).fetchall() == [
            ("a",)
        ]


def test_no_function_runs_with_more_rights_than_its_caller(app: Connection) -> None:
    found = app.execute(
        "select proname from pg_proc where pronamespace = 'public'::regnamespace and prosecdef"
    ).fetchall()
    assert found == []


def test_each_policy_is_about_the_tenant_or_for_the_dispatcher(app: Connection, owned: list[str]) -> None:
    """A second permissive policy would widen the first: there is one per table, and `across` for eight."""
    found = app.execute(
        "select tablename::text, policyname::text, roles::text[], permissive, qual, with_check from pg_policies order by 1, 2"
    ).fetchall()
    mine = "(tenant = NULLIF(current_setting('tk.tenant'::text, true), ''::text))"
    own = [(name, "own", ["public"], "PERMISSIVE", mine, mine) for name in owned]
    across = [(row[0], row[2], row[4], row[5]) for row in found if row[1] != "own"]
    assert [row for row in found if row[1] == "own"] == own
    assert across == [
        (name, ["tk_dispatch"], "true", None)
        for name in ("audit_head", "cap", "due", "outbox_due", "place", "route", "turn", "work")
    ]
