"""The vault stores once, under a lock, and never believes an answer more than the stored version (real S3 server)."""

from __future__ import annotations

import base64
import datetime
import hashlib
import threading
from collections.abc import Callable
from typing import Any

import boto3
import botocore.exceptions
import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from engine.errors import OperatorError
from governance import clock
from governance.evidence import vault as room
from governance.evidence.vault import Vault
from governance.local.s3 import S3
from tests.kit.servers import Bucket

UNTIL = (clock.now_utc() + datetime.timedelta(days=2)).replace(microsecond=0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "pause_seconds", 0)


@pytest.fixture
def opened(bucket: Bucket) -> Vault:
    return vault_of(bucket)


def vault_of(made: Bucket, **changes: Any) -> Vault:
    account = made.account
    known = {"endpoint": account.endpoint_url, "region": account.region, "bucket": made.name, "mode": "COMPLIANCE"}
    keys = {"access_key": account.access_key, "secret_key": account.secret_key, "retain_days": 2}
    return Vault(**{**known, **keys, **changes})


def client_of(bucket: Bucket) -> Any:
    return vault_of(bucket)._client


def named(data: bytes, run: str = "run") -> str:
    return f"acme/{run}/{hashlib.sha256(data).hexdigest()}.zip"


def refusal(call: Callable[[], Any]) -> OperatorError:
    with pytest.raises(OperatorError) as caught:
        call()
    return caught.value


def test_what_was_put_is_read_back_by_its_version(opened: Vault) -> None:
    opened.check()
    data = clock.random_bytes(70_000)
    version = opened.put(named(data), data, UNTIL)
    assert version
    assert opened.get(named(data), version) == data


def test_the_version_is_locked_until_the_date(opened: Vault, bucket: Bucket) -> None:
    data = clock.random_bytes(100)
    version = opened.put(named(data), data, UNTIL)
    client = client_of(bucket)
    head = client.head_object(Bucket=bucket.name, Key=named(data), VersionId=version, ChecksumMode="ENABLED")
    assert head["ObjectLockMode"] == "COMPLIANCE"
    assert head["ObjectLockRetainUntilDate"] == UNTIL
    assert head["ChecksumSHA256"] == base64.b64encode(hashlib.sha256(data).digest()).decode()
    with pytest.raises(ClientError):
        client.delete_object(Bucket=bucket.name, Key=named(data), VersionId=version)
    with pytest.raises(ClientError):
        client.delete_object(Bucket=bucket.name, Key=named(data), VersionId=version, BypassGovernanceRetention=True)
    assert opened.get(named(data), version) == data


def test_a_repeat_finds_its_own_bytes(opened: Vault) -> None:
    data = clock.random_bytes(100)
    first = opened.put(named(data), data, UNTIL)
    assert opened.put(named(data), data, UNTIL) == first


def test_sixteen_racers_get_one_version(bucket: Bucket) -> None:
    data = clock.random_bytes(2_000)
    found: list[str] = []
    vaults = [vault_of(bucket)] * 16  # its client is one for all threads
    threads = [
        threading.Thread(target=lambda one=one: found.append(one.put(named(data), data, UNTIL))) for one in vaults
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len(set(found)) == 1


def test_a_marker_and_a_newer_version_over_it_change_nothing(opened: Vault, bucket: Bucket) -> None:
    data = clock.random_bytes(100)
    key, client = named(data), client_of(bucket)
    version = opened.put(key, data, UNTIL)
    client.delete_object(Bucket=bucket.name, Key=key)
    assert opened.get(key, version) == data
    newer = client.put_object(Bucket=bucket.name, Key=key, Body=b"other bytes")["VersionId"]
    assert opened.get(key, version) == data
    assert opened.put(key, data, UNTIL) == version
    assert refusal(lambda: opened.get(key, newer)).code == "vault_mismatch"


def test_other_bytes_under_the_name_are_an_alarm(opened: Vault, bucket: Bucket) -> None:
    data = clock.random_bytes(100)
    client_of(bucket).put_object(Bucket=bucket.name, Key=named(data), Body=b"x" * 100)
    assert refusal(lambda: opened.put(named(data), data, UNTIL)).code == "vault_conflict"


def test_own_bytes_without_the_lock_are_an_alarm(opened: Vault, bucket: Bucket) -> None:
    data = clock.random_bytes(100)
    client_of(bucket).put_object(Bucket=bucket.name, Key=named(data), Body=data)
    assert refusal(lambda: opened.put(named(data), data, UNTIL)).code == "vault_unlocked"


def test_a_name_that_is_not_the_contents_is_refused_before_anything_is_sent(opened: Vault) -> None:
    for key in ("acme/run/x.zip", named(b"other"), named(b"data").replace(".zip", ".zip/more")):
        assert refusal(lambda key=key: opened.put(key, b"data", UNTIL)).code == "vault_mismatch"


class Faulty:
    """A client whose put answers with an error, after or without having done it; everything else is the real one."""

    def __init__(self, real: Any, errors: list[Exception], *, persist: bool) -> None:
        self.real, self.errors, self.persist = real, errors, persist
        self.puts = 0

    def put_object(self, **parts: Any) -> Any:
        self.puts += 1
        if not self.errors:
            return self.real.put_object(**parts)
        error = self.errors.pop(0)
        if self.persist:
            self.real.put_object(**parts)
        raise error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def timed_out() -> Exception:
    return ReadTimeoutError(endpoint_url="http://127.0.0.1")


def answered(code: str, status: int) -> Exception:
    said = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(said, "PutObject")


@pytest.mark.parametrize("persist", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        timed_out(),
        answered("InternalError", 500),
        answered("ConditionalRequestConflict", 409),
        answered("SlowDown", 503),
    ],
)
def test_a_lost_answer_is_looked_up_and_tried_again(bucket: Bucket, error: Exception, persist: bool) -> None:
    vault, data = vault_of(bucket), clock.random_bytes(100)
    vault._client = faulty = Faulty(vault._client, [error], persist=persist)
    version = vault.put(named(data), data, UNTIL)
    assert faulty.puts == (1 if persist else 2)
    assert vault.get(named(data), version) == data
    assert vault_of(bucket).put(named(data), data, UNTIL) == version


