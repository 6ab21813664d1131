"""The three roles: what the application may do, what only the dispatcher sees, and a login that could see more is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql

from engine.errors import OperatorError
from governance.local import postgres
from governance.store.dispatch import Dispatch
from governance.store.unit import Database
from tests.governance.store import catalog

Connection = psycopg.Connection[Any]

# What the dispatcher may read across tenants: ids, ranks and times, and of each log its size and its hashes.
ACROSS = {
    "audit_head": {"tenant", "size", "frontier", "root"},
    "cap": {
        "tenant", "scope", "name", "max_concurrency", "max_concurrent_runs", "max_runs_per_min", "max_writes_per_run", "weight",
    },
    "due": {"tenant", "kind", "ref", "at", "run"},
    "outbox_due": {"tenant", "id", "eligible_at"},
    "place": {"tenant", "run", "workspace", "workflow", "at", "over"},
    "route": {"kind", "ref", "tenant"},
    "turn": {"tenant", "workspace", "reached"},
    "work": {
        "tenant", "run", "item", "stage", "workspace", "state", "rank", "eligible_at", "faults", "owner", "epoch", "lease_until",
        "workflow", "begins", "asleep", "turn",
    },
}  # fmt: skip
# Keys that the tenant does not lead, and why that is right.
NOT_LED_BY_TENANT = {
    "route_pkey": "asked before the tenant is known: what an outside identity leads to",
    "alembic_version_pkc": "the schema's own revision",
}

_grants = """
select c.relname::text, array_agg(distinct lower(a.privilege_type) order by lower(a.privilege_type))
  from pg_class c, aclexplode(c.relacl) a join pg_roles r on r.oid = a.grantee
 where c.relnamespace = 'public'::regnamespace and r.rolname = %s group by 1 order by 1
