"""Webhooks: signed, timely, strict and once per reference; whoever does not hold a secret learns nothing."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

from engine.limits import json_bytes_max, webhook_bytes_max
from governance import clock
from governance.keys import hook_signature
from governance.web.hooks import skew_seconds_max
from tests.governance.web.kit import hook
from tests.governance.web.test_console import VALUE
from tests.kit.world import World

SECRET = "a-secret-of-the-source-itself"
EVENT = {"event": "incident.created", "ref": "INC0010001/1", "data": VALUE}


def add_source(world: World) -> str:
    """A webhook source that starts the sample workflow; the address it posts to."""
    world.parts.admit.source(
        world.tenant, "servicenow", kind="generic", secret=SECRET, workflow="incident-triage", person="robot", owner="rita"
    )  # fmt: skip
    return f"/hooks/{world.tenant}/servicenow"


@pytest.fixture
def path(world: World) -> str:
    return add_source(world)


@pytest.fixture(scope="module")
def still_path(still: World) -> str:
    return add_source(still)


def post(client: TestClient, path: str, event: Any, **changed: str) -> Any:
    body = event if isinstance(event, bytes) else json.dumps(event).encode()
    return hook(client, path, body, SECRET, clock.epoch_seconds(), **changed)


def runs(world: World) -> int:
    return len(world.rows("select run from run where tenant = :tenant"))


def test_the_same_event_twice_is_one_run(client: TestClient, world: World, path: str) -> None:
    first = post(client, path, EVENT)
    assert (first.status_code, first.json()["new"]) == (202, True)
    again = post(client, path, EVENT)
    assert (again.status_code, again.json()) == (202, {"run": first.json()["run"], "new": False})
    other = post(client, path, {**EVENT, "ref": "INC0010001/2"})
    assert other.json()["run"] != first.json()["run"]
    assert runs(world) == 2
    world.until(first.json()["run"], "waiting_approval")
    origin = world.case(first.json()["run"]).origin
    assert (origin.started_by, origin.owner) == (world.who["robot"], world.who["rita"])


def test_twenty_posts_at_once_are_one_run(client: TestClient, world: World, path: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = [one.json() for one in pool.map(lambda _: post(client, path, EVENT), range(20))]
    assert len({answer["run"] for answer in answers}) == 1
    assert sum(answer["new"] for answer in answers) == 1
    assert runs(world) == 1


def test_no_answer_tells_whether_a_tenant_or_a_source_exists(client: TestClient, still: World, still_path: str) -> None:
    """Unknown tenant, unknown source, wrong secret, changed body, old and future times, no signature: one and the same answer."""
    body, now = json.dumps(EVENT).encode(), clock.epoch_seconds()
    right = hook_signature(SECRET, str(now), body)
    answers = [
        hook(client, "/hooks/nobody/servicenow", body, SECRET, now),
        hook(client, f"/hooks/{still.tenant}/nothing", body, SECRET, now),
        hook(client, "/hooks/Not%20A%20Name/x", body, SECRET, now),
        hook(client, still_path, body, "another secret of the right length", now),
        hook(client, still_path, body, "there is no such source", now),
        hook(client, still_path, body.replace(b"0010001", b"0010002"), SECRET, now, **{"X-Twokeys-Signature": right}),
        hook(client, still_path, body, SECRET, now - skew_seconds_max - 2),
        hook(client, still_path, body, SECRET, now + skew_seconds_max + 2),
        hook(client, still_path, body, SECRET, now, **{"X-Twokeys-Timestamp": str(now + 1)}),
        hook(client, still_path, body, SECRET, now, **{"X-Twokeys-Timestamp": "now"}),
        hook(client, still_path, body, SECRET, now, **{"X-Twokeys-Timestamp": "9" * 400}),
        hook(client, still_path, body, SECRET, now, **{"X-Twokeys-Signature": right.upper()}),
        hook(client, still_path, body, SECRET, now, **{"X-Twokeys-Signature": right.removeprefix("v1=")}),
        hook(client, still_path, body, SECRET, now, **{"X-Twokeys-Signature": ""}),
        client.post(still_path, content=body),
    ]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.text for answer in answers}) == 1
    assert answers[0].json()["code"] == "bad_signature"
    assert answers[0].json()["next_step"].startswith("sign `timestamp.body` with the source's secret")
    assert runs(still) == 0


def test_the_signature_is_checked_before_anything_is_parsed(client: TestClient, path: str) -> None:
    answer = hook(client, path, b"{not json", "another secret of the right length", clock.epoch_seconds())
    assert (answer.status_code, answer.json()["code"]) == (401, "bad_signature")


@pytest.mark.parametrize("skew", [-skew_seconds_max + 5, skew_seconds_max - 5])
def test_a_clock_that_is_a_little_off_is_taken(client: TestClient, path: str, skew: int) -> None:
    answer = hook(client, path, json.dumps(EVENT).encode(), SECRET, clock.epoch_seconds() + skew)
    assert answer.status_code == 202


@pytest.mark.parametrize(
    ("body", "status", "code", "said"),
    [
        (b"{", 400, "malformed_json", "line 1 column 2"),
        (b"", 400, "malformed_json", "line 1 column 1"),
        (b'{"event": "a", "event": "b"}', 400, "malformed_json", "key 'event' stands twice"),
        (b'{"event": "a", "ref": "r", "data": {"n": NaN}}', 400, "malformed_json", "NaN is not a number"),
        (b'{"event": "a", "ref": "r", "data": {"n": -Infinity}}', 400, "malformed_json", "-Infinity is not a number"),
        (b'{"event": "a", "ref": "r", "data": {"n": 0.5}}', 400, "malformed_json", "0.5 is a fraction"),
        (b"[" * 100 + b"]" * 100, 400, "malformed_json", "nested deeper than 32"),
        (b"\xef\xbb\xbf{}", 400, "malformed_json", "byte order mark"),
        (b'{"event": "incident.created", "data": {}}', 422, "invalid_body", "ref: Field required"),
        (b'{"event": "incident.created", "ref": "a b", "data": {}}', 422, "invalid_body", "ref: "),
        (b'{"event": "incident.created", "ref": "r", "data": []}', 422, "invalid_body", "data: "),
        (b'{"event": "incident.created", "ref": "r", "data": {}, "x": 1}', 422, "invalid_body", "x: Extra inputs"),
        (b'{"event": "incident.deleted", "ref": "r", "data": {}}', 422, "invalid_body", "does not subscribe to incident.deleted"),
        (b'{"event": "incident.created", "ref": "r", "data": {}}', 422, "invalid_input", '"number" is a required property'),
    ],
)  # fmt: skip
def test_an_event_that_does_not_fit_is_refused_with_its_field_and_what_to_do(
    client: TestClient, still: World, still_path: str, body: bytes, status: int, code: str, said: str
) -> None:
    answer = post(client, still_path, body)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code), problem
    assert said in problem["detail"]
    assert problem["field"]
    assert problem["next_step"]
    assert runs(still) == 0


@pytest.mark.parametrize(
    "size", [webhook_bytes_max + 1, json_bytes_max + 1, 10 * 1024 * 1024], ids=["256 KiB", "1 MiB", "10 MB"]
)
def test_a_body_that_is_too_large_is_refused_before_it_is_read(
    client: TestClient, still: World, still_path: str, size: int
) -> None:
    """With its reason, with and without a declared length."""
    whole = post(client, still_path, b'"' + b"x" * (size - 2) + b'"')
    pieces = client.post(still_path, content=(b"x" * 65_536 for _ in range(size // 65_536 + 1)))
    for answer in (whole, pieces):
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
        assert "bytes are read" in answer.json()["detail"]
    assert runs(still) == 0


def test_what_a_source_cannot_start_it_is_told(client: TestClient, world: World, path: str) -> None:
    """A deactivated service principal starts nothing; the reason is for the holder of the secret only."""
    world.parts.admit.deactivate(world.tenant, None, world.who["robot"])
    answer = post(client, path, EVENT)
    assert (answer.status_code, answer.json()["code"]) == (403, "level")
    assert runs(world) == 0
