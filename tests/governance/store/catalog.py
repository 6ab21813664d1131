"""What the database itself says it holds, and one plausible row for every table, so that no list has to be kept by hand."""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg import sql

# Tables that no tenant owns, and why.
UNOWNED = {"alembic_version": "the schema's own revision"}

_columns = """
select a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.atthasdef, a.attidentity::text
  from pg_attribute a where a.attrelid = %s::regclass and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
_checks = "select pg_get_constraintdef(oid) from pg_constraint where contype = 'c' and conrelid = %s::regclass"
_values: dict[str, Any] = {
    "bytea": b"\x01" * 32,
    "integer": 1,
    "bigint": 1,
    "boolean": False,
    "timestamp with time zone": "2026-01-01T00:00:00+00:00",
    "bytea[]": [],
    "text[]": [],
}


def tables(connection: psycopg.Connection[Any]) -> list[str]:
    """Every table of the schema."""
    found = connection.execute(
        "select relname from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') order by 1"
    )
    return [row[0] for row in found]


def views(connection: psycopg.Connection[Any]) -> list[str]:
    """Every view of the schema, stored ones included."""
    found = connection.execute(
        "select relname from pg_class where relnamespace = 'public'::regnamespace and relkind in ('v', 'm') order by 1"
    )
    return [row[0] for row in found]


def row_for(connection: psycopg.Connection[Any], table: str, tenant: str) -> dict[str, Any]:
    """A row that satisfies every check of this table; the first value a check lists is taken."""
    checks = " ".join(row[0] for row in connection.execute(_checks, (table,)))
    row: dict[str, Any] = {}
    for name, kind, needed, has_default, identity in connection.execute(_columns, (table,)):
        if identity == "a" or (has_default and not needed):
            continue
        listed = re.search(rf"\({name} = ANY \(ARRAY\['([^']+)'", checks)
        if name == "tenant":
            row[name] = tenant
        elif listed:
            row[name] = listed.group(1)
        elif needed:
            # A value of another tenant never collides in a key that the tenant does not lead.
            row[name] = _values.get(kind, f"{table}-{tenant}")
    return row


def insert(connection: psycopg.Connection[Any], table: str, row: dict[str, Any]) -> None:
    """Insert one row as whoever is connected."""
    connection.execute(
        sql.SQL("insert into {} ({}) values ({})").format(
            sql.Identifier(table),
            sql.SQL(", ").join(map(sql.Identifier, row)),
            sql.SQL(", ").join(sql.Placeholder() * len(row)),
        ),
        list(row.values()),
    )


def fill(connection: psycopg.Connection[Any], *tenants: str) -> list[str]:
    """As superuser: one row of each tenant in every owned table, past foreign keys and triggers. The owned tables."""
    owned = [name for name in tables(connection) if name not in UNOWNED]
    with connection.transaction():
        connection.execute("set local session_replication_role = replica")
        for table in owned:
            for tenant in tenants:
                insert(connection, table, row_for(connection, table, tenant))
    return owned


def enter(connection: psycopg.Connection[Any], tenant: str) -> None:
    """See this tenant until the transaction ends."""
    connection.execute("select set_config('tk.tenant', %s, true)", (tenant,))


def count(connection: psycopg.Connection[Any], table: str) -> int:
    """The rows that whoever is connected sees."""
    found = connection.execute(sql.SQL("select count(*) from {}").format(sql.Identifier(table))).fetchone()
    assert found is not None
    return int(found[0])
