"""Downloads: the sealed bytes and no others, each an entry; and receipts whose signatures are checked before they are shown."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from governance.evidence.vault import Vault
from governance.wiring import Parts
from tests.governance.web.kit import Api, Browser
from tests.kit.world import World


@pytest.fixture
def sealing_client(sealing_parts: Parts) -> Iterator[TestClient]:
    with TestClient(sealing_parts.web_app(), base_url="http://console.test", raise_server_exceptions=False) as made:
        yield made


@pytest.fixture
def sealed(sealing_world: World) -> tuple[World, str, dict[str, Any]]:
    """A run that has ended and whose bundle lies in the bucket."""
    world = sealing_world
    run = world.start()
    world.until(run, "waiting_approval")
    world.parts.cancel.cancel(world.tenant, world.actor("rita"), run, "enough")
    return world, run, world.seal(run)


def test_the_bundle_is_downloaded_hashed_again_and_logged(
    sealing_client: TestClient, sealed: tuple[World, str, dict[str, Any]]
) -> None:
    """Console and API give the same bytes; who took them is an entry of the run's chain."""
    world, run, row = sealed
    api, browser = Api(sealing_client, world.token("aud")), Browser(sealing_client, world)
    assert browser.sign_in("bo").status_code == 303
    page = browser.get(f"/runs/{run}").text
    assert row["sha256"] in page
    assert "Download the bundle" in page
    by_api, by_console = api.get(f"/v1/runs/{run}/bundle"), browser.get(f"/runs/{run}/bundle")
    for answer in (by_api, by_console):
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/zip"
        assert answer.headers["content-disposition"] == f'attachment; filename="{run}.zip"'
        assert hashlib.sha256(answer.content).hexdigest() == row["sha256"] == answer.headers["x-twokeys-sha256"]
    assert any(name.endswith("entries.jsonl") for name in zipfile.ZipFile(io.BytesIO(by_api.content)).namelist())
    assert world.entries(run)[-2:] == ["evidence.downloaded", "evidence.downloaded"]
    detail = api.get(f"/v1/runs/{run}").json()
    assert (detail["state"], detail["bundle"]["state"], detail["bundle"]["sha256"]) == (
        "canceled",
        "sealed",
        row["sha256"],
    )
    assert "ed25519" in api.get("/v1/trust").text.lower() or world.tenant in api.get("/v1/trust").text
    assert browser.get("/trust").text == api.get("/v1/trust").text
    assert browser.get("/verify.py").content.startswith(b"#!") or b"def " in browser.get("/verify.py").content


def test_other_bytes_in_the_bucket_are_never_handed_out(
    sealing_client: TestClient, sealed: tuple[World, str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, run, _ = sealed
    true_get = Vault.get

    def flipped(self: Vault, key: str, version_id: str) -> bytes:
        data = bytearray(true_get(self, key, version_id))
        data[len(data) // 2] ^= 1
        return bytes(data)

    monkeypatch.setattr(Vault, "get", flipped)
    answer = Api(sealing_client, world.token("bo")).get(f"/v1/runs/{run}/bundle")
    assert (answer.status_code, answer.json()["code"]) == (500, "vault_mismatch")
    assert "evidence.downloaded" not in world.entries(run)


def test_a_bundle_that_is_not_sealed_is_not_there_yet(sealing_client: TestClient, sealing_world: World) -> None:
    run = sealing_world.start()
    answer = Api(sealing_client, sealing_world.token("bo")).get(f"/v1/runs/{run}/bundle")
    assert (answer.status_code, answer.json()["code"]) == (409, "not_sealed")
    assert answer.json()["next_step"] == "a finished run is sealed within seconds"


def test_a_receipt_whose_signature_does_not_hold_is_shown_as_such_and_says_nothing(
    sealing_client: TestClient, sealing_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = sealing_world
    run = world.start()
    world.until(run, "waiting_approval")
    monkeypatch.setattr(type(world.parts.secrets), "verify", lambda *_: False)
    app = world.parts.web_app()
    with TestClient(app, base_url="http://console.test") as client:
        browser = Browser(client, world)
        browser.sign_in("bo")
        page = browser.get(f"/runs/{run}").text
        assert "✗ does not hold" in page
        assert "the system answered" not in page
        shown = Api(client, world.token("bo")).get(f"/v1/runs/{run}").json()["receipts"]
        assert {one["sound"] for one in shown} == {False}
        assert {one["how"] for one in shown} == {""}
