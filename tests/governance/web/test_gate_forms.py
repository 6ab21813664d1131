"""The console's forms of the gate: a stop, an edit, a broken glass with its reviews, and absences, as a browser sends them."""

from __future__ import annotations

from html import unescape

from governance.store import absences
from tests.flow.test_broken_glass import GLASS
from tests.governance.web.test_console import Open, high
from tests.kit.policies import enforce
from tests.kit.world import World


def test_somebody_edits_in_the_console_and_holds_no_key(world: World, browser: Open) -> None:
    run, approval = high(world)
    bo = browser("bo")
    form = bo.hidden(f"/approvals/{approval}", f"/approvals/{approval}/edit")
    values = {f"field.{one.name}": one.value for one in world.waiting(run).action.fields}
    same = bo.post(f"/approvals/{approval}/edit", {**form, **values})
    assert same.status_code == 422
    done = bo.post(f"/approvals/{approval}/edit", {**form, **values, "field.close_notes": "Mine."})
    assert "judged anew" in unescape(done.text)
    world.until(run, "waiting_approval")
    assert world.waiting(run).asked.lineage[world.who["bo"]] == "editor"


def test_the_glass_is_broken_and_reviewed_in_the_console(world: World, browser: Open) -> None:
    enforce(world, GLASS)
    run, approval = high(world)
    bo, ana, cleo = browser("bo"), browser("ana"), browser("cleo")
    form = bo.hidden(f"/approvals/{approval}", f"/approvals/{approval}")
    told = bo.post(f"/approvals/{approval}", {**form, "kind": "break_glass", "ticket": "INC-1", "reason": "it burns"})
    assert "The glass is broken" in unescape(told.text)
    world.until(run, "succeeded")
    own = bo.post(f"/approvals/{approval}/review", {"csrf": form["csrf"], "how": "justified", "reason": "I know"})
    assert own.status_code == 403
    for who in (ana, cleo):
        sent = who.hidden(f"/approvals/{approval}", f"/approvals/{approval}/review")
        said = who.post(f"/approvals/{approval}/review", {**sent, "how": "justified", "reason": "I looked"})
        assert said.status_code == 200
    assert "owe a review until" not in unescape(ana.get(f"/approvals/{approval}").text)


def test_somebody_is_away_and_back_in_the_console(world: World, browser: Open) -> None:
    bo = browser("bo")
    token = bo.hidden("/people", "/people/away")["csrf"]
    assert bo.post("/people/away", {"csrf": token, "what": "away", "until": "soon"}).status_code == 422
    sent = {"csrf": token, "what": "away", "until": "2027-01-04", "delegate": world.who["olga"]}
    assert bo.post("/people/away", sent).status_code in (200, 303)
    assert "olga stands in" in unescape(bo.get("/people").text)
    bo.post("/people/away", {"csrf": token, "what": "back"})
    with world.parts.database.unit(world.tenant, write=False) as unit:
        assert absences.known(unit) == {}