def test_an_endpoint_that_stays_away_is_the_operators_to_mend(bucket: Bucket) -> None:
    vault, data = vault_of(bucket), clock.random_bytes(100)
    vault._client = faulty = Faulty(vault._client, [timed_out()] * 9, persist=False)
    found = refusal(lambda: vault.put(named(data), data, UNTIL))
    assert (found.code, faulty.puts) == ("vault_unavailable", 3)
    nowhere = vault_of(bucket, endpoint="http://127.0.0.1:9")
    for call in (nowhere.check, lambda: nowhere.put(named(data), data, UNTIL), lambda: nowhere.get(named(data), "v")):
        assert refusal(call).code == "vault_unavailable"


def test_wrong_settings_are_named(bucket: Bucket, s3_server: S3) -> None:
    data = clock.random_bytes(100)
    expected = {
        "access_key": ("nobody", "TWOKEYS_S3_ACCESS_KEY"),
        "secret_key": ("wrong", "TWOKEYS_S3_SECRET_KEY"),
        "bucket": ("not-there-at-all", "TWOKEYS_S3_BUCKET"),
    }
    for name, (value, setting) in expected.items():
        vault = vault_of(bucket, **{name: value})
        found = refusal(lambda vault=vault: vault.put(named(data), data, UNTIL))
        assert (found.code, setting in str(found)) == ("vault_refused", True), (name, str(found))
        assert value not in str(found) or name == "bucket"
    assert refusal(lambda: vault_of(bucket, mode="NONE")).field == "TWOKEYS_S3_LOCK_MODE"


def test_a_bucket_without_object_lock_is_refused_at_start(bucket: Bucket) -> None:
    name = f"plain-{clock.random_hex(6)}"
    client_of(bucket).create_bucket(Bucket=name)
    vault = vault_of(bucket, bucket=name)
    assert refusal(vault.check).code in ("vault_refused", "vault_unlocked")
    data = clock.random_bytes(10)
    assert refusal(lambda: vault.put(named(data), data, UNTIL)).code in ("vault_refused", "vault_unlocked")


def test_a_version_that_is_not_there_is_named(opened: Vault) -> None:
    found = refusal(lambda: opened.get(named(b"never"), "0" * 32))
    assert found.code == "vault_refused"
    assert named(b"never") in str(found)


def test_every_fault_of_the_client_becomes_ours(bucket: Bucket) -> None:
    kinds = [
        kind for kind in vars(botocore.exceptions).values() if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    kinds = [kind for kind in kinds if issubclass(kind, (botocore.exceptions.BotoCoreError, ClientError))]
    assert len(kinds) > 60
    vault = vault_of(bucket)
    for kind in kinds:
        error = kind.__new__(kind)
        if isinstance(error, ClientError):
            error.response = {"Error": {"Code": "Strange"}}
        vault._client = type("Raising", (), {"get_object": staticmethod(raiser(error))})()
        assert refusal(lambda: vault.get(named(b"x"), "v")).code == "vault_unavailable"


def raiser(error: Exception) -> Callable[..., Any]:
    def raise_it(**_: Any) -> Any:
        raise error

    return raise_it


def test_boto3_reads_no_credentials_of_this_machine(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boto3.session.Session, "get_credentials", lambda _: pytest.fail("looked for credentials"))
    vault_of(bucket).check()
