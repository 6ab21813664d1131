"""Who is let in: tokens and sessions are looked up at every request, forms belong to the page's own session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from governance import clock
from governance.commands.authority import Actor, token_ref
from governance.keys import derive
from governance.web.auth import Caller, Sessions, dedupe_key, fresh_seconds_max, session_seconds_max
from governance.web.paging import local_path
from governance.web.questions import Question
from tests.governance.web.kit import Api, Browser
from tests.kit.world import World, settle

Open = Callable[[str], Browser]
Speak = Callable[[str], Api]
PAGES = ("/", "/runs", "/runs/x", "/runs/x/bundle", "/approvals", "/approvals/x", "/workflows", "/people", "/trust")
READS = (
    "/v1/runs",
    "/v1/runs/x",
    "/v1/runs/x/bundle",
    "/v1/journal/x",
    "/v1/approvals",
    "/v1/approvals/x",
    "/v1/trust",
)


def revoke(world: World, name: str) -> None:
    with world.parts.database.unit(world.tenant) as unit:
        unit.run(
            "update identity set revoked_at = clock_timestamp() where tenant = :tenant and person = :person",
            person=world.who[name],
        )


# --- the API ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", READS)
@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer tk_nobody_has_this_token", "Bearer x", "Basic dGs6dGs=", "tk_x"]
)
def test_without_a_token_that_opens_a_door_nothing_is_read(client: TestClient, path: str, header: str) -> None:
    answer = client.get(path, headers={"Authorization": header} if header else {})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="twokeys"'
    problem = answer.json()
    assert (problem["code"], problem["title"]) == ("not_signed_in", "Sign in first")
    assert problem["next_step"]


def test_a_revoked_token_reads_nothing(world: World, api: Speak) -> None:
    revoke(world, "ana")
    for path in READS:
        answer = api("ana").get(path)
        assert (answer.status_code, answer.json()["code"]) == (401, "not_signed_in"), path
        assert "revoked" in answer.json()["detail"]


def test_a_deactivated_person_reads_nothing(still: World, client: TestClient) -> None:
    for path in READS:
        answer = Api(client, still.token("dan")).get(path)
        assert (answer.status_code, answer.json()["code"]) == (403, "inactive"), path


def test_another_tenants_run_is_as_unknown_as_one_that_never_was(world: World, api: Speak) -> None:
    """No field of the two answers differs but the name that was asked for."""
    other = settle(world.parts, world.slack, world.servicenow)
    run = other.start()
    other.until(run, "waiting_approval")
    approval = other.waiting(run).asked.id
    for path, never in (
        ("/v1/runs/{}", "0" * 32), ("/v1/journal/{}", "0" * 32), ("/v1/runs/{}/bundle", "0" * 32),
    ):  # fmt: skip
        theirs, nobodys = api("rita").get(path.format(run)), api("rita").get(path.format(never))
        assert (theirs.status_code, theirs.json()["code"]) == (404, "unknown_run")
        assert theirs.json()["detail"].replace(run, never) == nobodys.json()["detail"]
    for order, body in (("cancel", {"reason": "x"}), ("resolve", {"promise": "0", "how": "happened", "reason": "x"})):
        answer = api("rita").post(f"/v1/runs/{run}/{order}", body)
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_run")
    assert api("rita").get(f"/v1/approvals/{approval}").status_code == 404
    body = {"kind": "key", "digest16": other.waiting(run).asked.action_digest.hex()[:16]}
    assert api("cleo").post(f"/v1/approvals/{approval}/decide", body).json()["code"] == "unknown_approval"
    assert other.case(run).state == "waiting_approval"


# --- sessions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES)
def test_every_page_asks_for_sign_in_first_and_comes_back(client: TestClient, path: str) -> None:
    answer = client.get(path, follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/sign-in?next=")


def test_sign_in_leads_back_to_the_page_that_was_wanted(browser: Open, world: World) -> None:
    made = browser("")
    answer = made.enter(world.token("bo"), to="/people")
    assert (answer.status_code, answer.headers["location"]) == (303, "/people")
    assert made.get("/people").status_code == 200


@pytest.mark.parametrize("token", ["", "tk_nobody_has_this_token", "x" * 5000, "tk_\u202e", "Bearer tk_x"])
def test_a_token_that_nobody_has_is_refused_with_a_sentence(client: TestClient, still: World, token: str) -> None:
    answer = Browser(client, still).enter(token)
    assert answer.status_code == 401
    assert "This token is not known. Ask an owner of your tenant for a new one." in answer.text
    assert token == "" or token not in answer.text, "a token is never shown again"


def test_a_deactivated_person_does_not_sign_in(browser: Open, world: World) -> None:
    answer = browser("").sign_in("dan")
    assert answer.status_code == 403
    assert "Your account is deactivated." in answer.text


def test_the_cookie_is_kept_from_scripts_and_other_sites(browser: Open) -> None:
    made = browser("")
    cookie = made.enter(made.world.token("bo")).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert "max-age=28800" in cookie
    assert "secure" not in cookie, "this installation is reached by http"


def test_behind_https_the_cookie_is_secure_and_bound_to_the_host() -> None:
    sessions = Sessions(b"k" * 32, lambda: 0, clock.random_hex, secure=True)
    assert sessions.cookie == "__Host-twokeys"
    assert sessions.secure


def test_a_session_ends_when_its_token_is_revoked(browser: Open, world: World) -> None:
    made = browser("ana")
    assert made.get("/runs").status_code == 200
    revoke(world, "ana")
    answer = made.get("/runs")
    assert (answer.status_code, "why=revoked" in answer.headers["location"]) == (303, True)
    assert made.cookies == {}


def test_a_session_ends_when_its_person_is_deactivated(browser: Open, world: World) -> None:
    run = world.start()
    world.until(run, "waiting_approval")
    approval = world.waiting(run).asked.id
    made = browser("cleo")
    hidden = made.hidden(f"/approvals/{approval}")
    world.parts.admit.deactivate(world.tenant, None, world.who["cleo"])
    answer = made.post(f"/approvals/{approval}", {**hidden, "kind": "key", "reason": ""})
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/sign-in")
    assert world.case(run).state == "waiting_approval"


def test_sign_out_ends_the_session_of_this_browser(browser: Open) -> None:
    made = browser("bo")
    assert made.post("/sign-out", made.hidden("/runs", "/sign-out")).status_code == 303
    assert made.get("/runs").status_code == 303


def test_a_session_lasts_eight_hours_and_is_nothing_when_changed() -> None:
    """The age, the signature and the shape are all checked; nothing of the cookie is believed before."""
    now = [1_000_000]
    sessions = Sessions(b"k" * 32, lambda: now[0], clock.random_hex, secure=False)
    session = sessions.signed_in(Caller("acme", Actor("token", "aa")))
    text = sessions.write(session)
    assert sessions.read(text) == session
    assert sessions.is_fresh(session)
    assert Sessions(b"x" * 32, lambda: now[0], clock.random_hex, secure=False).read(text) is None
    for at in range(len(text)):
        changed = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
        assert sessions.read(changed) in (None, session), "only unused bits of the last character may differ"
    now[0] += fresh_seconds_max + 1
    assert not sessions.is_fresh(session), "step-up wants the token entered again"
    now[0] = 1_000_000 + session_seconds_max - 1
    assert sessions.read(text) == session
    now[0] += 1
    assert sessions.read(text) is None
    now[0] = 999_999
    assert sessions.read(text) is None, "a session from the future is not ours"


def test_an_old_cookie_opens_nothing(browser: Open, world: World) -> None:
    made = browser("")
    key = derive(bytes.fromhex(world.parts.settings.master_key), "twokeys/session/v1")
    old = Sessions(key, lambda: clock.epoch_seconds() - session_seconds_max - 1, clock.random_hex, secure=False)
    caller = Caller(world.tenant, Actor("token", token_ref(world.token("bo"))))
    made.cookies["twokeys"] = old.write(old.signed_in(caller))
    assert made.get("/runs").status_code == 303
    young = Sessions(key, clock.epoch_seconds, clock.random_hex, secure=False)
    made.cookies["twokeys"] = young.write(young.signed_in(caller))
    assert made.get("/runs").status_code == 200


@pytest.mark.parametrize(
    ("wanted", "gone_to"),
    [
        ("/runs?state=unknown", "/runs?state=unknown"), ("//evil.example", "/"), ("/\\evil.example", "/"), ("https://evil.example", "/"),
        ("", "/"), ("/a\r\nSet-Cookie: x", "/"), ("/runs\\..", "/"), ("javascript:alert(1)", "/"), ("/ü", "/"),
    ],
)  # fmt: skip
def test_sign_in_never_leads_to_another_site(wanted: str, gone_to: str) -> None:
    assert local_path(wanted) == gone_to


# --- forms ------------------------------------------------------------------------------------------------------------


def forms(approval: str, run: str) -> list[tuple[str, dict[str, str]]]:
    return [
        (f"/approvals/{approval}", {"kind": "key", "reason": "x"}),
        (f"/runs/{run}/cancel", {"reason": "x"}),
        (f"/runs/{run}/resolve", {"promise": "0", "how": "happened", "reason": "x"}),
        ("/sign-out", {}),
    ]


def test_a_form_without_this_sessions_own_token_does_nothing(browser: Open, world: World) -> None:
    """No token, a made-up one, the one of another person, the one of an earlier session of the same person."""
    run = world.start()
    world.until(run, "waiting_approval")
    approval = world.waiting(run).asked.id
    cleo, ana, before = browser("cleo"), browser("ana"), browser("cleo")
    stolen = [ana.hidden("/runs", "/sign-out")["csrf"], before.hidden("/runs", "/sign-out")["csrf"]]
    shown = cleo.hidden(f"/approvals/{approval}")
    for path, form in forms(approval, run):
        for csrf in ("", "0" * 64, *stolen):
            answer = cleo.post(path, {**shown, **form, "csrf": csrf})
            assert answer.status_code == 403, path
            assert "nothing was done" in answer.text
    assert world.case(run).state == "waiting_approval"
    assert cleo.get("/runs").status_code == 200, "still signed in"


def test_the_sign_in_form_belongs_to_one_browser(client: TestClient, world: World) -> None:
    """Nobody can sign another browser in with a form of their own."""
    mine, other = Browser(client, world), Browser(client, world)
    hidden = mine.hidden("/sign-in", "/sign-in")
    answer = other.post("/sign-in", {**hidden, "token": world.token("bo")})
    assert answer.status_code == 403
    assert other.get("/runs").status_code == 303


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"csrf=a&csrf=b", "application/x-www-form-urlencoded", 400),
        (b"csrf=%ff", "application/x-www-form-urlencoded", 400),
        (b"{}", "application/json", 415),
        (b"a=1&" * 60, "application/x-www-form-urlencoded", 400),
        (b"a=" + b"x" * 70_000, "application/x-www-form-urlencoded", 413),
    ],
)
def test_a_form_that_no_page_sends_is_refused(
    client: TestClient, still: World, body: bytes, content_type: str, status: int
) -> None:
    made = Browser(client, still)
    made.sign_in("bo")
    headers = {"Content-Type": content_type, "Cookie": f"twokeys={made.cookies['twokeys']}"}
    answer = made.client.post("/runs/x/cancel", content=body, headers=headers)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")


def test_a_repeat_is_found_by_its_person_and_request_only() -> None:
    one, other = Caller("t", Actor("token", "a")), Caller("t", Actor("token", "b"))
    keys: set[Any] = {
        dedupe_key("api", one, "ap_1", "k"), dedupe_key("api", other, "ap_1", "k"), dedupe_key("api", one, "ap_2", "k"),
        dedupe_key("console", one, "ap_1", "k"), dedupe_key("api", one, "ap_1", "l"),
    }  # fmt: skip
    assert len(keys) == 5
    assert dedupe_key("api", one, "ap_1", "") == ""


def test_a_step_up_takes_the_same_persons_token_again(
    world: World, browser: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DESIGN 14.38: when policy wants a fresh sign-in, an older session gives no key until its own token is typed again."""
    run = world.start()
    world.until(run, "waiting_approval")
    approval = world.waiting(run).asked.id
    cleo = browser("cleo")
    monkeypatch.setattr(Question, "step_up_seconds", property(lambda _: 0))
    monkeypatch.setattr(Sessions, "is_fresh", lambda *_: False)
    assert "Your personal token again" in cleo.get(f"/approvals/{approval}").text
    for token in ("", "tk_nobody_has_this_token", world.token("ana"), world.token("dan")):
        answer = cleo.decide(approval, "key", token=token)
        assert (answer.status_code, "enter your personal token again" in answer.text) == (403, True), token
    assert world.waiting(run).votes == ()
    assert "Approved. It runs now." in cleo.decide(approval, "key", token=world.token("cleo")).text


def test_a_link_to_the_sign_in_page_does_not_end_a_session(browser: Open) -> None:
    made = browser("bo")
    answer = made.get("/sign-in?next=/people")
    assert (answer.status_code, answer.headers["location"]) == (303, "/people")
    assert made.get("/people").status_code == 200
