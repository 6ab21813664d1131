"""The console: what people see and what their forms do, over the real commands."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape

import pytest
from starlette.testclient import TestClient

from governance.store import people
from governance.web import console
from governance.web.render import CSP
from tests.flow.test_workflows_in_python import publish
from tests.governance.web.kit import Api, Browser
from tests.kit.servicenow import INCIDENT
from tests.kit.world import World

Open = Callable[[str], Browser]
Speak = Callable[[str], Api]
HOSTILE = "\u202egnp.exe\u200b <script>alert(1)</script> <b onclick=x>&amp; ${7*7} {{ 7*7 }} \u2066javascript:x\x07"
VALUE = {"number": "INC0010001", "sys_id": INCIDENT, "short_description": "Checkout answers 502", "priority": "1"}


def waiting(world: World, **value: str) -> tuple[str, str]:
    """A run and the approval it waits for."""
    run = world.start(value={**VALUE, **value})
    world.until(run, "waiting_approval")
    return run, world.waiting(run).asked.id


def high(world: World, **value: str) -> tuple[str, str]:
    """The same where two people are needed."""
    run, _ = waiting(world, **value)
    world.approve(run, "cleo")
    world.until(run, "waiting_approval")
    return run, world.waiting(run).asked.id


def unknown(world: World) -> str:
    """A run with a step whose outcome nobody knows."""
    world.servicenow.plan("drop_connection", method="PATCH", times=1)
    run = world.start(value={**VALUE, "number": "INC0010002", "sys_id": "9" * 32})  # an effect of its own
    world.drain()
    assert world.steps(run)["route"].startswith("unknown")
    return run


# --- deciding ---------------------------------------------------------------------------------------------------------


def test_two_people_approve_in_the_console_and_the_run_ends(world: World, browser: Open) -> None:
    """The main flow of the console: the queue, the whole action, two keys, each answered by a sentence."""
    run, first = waiting(world)
    cleo, ana, bo = browser("cleo"), browser("ana"), browser("bo")
    assert first in cleo.get("/approvals").text
    assert "Approved. It runs now." in cleo.decide(first, "key").text
    world.until(run, "waiting_approval")
    second = world.waiting(run).asked.id
    assert "Your key is in: 1 of 2." in ana.decide(second, "key", "looked at it").text
    assert "looked at it" in bo.get(f"/approvals/{second}").text
    assert "Approved: your key was the last of 2." in bo.decide(second, "key").text
    world.until(run, "succeeded")
    page = bo.get(f"/runs/{run}").text
    assert "Ended well" in page
    assert page.count("✓ holds") == 5
    assert "Nothing waits for people" in bo.get("/approvals").text
    votes = world.rows(
        "select via, blocks_sha256 from vote where tenant = :tenant and approval = :approval", approval=second
    )
    assert {vote["via"] for vote in votes} == {"console"}
    assert {len(vote["blocks_sha256"]) for vote in votes} == {64}, "what the page showed is on the vote"


def test_a_rejection_needs_a_reason_and_ends_the_run(world: World, browser: Open) -> None:
    run, approval = waiting(world)
    ana = browser("ana")
    answer = ana.decide(approval, "reject", "  ")
    assert (answer.status_code, "Say why you reject this" in answer.text) == (422, True)
    assert "Rejected. Nothing will be executed" in ana.decide(approval, "reject", "not in office hours").text
    world.until(run, "failed_terminal")
    assert "not in office hours" in ana.get(f"/runs/{run}").text


@pytest.mark.parametrize(
    ("name", "words", "status"),
    [
        ("rita", "You asked for this, so you cannot hold a key.", 403),
        (
            "olga",
            "You are in no group that may give this key; it takes @incident-managers, @oncall. Nothing changed.",
            403,
        ),
        ("low", "Deciding takes level 4; yours is 3.", 403),
        ("aud", "Deciding takes level 4; yours is 1.", 403),
        ("robot", "Only a person can decide this; a service account cannot.", 403),
    ],
)
def test_who_may_not_decide_reads_why_before_and_after_trying(
    world: World, browser: Open, name: str, words: str, status: int
) -> None:
    run, approval = high(world)
    made = browser(name)
    assert words in unescape(made.get(f"/approvals/{approval}").text)
    answer = made.decide(approval, "key")
    assert answer.status_code == status
    assert words in unescape(answer.text)
    assert world.case(run).state == "waiting_approval"


def test_one_person_gives_one_key_and_a_repeat_of_the_form_finds_the_first_answer(world: World, browser: Open) -> None:
    _, approval = high(world)
    ana = browser("ana")
    path = f"/approvals/{approval}"
    form = {**ana.hidden(path), "kind": "key", "reason": ""}
    first, repeat = ana.post(path, form), ana.post(path, form)
    assert "Your key is in: 1 of 2." in first.text
    assert "Your key is in: 1 of 2." in repeat.text
    again = ana.decide(approval, "key")
    assert (again.status_code, "a different person must give key 2" in again.text) == (403, True)
    assert len(world.waiting(world.case(_).origin.run).votes) == 1


@pytest.mark.parametrize("field", ["digest16", "shown"])
def test_a_page_that_showed_something_else_decides_nothing(world: World, browser: Open, field: str) -> None:
    """P3: what is decided is what was shown."""
    run, approval = waiting(world)
    answer = browser("ana").decide(approval, "key", **{field: "0" * 64})
    assert (answer.status_code, "This changed after it was shown to you" in answer.text) == (409, True)
    assert world.case(run).state == "waiting_approval"


def test_a_decision_of_another_kind_and_an_unknown_approval_are_refused(world: World, browser: Open) -> None:
    _, approval = waiting(world)
    ana = browser("ana")
    assert ana.decide(approval, "shout").status_code == 422
    assert "nothing to stop" in ana.decide(approval, "stop").text
    assert ana.get("/approvals/ap_0000000000000000").status_code == 404
    assert "approval ap_0000" in ana.get("/approvals/ap_0000000000000000").text.lower()


# --- a run ------------------------------------------------------------------------------------------------------------


def test_the_run_page_says_in_one_sentence_why_it_waits_and_for_whom(world: World, browser: Open) -> None:
    run, approval = high(world)
    page = unescape(browser("ana").get(f"/runs/{run}").text)
    assert "“close” waits for 2 keys of different people, from ana, bo or cleo, until" in page
    world.press(world.waiting(run), "ana")
    page = unescape(browser("ana").get(f"/runs/{run}").text)
    assert "“close” waits for 1 key after 1 of 2, from bo or cleo, until" in page
    assert f'href="/approvals/{approval}"' in page
    assert "2 keys from 2 different people" in page


def test_an_unknown_outcome_waits_for_a_persons_word(world: World, browser: Open) -> None:
    """The requester may not speak for their own effect; another person says it happened and the run goes on."""
    run = unknown(world)
    page = browser("bo").get(f"/runs/{run}").text
    assert "Did “route” happen?" in page
    assert "Nobody knows whether" in page
    assert 'href="/runs?state=unknown"' in browser("bo").get("/runs").text
    assert run in browser("bo").get("/runs?state=unknown").text
    path = f"/runs/{run}/resolve"
    rita, bo = browser("rita"), browser("bo")
    said = {"how": "happened", "reason": "I see the note in ServiceNow"}
    answer = rita.post(path, {**rita.hidden(f"/runs/{run}", path), **said})
    assert (answer.status_code, "another person must say what happened" in answer.text) == (403, True)
    assert "I see the note in ServiceNow" in answer.text, "what was typed is not lost"
    hidden = bo.hidden(f"/runs/{run}", path)
    answer = bo.post(path, {**hidden, **said, "reason": " "})
    assert (answer.status_code, "A reason of 1-2000 characters is needed" in answer.text) == (400, True)
    answer = bo.post(path, {**hidden, **said})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/{run}?done=happened")
    page = bo.get(answer.headers["location"]).text
    assert "Recorded that it happened." in page
    assert "a person said so: bo<blockquote>I see the note in ServiceNow</blockquote>" in page
    assert bo.post(path, {**hidden, **said}).status_code == 303, "the same click again gets the same answer"
    assert bo.post(path, {**hidden, **said, "how": "did_not"}).status_code == 409
    assert bo.post(path, {**hidden, **said, "once": "another"}).status_code == 409
    world.until(run, "waiting_approval")


def test_what_is_parked_is_listed_with_its_error_and_goes_on_by_a_button(world: World, browser: Open) -> None:
    run = world.start(ref="parked", value=VALUE)
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update work set state = 'parked', faults = 9 where tenant = :tenant and run = :run", run=run)
        unit.run("update run set error = 'the host did not answer' where tenant = :tenant and run = :run", run=run)
    listed = browser("ana").get("/runs").text
    assert "after 9 faults: the host did not answer" in listed
    path = f"/runs/{run}/retry"
    for name, status in (("low", 403), ("aud", 403), ("ana", 303)):
        made = browser(name)
        assert made.post(path, made.hidden(f"/runs/{run}", path)).status_code == status, name
    assert "What was parked goes on." in browser("ana").get(f"/runs/{run}?done=retried").text
    assert "after 9 faults" not in browser("ana").get("/runs").text
    assert "run.retried" in world.entries(run)
    world.until(run, "waiting_approval")


def test_cancelling_withdraws_what_waits(world: World, browser: Open) -> None:
    run, approval = waiting(world)
    path = f"/runs/{run}/cancel"
    for name, reason, status in (("low", "x", 403), ("aud", "x", 403), ("ana", " ", 422), ("ana", "not needed", 303)):
        made = browser(name)
        answer = made.post(path, {**made.hidden(f"/runs/{run}", path), "reason": reason})
        assert answer.status_code == status, (name, answer.text)
    page = browser("ana").get(f"/runs/{run}?done=canceled").text
    assert "Asked to cancel." in page
    assert "Was canceled" in page
    assert 'action="/runs/' not in page, "there is nothing left to order"
    page = browser("bo").get(f"/approvals/{approval}").text
    assert "Your decision" not in page, "a withdrawn request has no form"
    assert "Withdrawn. Nothing was executed." in page


def test_the_list_of_runs_filters_and_turns_pages_without_losing_one(
    world: World, browser: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keyset paging: every run is on exactly one page, newest first."""
    monkeypatch.setattr(console, "page_rows", 5)
    runs = [world.start(ref=f"page/{n}") for n in range(13)]
    ana, path, seen = browser("ana"), "/runs?state=queued&workflow=incident-triage", []
    while path:
        page = ana.get(path).text
        seen += re.findall(r'href="/runs/([0-9a-f]{32})"', page)
        following = re.search(r'href="([^"]+)">Older runs', page)
        path = unescape(following[1]) if following else ""
    assert seen == runs[::-1]
    assert "No run fits this filter." in ana.get("/runs?state=succeeded").text
    assert ana.get("/runs?state=nonsense").status_code == 404
    assert ana.get("/runs?after=nonsense").status_code == 400
    assert ana.get("/runs?workflow=" + "'%20or%20true").text.count('href="/runs/') == 0


