"""From nothing to head as an owner who is no superuser: once, again without a change, and two at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from engine.errors import OperatorError
from governance.local import postgres
from governance.local.children import Children
from governance.store import migrate
from governance.store.unit import Database
from tests.kit import wait

# Everything that a migration makes: relations and their columns, rights, keys, policies, triggers, functions, roles.
FINGERPRINT = """
select 'relation', c.relname::text, c.relkind::text, coalesce(c.relacl::text, ''), c.relrowsecurity::text || c.relforcerowsecurity::text,
       coalesce(c.reloptions::text, ''), c.xmin::text
  from pg_class c where c.relnamespace = 'public'::regnamespace
union all select 'column', a.attrelid::regclass::text, a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull::text, '',
       a.xmin::text
  from pg_attribute a join pg_class c on c.oid = a.attrelid where c.relnamespace = 'public'::regnamespace and a.attnum > 0
union all select 'constraint', conname::text, pg_get_constraintdef(oid), '', '', '', xmin::text
  from pg_constraint where connamespace = 'public'::regnamespace
union all select 'policy', tablename::text, policyname::text, roles::text, qual, coalesce(with_check, ''), '' from pg_policies
union all select 'trigger', tgrelid::regclass::text, pg_get_triggerdef(oid), '', '', '', xmin::text from pg_trigger where not tgisinternal
union all select 'function', proname::text, prosrc, '', '', '', xmin::text from pg_proc where pronamespace = 'public'::regnamespace
union all select 'member', roleid::regrole::text, member::regrole::text, inherit_option::text, set_option::text, admin_option::text, ''
  from pg_auth_members order by 1, 2, 3
"""


@pytest.fixture(scope="module")
def new_server(children: Children, state_directory: Path) -> Iterator[postgres.Postgres]:
    """A cluster where nobody has migrated anything: the roles are the cluster's, not a database's."""
    home = state_directory / "new"
    home.mkdir(mode=0o711)
    server = postgres.start(children, home, durable=False, name="postgres-new")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def first(new_server: postgres.Postgres) -> postgres.Database:
    """An empty database in that cluster, migrated by nobody yet."""
    return new_server.create_application("first")


def fingerprint(database: postgres.Database) -> list[tuple[Any, ...]]:
    with psycopg.connect(database.owner_url) as connection:
        return connection.execute(FINGERPRINT).fetchall()


def test_from_nothing_to_head_and_then_no_change(first: postgres.Database) -> None:
    with psycopg.connect(first.owner_url) as connection:
        rights = connection.execute(
            "select rolsuper, rolcreaterole, rolbypassrls from pg_roles where rolname = current_user"
        ).fetchone()
        assert rights == (False, True, False)
        assert connection.execute("select count(*) from pg_roles where rolname like 'tk\\_%'").fetchone() == (0,)
        connection.execute("select 1")
    assert migrate.upgrade(first.owner_url, postgres.APP_ROLE) == migrate.head()
    made = fingerprint(first)
    assert len([row for row in made if row[0] == "policy"]) > 40
    store = Database(first.app_url, pool=1)
    store.self_test()
    store.close()
    assert migrate.upgrade(first.owner_url, postgres.APP_ROLE) == migrate.head()
    again = [row for row in fingerprint(first) if row not in made]
    # The one statement that is repeated grants what is granted already, which leaves the same rights.
    assert {row[1] for row in again} <= {"alembic_version"}
    assert {row[:6] for row in fingerprint(first)} == {row[:6] for row in made}


def test_a_second_database_of_the_same_cluster_finds_the_roles(
    new_server: postgres.Postgres, first: postgres.Database
) -> None:
    migrate.upgrade(first.owner_url, postgres.APP_ROLE)
    second = new_server.create_application("second")
    assert migrate.upgrade(second.owner_url, postgres.APP_ROLE) == migrate.head()
    store = Database(second.app_url, pool=1)
    store.self_test()
    store.close()


def test_two_at_once_migrate_once(empty_database: postgres.Database) -> None:
    barrier = threading.Barrier(3)

    def go() -> str:
        barrier.wait()
        return migrate.upgrade(empty_database.owner_url, postgres.APP_ROLE)

    with ThreadPoolExecutor(3) as pool:
        done = [one.result(timeout=30) for one in [pool.submit(go) for _ in range(3)]]
    assert done == [migrate.head()] * 3
    with psycopg.connect(empty_database.owner_url) as connection:
        assert connection.execute("select version_num from alembic_version").fetchall() == [(migrate.head(),)]


def test_a_migration_waits_for_the_one_before_it(empty_database: postgres.Database) -> None:
    """The lock is taken before the first look at the schema, and it is released at the end."""
    with ThreadPoolExecutor(1) as pool, psycopg.connect(empty_database.owner_url, autocommit=True) as other:
        other.execute("select pg_advisory_lock(%s)", (migrate._lock,))
        going = pool.submit(migrate.upgrade, empty_database.owner_url, postgres.APP_ROLE)
        waiting = (
            "select count(*) from pg_locks l join pg_database d on d.oid = l.database "
            "where l.locktype = 'advisory' and not l.granted and d.datname = current_database()"
        )
        wait.until(lambda: other.execute(waiting).fetchone() == (1,))
        assert not going.done()
        assert other.execute("select to_regclass('alembic_version')").fetchone() == (None,)
        other.execute("select pg_advisory_unlock(%s)", (migrate._lock,))
        assert going.result(timeout=30) == migrate.head()
        assert other.execute("select pg_try_advisory_lock(%s)", (migrate._lock,)).fetchone() == (True,)


def test_a_migration_that_fails_leaves_nothing_behind(
    empty_database: postgres.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One transaction per revision: the next try starts from where the last whole revision ended."""
    with psycopg.connect(empty_database.owner_url) as connection:
        connection.execute("create table vote (taken text)")
    with pytest.raises(Exception, match="vote"):
        migrate.upgrade(empty_database.owner_url, postgres.APP_ROLE)
    with psycopg.connect(empty_database.owner_url) as connection:
        assert connection.execute("select to_regclass('tenant'), to_regclass('run')").fetchone() == (None, None)
        connection.execute("drop table vote")
    assert migrate.upgrade(empty_database.owner_url, postgres.APP_ROLE) == migrate.head()


def test_an_owner_that_cannot_be_reached_is_an_error_that_names_the_setting() -> None:
    with pytest.raises(OperatorError, match="cannot reach the database") as caught:
        migrate.upgrade("postgresql://owner:hunter2-secret@127.0.0.1:1/none", postgres.APP_ROLE)
    assert caught.value.field == "TWOKEYS_MIGRATE_URL"
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg", "postgresql+psycopg2"])
def test_every_scheme_people_write_means_the_same_driver(scheme: str) -> None:
    assert migrate.driver_url(f"{scheme}://u:p@h/d") == "postgresql+psycopg://u:p@h/d"
