"""Wake-ups: tell every process that there is work, outside of the transactions that made it; only a hint, polling finds the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
from sqlalchemy.engine import make_url

from governance import clock, log

_say = log.get("wakes")
channel = "twokeys_work"
pause_seconds = 0.002  # between two notifications: what commits meanwhile is told with one
_retry_seconds = (0.1, 2.0)  # after a lost connection, the first wait and the longest
_alive_seconds = 15.0  # a connection that was silent this long is asked whether it is still there
_stop_seconds = 1.0  # how long a listener that is told to stop may take


def _connect(url: str, name: str) -> psycopg.Connection:
    # A notification that a crash swallows is found by the next poll, so nothing here waits for the disk.
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(
        plain, autocommit=True, connect_timeout=5, application_name=name, options="-c synchronous_commit=off",
        keepalives_idle=30, keepalives_interval=10, keepalives_count=3,
    )  # fmt: skip


def _wait(tries: int) -> float:
    """Seconds until the next try to connect: doubling, and never the same for two processes that lost the same server."""
    first, longest = _retry_seconds
    return float(min(longest, first * 2**tries) * (0.5 + clock.random_bytes(1)[0] / 512))


class Notifier:
    """Tells, at most every two milliseconds and on a connection of its own; whoever commits only sets a flag.

    Transactions that notify stand in one queue until the disk has them, and with them the whole database: so no business
    transaction ever does.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._flag = threading.Event()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def ring(self) -> None:
        """There is work since just now."""
        self._flag.set()
        if self._thread is None and not self._stop.is_set():
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="notifier", daemon=True)
                    self._thread.start()

    def close(self) -> None:
        """Tell what is still to be told, once, and end."""
        self._stop.set()
        self._flag.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        connection: psycopg.Connection | None = None
        tries = 0
        while True:
            self._flag.wait()
            self._flag.clear()
            try:
                connection = connection or _connect(self._url, "twokeys notifier")
                connection.execute("select pg_notify(%s, '')", (channel,))
                tries = 0
            except psycopg.Error as error:
                _say.warning("a wake-up was not sent; it is tried again", reason=str(error).strip())
                if connection is not None:
                    connection.close()
                connection = None
                if not self._stop.is_set():
                    self._flag.set()
                    self._stop.wait(_wait(tries))
                    tries += 1
            if self._stop.is_set():
                break
            clock.sleep(pause_seconds)
        if connection is not None:
            connection.close()


class Listener:
    """Hears, on a connection that does nothing else; after a loss it connects again and wakes once, for what it did not hear."""

    def __init__(self, url: str, wake: Callable[[], None]) -> None:
        self._url = url
        self._wake = wake
        self._stop = threading.Event()
        self._connected = threading.Event()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    @property
    def hears(self) -> bool:
        """Whether it is connected: while it is not, whoever waits should look more often."""
        return self._connected.is_set()

    def close(self) -> None:
        """Stop listening."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        tries = 0
        while not self._stop.is_set():
            try:
                with _connect(self._url, "twokeys listener") as connection:
                    connection.execute(f"listen {channel}")
                    self._connected.set()
                    tries = 0
                    self._wake()
                    self._hear(connection)
            except psycopg.Error as error:
                _say.warning("the connection for wake-ups is lost; polling goes on", reason=str(error).strip())
            finally:
                self._connected.clear()
            self._stop.wait(_wait(tries))
            tries += 1

    def _hear(self, connection: psycopg.Connection) -> None:
        heard_at = clock.monotonic()
        while not self._stop.is_set():
            for _ in connection.notifies(timeout=_stop_seconds, stop_after=1):
                heard_at = clock.monotonic()
                self._wake()
            if clock.monotonic() - heard_at > _alive_seconds:
                connection.execute("select 1")
                heard_at = clock.monotonic()