def test_the_queue_turns_pages_by_deadline(world: World, browser: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "queue_rows", 2)
    runs = [world.start(ref=f"q/{n}") for n in range(5)]
    world.drain()
    ana, path, seen = browser("ana"), "/approvals", []
    while path:
        page = ana.get(path).text
        seen += re.findall(r'<h2><a href="/approvals/(ap_[0-9a-f]+)"', page)
        following = re.search(r'href="([^"]+)">Later deadlines', page)
        path = unescape(following[1]) if following else ""
    rows = world.rows("select approval from approval where tenant = :tenant order by expires_at, approval")
    assert seen == [row["approval"] for row in rows]
    assert len(seen) == len(runs)


# --- every page -------------------------------------------------------------------------------------------------------


def pages(world: World) -> list[str]:
    lost = unknown(world)
    run, approval = high(world, short_description=HOSTILE[:160])
    return [
        "/approvals", f"/approvals/{approval}", "/runs", f"/runs/{run}", f"/runs/{lost}", "/workflows", "/people",
    ]  # fmt: skip


def test_every_answer_carries_the_headers_that_keep_it_in_its_place(
    world: World, browser: Open, client: TestClient
) -> None:
    """Strict CSP without scripts, no framing, no sniffing, no storing; also on errors, redirects and the API."""
    made = browser("bo")
    more = ["/sign-in", "/", "/nothing", "/runs/nope", "/v1/runs", "/v1/openapi.json", "/healthz", "/metrics"]
    for path in [*pages(world), *more]:
        answer = made.get(path)
        assert answer.headers["content-security-policy"] == CSP, path
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store", path
        assert answer.status_code < 500
    assert "script-src" not in CSP
    assert "unsafe" not in CSP


