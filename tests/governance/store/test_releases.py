"""The release before works on while and after each migration: nothing it uses goes away, and no lock is waited for long."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from engine.errors import OperatorError
from governance import clock
from governance.local import postgres
from governance.store import migrate
from tests.kit.servers import Databases

ROOT = Path(__file__).resolve().parents[3]
FIRST = "0001"
NEXT = '''"""A revision of this test's own."""

revision, down_revision = "9999", {before!r}


def upgrade() -> None:
    from alembic import op

    op.execute("{sql}")
'''

COLUMNS = """
select c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.atthasdef or a.attidentity <> ''
  from pg_attribute a join pg_class c on c.oid = a.attrelid
 where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'v') and a.attnum > 0 and not a.attisdropped
"""
FUNCTIONS = """
select p.oid::regprocedure::text, pg_get_function_result(p.oid) from pg_proc p where p.pronamespace = 'public'::regnamespace
"""
RIGHTS = """
select grantee, table_name, privilege_type from information_schema.role_table_grants where table_schema = 'public' and grantee like 'tk_%'
union all
select grantee, table_name || '.' || column_name, privilege_type from information_schema.column_privileges
 where table_schema = 'public' and grantee like 'tk_%'
"""
# What the first release asks most often, each under the role that asks it.
HOT = (
    ("tk_app", "select set_config('tk.tenant', $1, true), set_config('lock_timeout', $2, true)"),
    ("tk_app", "select tenant, run, workflow, version, definition, state, events, head, chain_seq, chain_head, writes, ended_at from run "
               "where tenant = $1 and run = $2"),
    ("tk_app", "select digest, body from payload where tenant = $1 and run = $2"),
    ("tk_app", "select events, body, sha256 from snapshot where tenant = $1 and run = $2"),
    ("tk_app", "select first_seq, events, body from journal where tenant = $1 and run = $2 order by first_seq"),
    ("tk_app", "insert into work (tenant, run, item, stage, workspace, state, rank) values ($1, $2, '', 'advance', $3, 'ready', $4)"),
    ("tk_app", "select commit_facts($1)"),
    ("tk_app", "update work set state = 'ready', owner = '', faults = faults + 1 where tenant = $1 and owner = $2 and epoch = $3"),
    ("tk_dispatch", "select tenant, run, item, stage, state from work where stage <> 'seal' and ((state = 'ready' and eligible_at <= "
                    "clock_timestamp()) or (state = 'leased' and lease_until < clock_timestamp())) order by rank limit $1 "
                    "for update skip locked"),
    ("tk_dispatch", "update work w set state = 'leased', owner = $1, epoch = $2, lease_until = clock_timestamp() where w.tenant = $3"),
    ("tk_dispatch", "select tenant, kind, ref from due where at <= clock_timestamp() order by at limit $1"),
    ("tk_dispatch", "select tenant from route where kind = $1 and ref = $2"),
)  # fmt: skip


def revisions(config: Config) -> list[str]:
    """Oldest first."""
    return [one.revision for one in reversed(list(ScriptDirectory.from_config(config).walk_revisions()))]


def to(database: postgres.Database, config: Config, revision: str) -> None:
    """Bring a database to a revision that need not be the newest."""
    engine = sa.create_engine(migrate.driver_url(database.owner_url), poolclass=sa.NullPool)
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        connection.commit()
    engine.dispose()


def looked(database: postgres.Database, sql: str) -> set[tuple[Any, ...]]:
    with psycopg.connect(database.owner_url) as connection:
        return {tuple(row) for row in connection.execute(sql).fetchall()}


def missed(before: dict[str, set[tuple[Any, ...]]], after: dict[str, set[tuple[Any, ...]]]) -> list[str]:
    """What a release that knows `before` would miss, or could not fill in, afterwards."""
    kept = {row[:3] for row in after["columns"]}
    found = [f"{table}.{column} is gone or of another type" for table, column, kind, *_ in before["columns"]
             if (table, column, kind) not in kept]  # fmt: skip
    known = {row[0] for row in before["columns"]}
    named = {row[:2] for row in before["columns"]}
    found += [
        f"{table}.{column} is new and must be given a value"
        for table, column, _, needed, has_default in after["columns"]
        if table in known and (table, column) not in named and needed and not has_default
    ]
    found += [f"{name} is gone or gives something else" for name, _ in sorted(before["functions"] - after["functions"])]
    return found + [f"{' '.join(right)} was taken away" for right in sorted(before["rights"] - after["rights"])]


def catalog(database: postgres.Database) -> dict[str, set[tuple[Any, ...]]]:
    return {
        "columns": looked(database, COLUMNS),
        "functions": looked(database, FUNCTIONS),
        "rights": looked(database, RIGHTS),
    }


def ask_all(database: postgres.Database, server: postgres.Postgres) -> None:
    """Every hot statement of the first release can be planned, under its role and with the rights that role has."""
    with psycopg.connect(server.url(postgres.SUPERUSER, database.name)) as connection:
        for role, sql in HOT:
            connection.execute(f"set local role {role}")
            connection.execute(f"explain (generic_plan) {sql}")
            connection.execute("reset role")


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The product's migrations in a place where one more can be put."""
    shutil.copytree(ROOT / "migrations", tmp_path / "migrations", ignore=shutil.ignore_patterns("__pycache__"))
    config = Config()
    config.set_main_option("script_location", str(tmp_path / "migrations"))
    monkeypatch.setattr(migrate, "_config", lambda: config)
    return tmp_path / "migrations" / "versions"


def one_more(scripts: Path, sql: str) -> None:
    (scripts / "9999_more.py").write_text(NEXT.format(before=migrate.head(), sql=sql))


@pytest.fixture
def first(databases: Databases) -> Iterator[postgres.Database]:
    """A database as the first release made it, with a run that is open."""
    made = databases.empty()
    to(made, migrate._config(), FIRST)
    with psycopg.connect(databases.server.url(postgres.SUPERUSER, made.name)) as connection:
        connection.execute("insert into tenant (tenant, name, environment, salt_key) values ('t', 'T', 'dev', '\\x00')")
        connection.execute("insert into workspace (tenant, workspace, name) values ('t', 'w', 'W')")
        connection.execute(
            "insert into work (tenant, run, item, stage, workspace, state, rank) values ('t', 'r', '', 'advance', 'w', 'ready', 1)"
        )
    yield made
    databases.drop(made)


def test_the_release_before_works_on_while_and_after_each_migration(
    first: postgres.Database, postgres_server: postgres.Postgres
) -> None:
    """Step by step: nothing that it uses is gone, nothing new must be filled in, and its statements still run."""
    ask_all(first, postgres_server)
    before = catalog(first)
    for revision in revisions(migrate._config())[1:]:
        to(first, migrate._config(), revision)
        after = catalog(first)
        assert missed(before, after) == [], revision
        ask_all(first, postgres_server)
        before = after
    assert migrate.upgrade(first.owner_url, postgres.APP_ROLE) == migrate.head()
    with psycopg.connect(postgres_server.url(postgres.SUPERUSER, first.name)) as connection:
        assert connection.execute("select tenant, run, state from work").fetchall() == [("t", "r", "ready")]


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("alter table work drop column faults", "work.faults is gone or of another type"),
        ("alter table work rename column faults to failures", "work.faults is gone or of another type"),
        ("alter table work alter column faults type bigint", "work.faults is gone or of another type"),
        ("alter table work add column cost int not null", "work.cost is new and must be given a value"),
        ("drop function commit_facts", "is gone or gives something else"),
        ("revoke insert on work from tk_app", "tk_app work INSERT was taken away"),
    ],
)
def test_a_migration_that_would_break_the_release_before_is_found(
    first: postgres.Database, postgres_server: postgres.Postgres, sql: str, text: str
) -> None:
    """The check bites."""
    before = catalog(first)
    with psycopg.connect(postgres_server.url(postgres.SUPERUSER, first.name)) as connection:
        if "not null" in sql:
            connection.execute("delete from work")
        connection.execute(sql)
    assert any(text in one for one in missed(before, catalog(first)))


def test_a_migration_waits_no_longer_than_its_lock_timeout_and_leaves_nothing_half_done(
    empty_database: postgres.Database, scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction of the release before is open on the table: it says so, changes nothing, and works when it is tried again."""
    monkeypatch.setattr(migrate, "lock_seconds_max", 1.0)
    before = migrate.upgrade(empty_database.owner_url, postgres.APP_ROLE)
    one_more(scripts, "alter table work add column cost int not null default 1")
    with psycopg.connect(empty_database.app_url) as open_one:
        open_one.execute("select count(*) from work")
        begun = clock.monotonic()
        with pytest.raises(OperatorError, match="a table was in use for longer than 1 s") as caught:
            migrate.upgrade(empty_database.owner_url, postgres.APP_ROLE)
        assert clock.monotonic() - begun < 10
        assert caught.value.code == "busy"
        # Whoever comes after is not queued up behind it, and the revision is the one from before.
        open_one.execute("select count(*) from work")
    assert looked(empty_database, "select version_num from alembic_version") == {(before,)}
    assert migrate.upgrade(empty_database.owner_url, postgres.APP_ROLE) == "9999"
