"""The shelf: signed bundles under a name that stays, polled by a real OPA server, which takes nothing else from there."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from engine.errors import OperatorError
from engine.gate.verdict import PolicyFault
from governance import clock
from governance.keys import token_signer_of
from governance.policy import bundle
from governance.policy import shelf as room
from governance.policy.bundle import Bundle, signed
from governance.policy.server import Server, server_at
from governance.policy.shelf import Shelf, server_config, shelf_key
from tests.governance.evidence.test_vault import vault_of
from tests.governance.policy.kit import assert_fault, opa_binary, ruled
from tests.kit.opa import OpaServer
from tests.kit.servers import Bucket
from tests.kit.wait import until

SIGNER, THIEF = token_signer_of(b"s" * 32), token_signer_of(b"t" * 32)
FIRST, SECOND, THIRD = (bundle.shipped({"acme": {"caps": {"max_writes_per_run": n}}}) for n in (1, 2, 3))
POLL, MORE = 1, 2.0


def members(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as files:
        return {one.name: files.extractfile(one).read() for one in files.getmembers()}  # type: ignore[union-attr]


def claims(archive: bytes) -> tuple[dict[str, Any], bytes, bytes]:
    """What the token of an archive says, and its two halves."""
    token = json.loads(members(archive)[".signatures.json"])["signatures"][0]
    head, body, signature = (base64.urlsafe_b64decode(part + "==") for part in token.split("."))
    assert json.loads(head) == {"alg": "ES256", "typ": "JWT"}
    return json.loads(body), token.rpartition(".")[0].encode(), signature


def token_signed_by(pem: str, text: bytes, signature: bytes) -> bool:
    public = load_pem_public_key(pem.encode())
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert len(signature) == 64
    whole = encode_dss_signature(int.from_bytes(signature[:32]), int.from_bytes(signature[32:]))
    try:
        public.verify(whole, text, ec.ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


def test_the_same_content_has_the_same_signed_bytes() -> None:
    """Whichever worker puts it there, and however often."""
    assert signed(FIRST, "acme", SIGNER.sign) == signed(FIRST, "acme", SIGNER.sign)
    said, text, signature = claims(signed(FIRST, "acme", SIGNER.sign))
    assert token_signed_by(SIGNER.pem, text, signature)
    assert not token_signed_by(THIEF.pem, text, signature)
    assert said["scope"] == "acme"
    inside = members(signed(FIRST, "acme", SIGNER.sign))
    assert {one["name"]: one["hash"] for one in said["files"]} == {
        name: hashlib.sha256(data).hexdigest() for name, data in inside.items() if name != ".signatures.json"
    }
    assert json.loads(inside[".manifest"])["revision"] == FIRST.revision
    assert {n: d for n, d in inside.items() if n != ".signatures.json"} == members(FIRST.archive)


def test_opa_signs_the_same_files_with_the_same_digests(tmp_path: Path) -> None:
    """Also where our JSON has to be what OPA makes of JSON before it hashes."""
    odd = bundle.shipped({"acme": {"blocked_targets": ["Zoë\u2028\u2029<&>", "\x7f", '"\\']}})
    inside = members(odd.archive)
    for name, data in inside.items():
        (tmp_path / "b" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "b" / name).write_bytes(data)
    command = [str(opa_binary()), "sign", "--signing-alg=HS256", "--signing-key", "secret", "--bundle", "b", "-o", "."]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    token = json.loads((tmp_path / ".signatures.json").read_text())["signatures"][0].split(".")[1]
    theirs = {
        one["name"].removeprefix("b/"): one["hash"]
        for one in json.loads(base64.urlsafe_b64decode(token + "=="))["files"]
    }
    ours = {one["name"]: one["hash"] for one in claims(signed(odd, "acme", SIGNER.sign))[0]["files"]}
    assert ours == theirs


class Memory:
    """A store that remembers what was put."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.puts: list[str] = []

    def shelve(self, key: str, data: bytes) -> None:
        self.objects[key] = data
        self.puts.append(key)

    def shelved(self, key: str) -> str:
        return hashlib.sha256(self.objects[key]).hexdigest() if key in self.objects else ""