"""


@pytest.fixture(scope="module")
def superuser(database: postgres.Database, postgres_server: postgres.Postgres) -> Iterator[Connection]:
    with psycopg.connect(postgres_server.url(postgres.SUPERUSER, database.name), autocommit=True) as connection:
        catalog.fill(connection, "a", "b")
        yield connection


@pytest.fixture
def app(database: postgres.Database, superuser: Connection) -> Iterator[Connection]:
    with psycopg.connect(database.app_url) as connection:
        yield connection
        connection.rollback()


def grants(connection: Connection, role: str) -> dict[str, list[str]]:
    return {row[0]: row[1] for row in connection.execute(_grants, (role,))}


# --- what each role may do --------------------------------------------------------------------------------------------


def test_the_application_changes_only_what_has_a_state(superuser: Connection) -> None:
    """Records are inserted and never changed; a definition, a policy and a key change their state and nothing else."""
    whole = {table: set(rights) for table, rights in grants(superuser, "tk_app").items()}
    inserted = {table for table, rights in whole.items() if "insert" in rights and "update" not in rights}
    assert inserted == {
        "action", "action_edit", "attention", "audit_head", "away", "cosignature", "doubt", "entry_pending", "glass", "intent", "journal",
        "mandate", "own_change", "payload", "policy", "policy_activation", "policy_draft", "policy_edit", "policy_shadow", "receipt",
        "review", "route", "schedule", "signing_key", "spending", "standstill", "task", "template", "verdict", "viewing", "vote", "word",
    }  # fmt: skip
    assert {table for table, rights in whole.items() if rights == {"select"}} == {
        "alembic_version", "checkpoint", "entry", "node", "step",
    }  # fmt: skip
    assert {table for table, rights in whole.items() if "delete" in rights} == {
        "due", "export", "inbox", "membership", "outbox", "outbox_due", "refusal", "work",
    }  # fmt: skip
    columns = superuser.execute(
        "select c.relname::text, array_agg(a.attname::text order by a.attname) from pg_attribute a join pg_class c on c.oid = a.attrelid "
        "cross join aclexplode(a.attacl) g join pg_roles r on r.oid = g.grantee where r.rolname = 'tk_app' and "
        "g.privilege_type = 'UPDATE' group by 1"
    ).fetchall()
    assert dict(columns) == {
        "checkpoint": ["note", "published_at"], "policy": ["state"], "policy_draft": ["base_revision", "revision", "shadow", "state"],
        "schedule": ["next_at", "state", "waits"], "signing_key": ["compromised", "signs_until", "state"],
        "standstill": ["ended_at", "ended_by"], "template": ["state"],
        "task": ["answer", "answered_by", "decided_at", "status", "via"],
    }  # fmt: skip
    assert not {right for rights in whole.values() for right in rights} & {
        "truncate",
        "references",
        "trigger",
        "maintain",
    }


def test_the_dispatcher_holds_eight_tables_of_ids_ranks_and_times(superuser: Connection) -> None:
    assert grants(superuser, "tk_dispatch") == {
        "audit_head": ["select"],
        "cap": ["select"],
        "due": ["select"],
        "outbox_due": ["select", "update"],
        "place": ["delete", "insert", "select"],
        "route": ["select"],
        "turn": ["insert", "select", "update"],
        "turn_clock": ["select", "update"],
        "work": ["select", "update"],
    }
    columns = superuser.execute(
        "select table_name::text, array_agg(column_name::text) from information_schema.column_privileges "
        "where grantee = 'tk_dispatch' group by 1"
    )
    assert {row[0]: set(row[1]) for row in columns} == ACROSS


def test_the_sequencer_moves_entries_and_touches_nothing_else(superuser: Connection) -> None:
    assert grants(superuser, "tk_sequencer") == {
        "audit_head": ["select", "update"],
        "checkpoint": ["insert", "select"],
        "entry": ["insert", "select"],
        "entry_pending": ["delete", "select"],
        "node": ["insert", "select"],
    }


def test_only_the_sequencer_empties_the_pending_table(app: Connection) -> None:
    catalog.enter(app, "a")
    for statement in ("delete from entry_pending", "update entry_pending set chain_seq = 9", "truncate entry_pending"):
        with pytest.raises(errors.InsufficientPrivilege), app.transaction():
            app.execute(statement)
    app.rollback()
    app.execute("set local role tk_sequencer")
    assert app.execute("delete from entry_pending").rowcount == 0
    catalog.enter(app, "a")
    assert app.execute("delete from entry_pending").rowcount == 1


def test_nobody_else_was_given_anything(superuser: Connection) -> None:
    """Not to PUBLIC, not to a login directly: rights come through tk_app alone."""
    found = superuser.execute(
        "select distinct coalesce(r.rolname::text, 'PUBLIC') from pg_class c cross join aclexplode(c.relacl) a "
        "left join pg_roles r on r.oid = a.grantee where c.relnamespace = 'public'::regnamespace order by 1"
    )
    assert {row[0] for row in found} == {"tk_app", "tk_dispatch", "tk_sequencer", postgres.OWNER_ROLE}


def test_the_application_login_is_an_ordinary_one(superuser: Connection) -> None:
    rights = superuser.execute(
        "select rolname::text, rolsuper, rolbypassrls, rolcreaterole, rolcreatedb, rolreplication from pg_roles "
        "where rolname = any(%s)",
        ([postgres.APP_ROLE, "tk_app", "tk_dispatch", "tk_sequencer"],),
    ).fetchall()
    assert len(rights) == 4
    assert {row[1:] for row in rights} == {(False,) * 5}
    groups = superuser.execute(
        "select rolname::text, rolcanlogin from pg_roles where rolname like 'tk\\_%' order by 1"
    ).fetchall()
    assert groups == [("tk_app", False), ("tk_dispatch", False), ("tk_sequencer", False)]


def test_a_role_is_entered_and_never_inherited(superuser: Connection) -> None:
    found = superuser.execute(
        "select g.rolname::text, m.inherit_option, m.set_option, m.admin_option from pg_auth_members m "
        "join pg_roles g on g.oid = m.roleid join pg_roles u on u.oid = m.member where u.rolname = 'tk_app' order by 1"
    ).fetchall()
    assert found == [("tk_dispatch", False, True, False), ("tk_sequencer", False, True, False)]


def test_looking_across_tenants_takes_entering_the_role(app: Connection) -> None:
    for table in ACROSS:
        assert catalog.count(app, table) == 0, table
    app.execute("set local role tk_dispatch")
    for table in ACROSS:
        assert catalog.count(app, table) == 2, table


def test_the_dispatcher_reads_nothing_else_and_writes_no_more_than_a_lease(app: Connection) -> None:
    app.execute("set local role tk_dispatch")
    others = [name for name in catalog.tables(app) if name not in ACROSS]
    assert len(others) > 30
    for table in others:
        with pytest.raises(errors.InsufficientPrivilege), app.transaction():
            catalog.count(app, table)
    for statement in (
        "insert into work (tenant, run, item, stage, workspace, state, rank) values ('a', 'r', '', 'advance', 'main', 'ready', 1)",
        "delete from work",
        "delete from due",
        "update route set tenant = 'b'",
        "update audit_head set size = 0",
        "delete from outbox_due",
    ):
        with pytest.raises(errors.InsufficientPrivilege), app.transaction():
            app.execute(statement)


def test_the_sequencer_sees_one_tenant_at_a_time(app: Connection) -> None:
    app.execute("set local role tk_sequencer")
    assert {catalog.count(app, name) for name in ("entry", "entry_pending", "checkpoint", "audit_head")} == {0}
    catalog.enter(app, "b")
    assert app.execute("select tenant from entry").fetchall() == [("b",)]


@pytest.mark.parametrize("role", [postgres.SUPERUSER, postgres.OWNER_ROLE])
def test_the_application_enters_no_stronger_role(app: Connection, role: str) -> None:
    with pytest.raises(errors.InsufficientPrivilege):
        app.execute(sql.SQL("set role {}").format(sql.Identifier(role)))


def test_a_login_that_was_not_given_the_application_role_enters_nothing(
    superuser: Connection, database: postgres.Database, postgres_server: postgres.Postgres
) -> None:
    superuser.execute("create role stranger login nosuperuser")
    try:
        superuser.execute(sql.SQL("grant connect on database {} to stranger").format(sql.Identifier(database.name)))
        with psycopg.connect(postgres_server.url("stranger", database.name), autocommit=True) as stranger:
            for role in ("tk_app", "tk_dispatch", "tk_sequencer"):
                with pytest.raises(errors.InsufficientPrivilege):
                    stranger.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
            with pytest.raises(errors.InsufficientPrivilege):
                stranger.execute("select * from run")
    finally:
        superuser.execute("drop owned by stranger")
        superuser.execute("drop role stranger")


def test_the_role_ends_with_its_transaction(database: postgres.Database, superuser: Connection) -> None:
    """A pooled connection that kept the role, or the tenant, would hand them to the next request."""
    store = Database(database.app_url, pool=1)
    try:
        assert Dispatch(store).route("slack", "nobody") is None
        assert len(Dispatch(store).tenants()) == 2
        with store.unit("b") as unit:
            assert unit.all("select tenant from work") == [("b",)]
            assert unit.one("select current_user, session_user") == (postgres.APP_ROLE, postgres.APP_ROLE)
        with store.across("tk_sequencer") as connection:
            assert connection.exec_driver_sql("select count(*) from entry").scalar_one() == 0
    finally:
        store.close()


# --- the catalog ------------------------------------------------------------------------------------------------------


def test_the_tenant_leads_every_key(superuser: Connection) -> None:
    found = superuser.execute(
        "select i.relname::text from pg_index x join pg_class t on t.oid = x.indrelid join pg_class i on i.oid = x.indexrelid "
        "where t.relnamespace = 'public'::regnamespace and (x.indisunique or x.indisprimary) and not exists (select from "
        "pg_attribute a where a.attrelid = t.oid and a.attname = 'tenant' and a.attnum = x.indkey[0]) order by 1"
    )
    assert {row[0] for row in found} == set(NOT_LED_BY_TENANT)


def test_every_table_has_a_primary_key_and_every_foreign_key_carries_the_tenant(superuser: Connection) -> None:
    keyless = superuser.execute(
        "select relname::text from pg_class c where relnamespace = 'public'::regnamespace and relkind = 'r' and not exists "
        "(select from pg_index x where x.indrelid = c.oid and x.indisprimary)"
    ).fetchall()
    loose = superuser.execute(
        "select conname::text from pg_constraint k where contype = 'f' and connamespace = 'public'::regnamespace and not exists "
        "(select from pg_attribute a where a.attrelid = k.conrelid and a.attname = 'tenant' and a.attnum = any(k.conkey))"
    ).fetchall()
    assert (keyless, loose) == ([], [])


def test_hashed_bytes_are_kept_as_bytes(superuser: Connection) -> None:
    """What is hashed is hashed as stored; json in a column would be a serialisation of somebody else's."""
    found = superuser.execute(
        "select table_name || '.' || column_name from information_schema.columns "
        "where table_schema = 'public' and data_type in ('json', 'jsonb', 'double precision', 'real')"
    ).fetchall()
    assert found == []


