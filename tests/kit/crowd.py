"""A database with a past: one finished run of a tenant, copied as often as is asked, so that plans and rows read can be looked at."""

from __future__ import annotations

import psycopg
from psycopg import sql

from governance.local import postgres

# Columns that name a row of a run; in a copy each carries the copy's number, so that nothing collides and all still agree.
NAMING = ("run", "root", "chain", "key", "approval", "trigger_ref", "task", "execution_key")
# What is only there while something waits; a finished run has none of it but its seal.
PENDING = ("work", "due", "outbox", "outbox_due", "entry_pending", "place", "inbox")

_columns = """
select c.relname::text, array_agg(a.attname::text order by a.attnum), array_agg(format_type(a.atttypid, a.atttypmod) order by a.attnum)
  from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
 where c.relnamespace = 'public'::regnamespace and c.relkind = 'r' and c.relname <> all(%s)
 group by 1 having bool_or(a.attname = 'run') or bool_or(a.attname in ('chain', 'approval')) order by 1
"""


def copy_run(
    server: postgres.Postgres, database: postgres.Database, tenant: str, run: str, times: int, *, alive: bool = False
) -> list[str]:
    """So many copies of this run and everything about it, two days old or, when `alive`, as it is; the tables that have grown."""
    grown = []
    with psycopg.connect(server.url(postgres.SUPERUSER, database.name), autocommit=True) as connection:
        connection.execute("set session_replication_role = replica")
        connection.execute("set synchronous_commit = off")
        tables = connection.execute(_columns, (list(PENDING),)).fetchall()
        for table, columns, kinds in tables:
            which = "run" if "run" in columns else "chain" if "chain" in columns else "approval"
            mine = (
                sql.SQL("select approval from approval where tenant = {} and run = {}").format(tenant, run)
                if which == "approval"
                else sql.Literal(run)
            )
            values = [(_alive if alive else _value)(name, kind) for name, kind in zip(columns, kinds, strict=True)]
            statement = sql.SQL(
                "insert into {} ({}) select {} from {} s, generate_series(1, {}) as many (copy_n) where s.tenant = {} and s.{} in ({})"
            )
            done = connection.execute(
                statement.format(
                    sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, columns)), sql.SQL(", ").join(values),
                    sql.Identifier(table), sql.Literal(times), sql.Literal(tenant), sql.Identifier(which), mine,
                )
            )  # fmt: skip
            if done.rowcount:
                grown.append(table)
        connection.execute("vacuum analyze")
    return grown


def _alive(name: str, kind: str) -> sql.Composable:
    """The copy waits as the run does: its payloads stay whole, its clocks stand, and its approvals have names of their own."""
    if name == "approval":
        column = sql.SQL("s.{}").format(sql.Identifier(name))
        return sql.SQL("case when {0} = '' then '' else 'ap_' || left(md5({0} || copy_n), 16) end").format(column)
    return (
        sql.SQL("s.{}").format(sql.Identifier(name))
        if kind in ("bytea", "timestamp with time zone")
        else _value(name, kind)
    )


def _value(name: str, kind: str) -> sql.Composable:
    column = sql.SQL("s.{}").format(sql.Identifier(name))
    if name in NAMING and kind == "text":
        return sql.SQL("case when {0} = '' then '' else {0} || '-' || copy_n end").format(column)
    if name == "position":
        return sql.SQL("1000000 + copy_n::bigint * 1000 + {}").format(column)
    if kind == "bytea":  # a digest stays whole, and of the rest nobody reads more than that it is there
        return sql.SQL("substring({} from 1 for 32)").format(column)
    if kind == "timestamp with time zone":
        return sql.SQL("{} - interval '2 days' - copy_n * interval '1 millisecond'").format(column)
    return column
