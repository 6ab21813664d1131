"""The private PostgreSQL: its roles, its door, its restarts, and what a kill leaves."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import psycopg
import pytest

from engine.errors import OperatorError
from governance.local import postgres
from governance.local.children import Children
from tests.kit.servers import Databases


@pytest.fixture
def place(state_directory: Path, request: pytest.FixtureRequest) -> Path:
    """A state directory of this test's own, reachable for the server's user."""
    directory = state_directory / f"pg-{abs(hash(request.node.name)) % 10**8}"
    directory.mkdir()
    directory.chmod(0o711)
    return directory


def test_the_two_roles_are_what_the_product_expects(empty_database: postgres.Database) -> None:
    """The owner may make roles; neither may pass row level security or is a superuser."""
    query = (
        "SELECT rolname, rolsuper, rolbypassrls, rolcreaterole FROM pg_roles WHERE rolname LIKE 'twokeys_%' ORDER BY 1"
    )
    with psycopg.connect(empty_database.app_url) as connection:
        assert connection.execute(query).fetchall() == [
            ("twokeys_app", False, False, False),
            ("twokeys_owner", False, False, True),
        ]
        assert connection.execute("SELECT current_user").fetchone() == ("twokeys_app",)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("CREATE TABLE mine (id int)")


def test_the_owner_may_make_the_dispatch_role_and_lend_it(empty_database: postgres.Database) -> None:
    with psycopg.connect(empty_database.owner_url) as connection:
        connection.execute("CREATE TABLE owned (id int)")
        connection.execute("CREATE ROLE lent NOLOGIN")
        connection.execute("GRANT lent TO twokeys_app WITH INHERIT FALSE, SET TRUE")
        connection.rollback()


def test_there_is_no_tcp_port_and_the_socket_is_closed_to_others(postgres_server: postgres.Postgres) -> None:
    assert postgres_server.sql("SHOW listen_addresses") == ""
    directory = Path(postgres_server.sql("SHOW unix_socket_directories"))
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / ".s.PGSQL.5432").stat().st_mode) == 0o700


def test_only_the_supervising_user_may_log_in(postgres_server: postgres.Postgres) -> None:
    """The access rules name one operating system user; nothing is trusted."""
    data = Path(postgres_server.sql("SHOW data_directory"))
    assert (data / "pg_hba.conf").read_text() == "local all all peer map=supervisor\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has another user to run the server as")
def test_started_by_root_it_runs_as_somebody_else(postgres_server: postgres.Postgres) -> None:
    status = Path(f"/proc/{postgres_server.child.pid}/status").read_text()
    [uids] = [line for line in status.splitlines() if line.startswith("Uid:")]
    assert "\t0" not in uids


def test_what_was_committed_is_there_after_a_restart_and_after_a_kill(place: Path, tmp_path: Path) -> None:
    """Also when the killed server left its lock file; a supervisor of another session starts it again."""
    with Children(tmp_path / "one") as children:
        server = postgres.start(children, place, durable=False)
        database = server.create_application()
        with psycopg.connect(database.owner_url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
        data = Path(server.sql("SHOW data_directory"))
        children.kill(server.child)
        assert (data / "postmaster.pid").exists()
        server = postgres.start(children, place, durable=False)
        assert server.sql("SELECT n FROM kept", database="twokeys") == "7"
    with Children(tmp_path / "two") as children:
        again = postgres.start(children, place, durable=False)
        assert again.create_application() == database
        assert again.sql("SELECT n FROM kept", database="twokeys") == "7"


def test_a_lock_file_that_names_another_process_is_stale(place: Path, tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        data = Path(postgres.start(children, place, durable=False).sql("SHOW data_directory"))
        children.stop_all()
        (data / "postmaster.pid").write_text(f"{os.getpid()}\n{data}\n0\n5432\n\n\n\nready\n")
        assert postgres.start(children, place, durable=False).sql("SELECT 1") == "1"


def test_a_state_directory_in_use_is_refused(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "TAKE_OVER_SECONDS", 0.2)
    with Children(tmp_path / "one") as first, Children(tmp_path / "two") as second:
        postgres.start(first, place, durable=False)
        with pytest.raises(OperatorError, match="is in use by process"):
            postgres.start(second, place)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands the data to another user")
def test_a_place_the_other_user_cannot_reach_is_remembered_elsewhere(place: Path, tmp_path: Path) -> None:
    place.chmod(0o700)
    with Children(tmp_path) as children:
        server = postgres.start(children, place, durable=False)
        home = Path((place / "postgres.path").read_text().strip())
        assert server.home == home
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        server.create_application()
        server.stop()
        assert "twokeys" in postgres.start(children, place, durable=False).sql("SELECT datname FROM pg_database")
    shutil.rmtree(home)
    with Children(tmp_path) as children, pytest.raises(OperatorError, match="is gone"):
        postgres.start(children, place, durable=False)


def test_a_long_path_still_gets_a_socket(state_directory: Path, tmp_path: Path) -> None:
    deep = state_directory / ("x" * 90)
    deep.mkdir()
    with Children(tmp_path) as children:
        server = postgres.start(children, deep, durable=False)
        directory = Path(server.sql("SHOW unix_socket_directories"))
        assert len(str(directory)) < 60
    directory.rmdir()


def test_a_clone_has_what_its_template_has(databases: Databases, postgres_server: postgres.Postgres) -> None:
    template = databases.empty()
    with psycopg.connect(template.owner_url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
        connection.execute("GRANT SELECT ON kept TO twokeys_app")
    clone = databases.clone(template.name)
    with psycopg.connect(clone.app_url) as connection:
        assert connection.execute("SELECT n FROM kept").fetchone() == (7,)
    databases.drop(clone)
    databases.drop(template)
    assert clone.name not in postgres_server.sql("SELECT datname FROM pg_database")


def test_a_test_module_gets_a_migrated_database_of_its_own(database: postgres.Database) -> None:
    """The fixture that the other tests build on: at the newest revision, and the application's role may read it."""
    with psycopg.connect(database.app_url) as connection:
        assert connection.execute("SELECT count(*) FROM alembic_version").fetchone() == (1,)
        assert connection.execute("SELECT pg_has_role('twokeys_app', 'tk_app', 'usage')").fetchone() == (True,)


def test_a_name_that_is_not_plain_is_refused(postgres_server: postgres.Postgres) -> None:
    with pytest.raises(OperatorError, match="not a plain"):
        postgres_server.create_application("a; DROP DATABASE b")