# --- the self-test of a start -----------------------------------------------------------------------------------------


def refusal(url: str) -> OperatorError:
    store = Database(url, pool=1)
    try:
        with pytest.raises(OperatorError) as caught:
            store.self_test()
        return caught.value
    finally:
        store.close()


def test_the_application_login_passes(database: postgres.Database, superuser: Connection) -> None:
    store = Database(database.app_url, pool=1)
    store.self_test()
    assert store.ping() > 1_700_000_000
    store.close()


def test_a_superuser_is_refused(
    database: postgres.Database, superuser: Connection, postgres_server: postgres.Postgres
) -> None:
    error = refusal(postgres_server.url(postgres.SUPERUSER, database.name))
    assert (error.code, error.field) == ("unsafe_role", "TWOKEYS_DATABASE_URL")
    assert "postgres" in str(error)
    assert "neither superuser nor BYPASSRLS" in str(error)


def test_the_owner_is_refused_although_it_sees_nothing(
    fresh_database: postgres.Database, database: postgres.Database
) -> None:
    """The owner can switch row-level security off; an empty database must not hide that."""
    for url in (database.owner_url, fresh_database.owner_url):
        error = refusal(url)
        assert (error.code, error.field) == ("unsafe_role", "TWOKEYS_DATABASE_URL")
        assert "twokeys_owner" in str(error)
        assert "only a member of tk_app" in str(error)


