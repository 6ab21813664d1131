"""`twokeys demo`: starts everything on this machine, keeps it running, shows where to look, and leaves nothing behind."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import http.client
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from engine.errors import OperatorError
from governance import clock, settings
from governance.local import cast, desk, play, postgres, s3, seed, servicenow
from governance.local.cast import CAST, TENANT
from governance.local.children import (
    LOOPBACK,
    PACKAGE_ROOT,
    Child,
    Children,
    Command,
    ComponentFailed,
    answers,
    free_port,
)
from governance.local.standin import StandIn
from governance.settings import Settings
from governance.store import migrate, views

DESK_PORT = 8788
# Somebody may kill the worker ten times to see what becomes of it; what ends by itself as often is broken.
RESTARTS_MAX, RESTARTS_SECONDS = 12, 60.0
START_ATTEMPTS = 3
KEPT_ENVIRONMENT = ("PATH", "HOME", "TMPDIR", "TZ")

NEXT = (
    "",
    "Next: at the Slack desk be Ana and approve the medium step; the high one then takes two people, Bo and Cleo.",
    "Try the same person twice, or Rita. Read the run in the console and download its evidence.",
)

Wire = Callable[[Settings], seed.Product]


def run(state: Path, console: Console, wire: Wire, *, auto: bool, out: Callable[[str], None]) -> int:
    """Until Ctrl-C, or with `auto` until the people were played; the exit code."""
    begun = clock.monotonic()
    state = state.resolve()
    up = False
    try:
        with _alone(state), Children(state / "logs", handle_signals=True) as children:
            demo = Demo(state, children, console, wire)
            demo.start()
            if auto:
                demo.show()
                result = play.Play(demo.addresses(), demo.memory, demo.pause, console).through(
                    demo.send_event, demo.trust
                )
                seconds = round(clock.monotonic() - begun, 1)
                out(json.dumps({**result, "seconds": seconds}))
                return 0
            demo.begin_a_run()
            demo.show()
            up = True
            while True:
                demo.pause(0.5)
    except KeyboardInterrupt:
        console.print(
            f"Stopped; nothing is left running. {state} keeps everything for the next start.",
            soft_wrap=True,
            markup=False,
        )
        return 0 if up else 130


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    """One demo per state directory; the second one says who is there already."""
    try:
        state.mkdir(parents=True, exist_ok=True)
        state.chmod(0o711)  # the database's own user walks through; what lies inside has its own rights
        lock = (state / "demo.lock").open("a+")
    except OSError as error:
        raise OperatorError(
            f"cannot be used: {error.strerror}", field=str(state), next_step="choose another with --state"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise OperatorError(
                f"a demo is running here already ({lock.read().strip() or 'starting'})", field=str(state), code="running",
                next_step="use that one, stop it with Ctrl-C, or choose another directory with --state",
            ) from None  # fmt: skip
        lock.truncate(0)
        lock.write(f"process {os.getpid()}\n")
        lock.flush()
        yield


class Demo:
    """Everything that runs, and how each part is started again."""

    def __init__(self, state: Path, children: Children, console: Console, wire: Wire) -> None:
        self._state = state
        self._children = children
        self._console = console
        self._wire = wire
        self.memory = cast.remembered(state / "demo.json")
        self._again: dict[str, Callable[[], object]] = {}
        self._restarts: list[float] = []
        self._settings: Settings
        self._config: Path
        self._desk: StandIn
        self._servicenow: StandIn

    # --- starting -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """From nothing, or from what an earlier start left, to a product that answers."""
        for member in CAST:
            if member.level:
                self.memory.token(member.key)
        self.memory.save()
        with self._step("PostgreSQL"):
            server = postgres.start(self._children, self._state)
            database = server.create_application()
        with self._step("S3 with Object Lock"):
            bucket = s3.start(self._children, self._state, bucket=cast.BUCKET).account
        with self._step("ServiceNow stand-in"):
            self._start_servicenow()
        with self._step("database schema"):
            migrate.upgrade(database.owner_url, postgres.APP_ROLE)
        for attempt in range(1, START_ATTEMPTS + 1):
            self.memory.web_port = free_port(self.memory.web_port)
            with self._step("Slack desk"):
                self._start_desk()
            self._settings = self._made(database, bucket)
            self._write_config()
            with self._step("tenant, people, workflow"):
                self._settle()
            try:
                self._start_product()
                return
            except ComponentFailed as failure:
                # Between our look and its bind somebody else may have taken the port.
                if attempt == START_ATTEMPTS or "address already in use" not in " ".join(failure.last_lines):
                    raise
                for child in self._children.running():
                    if child.name in ("desk", "worker"):
                        self._children.stop(child)

    def _made(self, database: postgres.Database, bucket: s3.Account) -> Settings:
        port = self.memory.web_port
        return settings.made(
            {
                "env": "demo", "deployment": "demo", "database_url": database.app_url, "migrate_url": database.owner_url,
                "master_key": self.memory.master_key, "public_url": f"http://{LOOPBACK}:{port}", "web_host": LOOPBACK, "web_port": port,
                "s3_endpoint": bucket.endpoint_url, "s3_region": bucket.region, "s3_bucket": cast.BUCKET,
                "s3_access_key": bucket.access_key, "s3_secret_key": bucket.secret_key, "retain_days": 1, "policy_engine": "embedded",
                "slack_api_base": f"{self._desk.base_url}/api/", "slack_signing_secret": self.memory.signing_secret,
                "slack_app_id": cast.APP, "lease_seconds": 10, "heartbeat_seconds": 3,
            }
        )  # fmt: skip

    def _write_config(self) -> None:
        """The same settings in a file, so that the command line can be tried against the demo."""
        self._config = self._state / "twokeys.toml"
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in self._values().items()]
        cast.write_private(self._config, "".join(lines))

    def _values(self) -> dict[str, Any]:
        return {name: value for name, value in self._settings.model_dump().items() if value != ""}

    def _settle(self) -> None:
        product = self._wire(self._settings)
        try:
            seed.settle(product, self.memory, self._servicenow.base_url)
        finally:
            product.close()
        self.memory.save()

    def _start_servicenow(self) -> None:
        incidents = [cast.incident(n) for n in range(1, cast.INCIDENTS + 1)]
        self._servicenow = servicenow.start(
            self._children, self._state, user=cast.SERVICENOW_USER, password=self.memory.servicenow_password, incidents=incidents,
            environment="demo",
        )  # fmt: skip
        self._again["servicenow"] = self._start_servicenow

    def _start_desk(self) -> None:
        workspace = desk.Workspace(
            f"http://{LOOPBACK}:{self.memory.web_port}/slack/events", self.memory.signing_secret, self.memory.bot_token,
            tuple(member.persona for member in CAST), cast.CHANNELS, team_id=cast.TEAM, app_id=cast.APP, bot_user_id=cast.BOT,
        )  # fmt: skip
        first = not (self._state / "desk" / "port.json").exists()
        self._desk = desk.start(
            self._children, self._state, workspace, environment="demo", port=DESK_PORT if first else 0
        )
        self._again["desk"] = self._start_desk

    def _start_product(self) -> None:
        """The worker while the web process is starting: both spend their first second on imports."""
        with self._step("worker and web"):
            worker = self._start_worker()
            self._start_web()
            deadline = clock.monotonic() + 30
            while not any("working;" in line for line in worker.tail()):
                if not worker.alive() or clock.monotonic() > deadline:
                    raise ComponentFailed("worker", "did not come up", worker.tail())
                clock.sleep(0.05)

    def _start_worker(self) -> Child:
        self._again["worker"] = self._start_worker
        command = self._twokeys("worker", "worker", grace_seconds=20)
        return self._children.start(command, ready=lambda child: True)

    def _start_web(self) -> None:
        self._again["web"] = self._start_web
        command = self._twokeys("web", "serve", grace_seconds=12)
        self._children.start(command, ready=lambda child: answers(self.memory.web_port, "/healthz"))

    def _twokeys(self, name: str, *arguments: str, grace_seconds: float = 5.0) -> Command:
        """The command of this very checkout or installation, in a process of its own."""
        argv = [sys.executable, "-c", "from governance.cli import main; main()", *arguments]
        python = {"PYTHONPATH": str(PACKAGE_ROOT), "PYTHONUNBUFFERED": "1", "LC_ALL": "C.UTF-8"}
        return Command(name, argv, {**self.environment(), **python}, grace_seconds=grace_seconds)

    def environment(self) -> dict[str, str]:
        """What the product's processes are told: the settings of an operator, and nothing else of ours."""
        around = settings.child_environment({})
        return {
            **{name: around[name] for name in KEPT_ENVIRONMENT if name in around},
            **settings.exported(self._values()),
        }

    # --- running ------------------------------------------------------------------------------------------------------

    def pause(self, seconds: float = 0.1) -> None:
        """Wait a little; what died meanwhile is started again, and what dies again and again ends the demo."""
        clock.sleep(seconds)
        for child in self._children.ended():
            again = self._again.get(child.name)
            now = clock.monotonic()
            self._restarts = [at for at in self._restarts if now - at < RESTARTS_SECONDS] + [now]
            if again is None or len(self._restarts) > RESTARTS_MAX:
                raise ComponentFailed(child.name, f"ended with code {child.exit_code}", child.tail())
            self._console.print(
                f"[yellow]{child.name}[/] ended with code {child.exit_code}; it is started again", soft_wrap=True
            )
            self._children.kill(child)
            again()

    def send_event(self, *, ref: str = "") -> dict[str, Any]:
        """The call that ServiceNow makes when an incident is created, signed as it would sign; the same ref is the same event."""
        if not ref:
            self.memory.events += 1
            self.memory.save()
        found = cast.incident((self.memory.events - 1) % cast.INCIDENTS + 1)
        data = {name: found[name] for name in ("number", "sys_id", "short_description", "priority", "category")}
        event = {"event": "incident.created", "ref": ref or f"{found['number']}/{self.memory.events}", "data": data}
        body, moment = json.dumps(event).encode(), str(clock.epoch_seconds())
        signed = hmac.new(
            self.memory.webhook_secret.encode(), moment.encode() + b"." + body, hashlib.sha256
        ).hexdigest()
        headers = {
            "Content-Type": "application/json",
            "X-Twokeys-Timestamp": moment,
            "X-Twokeys-Signature": f"v1={signed}",
        }
        connection = http.client.HTTPConnection(LOOPBACK, self.memory.web_port, timeout=20)
        try:
            connection.request("POST", f"/hooks/{TENANT}/{cast.SOURCE}", body, headers)
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise OperatorError(f"the web process did not take the event: {error}", code="event") from None
        finally:
            connection.close()
        if answer.status not in (200, 202):
            raise OperatorError(f"the web process refused the event: {answer.status} {text[:300]}", code="event")
        return {**json.loads(text), "ref": event["ref"], "number": found["number"]}

    def begin_a_run(self) -> None:
        """One run that waits for people, unless an earlier start left one."""
        product = self._wire(self._settings)
        try:
            with product.database.unit(TENANT, write=False) as unit:
                waiting = sum(views.open_counts(unit).values())
        finally:
            product.close()
        if waiting:
            self._console.print(
                f"{waiting} run{'s' if waiting > 1 else ''} of an earlier start went on", soft_wrap=True
            )
            return
        with self._step("an incident in ServiceNow starts a run"):
            self.send_event()

    def trust(self) -> str:
        """The trust policy, from the operator's side and not from where the bundle comes from."""
        command = self._twokeys("trust", "evidence", "trust", "--tenant", TENANT)
        done = subprocess.run(
            command.argv, env=dict(command.env), capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode != 0:
            raise ComponentFailed(
                "twokeys evidence trust", f"ended with code {done.returncode}", done.stderr.splitlines()[-20:]
            )
        return done.stdout

    # --- showing ------------------------------------------------------------------------------------------------------

    def addresses(self) -> dict[str, str]:
        """Where everything is."""
        return {"desk": self._desk.base_url, "web": self._settings.public_url, "servicenow": self._servicenow.base_url}

    def show(self) -> None:
        """The short table: where to look, who to be, and what to do next."""
        where = self.addresses()
        table = f"{where['servicenow']}/api/now/table/incident"
        login = f"{cast.SERVICENOW_USER} / {self.memory.servicenow_password}"
        self._rows(
            "Open",
            [
                ("Slack desk", f"{where['desk']}/", "be anybody, press real buttons"),
                ("Console", f"{where['web']}/", "sign in with a token from below"),
                ("ServiceNow", table, login),
            ],
        )
        people = [m for m in CAST if m.level]
        self._rows("Sign in as", [(m.name, self.memory.token(m.key), m.note) for m in people])
        for line in NEXT:
            self._console.print(line, soft_wrap=True, highlight=False)
        command = f"TWOKEYS_CONFIG={shlex.quote(str(self._config))} TWOKEYS_TENANT={TENANT} {_program()} run list"
        self._console.print(Text("The command line: ").append(command, "cyan"), soft_wrap=True)
        self._console.print("Ctrl-C stops everything.")
        self._console.print()

    def _rows(self, title: str, rows: list[tuple[str, str, str]]) -> None:
        # Padded here and never cut: people copy addresses and tokens from these lines, also from a narrow terminal.
        first, second = (max(len(row[n]) for row in rows) for n in (0, 1))
        self._console.print(Text(f"\n{title}", "bold"))
        for name, value, note in rows:
            line = Text(f"  {name:<{first}}  ").append(f"{value:<{second}}", "cyan").append(f"  {note}", "dim")
            self._console.print(line, soft_wrap=True)

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        begun = clock.monotonic()
        with self._console.status(f"{what} ..."):
            yield
        self._console.print(
            f"[green]✓[/] {what} [dim]{clock.monotonic() - begun:.1f} s[/]", highlight=False, soft_wrap=True
        )


def _program() -> str:
    """The command as it was started, so that the line can be pasted into the same shell."""
    started = sys.argv[0]
    return shlex.quote(started) if started.endswith("twokeys") else "twokeys"
