"""One transaction, one tenant: the only way to a connection, the self-test of the roles, and the count of commits."""

from __future__ import annotations

import datetime
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from struct import pack
from typing import TYPE_CHECKING, Any, TypeAlias

import sqlalchemy as sa
from psycopg import DataError, IntegrityError, InternalError, OperationalError, adapters
from psycopg.adapt import Dumper
from psycopg.pq import Format
from sqlalchemy import event, exc

from engine.errors import CallerError, Conflict, OperatorError
from governance import clock, metrics
from governance.store.migrate import driver_url, head

if TYPE_CHECKING:
    from governance.store.case import Case

Row = Any
# Looks at a run in the transaction that has just written it, and raises when it may not be committed.
CommitCheck: TypeAlias = "Callable[[Unit, Case], None]"
# A process that is stopped in the middle of a transaction holds its locks, and a snapshot that nothing can be cleaned
# up behind, no longer than this. Nothing of ours waits for the outside inside a transaction.
idle_transaction_seconds_max = 20.0
idle_seconds_max = 1.0  # a connection that was idle for longer may have been cut, and is asked before it is used
# Parsed once; there are as many as the modules of this room write down.
_statement = functools.lru_cache(maxsize=1024)(sa.text)

# What a login could do past row-level security: by an attribute, as an owner of our tables, or by inheriting the dispatcher.
_rights = sa.text("""
select rolsuper, rolbypassrls, rolname,
       exists (select from pg_class c where c.relnamespace = current_schema()::regnamespace and c.relkind = 'r'
               and pg_has_role(c.relowner, 'member')),
       exists (select from pg_roles d where d.rolname in ('tk_dispatch', 'tk_sequencer') and pg_has_role(d.oid, 'usage'))
  from pg_roles where rolname = current_user
""")
# What the queue and the sequencer may wait for before they give up and come again.
across_lock_seconds = 4.0
across_statement_seconds = 30.0
_one_moment = sa.text("set transaction isolation level repeatable read, read only")
_enter = sa.text(
    "select set_config('tk.tenant', :tenant, true), set_config('lock_timeout', :lock, true), "
    "set_config('statement_timeout', :statement, true)"
)


class ByteStrings(list[bytes]):
    """Byte strings as one value of type bytea[], written in the form that the server keeps them in."""


class _ByteStringsDumper(Dumper):
    # The driver's own way with lists asks every item what it is, which costs more than all the rest of a call.
    format = Format.BINARY
    oid = 1001  # bytea[]

    def dump(self, obj: ByteStrings) -> bytes:
        parts = [pack("!iiIii", 1, 0, 17, len(obj), 1) if obj else pack("!iiI", 0, 0, 17)]
        for one in obj:
            parts += (len(one).to_bytes(4, "big"), one)
        return b"".join(parts)


adapters.register_dumper(ByteStrings, _ByteStringsDumper)


class Unit:
    """An open transaction that sees one tenant."""

    def __init__(self, connection: sa.Connection, tenant: str, check_commit: CommitCheck | None = None) -> None:
        self.tenant = tenant
        self.check_commit = check_commit
        self.noted: list[str] = []  # the types of the entries it adds, to be counted once they are committed
        self.rings = False
        self._connection = connection

    def ring(self) -> None:
        """What this transaction leaves is for whoever is free: they are woken once it is committed."""
        self.rings = True

    def run(self, sql: str, **values: Any) -> sa.CursorResult[Any]:
        """One statement; `:tenant` is always bound."""
        return self._connection.execute(_statement(sql), {"tenant": self.tenant, **values})

    def many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """One statement over rows, one round trip; nothing when there are none."""
        if rows:
            self._connection.execute(_statement(sql), [{"tenant": self.tenant, **row} for row in rows])

    def driver(self, sql: str, values: tuple[Any, ...]) -> Sequence[Row]:
        """Every row of a statement in the driver's own words: what is called for every step is not parsed again."""
        return self._connection.exec_driver_sql(sql, values).all()

    def one(self, sql: str, **values: Any) -> Row | None:
        """The first row or None."""
        return self.run(sql, **values).first()

    def all(self, sql: str, **values: Any) -> Sequence[Row]:
        """Every row."""
        return self.run(sql, **values).all()

    def now(self) -> datetime.datetime:
        """The database clock, which alone decides inside a lock."""
        moment = self.run("select clock_timestamp()").scalar_one()
        assert isinstance(moment, datetime.datetime)
        return moment.astimezone(datetime.UTC)


