"""S003-6.2 as the application meets it: what it may not write is refused by the database, statement by statement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors

from governance.local import postgres
from tests.governance.store import catalog

Connection = psycopg.Connection[Any]

# Only the sequencer writes the log and its head; what was stored once stays as it is; a permit's and a key's ground too.
REFUSED = {
    "an entry of the log": "insert into entry (tenant, position, chain, chain_seq, body, leaf) values ('a', 9, 'x', 0, 'a', 'b')",
    "a node of the tree": "insert into node (tenant, level, position, hash) values ('a', 1, 9, 'x')",
    "an entry's bytes": "update entry set body = 'x'",
    "an entry on its way": "update entry_pending set body = 'x'",
    "an entry that vanishes": "delete from entry_pending",
    "a checkpoint": "insert into checkpoint (tenant, size, root, frontier) values ('a', 9, 'x', '{}')",
    "a checkpoint's root": "update checkpoint set root = 'x'",
    "a checkpoint's frontier": "update checkpoint set frontier = '{}'",
    "the head's size": "update audit_head set size = 0",
    "the head's frontier": "update audit_head set frontier = '{}'",
    "the head": "delete from audit_head",
    "a payload": "update payload set body = 'x'",
    "a policy": "update policy set bundle = 'x'",
    "a policy's digest": "update policy set bundle_sha256 = 'x'",
    "a policy's name": "update policy set revision = 'x'",
    "a definition": "update template set body = 'x'",
    "a definition's digest": "update template set digest = 'x'",
    "a public key": "update signing_key set public = 'x'",
    "a private key": "update signing_key set sealed = 'x'",
    "a key that vanishes": "delete from signing_key",
    "where an identity leads": "update route set tenant = 'a'",
    "an identity that leads nowhere": "delete from route",
}  # fmt: skip
ALLOWED = {
    "an entry on its way": "insert into entry_pending (tenant, chain, chain_seq, body, leaf) values ('a', 'new', 0, 'x', 'y')",
    "a policy's state": "update policy set state = 'retired'",
    "a definition's state": "update template set state = 'archived'",
    "a key's state": "update signing_key set state = 'retired'",
    "when a checkpoint was published": "update checkpoint set published_at = clock_timestamp()",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def filled(database: postgres.Database, postgres_server: postgres.Postgres) -> None:
    with psycopg.connect(postgres_server.url(postgres.SUPERUSER, database.name)) as connection:
        catalog.fill(connection, "a")


@pytest.fixture
def app(database: postgres.Database) -> Iterator[Connection]:
    with psycopg.connect(database.app_url) as connection:
        catalog.enter(connection, "a")
        yield connection
        connection.rollback()


@pytest.mark.parametrize("what", REFUSED)
def test_the_application_may_not_write(app: Connection, what: str) -> None:
    with pytest.raises(errors.InsufficientPrivilege, match="permission denied"), app.transaction():
        app.execute(REFUSED[what])


@pytest.mark.parametrize("what", ALLOWED)
def test_the_application_may_write(app: Connection, what: str) -> None:
    assert app.execute(ALLOWED[what]).rowcount == 1


def test_the_sequencer_may_not_rewrite_what_it_wrote(app: Connection) -> None:
    app.execute("set local role tk_sequencer")
    for statement in (
        "update entry set body = 'x'",
        "delete from entry",
        "update checkpoint set root = 'x'",
        "delete from checkpoint",
    ):
        with pytest.raises(errors.InsufficientPrivilege), app.transaction():
            app.execute(statement)
