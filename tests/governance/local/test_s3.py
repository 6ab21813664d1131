"""The private S3 server keeps what evidence relies on: checksums, conditional writes and locks."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from governance.local import s3
from governance.local.children import Children
from tests.kit.servers import Bucket

BODY = b"sealed"


def put(bucket: Bucket, key: str, body: bytes = BODY, **headers: str) -> tuple[int, dict[str, str], bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return s3.request(bucket.account, "PUT", f"/{bucket.name}/{key}", headers=named, body=body)


def sha256(body: bytes) -> str:
    return base64.b64encode(hashlib.sha256(body).digest()).decode()


def test_a_write_with_a_wrong_checksum_is_refused(bucket: Bucket) -> None:
    assert put(bucket, "right", x_amz_checksum_sha256=sha256(BODY))[0] == 200
    status, _, body = put(bucket, "wrong", x_amz_checksum_sha256=sha256(b"other"))
    assert (status, b"BadDigest" in body) == (400, True)
    assert s3.request(bucket.account, "GET", f"/{bucket.name}/wrong")[0] == 404


def test_a_second_conditional_write_is_refused(bucket: Bucket) -> None:
    assert put(bucket, "once", if_none_match="*")[0] == 200
    assert put(bucket, "once", if_none_match="*")[0] == 412


def test_a_locked_version_cannot_be_deleted_or_shortened(bucket: Bucket) -> None:
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    stamp = until.strftime("%Y-%m-%dT%H:%M:%SZ")
    lock = {"x_amz_object_lock_mode": "COMPLIANCE", "x_amz_object_lock_retain_until_date": stamp}
    status, headers, _ = put(bucket, "locked", x_amz_checksum_sha256=sha256(BODY), **lock)
    assert status == 200
    version = {"versionId": headers["x-amz-version-id"]}
    path = f"/{bucket.name}/locked"
    assert s3.request(bucket.account, "DELETE", path, query=version)[0] == 403
    bypass = {"x-amz-bypass-governance-retention": "true"}
    assert s3.request(bucket.account, "DELETE", path, query=version, headers=bypass)[0] == 403
    assert s3.request(bucket.account, "DELETE", path)[0] == 204
    assert s3.request(bucket.account, "GET", path, query=version)[2] == BODY


def test_a_request_with_a_wrong_key_is_refused(s3_server: s3.S3) -> None:
    stranger = s3.Account(s3_server.account.endpoint_url, s3_server.account.port, "AKSTRANGER", "nothing")
    assert s3.request(stranger, "GET", "/")[0] == 403


def test_the_warm_up_leaves_nothing_in_the_bucket(s3_server: s3.S3) -> None:
    s3_server.create_bucket("warm")
    listed = s3.request(s3_server.account, "GET", "/warm", query={"versions": ""})[2]
    assert b"<Key>" not in listed


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[tuple[Children, Path]]:
    with Children(tmp_path / "logs") as children:
        yield children, tmp_path


def test_objects_and_keys_survive_a_restart_on_other_ports(restarted: tuple[Children, Path]) -> None:
    children, place = restarted
    first = s3.start(children, place, bucket="evidence")
    assert s3.request(first.account, "PUT", "/evidence/a", body=BODY)[0] == 200
    first.stop()
    same = s3.start(children, place, bucket="evidence")
    assert same.account == first.account
    children.kill(same.child)
    (place / "s3" / "ports.json").unlink()
    moved = s3.start(children, place, bucket="evidence")
    assert moved.account.port != first.account.port
    assert s3.request(moved.account, "GET", "/evidence/a")[2] == BODY
    assert stat.S_IMODE((place / "s3" / "identities.json").stat().st_mode) == 0o600


def test_it_listens_on_loopback_only_and_leaves_no_socket(restarted: tuple[Children, Path]) -> None:
    children, place = restarted
    server = s3.start(children, place)
    table = Path("/proc/net/tcp")
    if table.exists():
        ports = {f"{port:04X}" for port in _ports(place)}
        rows = [row.split() for row in table.read_text().splitlines()[1:]]
        listening = [row[1].split(":") for row in rows if row[3] == "0A"]
        mine = [address for address, port in listening if port in ports]
        assert mine
        assert set(mine) == {"0100007F"}
    server.stop()
    assert [file.name for file in server.child.command.leftovers if file.exists()] == []


def _ports(place: Path) -> list[int]:
    ports: dict[str, int] = json.loads((place / "s3" / "ports.json").read_text())
    return [*ports.values(), *(port + 10_000 for port in ports.values())]