@pytest.mark.parametrize("right", ["bypassrls", "superuser"])
def test_a_login_with_too_many_rights_is_refused(
    fresh_database: postgres.Database, postgres_server: postgres.Postgres, superuser: Connection, right: str
) -> None:
    superuser.execute(sql.SQL("create role strong login {} in role tk_app").format(sql.SQL(right)))
    try:
        superuser.execute(sql.SQL("grant connect on database {} to strong").format(sql.Identifier(fresh_database.name)))
        assert refusal(postgres_server.url("strong", fresh_database.name)).code == "unsafe_role"
    finally:
        superuser.execute(sql.SQL("revoke all on database {} from strong").format(sql.Identifier(fresh_database.name)))
        superuser.execute("drop role strong")


@pytest.mark.parametrize("filled", [False, True])
def test_a_login_that_inherits_the_dispatcher_is_refused(
    fresh_database: postgres.Database, postgres_server: postgres.Postgres, superuser: Connection, filled: bool
) -> None:
    """It would see every tenant's work; whether there are rows today decides nothing."""
    name = fresh_database.name
    superuser.execute("create role wide login in role tk_app, tk_dispatch")
    try:
        superuser.execute(sql.SQL("grant connect on database {} to wide").format(sql.Identifier(name)))
        if filled:
            with psycopg.connect(postgres_server.url(postgres.SUPERUSER, name)) as connection:
                catalog.fill(connection, "a")
        error = refusal(postgres_server.url("wide", name))
        assert (error.code, error.field) == ("unsafe_role", "TWOKEYS_DATABASE_URL")
        assert "tk_app" in error.next_step
    finally:
        superuser.execute(sql.SQL("revoke all on database {} from wide").format(sql.Identifier(name)))
        superuser.execute("drop role wide")


def test_rows_that_are_visible_for_any_other_reason_are_found(
    fresh_database: postgres.Database, postgres_server: postgres.Postgres
) -> None:
    """A policy that somebody added by hand."""
    with psycopg.connect(postgres_server.url(postgres.SUPERUSER, fresh_database.name)) as connection:
        catalog.fill(connection, "a")
        connection.execute("create policy oops on person to tk_app using (true)")
    error = refusal(fresh_database.app_url)
    assert error.code == "unsafe_role"
    assert "rows of person are visible without a tenant" in str(error)


def test_a_schema_of_another_release_is_refused_with_what_to_do(fresh_database: postgres.Database) -> None:
    with psycopg.connect(fresh_database.owner_url) as connection:
        connection.execute("update alembic_version set version_num = '0000'")
    error = refusal(fresh_database.app_url)
    assert (error.code, error.next_step) == ("not_migrated", "run `twokeys migrate`")
    assert "0000" in str(error)


def test_an_empty_database_is_refused_with_what_to_do(empty_database: postgres.Database) -> None:
    error = refusal(empty_database.app_url)
    assert (error.code, error.next_step) == ("not_migrated", "run `twokeys migrate`")


def test_a_database_that_does_not_answer_is_an_error_without_a_password() -> None:
    error = refusal("postgresql://app:hunter2-secret@127.0.0.1:1/none")
    assert error.code == "database"
    assert "hunter2" not in str(error)
