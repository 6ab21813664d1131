"""Write-once storage in S3: conditional, checksummed and locked puts, and reads of exactly one version.

The home of boto3. The key of a bundle names the digest of its content (`<tenant>/<run>/<sha256>.zip`), so that a version is
always checked against its own name; the key of a part of a log (`<tenant>/log/...`) names the one place that its bytes have.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import re
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from engine.errors import OperatorError
from governance.clock import sleep

attempts_max = 3
pause_seconds = 0.5
connect_seconds = 3
read_seconds = 20
versions_max = 100

_named_digest = re.compile(r"(?:^|/)([0-9a-f]{64})\.zip$")

# What S3 answers, by what an operator must do about it. What is not listed is unknown, looked at again and retried.
_refusals = {
    "AccessDenied": "allow this access key PutObject, GetObject, PutObjectRetention and ListBucketVersions",
    "InvalidAccessKeyId": "check TWOKEYS_S3_ACCESS_KEY",
    "SignatureDoesNotMatch": "check TWOKEYS_S3_SECRET_KEY",
    "ExpiredToken": "renew the credentials",
    "NoSuchBucket": "check TWOKEYS_S3_BUCKET, or make the bucket with Object Lock",
    "InvalidBucketName": "check TWOKEYS_S3_BUCKET",
    "InvalidRequest": "check TWOKEYS_S3_BUCKET: it must exist and have been made with Object Lock",
    "ObjectLockConfigurationNotFoundError": "make the bucket with Object Lock",
    "BadDigest": "the bytes changed on their way; look for a proxy in between",
    "XAmzContentChecksumMismatch": "the bytes changed on their way; look for a proxy in between",
    "PermanentRedirect": "check TWOKEYS_S3_REGION",
    "AuthorizationHeaderMalformed": "check TWOKEYS_S3_REGION",
    "NoSuchVersion": "somebody with delete rights removed it, or the database is of another installation",
    "NoSuchKey": "somebody with delete rights removed it, or the database is of another installation",
    "404": "somebody with delete rights removed it, or the database is of another installation",
    "403": "allow this access key to read what it wrote",
}


class Vault:
    """One bucket with Object Lock."""

    def __init__(
        self, *, endpoint: str, region: str, bucket: str, access_key: str, secret_key: str, retain_days: int, mode: str
    ) -> None:
        if mode not in ("COMPLIANCE", "GOVERNANCE"):
            raise OperatorError("is COMPLIANCE or GOVERNANCE", code="bad_setting", field="TWOKEYS_S3_LOCK_MODE")
        self.bucket = bucket
        self.mode = mode
        self.retain_days = retain_days
        # One try per call: this class decides what a repeat means, because a put whose answer was lost may have happened.
        config = Config(
            connect_timeout=connect_seconds,
            read_timeout=read_seconds,
            retries={"total_max_attempts": 1, "mode": "standard"},
            s3={"addressing_style": "path"} if endpoint else {},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        self._client: Any = boto3.session.Session(
            aws_access_key_id=access_key, aws_secret_access_key=secret_key, region_name=region
        ).client("s3", endpoint_url=endpoint or None, config=config)

    def check(self) -> None:
        """Raise unless the bucket answers and has Object Lock: at start-up, before anything relies on it."""
        try:
            answer = self._client.get_object_lock_configuration(Bucket=self.bucket)
        except (ClientError, BotoCoreError) as error:
            raise self._foreign(error, "its Object Lock cannot be read") from error
        if answer.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled") != "Enabled":
            raise self._refusal("vault_unlocked", "has no Object Lock", _refusals["NoSuchBucket"])

    def put(self, key: str, data: bytes, retain_until: datetime.datetime) -> str:
        """Store once under the lock; the version it got, also when a repeat finds its own bytes there."""
        _check_name(key, hashlib.sha256(data).digest())
        return self._store(key, data, retain_until, "application/zip")

    def keep(self, key: str, data: bytes, retain_until: datetime.datetime | None) -> str:
        """Store what has one place and one content, under the lock or, without a date, without one; a repeat finds itself."""
        return self._store(key, data, retain_until, "application/octet-stream")

    def first(self, key: str) -> bytes | None:
        """The oldest version of this key, whatever was put or marked as deleted over it since; None when there is none."""
        try:
            listed = self._versions(key)
            if not listed:
                return None
            answer = self._client.get_object(Bucket=self.bucket, Key=key, VersionId=listed[-1]["VersionId"])
            data: bytes = answer["Body"].read()
        except (ClientError, BotoCoreError) as error:
            raise self._foreign(error, f"{key} cannot be read") from error
        return data

    def later(self, prefix: str, after: str) -> list[str]:
        """The next keys below this prefix behind this one, in order, those marked as deleted included."""
        try:
            answer = self._client.list_object_versions(
                Bucket=self.bucket, Prefix=prefix, KeyMarker=after, MaxKeys=versions_max
            )
        except (ClientError, BotoCoreError) as error:
            raise self._foreign(error, f"{prefix} cannot be listed") from error
        listed = [*answer.get("Versions", ()), *answer.get("DeleteMarkers", ())]
        return sorted({str(one["Key"]) for one in listed if str(one["Key"]) > after})

    def _versions(self, key: str) -> list[Any]:
        """The stored versions of one key, the newest first."""
        answer = self._client.list_object_versions(Bucket=self.bucket, Prefix=key, MaxKeys=versions_max)
        return [one for one in answer.get("Versions", ()) if one["Key"] == key]

    def _store(self, key: str, data: bytes, retain_until: datetime.datetime | None, kind: str) -> str:
        digest = hashlib.sha256(data).digest()
        failure: Exception | None = None
        for attempt in range(attempts_max):
            if attempt:
                sleep(pause_seconds * attempt)
            try:
                version = self._put_once(key, data, digest, retain_until, kind)
            except (ClientError, BotoCoreError) as error:
                code = _code(error)
                if code in _refusals:
                    raise self._foreign(error, f"{key} was not stored") from error
                # 412: something is there. Anything else, a lost answer above all: it may have happened all the same.
                version = self._find(key, digest, len(data))
                if not version and code in ("PreconditionFailed", "412"):
                    raise self._refusal(
                        "vault_conflict",
                        f"{key} holds other bytes than its name stands for",
                        "treat the bucket as tampered with",
                    ) from error
                failure = error
            if version:
                self._check_stored(key, version, digest, len(data), retain_until)
                return version
        assert failure is not None
        raise self._foreign(failure, f"{key} was not stored in {attempts_max} attempts") from failure

    def shelve(self, key: str, data: bytes) -> None:
        """Put what others poll under a name that stays, over what was there, without a lock of ours."""
        try:
            self._client.put_object(
                Bucket=self.bucket, Key=key, Body=data, ContentType="application/gzip",
                ChecksumSHA256=base64.b64encode(hashlib.sha256(data).digest()).decode("ascii"),
                Metadata={"sha256": hashlib.sha256(data).hexdigest()},
            )  # fmt: skip
        except (ClientError, BotoCoreError) as error:
            raise self._foreign(error, f"{key} was not put") from error

    def shelved(self, key: str) -> str:
        """The digest of what stands there, as it was put; empty when nothing does."""
        try:
            answer = self._client.head_object(Bucket=self.bucket, Key=key)
        except (ClientError, BotoCoreError) as error:
            if _code(error) in ("404", "NoSuchKey", "NotFound"):
                return ""
            raise self._foreign(error, f"{key} cannot be read") from error
        return str(answer.get("Metadata", {}).get("sha256", ""))

    def get(self, key: str, version_id: str) -> bytes:
        """The bytes of exactly this version, whatever was put or marked as deleted over it since; hashed against the name."""
        try:
            answer = self._client.get_object(Bucket=self.bucket, Key=key, VersionId=version_id)
            data: bytes = answer["Body"].read()
        except (ClientError, BotoCoreError) as error:
            raise self._foreign(error, f"{key} cannot be read") from error
        _check_name(key, hashlib.sha256(data).digest())
        return data

    def lock_of(self, key: str, version_id: str) -> tuple[str, datetime.datetime | None]:
        """How this version is locked, and until when; an empty mode is no lock."""
        try:
            head = self._client.head_object(Bucket=self.bucket, Key=key, VersionId=version_id)
        except (ClientError, BotoCoreError) as error:
            raise self._foreign(error, f"{key} cannot be looked at") from error
        return str(head.get("ObjectLockMode", "")), head.get("ObjectLockRetainUntilDate")

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def _put_once(self, key: str, data: bytes, digest: bytes, retain_until: datetime.datetime | None, kind: str) -> str:
        lock = {} if retain_until is None else {"ObjectLockMode": self.mode, "ObjectLockRetainUntilDate": retain_until}
        answer = self._client.put_object(
            Bucket=self.bucket,
            Key=key,
            Body=data,
            IfNoneMatch="*",
            ChecksumSHA256=base64.b64encode(digest).decode("ascii"),
            ContentType=kind,
            **lock,
        )
        version = answer.get("VersionId", "")
        if type(version) is not str or not version:
            raise self._refusal("vault_unlocked", "gives no version to what is put", _refusals["NoSuchBucket"])
        return version

    def _find(self, key: str, digest: bytes, size: int) -> str:
        """The version of this key that holds exactly these bytes, the oldest first; empty when there is none."""
        try:
            listed = [one for one in self._versions(key) if one["Size"] == size]
            for one in reversed(listed):
                stored = self._client.get_object(Bucket=self.bucket, Key=key, VersionId=one["VersionId"])
                if hashlib.sha256(stored["Body"].read()).digest() == digest:
                    return str(one["VersionId"])
        except (ClientError, BotoCoreError) as error:
            if _code(error) in _refusals:
                raise self._foreign(error, f"{key} cannot be looked for") from error
        return ""

    def _check_stored(
        self, key: str, version: str, digest: bytes, size: int, retain_until: datetime.datetime | None
    ) -> None:
        """Believe the stored version, not the answer to the put: its checksum, its size and its lock."""
        try:
            head = self._client.head_object(Bucket=self.bucket, Key=key, VersionId=version, ChecksumMode="ENABLED")
        except (ClientError, BotoCoreError) as error:
            raise self._foreign(error, f"{key} cannot be read back") from error
        stored = head.get("ChecksumSHA256", "")
        if head.get("ContentLength") != size or stored not in ("", base64.b64encode(digest).decode("ascii")):
            raise self._refusal(
                "vault_mismatch", f"gives back other bytes for {key}", "treat the bucket as tampered with"
            )
        until = head.get("ObjectLockRetainUntilDate")
        if retain_until is None:
            return
        if head.get("ObjectLockMode") not in (self.mode, "COMPLIANCE") or until is None or until < retain_until:
            raise self._refusal(
                "vault_unlocked", f"keeps {key} without the lock that was asked for", _refusals["InvalidRequest"]
            )

    def _foreign(self, error: Exception, what: str) -> OperatorError:
        """What an operator reads of a fault of S3 or on the way to it."""
        code = _code(error)
        reason = f"{what}: {code or type(error).__name__}"
        step = _refusals.get(code, "it is tried again; check that the endpoint answers")
        return self._refusal("vault_refused" if code in _refusals else "vault_unavailable", reason, step)

    def _refusal(self, code: str, reason: str, next_step: str) -> OperatorError:
        return OperatorError(reason, code=code, field=f"bucket {self.bucket}", next_step=next_step)


def _check_name(key: str, digest: bytes) -> None:
    match = _named_digest.search(key)
    if match is None or match[1] != digest.hex():
        raise OperatorError(
            f"{key} does not hold what its name says",
            code="vault_mismatch",
            next_step="treat the bucket as tampered with",
        )


def _code(error: Exception) -> str:
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""