def test_hostile_text_is_shown_as_text_on_every_page(world: World, browser: Open) -> None:
    """Nothing that others wrote becomes markup, hides, or turns the reading direction."""
    bo = browser("bo")
    with world.parts.database.unit(world.tenant) as unit:
        people.add_person(unit, person="per_evil", name=HOSTILE, level=4, kind="human", read_only=False)
    found = pages(world)
    run, approval = found[3].rpartition("/")[2], found[1].rpartition("/")[2]
    assert browser("ana").decide(approval, "key", HOSTILE.replace("\x07", "")).status_code == 200
    for path in found:
        text = bo.get(path).text
        for char in "\u202e\u200b\u2066\x07":
            assert char not in text, (path, char)
        assert "<script" not in text
        assert "<b onclick" not in text
        assert " style=" not in text
        assert not re.search(r"\son[a-z]+=", text.replace("&lt;b onclick=x&gt;", ""))
    for path in (f"/runs/{run}", f"/approvals/{approval}", "/people"):
        assert '<span class="unseen" title="U+202E">\\u{202e}</span>gnp.exe' in bo.get(path).text, path


def test_pages_load_nothing_but_one_stylesheet_and_one_drawing(world: World, browser: Open) -> None:
    made = browser("bo")
    for path in pages(world):
        text = made.get(path).text
        loaded = set(re.findall(r'(?:src|href)="(/static/[^"]+)"', text))
        assert {one.rpartition(".")[2] for one in loaded} == {"css", "svg"}
        assert not re.search(r'(?:src|href)="(?:https?:)?//', text)
        for one in loaded:
            answer = made.get(one)
            assert answer.status_code == 200
            assert "immutable" in answer.headers["cache-control"]
    assert made.get("/static/console.css").status_code == 404, "only the name with the hash"
    assert made.get("/static/..%2f..%2fapp.py").status_code == 404


