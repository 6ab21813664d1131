"""The processes: the demo, the web process, the worker, and the migration that comes before both."""

from __future__ import annotations

import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from governance.cli import frame

if TYPE_CHECKING:
    from governance.wiring import Parts


@click.command("demo")
@click.option("--auto", is_flag=True, help="Play the people too, verify the result, and print one JSON object last.")
@click.option(
    "--state", type=click.Path(path_type=Path, file_okay=False), default=Path(".twokeys-demo"), show_default=True, metavar="DIR",
    help="Where everything of the demo lives; it survives a restart.",
)  # fmt: skip
def demo(auto: bool, state: Path) -> int:
    """Everything on this machine: PostgreSQL, S3, policy, ServiceNow and Slack stand-ins, web and worker."""
    from rich.console import Console

    from governance import log
    from governance.local import demo
    from governance.settings import Settings
    from governance.wiring import Parts

    log.configure("error", "demo")

    def wire(settings: Settings) -> Parts:
        return Parts(settings, "demo", state / "opa")

    return demo.run(state, Console(stderr=True), wire, auto=auto, out=click.echo)


@click.command("serve")
def serve() -> None:
    """The web process: console, /v1, webhooks, /slack/events, /healthz and /readyz."""
    import uvicorn

    parts = frame.open_parts("web")
    settings = parts.settings
    config = uvicorn.Config(
        parts.web_app(), host=settings.web_host, port=settings.web_port, log_config=None, access_log=False, timeout_graceful_shutdown=10,
        server_header=False, date_header=False,
    )  # fmt: skip
    frame.say(f"listening on http://{settings.web_host}:{settings.web_port}, reached as {settings.public_url}")
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn stops on its own handlers and then raises the signal once more; that one has nothing left to do.
        signal.signal(number, lambda *_: None)
    socket = parts.doors.socket()
    if socket is not None:
        frame.say("clicks arrive by Socket Mode")
        socket.start()
    try:
        uvicorn.Server(config).run()
    finally:
        if socket is not None:
            socket.close()
    frame.say("stopped")


@click.command("worker")
def worker() -> None:
    """A worker: judges, asks, executes, seals, keeps the log and sends to Slack; TERM finishes the intent in hand."""
    parts = frame.open_parts("worker")
    work = parts.worker

    def stop(*_: object) -> None:
        # Not in the handler itself: it may have interrupted this very thread while it holds the lock that stop() takes.
        threading.Thread(target=work.stop, name="stop").start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    frame.say("working; TERM or Ctrl-C finishes the intent in hand and stops")
    try:
        with _counters(parts):
            parts.run_worker()
    finally:
        shutil.rmtree(parts.state, ignore_errors=True)
    frame.say("stopped")


@contextmanager
def _counters(parts: Parts) -> Iterator[None]:
    """What a worker counts, at TWOKEYS_METRICS_HOST:TWOKEYS_METRICS_PORT; nowhere unless a port is set."""
    import uvicorn

    from engine.errors import OperatorError
    from governance.web.scrape import alone

    settings = parts.settings
    if not settings.metrics_port:
        yield
        return
    try:
        door = socket.create_server((settings.metrics_host, settings.metrics_port))
    except OSError as error:
        raise OperatorError(
            f"cannot be listened on: {error.strerror}", code="bad_setting", field="TWOKEYS_METRICS_PORT",
            next_step="choose another port for each worker of this machine, or 0 for none",
        ) from None  # fmt: skip
    loopback = settings.metrics_host in ("127.0.0.1", "::1", "localhost")
    config = uvicorn.Config(
        alone(parts.scrape(open_=loopback)), log_config=None, access_log=False, server_header=False, date_header=False,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([door],), name="metrics", daemon=True)
    thread.start()
    frame.say(f"counters at http://{settings.metrics_host}:{settings.metrics_port}/metrics")
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(timeout=5)
        door.close()


@click.command("migrate")
def migrate() -> None:
    """Bring the database to this release; works while the previous one runs."""
    from engine.errors import OperatorError
    from governance import settings
    from governance.store import migrate

    found = settings.load()
    if not found.migrate_url:
        raise OperatorError(
            "is missing",
            field="TWOKEYS_MIGRATE_URL",
            next_step="give the owner's URL; the application may not migrate",
        )
    app = urlsplit(found.database_url).username
    if not app:
        raise OperatorError(
            "names no user", field="TWOKEYS_DATABASE_URL", next_step="postgresql://USER:PASSWORD@HOST/DATABASE"
        )
    revision = migrate.upgrade(found.migrate_url, app)
    frame.say(f"the schema is at {revision}; {app} is the application's role")


COMMANDS = (demo, serve, worker, migrate)