class Database:
    """PostgreSQL as the application role."""

    def __init__(
        self,
        url: str,
        *,
        pool: int = 8,
        check_commit: CommitCheck | None = None,
        ring: Callable[[], None] = lambda: None,
    ) -> None:
        """`ring` wakes the workers; `check_commit` sees every commit of a run before anybody else does, and is for tests."""
        self.check_commit = check_commit
        self.ring = ring
        self._engine = sa.create_engine(
            driver_url(url),
            pool_size=pool,
            max_overflow=pool,
            pool_timeout=5,
            hide_parameters=True,
            connect_args={
                "connect_timeout": 5,
                "options": f"-c idle_in_transaction_session_timeout={int(idle_transaction_seconds_max * 1000)}",
            },
        )
        # Statements that are a transaction by themselves have connections of their own, which never hold one open.
        self._single = sa.create_engine(
            driver_url(url),
            pool_size=pool // 2,
            max_overflow=pool // 2,
            pool_timeout=5,
            pool_use_lifo=True,
            hide_parameters=True,
            isolation_level="AUTOCOMMIT",
            connect_args={"connect_timeout": 5},
        )
        event.listen(self._single, "connect", _bounded)
        for engine in (self._engine, self._single):
            event.listen(engine, "checkin", _put_down)
            event.listen(engine, "checkout", self._take_up)
        # When a connection last broke: the server may be gone, and those made before are asked before they are used.
        self._broken_at = 0.0
        self._count = threading.Lock()
        self.commits = 0  # WAL-writing transactions, for the commit budget

    def _take_up(self, connection: Any, record: Any, _: object) -> None:
        idle_since = record.info.get("idle_since", 0.0)
        if idle_since < self._broken_at or clock.monotonic() - idle_since > idle_seconds_max:
            try:
                self._engine.dialect.do_ping(connection)
            except self._engine.dialect.loaded_dbapi.Error as error:
                raise exc.DisconnectionError from error  # the pool makes another

    @contextmanager
    def unit(
        self, tenant: str, *, write: bool = True, lock_seconds: float = 4, statement_seconds: float = 5
    ) -> Iterator[Unit]:
        """A transaction of this tenant: committed at the end, rolled back on any error. One that only reads sees one moment."""
        if not tenant:
            raise CallerError("a tenant is needed", field="tenant")
        with self._translated(), self._engine.begin() as connection:
            if not write:  # first, because a snapshot is taken with the first query
                connection.execute(_one_moment)
            connection.execute(
                _enter,
                {
                    "tenant": tenant,
                    "lock": f"{int(lock_seconds * 1000)}ms",
                    "statement": f"{int(statement_seconds * 1000)}ms",
                },
            )
            unit = Unit(connection, tenant, self.check_commit)
            yield unit
        metrics.recorded(Counter(unit.noted))
        if write:
            with self._count:
                self.commits += 1
        if unit.rings:
            self.ring()

    def call(self, sql: str, values: tuple[Any, ...], *, write: bool = True) -> Sequence[Row]:
        """One call of a function that sets the tenant first: a transaction by itself, in one round trip."""
        with self._translated(), closing(self._single.raw_connection()) as connection:
            try:
                cursor = connection.cursor()
                cursor.execute(sql, values)
                rows: Sequence[Row] = cursor.fetchall()
            except OperationalError:
                if getattr(connection.dbapi_connection, "closed", True):
                    connection.invalidate()
                    self._broken_at = clock.monotonic()
                raise
        if write:
            with self._count:
                self.commits += 1
        return rows

    @contextmanager
    def across(self, role: str, tenant: str = "") -> Iterator[sa.Connection]:
        """A transaction under one of the two roles that the dispatcher and the sequencer enter; used only by their two modules."""
        assert role in ("tk_dispatch", "tk_sequencer")
        with self._translated(), self._engine.begin() as connection:
            connection.execute(sa.text(f"set local role {role}"))
            bounds = {"lock": f"{across_lock_seconds}s", "statement": f"{across_statement_seconds}s"}
            connection.execute(_enter, {"tenant": tenant, **bounds})
            yield connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (exc.OperationalError, exc.InternalError, exc.TimeoutError, OperationalError, InternalError) as error:
            raise _operational(error) from error
        except (exc.DataError, DataError) as error:
            raise CallerError(f"a value cannot be stored: {_first_line(error)}", code="bad_value") from error
        except UnicodeEncodeError as error:
            raise CallerError("a value cannot be stored: it holds half a character", code="bad_value") from error
        except (exc.IntegrityError, IntegrityError) as error:
            raise Conflict(_first_line(error), code=_constraint(error)) from error

    def self_test(self) -> None:
        """Refuse to run with a role that could see another tenant, or on a schema of another release."""
        with self._translated(), self._engine.begin() as connection:
            row = connection.execute(_rights).one()
            if row[0] or row[1]:
                raise OperatorError(
                    f"role {row[2]} bypasses row-level security", code="unsafe_role", field="TWOKEYS_DATABASE_URL",
                    next_step="use a login that is neither superuser nor BYPASSRLS",
                )  # fmt: skip
            if row[3] or row[4]:
                what = (
                    "owns the schema and could switch row-level security off" if row[3] else "sees every tenant's work"
                )
                raise OperatorError(
                    f"role {row[2]} {what}", code="unsafe_role", field="TWOKEYS_DATABASE_URL",
                    next_step="use a login that is only a member of tk_app",
                )  # fmt: skip
            try:
                revision = connection.execute(sa.text("select version_num from alembic_version")).scalar_one_or_none()
            except exc.ProgrammingError:
                raise OperatorError(
                    "the schema is not there", code="not_migrated", next_step="run `twokeys migrate`"
                ) from None
            if revision != head():
                raise OperatorError(
                    f"the schema is at {revision}, this release needs {head()}",
                    code="not_migrated",
                    next_step="run `twokeys migrate`",
                )
            for table in ("run", "entry", "person", "receipt", "work", "route", "outbox_due"):
                if connection.execute(sa.text(f"select 1 from {table} limit 1")).first():
                    raise OperatorError(
                        f"rows of {table} are visible without a tenant", code="unsafe_role", field="TWOKEYS_DATABASE_URL",
                        next_step="use a login that is only a member of tk_app",
                    )  # fmt: skip

    def ping(self) -> float:
        """Seconds between the database clock and 1970, proving that it answers."""
        with self._translated(), self._engine.begin() as connection:
            return float(connection.execute(sa.text("select extract(epoch from clock_timestamp())")).scalar_one())

    def told(self, settings: Sequence[str]) -> dict[str, str]:
        """What the server says of these settings of its own."""
        with self._translated(), self._engine.begin() as connection:
            return {
                name: str(connection.execute(_statement("select current_setting(:name)"), {"name": name}).scalar_one())
                for name in settings
            }

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()
        self._single.dispose()


def _bounded(connection: Any, _: object) -> None:
    """The bounds that a unit sets for its transaction, for the life of the connection."""
    with connection.cursor() as cursor:
        cursor.execute("select set_config('lock_timeout', '4s', false), set_config('statement_timeout', '5s', false)")


def _put_down(_: object, record: Any) -> None:
    record.info["idle_since"] = clock.monotonic()


def _operational(error: Exception) -> Exception:
    original = getattr(error, "orig", error)
    state = getattr(original, "sqlstate", "") or ""
    if state in ("55P03", "57014", "40P01", "40001"):
        return Conflict("the record is being changed by somebody else", code="busy", next_step="try again")
    if state == "54000":  # longer than an index can hold
        return CallerError("a value cannot be stored: it is too long", code="bad_value")
    return OperatorError(f"the database does not answer: {_first_line(error)}", code="database")


def _first_line(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]


def _constraint(error: Exception) -> str:
    diagnosis = getattr(getattr(error, "orig", error), "diag", None)
    return str(getattr(diagnosis, "constraint_name", "") or "conflict")
