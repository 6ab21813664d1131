"""Fixtures for the real servers and the stand-ins: started when first asked for, stopped when the session ends.

Each worker of xdist has its own servers, because starting one costs half a second and sharing one costs locks.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from governance import clock
from governance.local import desk as desk_room
from governance.local import postgres, s3
from governance.local.children import Children
from tests.kit.desk import BOT_TOKEN, PEOPLE, SIGNING_SECRET, Desk
from tests.kit.product import Product
from tests.kit.servicenow import ServiceNow

TEMPLATE = "twokeys_template"


@pytest.fixture(scope="session")
def state_directory() -> Iterator[Path]:
    """A directory with a short name that PostgreSQL's unprivileged user may walk through."""
    directory = Path(tempfile.mkdtemp(prefix="tk-"))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def children(state_directory: Path) -> Iterator[Children]:
    """The supervisor of this worker's servers."""
    with Children(state_directory / "logs") as supervisor:
        yield supervisor


@pytest.fixture(scope="session")
def postgres_server(children: Children, state_directory: Path) -> postgres.Postgres:
    return postgres.start(children, state_directory, durable=False)


@pytest.fixture(scope="session")
def migrated_template(postgres_server: postgres.Postgres) -> str:
    """The name of a database at the newest revision that nobody is connected to."""
    from governance.store import migrate

    made = postgres_server.create_application(TEMPLATE)
    migrate.upgrade(made.owner_url, postgres.APP_ROLE)
    return TEMPLATE


@dataclass
class Databases:
    """Makes databases and removes them again."""

    server: postgres.Postgres
    made: int = 0

    def empty(self) -> postgres.Database:
        self.made += 1
        return self.server.create_application(f"test_{self.made}")

    def clone(self, template: str) -> postgres.Database:
        self.made += 1
        return self.server.clone(template, f"test_{self.made}")

    def drop(self, database: postgres.Database) -> None:
        self.server.drop(database.name)


@pytest.fixture(scope="session")
def databases(postgres_server: postgres.Postgres) -> Databases:
    return Databases(postgres_server)


@pytest.fixture(scope="module")
def database(databases: Databases, migrated_template: str) -> Iterator[postgres.Database]:
    """A migrated database of this test module's own."""
    made = databases.clone(migrated_template)
    yield made
    databases.drop(made)


@pytest.fixture
def fresh_database(databases: Databases, migrated_template: str) -> Iterator[postgres.Database]:
    """A migrated database of this one test's own."""
    made = databases.clone(migrated_template)
    yield made
    databases.drop(made)


@pytest.fixture
def empty_database(databases: Databases) -> Iterator[postgres.Database]:
    """A database with its roles and without a schema."""
    made = databases.empty()
    yield made
    databases.drop(made)


@pytest.fixture(scope="session")
def s3_server(children: Children, state_directory: Path) -> s3.S3:
    return s3.start(children, state_directory)


@dataclass(frozen=True)
class Bucket:
    """A bucket with Object Lock and the account that may use it."""

    account: s3.Account
    name: str


@pytest.fixture(scope="module")
def bucket(s3_server: s3.S3) -> Bucket:
    """A bucket of this test module's own."""
    name = f"test-{clock.random_hex(6)}"
    s3_server.create_bucket(name)
    return Bucket(s3_server.account, name)


@pytest.fixture(scope="session")
def servicenow_server(children: Children, state_directory: Path) -> ServiceNow:
    return ServiceNow(children, state_directory)


@pytest.fixture
def servicenow(servicenow_server: ServiceNow) -> ServiceNow:
    """The stand-in as it was at first: its seed, no history, no planned faults, and running."""
    servicenow_server.restart_if_down()
    servicenow_server.reset()
    return servicenow_server


@pytest.fixture
def product() -> Iterator[Product]:
    """A listener in the product's place that records deliveries and answers as told."""
    with Product() as listening:
        yield listening


@pytest.fixture
def start_desk(children: Children, tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    """Start a desk that delivers to a URL: `start_desk(events_url, personas=...)`; it stops with the test."""
    started: list[Desk] = []

    def start(events_url: str, personas: tuple[desk_room.Persona, ...] = PEOPLE) -> Desk:
        workspace = desk_room.Workspace(events_url, SIGNING_SECRET, BOT_TOKEN, personas)
        desk = Desk(children, tmp_path, workspace)
        started.append(desk)
        return desk

    yield start
    for desk in started:
        desk.stop()


@pytest.fixture
def desk(start_desk: Callable[..., Desk], product: Product) -> Desk:
    """A desk that delivers to the `product` fixture."""
    return start_desk(product.url)
