"""The console's pages about policies: what is in force and stands still, the drafts, and one draft with what it would change."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response

from engine.canonical import read_json
from engine.catalog.draft import Draft
from engine.errors import CallerError, TwokeysError
from engine.gate.replay import EFFECTS
from engine.limits import policy_draft_bytes_max
from governance.commands.authority import allowed
from governance.policy import publishing
from governance.store import changes, drafts, people, standstills, templates
from governance.web import policies
from governance.web.problems import told

history_rows = 20
NOTES = {
    "frozen": "Stopped. It holds everywhere now.",
    "proposed": "Proposed. The policy owners are asked; nothing changes before they agree.",
    "save": "Saved as the newest edit. A question about an earlier one is withdrawn.",
    "replay": "Replayed as far as it says below.",
    "rebase": "Brought up to date with the policy in force.",
    "withdraw": "Given up. It stays in the record.",
}


def overview(console: Any, visit: Any, error: str = "", status: int = 200) -> Response:
    """GET /policies."""
    with console.opened(visit) as (unit, me):
        values = {
            "in_force": templates.active_revision(unit), "history": changes.activations(unit, history_rows),
            "first": templates.revisions(unit, history_rows)[-1:], "drafts": drafts.listed(unit), "still": standstills.open_ones(unit),
            "names": {one.person: one.name for one in people.profiles(unit).values()}, "may": me.level >= 5 and not me.read_only,
            "may_stop": me.level >= 4 and not me.read_only, "error": error, "typed": visit.form,
        }  # fmt: skip
    response: Response = console.show(visit, "policies.html", values, status)
    return response


def act(console: Any, visit: Any) -> Response:
    """POST /policies: begin a draft, go back, stop, or ask for going on."""
    session, form = console.acting(visit), visit.form
    seams, tenant, actor, do = console.seams, session.tenant, session.caller.actor, visit.form.get("act", "")
    reason = form.get("reason", "").strip()
    try:
        if do == "begin":
            name = form.get("draft", "").strip()
            seams.amend.begin(tenant, actor, name)
            return RedirectResponse(f"/policies/{quote(name, safe='')}", 303)
        if do == "freeze":
            scope, _, name = form.get("scope", "tenant").partition(" ")
            seams.freezes.freeze(tenant, actor, reason, scope=scope, name=form.get("name", "").strip() or name)
            return RedirectResponse("/policies?done=frozen", 303)
        if do == "thaw":
            return _asked(seams.changes.thaw(tenant, actor, form.get("freeze", ""), reason).run)
        if do == "rollback":
            return _asked(seams.changes.roll_back(tenant, actor, form.get("revision", ""), reason).run)
        raise CallerError(f"{do[:40]!r} is nothing that this page does", field="act")
    except TwokeysError as refused:
        return overview(console, visit, *told(refused))


def draft(console: Any, visit: Any, error: str = "", status: int = 200) -> Response:
    """GET /policies/{draft}: its check, the replay as far as it is, the text, and the data to change."""
    seams, name = console.seams, visit.params["draft"]
    with console.opened(visit) as (unit, me):
        record, live = drafts.load(unit, name), templates.active_revision(unit)
        waits = changes.open_runs_of_draft(unit, name)
        names = {one.person: one.name for one in people.profiles(unit).values()}
        at = drafts.position(unit, name, record.n, live)
    tenant = console.session(visit).tenant
    checked = policies.checked(seams, tenant, name) if record.state == "open" else None
    replayed = policies.replayed(seams, tenant, at) if at is not None else None
    values = {
        "record": record, "live": live, "waits": waits, "names": names, "checked": checked, "replayed": replayed,
        "effects": EFFECTS, "may": me.level >= 5 and not me.read_only and record.state == "open", "error": error,
        "data": visit.form.get("data") or json.dumps(dict(record.draft.data), indent=2, ensure_ascii=False),
        "typed": visit.form,
    }  # fmt: skip
    response: Response = console.show(visit, "policy_draft.html", values, status)
    return response


def act_on_draft(console: Any, visit: Any) -> Response:
    """POST /policies/{draft}: save its data, replay, bring it up to date, propose it, give it up."""
    session, form, name = console.acting(visit), visit.form, visit.params["draft"]
    seams, tenant, actor, do = console.seams, session.tenant, session.caller.actor, form.get("act", "")
    try:
        if do == "save":
            _save(console, visit, tenant, actor, name)
        elif do == "replay":
            _check_author(console, visit)
            seams.publishing.replayed(
                tenant, seams.publishing.prove(tenant, name), seconds=publishing.replay_seconds_max
            )
        elif do == "rebase":
            seams.amend.rebase(tenant, actor, name)
        elif do == "withdraw":
            seams.amend.withdraw(tenant, actor, name)
        elif do == "propose":
            return _asked(seams.changes.publish(tenant, actor, name, form.get("reason", "")).run)
        else:
            raise CallerError(f"{do[:40]!r} is nothing that this page does", field="act")
    except TwokeysError as refused:
        return draft(console, visit, *told(refused))
    return RedirectResponse(f"/policies/{quote(name, safe='')}?done={quote(do, safe='')}", 303)


def _check_author(console: Any, visit: Any) -> None:
    """Whoever replays may change policies: it takes a while of the database's time."""
    with console.opened(visit) as (unit, _):
        allowed(unit, console.session(visit).caller.actor, "policy")


def _save(console: Any, visit: Any, tenant: str, actor: Any, name: str) -> None:
    with console.opened(visit) as (unit, _):
        record = drafts.load(unit, name)
    data = read_json(visit.form.get("data", "").encode(), bytes_max=policy_draft_bytes_max)
    if type(data) is not dict:
        raise CallerError("is an object", field="tenant.json")
    content = Draft(record.draft.modules, record.draft.tests, data, record.draft.dropped)
    console.seams.amend.edit(tenant, actor, name, content)


def _asked(run: str) -> Response:
    return RedirectResponse(f"/runs/{quote(run, safe='')}?done=proposed", 303)


ROUTES = (
    ("GET", "/policies", overview),
    ("POST", "/policies", act),
    ("GET", "/policies/{draft}", draft),
    ("POST", "/policies/{draft}", act_on_draft),
)
