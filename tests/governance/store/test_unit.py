"""A unit is one transaction: what it reads is of one moment when it only reads."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from engine.errors import Conflict
from governance.local import postgres
from governance.store import unit
from governance.store.unit import Database

COUNT = "select count(*) from tenant where tenant = :tenant"


def test_a_unit_that_only_reads_sees_one_moment(database: postgres.Database) -> None:
    """Rows and the summary of rows must agree, though somebody writes between the two questions."""
    store = Database(database.app_url)
    try:
        with store.unit("moment", write=False) as reading:
            assert reading.one(COUNT) == (0,)
            with store.unit("moment") as writing:
                writing.run("insert into tenant (tenant, name, environment, salt_key) values (:tenant, 'M', 'dev', '')")
            assert reading.one(COUNT) == (0,)
        with store.unit("moment", write=False) as reading:
            assert reading.one(COUNT) == (1,)
    finally:
        store.close()


def test_the_queue_and_the_sequencer_wait_for_nobody_for_long(
    database: postgres.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that somebody holds, or a statement that finds no end, stops one step of theirs and not the process."""
    monkeypatch.setattr(unit, "across_lock_seconds", 0.1)
    monkeypatch.setattr(unit, "across_statement_seconds", 0.3)
    store = Database(database.app_url)
    held = sa.text("select 1 from audit_head where tenant = 'held' for update")
    try:
        with store.unit("held") as writing:
            writing.run("insert into tenant (tenant, name, environment, salt_key) values (:tenant, 'H', 'dev', '')")
            writing.run("insert into audit_head (tenant) values (:tenant)")
        with store.across("tk_sequencer", "held") as first:
            first.execute(held).one()
            with pytest.raises(Conflict, match="being changed"), store.across("tk_sequencer", "held") as second:
                second.execute(held)
        with pytest.raises(Conflict, match="being changed"), store.across("tk_dispatch") as third:
            third.execute(sa.text("select pg_sleep(30)"))
    finally:
        store.close()
