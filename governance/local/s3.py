"""Runs a private S3 server with Object Lock on loopback and makes buckets in it."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import http.client
import json
import sysconfig
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

from engine.errors import OperatorError
from governance import clock
from governance.local.children import (
    GRPC_OFFSET,
    LOOPBACK,
    Child,
    Children,
    Command,
    ComponentFailed,
    answers,
    free_port,
)

REGION = "us-east-1"
PARTS = ("master", "volume", "filer", "s3", "admin")
START_ATTEMPTS = 3
WARM_UP_KEY = ".warm-up"


@dataclass(frozen=True)
class Account:
    """Where the server answers and the key pair it accepts."""

    endpoint_url: str
    port: int
    access_key: str
    secret_key: str
    region: str = REGION


class S3:
    """A running server; everything in it is made through its own signed HTTP interface."""

    def __init__(self, children: Children, child: Child, account: Account) -> None:
        self.account = account
        self.child = child
        self._children = children

    def create_bucket(self, bucket: str) -> None:
        """Make the bucket with Object Lock when it is missing, and write once so that the next write is quick."""
        lock = {"x-amz-bucket-object-lock-enabled": "true"}
        status, _, body = request(self.account, "PUT", f"/{bucket}", headers=lock)
        if status not in {200, 409}:
            raise OperatorError(f"the bucket {bucket} could not be made: {status} {body[:300]!r}")
        status, _, body = request(self.account, "GET", f"/{bucket}", query={"object-lock": ""})
        if status != 200 or _text(body, "ObjectLockEnabled") != "Enabled":
            raise OperatorError(f"the bucket {bucket} has no Object Lock", next_step="choose another bucket name")
        self._warm_up(bucket)

    def stop(self) -> None:
        self._children.stop(self.child)

    def _warm_up(self, bucket: str) -> None:
        path = f"/{bucket}/{WARM_UP_KEY}"
        status, headers, body = request(self.account, "PUT", path, body=b"warm")
        if status != 200:
            raise OperatorError(f"the first write to {bucket} failed: {status} {body[:300]!r}")
        request(self.account, "DELETE", path, query={"versionId": headers.get("x-amz-version-id", "null")})


def start(children: Children, state_directory: Path, *, bucket: str | None = None, name: str = "s3") -> S3:
    """Start the server over this state directory, on its last ports when they are free."""
    home = state_directory.resolve() / "s3"
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    for attempt in range(1, START_ATTEMPTS + 1):
        ports = _ports(home)
        account = _account(home, ports["s3"])
        try:
            child = children.start(_command(name, home, ports), ready=partial(_accepts, account))
        except ComponentFailed as failure:
            # Between our look and its bind somebody else may have taken a port.
            if attempt == START_ATTEMPTS or "address already in use" not in " ".join(failure.last_lines):
                raise
            continue
        server = S3(children, child, account)
        if bucket is not None:
            server.create_bucket(bucket)
        return server
    raise AssertionError("unreachable: the last attempt returns or raises")


def request(
    account: Account,
    method: str,
    path: str,
    *,
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> tuple[int, dict[str, str], bytes]:
    """One request signed with AWS Signature Version 4: status, headers in lower case, body."""
    moment = clock.now_utc()
    query_text = "&".join(f"{quote(k, safe='')}={quote(v, safe='')}" for k, v in sorted((query or {}).items()))
    path = quote(path, safe="/-_.~")
    signed = {name.lower(): value for name, value in (headers or {}).items()}
    signed["host"] = f"{LOOPBACK}:{account.port}"
    signed["x-amz-content-sha256"] = hashlib.sha256(body).hexdigest()
    signed["x-amz-date"] = moment.strftime("%Y%m%dT%H%M%SZ")
    signed["authorization"] = _authorization(account, moment, method, path, query_text, signed)
    connection = http.client.HTTPConnection(LOOPBACK, account.port, timeout=20)
    try:
        connection.request(method, f"{path}?{query_text}" if query_text else path, body=body, headers=signed)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def _authorization(
    account: Account, moment: datetime.datetime, method: str, path: str, query: str, headers: Mapping[str, str]
) -> str:
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name].strip()}\n" for name in sorted(headers))
    canonical = "\n".join([method, path, query, lines, names, headers["x-amz-content-sha256"]])
    scope = f"{moment:%Y%m%d}/{account.region}/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    to_sign = "\n".join(["AWS4-HMAC-SHA256", headers["x-amz-date"], scope, digest])
    key = f"AWS4{account.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
    return f"AWS4-HMAC-SHA256 Credential={account.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"


def _accepts(account: Account, _child: Child) -> bool:
    """Ready means: our key pair is known and the file store behind the gateway answers."""
    if not answers(account.port, "/status"):
        return False
    try:
        return request(account, "GET", "/")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def _command(name: str, home: Path, ports: Mapping[str, int]) -> Command:
    program = Path(sysconfig.get_path("scripts")) / "weed"
    if not program.exists():
        raise OperatorError("the S3 server's wheel is not installed", next_step="install the demo extra")
    # It reads options of its last start from here, old ports among them.
    (home / "data" / "mini.options").unlink(missing_ok=True)
    argv = [str(program), "mini", f"-dir={home / 'data'}", f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}"]
    for part in PARTS:
        argv += [f"-{part}.port={ports[part]}", f"-{part}.port.grpc={ports[part] + GRPC_OFFSET}"]
    argv += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false", "-admin.ui=false", "-master.telemetry=false"]
    argv += [f"-s3.config={home / 'identities.json'}"]
    # It serves on sockets in /tmp too, under names made of its ports, and leaves them when it is killed.
    stems = [f"{part}-grpc-{ports[part] + GRPC_OFFSET}" for part in PARTS] + [f"{part}-{ports[part]}" for part in PARTS]
    sockets = [Path(f"/tmp/seaweedfs-{stem}.sock") for stem in stems]  # noqa: S108
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    return Command(name, argv, environment, cwd=home, grace_seconds=1.0, leftovers=sockets)


def _ports(home: Path) -> dict[str, int]:
    """The ports of the last start where they are still free, else others, remembered for the next start."""
    (home / "data").mkdir(exist_ok=True)
    memory = home / "ports.json"
    last = json.loads(memory.read_text()) if memory.exists() else {}
    ports: dict[str, int] = {}
    while len(ports) < len(PARTS):
        part = PARTS[len(ports)]
        port = free_port(last.pop(part, 0), with_grpc=True)
        if port not in ports.values():
            ports[part] = port
    memory.write_text(json.dumps(ports))
    return ports


def _account(home: Path, port: int) -> Account:
    """The key pair of this state directory, made at the first start."""
    identities = home / "identities.json"
    if not identities.exists():
        pair = {"accessKey": clock.random_hex(10), "secretKey": clock.random_hex(20)}
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        document = {"identities": [{"name": "twokeys", "credentials": [pair], "actions": actions}]}
        identities.touch(mode=0o600)
        identities.write_text(json.dumps(document))
    [credentials] = json.loads(identities.read_text())["identities"][0]["credentials"]
    return Account(f"http://{LOOPBACK}:{port}", port, credentials["accessKey"], credentials["secretKey"])


def _text(body: bytes, tag: str) -> str:
    """The text of the first element with this name in an S3 answer."""
    for element in ElementTree.fromstring(body).iter():  # noqa: S314 - it comes from our own child
        if element.tag.rpartition("}")[2] == tag:
            return element.text or ""
    return ""