def test_moments_are_in_time_elements_and_forms_are_labelled(world: World, browser: Open) -> None:
    made = browser("bo")
    for path in pages(world):
        text = made.get(path).text
        outside = re.sub(r"<time.*?</time>", "", text, flags=re.S)
        assert not re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d", outside), path
        for field in re.findall(r'<(?:textarea|select|input type="(?:text|password)")[^>]* id="([^"]+)"', text):
            assert f'<label for="{field}"' in text
        for form in re.findall(r'<form method="post".*?</form>', text, re.S):
            assert 'name="csrf"' in form


def test_an_auditor_reads_everything_and_orders_nothing(world: World, browser: Open) -> None:
    made = browser("aud")
    for path in pages(world):
        assert made.get(path).status_code == 200, path


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/runs/%00", 404),
        ("POST", "/runs", 405),
        ("GET", "/runs/", 404),
        ("PUT", "/approvals", 405),
    ],
)
def test_an_address_that_is_not_there_says_so_on_a_page(
    client: TestClient, method: str, path: str, status: int
) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")
    assert 'href="/"' in answer.text


def test_parent_and_child_link_to_one_another(world: World, browser: Open, api: Speak) -> None:
    """The pages of both, why the parent waits, and the same by the API."""
    publish(world, 'async def above(ctx, input):\n    return await ctx.child("below", {})\n')
    publish(world, 'async def below(ctx, input):\n    return await ctx.wait_signal("w")\n')
    run = world.start("above", value={})
    world.drain()
    (row,) = world.rows("select run from run where tenant = :tenant and parent = :run", run=run)
    page, inner = browser("aud").get(f"/runs/{run}").text, browser("aud").get(f"/runs/{row['run']}").text
    assert f'href="/runs/{row["run"]}"' in page
    assert "Waits for its child run of below" in page
    assert "Started child run" in page
    assert f'href="/runs/{run}"' in inner
    assert "Started by run" in inner
    shown = api("aud").get(f"/v1/runs/{row['run']}").json()
    assert (shown["parent"], shown["parent_promise"], shown["code_sha256"]) == (run, "0", shown["definition_sha256"])
    assert [step["child"] for step in api("aud").get(f"/v1/runs/{run}").json()["steps"]] == [row["run"]]


def test_a_run_that_was_moved_shows_both_codes(world: World, browser: Open) -> None:
    text = "async def ask(ctx, input):\n    return await ctx.wait_signal('w')\n"
    publish(world, text)
    run = world.start("ask", value={})
    world.drain()
    publish(world, text + "# said better\n")
    old = world.case(run).code.hex()
    done = world.parts.migrate.to_version(world.tenant, world.actor("rita"), run)
    page = browser("aud").get(f"/runs/{run}").text
    assert old in page
    assert f"<code>{done.digest}</code>" in page
    assert "moved it to the code of" in page
