"""Policies and freezes over /v1 and in the console: the same orders, the same refusals, and the live policy untouched by what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.governance.web.kit import Api, Browser
from tests.kit.world import World

Speak = Callable[[str], Api]
_of = "/v1/policies/drafts/more"


def test_a_limit_is_raised_over_the_api(world: World, api: Speak) -> None:
    """Begin, edit, check, replay, propose; two others give keys; the history says so."""
    rita = api("rita")
    begun = rita.post("/v1/policies/drafts", {"draft": "more"})
    assert begun.status_code == 201
    content = {name: begun.json()[name] for name in ("modules", "tests", "data", "dropped")}
    content["data"]["caps"]["max_writes_per_run"] = 80
    assert rita.put(_of, content).json()["draft"]["edit"] == 2
    checked = rita.post(f"{_of}/check", None).json()
    assert (checked["valid"], checked["people"]) == (True, 2)
    assert "MAY LOOSEN data.caps: max_writes_per_run: 50 -> 80" in checked["weight"]
    replayed = rita.post(f"{_of}/replay", None).json()
    assert (replayed["done"], replayed["looser"]) == (True, 0)
    asked = rita.post(f"{_of}/propose", {"reason": "the import"})
    assert asked.status_code == 202
    run, before = asked.json()["run"], rita.get("/v1/policies").json()["in_force"]
    world.until(run, "waiting_approval")
    found = world.waiting(run)
    body = {"kind": "key", "digest16": found.asked.action_digest.hex()[:16]}
    for name, status in (("rita", 403), ("ana", 200), ("ana", 403), ("bo", 200)):
        answer = api(name).post(f"/v1/approvals/{found.asked.id}/decide", body)
        assert answer.status_code == status, answer.text
    world.until(run, "succeeded")
    now = rita.get("/v1/policies").json()
    assert now["in_force"] == checked["revision"] != before
    assert [(one["how"], one["run"]) for one in now["activations"]] == [("published", run)]
    back = rita.post("/v1/policies/rollback", {"revision": before[:12]})
    assert back.status_code == 202


_overlay = "twokeys/overlay.rego"


def rule(body: str) -> str:
    """One more denial in the overlay."""
    return f'\ndeny contains {{"code": "x", "message": "y"}} if {body}\n'


def overlay(more: str) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["modules"].update({_overlay: content["modules"][_overlay] + more})


_bad: dict[str, tuple[Callable[[dict[str, Any]], None], str, str]] = {
    "does not parse": (overlay("\ndeny contains {\n"), _overlay, ""),
    "reads a field that is not there": (overlay(rule("input.acton")), _overlay, "no field 'acton'"),
    "asks the outside": (overlay(rule('http.send({"url": "a", "method": "get"})')), _overlay, "http.send"),
    "is named like the data": (overlay("\ntenants := 1\n"), _overlay, "tenants"),
    "data that fail their schema": (
        lambda c: c["data"]["caps"].update(max_writes_per_run="many"), "tenant.json", "whole number",
    ),
    "the product's own rules": (
        lambda c: c["modules"].update({"twokeys/guard.rego": c["modules"]["twokeys/guard.rego"] + "\nx := 1\n"}),
        "twokeys/guard.rego", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", _bad)
def test_what_is_wrong_is_said_at_its_place_and_never_proposed(world: World, api: Speak, what: str) -> None:
    """Line, column, the line itself; a proposal is refused, no run begins, and the policy in force stays."""
    change, file, said = _bad[what]
    rita = api("rita")
    content = {
        name: part
        for name, part in rita.post("/v1/policies/drafts", {"draft": "more"}).json().items()
        if name in ("modules", "tests", "data", "dropped")
    }
    before = rita.get("/v1/policies").json()["in_force"]
    change(content)
    assert rita.put(_of, content).status_code == 200
    checked = rita.post(f"{_of}/check", None).json()
    assert not checked["valid"]
    fault = next(one for one in checked["faults"] if one["file"] == file)
    assert said in fault["message"]
    assert fault["line"] >= 1
    assert fault["column"] >= 1
    refused = rita.post(f"{_of}/propose", {})
    assert refused.status_code == 422, refused.text
    assert refused.headers["content-type"].startswith("application/problem+json")
    assert rita.get("/v1/policies").json()["in_force"] == before
    assert world.row("select count(*) as n from own_change where tenant = :tenant") == {"n": 0}


def test_five_megabytes_are_refused_before_they_are_stored(world: World, api: Speak) -> None:
    rita = api("rita")
    content = rita.post("/v1/policies/drafts", {"draft": "more"}).json()
    modules = {**content["modules"], _overlay: content["modules"][_overlay] + "# " + "x" * 5_000_000}
    body = {"modules": modules, "tests": content["tests"], "data": content["data"], "dropped": []}
    assert rita.put(_of, body).status_code == 413
    assert rita.get(_of).json()["draft"]["edit"] == 1


def test_a_draft_without_its_tests_is_not_proposed(world: World, api: Speak) -> None:
    rita = api("rita")
    content = rita.post("/v1/policies/drafts", {"draft": "more"}).json()
    body = {"modules": content["modules"], "tests": {}, "data": content["data"], "dropped": []}
    rita.put(_of, body)
    refused = rita.post(f"{_of}/propose", {})
    assert (refused.status_code, refused.json()["code"]) == (422, "tests_failed")


def test_a_group_that_nobody_is_in_locks_no_one_out(world: World, api: Speak) -> None:
    rita = api("rita")
    content = rita.post("/v1/policies/drafts", {"draft": "more"}).json()
    for owners, code in ((["ghosts"], "unknown_group"), (["empty"], "too_few_owners")):
        if owners == ["empty"]:
            world.parts.admit.group(world.tenant, None, "empty", "Empty")
        data = {**content["data"], "policy_owners": owners}
        rita.put(_of, {"modules": content["modules"], "tests": content["tests"], "data": data, "dropped": []})
        refused = rita.post(f"{_of}/propose", {})
        assert (refused.status_code, refused.json()["code"]) == (422, code)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/policies/drafts", {"draft": "x"}),
        ("/v1/policies/rollback", {"revision": "0" * 12}),
        (f"{_of}/check", None),
    ],
)
def test_changing_policies_takes_level_five(world: World, api: Speak, path: str, body: Any) -> None:
    for name in ("ana", "aud", "low"):
        assert api(name).post(path, body).status_code == 403


def test_a_freeze_and_its_end_over_the_api(world: World, api: Speak) -> None:
    olga = api("olga")
    assert olga.post("/v1/freezes", {"reason": " "}).status_code == 422
    assert api("low").post("/v1/freezes", {"reason": "x"}).status_code == 403
    begun = olga.post("/v1/freezes", {"scope": "connector", "name": "servicenow", "reason": "their upgrade"})
    assert begun.status_code == 201
    freeze = begun.json()["freeze"]
    assert [one["freeze"] for one in olga.get("/v1/freezes").json()["freezes"]] == [freeze]
    run = olga.post(f"/v1/freezes/{freeze}/thaw", {"reason": "over"}).json()["run"]
    world.until(run, "waiting_approval")
    world.approve(run, "ana", "bo")
    world.until(run, "succeeded")
    assert olga.get("/v1/freezes").json()["freezes"] == []
    assert olga.post(f"/v1/freezes/{freeze}/thaw", {"reason": "again"}).status_code == 400


def test_a_limit_is_raised_in_the_console(world: World, browser: Callable[[str], Browser]) -> None:
    """Without a script: begin, save, replay, propose; and nobody is asked twice."""
    rita = browser("rita")
    csrf = rita.hidden("/policies")["csrf"]
    assert (
        rita.post("/policies", {"csrf": csrf, "act": "begin", "draft": "more"}).headers["location"] == "/policies/more"
    )
    page = rita.get("/policies/more").text
    assert "its tests pass" in page
    assert "The text is the same." in page
    data = world.parts.amend.rebase(world.tenant, world.actor("rita"), "more").content.data
    raised = json.dumps({**data, "caps": {**data["caps"], "max_writes_per_run": 80}})
    assert rita.post("/policies/more", {"csrf": csrf, "act": "save", "data": raised}).status_code == 303
    wrong = rita.post("/policies/more", {"csrf": csrf, "act": "save", "data": "{"})
    assert wrong.status_code == 400
    assert rita.post("/policies/more", {"csrf": csrf, "act": "replay"}).status_code == 303
    page = rita.get("/policies/more").text
    assert "MAY LOOSEN data.caps: max_writes_per_run: 50 -&gt; 80" in page
    assert "Looser 0" in page
    run = rita.post("/policies/more", {"csrf": csrf, "act": "propose", "reason": "why not"}).headers["location"]
    assert run.startswith("/runs/")
    assert rita.post("/policies/more", {"csrf": csrf, "act": "propose", "reason": ""}).headers["location"] == run
    world.until(run.removeprefix("/runs/").partition("?")[0], "waiting_approval")
    assert "takes two people besides its authors" in rita.get("/approvals/" + world.waiting(run[6:38]).asked.id).text


def test_stopping_in_the_console(world: World, browser: Callable[[str], Browser]) -> None:
    olga = browser("olga")
    csrf = olga.hidden("/policies")["csrf"]
    assert olga.post("/policies", {"csrf": "x", "act": "freeze", "reason": "r"}).status_code == 403
    form = {"csrf": csrf, "act": "freeze", "scope": "kill_switch", "name": "", "reason": "<b>now</b>"}
    assert olga.post("/policies", form).headers["location"] == "/policies?done=frozen"
    page = olga.get("/policies").text
    assert "kill switch" in page
    assert "&lt;b&gt;now&lt;/b&gt;" in page
    assert olga.post("/policies", form).status_code == 409
    aud = browser("aud").get("/policies").text
    assert "Stop it now" not in aud
    assert "kill switch" in aud