def shelf_of(store: Any, force: dict[str, Bundle]) -> Shelf:
    return Shelf(
        store, tenants=lambda: sorted(force), revision_of=lambda tenant: force[tenant].revision,
        bundle_of=lambda tenant, revision: force[tenant], signer_of=lambda tenant: SIGNER,
    )  # fmt: skip


def test_the_shelf_follows_what_is_in_force_and_puts_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tenant's change touches no other's; another worker finds it done; what somebody took away comes back."""
    store, force = Memory(), {"acme": FIRST, "beta": SECOND}
    shelf = shelf_of(store, force)
    assert [shelf.step(), shelf.step()] == [2, 0]
    assert shelf_of(store, force).step() == 0
    force["acme"] = THIRD
    assert shelf.step() == 1
    assert store.puts == [shelf_key("acme"), shelf_key("beta"), shelf_key("acme")]
    assert store.objects[shelf_key("acme")] == signed(THIRD, "acme", SIGNER.sign)
    store.objects.clear()
    assert shelf.step() == 0
    monkeypatch.setattr(room, "look_seconds", 0.0)
    assert shelf.step() == 2


@pytest.mark.parametrize("url", ["opa:8181", "ftp://opa", "http://", "http://opa/v1/data", "http://opa?x=1"])
def test_a_url_that_is_no_servers_is_refused(url: str) -> None:
    with pytest.raises(OperatorError, match="TWOKEYS_OPA_URL"):
        server_at(url, "acme")


# --- a real server ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OpaServer, Server]]:
    """An OPA server that is set up as `twokeys policy server-config` says, and our client."""
    account = bucket.account
    config = server_config(
        "acme", endpoint=account.endpoint_url, bucket=bucket.name, region=account.region, public_pem=SIGNER.pem,
        poll_seconds=POLL,
    )  # fmt: skip
    opa = OpaServer(opa_binary(), config, tmp_path_factory.mktemp("opa"), account)
    client = server_at(opa.url, "acme")
    yield opa, client
    client.close()
    opa.stop()


def answers(client: Server, revision: str) -> bool:
    try:
        client.load(THIRD if revision == THIRD.revision else SECOND if revision == SECOND.revision else FIRST)
    except PolicyFault:
        return False
    return True


def test_a_publish_reaches_a_server_that_polls_and_nothing_else_does(
    bucket: Bucket, served: tuple[OpaServer, Server]
) -> None:
    """In force within the poll interval and two seconds; unsigned, wrongly signed, another tenant's, changed and broken ones stay out."""
    _, client = served
    store, force = vault_of(bucket), {"acme": FIRST}
    shelf = shelf_of(store, force)
    shelf.step()
    until(lambda: answers(client, FIRST.revision), 15.0)
    force["acme"] = SECOND
    shelf.step()
    until(lambda: answers(client, SECOND.revision), POLL + MORE)
    # The revision in each answer decides: what is no longer served is no longer answered.
    assert_fault(ruled(client, FIRST.revision), "revision_mismatch", retryable=True)
    good = signed(THIRD, "acme", SIGNER.sign)
    files = members(good)
    files["twokeys/overlay.rego"] += b"\n"
    changed = bundle._gzip(bundle._tar(list(files.items())))
    for wrong in (
        THIRD.archive,
        signed(THIRD, "acme", THIEF.sign),
        signed(THIRD, "beta", SIGNER.sign),
        changed,
        b"garbage",
    ):
        store.shelve(shelf_key("acme"), wrong)
        begun = clock.monotonic()
        while clock.monotonic() - begun < POLL + 0.5:
            assert ruled(client, SECOND.revision).verdict.deny_kind != "fault"
            clock.sleep(0.2)
        assert not answers(client, THIRD.revision)
    store.shelve(shelf_key("acme"), good)
    until(lambda: answers(client, THIRD.revision), POLL + MORE)
