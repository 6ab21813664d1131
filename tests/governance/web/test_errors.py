"""One shape of error, a page for people and a problem for machines; health and readiness; nothing inner is ever shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from engine import errors
from engine.errors import OperatorError, TwokeysError
from governance.commands.start import Start
from governance.store.unit import Database
from governance.web.problems import document, status_of
from tests.governance.web.kit import Api, Browser
from tests.governance.web.test_console import VALUE
from tests.kit.world import World

Open = Callable[[str], Browser]
Speak = Callable[[str], Api]


def kinds(root: type[TwokeysError] = TwokeysError) -> Iterator[type[TwokeysError]]:
    yield root
    for one in root.__subclasses__():
        yield from kinds(one)


def test_every_error_of_ours_has_a_status_and_a_title() -> None:
    """The table is total: also for classes that rooms add below the tree."""
    for kind in kinds():
        made = kind.__new__(kind)
        TwokeysError.__init__(made, "a reason", field="here", next_step="do this")
        made.code = kind.code
        found = document(made)
        assert 400 <= status_of(made) < 600
        assert set(found) == {"type", "title", "status", "detail", "code", "field", "next_step"}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.CallerError("x"), 400),
        (errors.CallerError("x", code="unknown_run"), 404),
        (errors.CallerError("x", code="invalid_input"), 422),
        (errors.AuthorError("x"), 422),
        (errors.Refused("x"), 403),
        (errors.Refused("x", code="ended"), 409),
        (errors.Conflict("x"), 409),
        (errors.StaleWake("x"), 409),
        (errors.OperatorError("x"), 503),
        (errors.BrokenJournal("J-1", "x"), 500),
        (errors.BrokenLedger("x"), 500),
    ],
)
def test_the_status_says_who_must_act(error: TwokeysError, status: int) -> None:
    assert status_of(error) == status


def test_a_crash_is_a_problem_with_an_id_and_nothing_else(
    world: World, api: Speak, browser: Open, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = browser("bo")

    def crash(*_: Any) -> None:
        raise RuntimeError("the secret is xoxb-123")

    monkeypatch.setattr(Start, "by_hand", crash)
    answer = api("rita").post("/v1/runs", {"workflow": "incident-triage", "input": VALUE})
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (500, "internal")
    assert answer.headers["cache-control"] == "no-store"
    assert "xoxb" not in answer.text
    assert "RuntimeError" not in answer.text
    assert problem["id"] in capsys.readouterr().out
    monkeypatch.setattr("governance.store.views.people", crash)
    page = made.get("/people")
    assert (page.status_code, page.headers["content-type"].partition(";")[0]) == (500, "text/html")
    assert "Tell the operator the id" in page.text
    assert "xoxb" not in page.text


def test_health_says_that_the_process_lives_and_readiness_that_the_database_answers(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.get("/healthz").json() == {"ok": True}
    assert client.get("/readyz").json() == {"ready": True}

    def down(_: Database) -> None:
        raise OperatorError("the database does not answer: at 10.0.0.7", code="database")

    monkeypatch.setattr(Database, "self_test", down)
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"ready": False, "code": "database"})
    assert client.get("/healthz").status_code == 200


def test_metrics_count_what_was_answered(client: TestClient) -> None:
    client.get("/healthz")
    text = client.get("/metrics").text
    assert 'twokeys_events_total{name="http_2xx"}' in text


def test_a_database_that_does_not_answer_is_503_for_everybody(
    world: World, api: Speak, browser: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = browser("bo")

    def down(*_: Any, **__: Any) -> None:
        raise OperatorError("the database does not answer: gone", code="database")

    monkeypatch.setattr(Database, "unit", down)
    answer = api("rita").get("/v1/runs")
    assert (answer.status_code, answer.json()["code"]) == (503, "database")
    assert made.get("/runs").status_code == 503


def test_addresses_and_methods_that_are_not_there_are_problems_for_machines(client: TestClient) -> None:
    for path in ("/v1", "/v1/nothing", "/hooks/a", "/slack/nothing"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    answer = client.delete("/v1/runs")
    assert (answer.status_code, answer.json()["code"]) == (405, "wrong_method")


def test_slacks_door_is_in_the_application_and_takes_only_what_slack_signed(client: TestClient) -> None:
    answer = client.post(
        "/slack/events", content=b"payload=%7B%7D", headers={"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert answer.status_code in (400, 401, 403)
