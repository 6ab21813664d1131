"""A unit is one transaction: what it reads is of one moment when it only reads."""

from __future__ import annotations

from governance.local import postgres
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
