"""The console: sign in, runs, approvals, workflows and people, as pages that work without a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from engine.errors import CallerError, Refused, TwokeysError
from governance import log
from governance.commands.answer import Filled, Told
from governance.commands.decide import Press
from governance.store import absences, approvals, doubts, people, templates, views
from governance.store import tasks as store
from governance.store.people import Profile
from governance.store.unit import Unit
from governance.store.views import Page
from governance.web import gate, policy_pages, problems, questions, story, tasks
from governance.web.auth import NotSignedIn, Session, Sessions, by_token, check_reader, dedupe_key, reader
from governance.web.evidence import download, receipts
from governance.web.forms import read_form
from governance.web.paging import local_path, read_page, write_page
from governance.web.problems import sentence, told
from governance.web.render import Pages
from governance.web.seams import Seams

page_rows = 50
queue_rows = 20

_notes = {
    "canceled": "Asked to cancel. What is in flight may finish; nothing new starts.",
    "retried": "What was parked goes on.",
    "happened": "Recorded that it happened. The run goes on.",
    "did_not": "Recorded that it did not happen. What is left of its attempts is used, judged again first.",
    "probe": "Looking now. What is found stands below within seconds.",
    "retry": "Recorded that you want it tried again under the same key.",
    **policy_pages.NOTES,
}


@dataclass(frozen=True, slots=True)
class Visit:
    """One request to the console: what was asked, by which browser."""

    path: str
    params: dict[str, str]
    query: dict[str, str]
    form: dict[str, str]
    session: Session | None


class SignInFirst(Exception):
    """Whoever browses must act: the page is for people who have signed in."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(why)
        self.path = path
        self.why = why


Work = Callable[["Console", Visit], Response]


class Console:
    """All pages; each is one function of a visit."""

    def __init__(self, seams: Seams, pages: Pages) -> None:
        self.seams = seams
        self.pages = pages
        self.sessions = Sessions(seams.session_key, seams.now, seams.random_hex, secure=seams.secure)

    def routes(self) -> list[Route]:
        """Every address of the console."""
        table: tuple[tuple[str, str, Work], ...] = (
            ("GET", "/", Console.front),
            ("GET", "/sign-in", Console.sign_in),
            ("POST", "/sign-in", Console.signing_in),
            ("POST", "/sign-out", Console.sign_out),
            ("GET", "/runs", Console.runs),
            ("GET", "/runs/{run}", Console.run),
            ("POST", "/runs/{run}/cancel", Console.cancel),
            ("POST", "/runs/{run}/resolve", Console.resolve),
            ("POST", "/runs/{run}/retry", Console.retry),
            ("GET", "/runs/{run}/bundle", Console.bundle),
            ("GET", "/approvals", Console.queue),
            ("GET", "/approvals/{approval}", Console.approval),
            ("POST", "/approvals/{approval}", Console.decide),
            ("POST", "/approvals/{approval}/edit", Console.edit),
            ("POST", "/approvals/{approval}/review", gate.review),
            ("POST", "/people/away", gate.away),
            ("GET", "/tasks", Console.tasks),
            ("GET", "/tasks/{task}", Console.task),
            ("POST", "/tasks/{task}", Console.answer),
            ("GET", "/workflows", Console.workflows),
            ("GET", "/people", Console.people),
            ("GET", "/trust", Console.trust),
            *policy_pages.ROUTES,
        )
        return [Route(path, self._endpoint(work), methods=[method]) for method, path, work in table]

    def _endpoint(self, work: Work) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            form = await read_form(request) if request.method == "POST" else {}
            session = self.sessions.read(request.cookies.get(self.sessions.cookie, ""))
            where = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            visit = Visit(where, dict(request.path_params), _query(request), form, session)
            request.state.tenant = session.tenant if session else ""
            try:
                with log.about(tenant=request.state.tenant, run=visit.params.get("run", "")):
                    return await run_in_threadpool(work, self, visit)
            except SignInFirst as first:
                to = "/sign-in?" + urlencode(
                    {"next": first.path, "why": first.why} if first.why else {"next": first.path}
                )
                return (
                    self._forget(RedirectResponse(to, 303)) if session and session.tenant else RedirectResponse(to, 303)
                )

        return endpoint

    # --- who is there -------------------------------------------------------------------------------------------------

    @contextmanager
    def opened(self, visit: Visit) -> Iterator[tuple[Unit, Profile]]:
        """A reading unit of the visitor's tenant; the token is still linked and the person active, at this moment."""
        session = self.session(visit)
        with self.seams.database.unit(session.tenant, write=False) as unit:
            try:
                me = reader(unit, session.caller)
            except NotSignedIn:
                raise SignInFirst(_back(visit), "revoked") from None
            except Refused as refused:
                raise SignInFirst(_back(visit), refused.code) from None
            yield unit, me

    def session(self, visit: Visit) -> Session:
        """The session of somebody who has signed in."""
        if visit.session is None or not visit.session.tenant:
            raise SignInFirst(_back(visit), "")
        return visit.session

    def acting(self, visit: Visit) -> Session:
        """The same for a form, which must come from a page of this very session."""
        session = self.session(visit)
        self.sessions.check_csrf(session, visit.form.get("csrf", ""))
        with self.opened(visit):
            return session

    def show(self, visit: Visit, template: str, values: dict[str, Any], status: int = 200) -> Response:
        """A page for somebody who has signed in."""
        session = self.session(visit)
        with self.opened(visit) as (unit, me):
            tenant = people.tenant(unit)
            count, mine = views.waiting_count(unit), store.waiting_count(unit, store.groups_of(me))
            now = unit.now()
        frame = {
            "me": me, "tenant": tenant, "csrf": self.sessions.csrf(session), "now": now, "waiting_count": count, "task_count": mine,
            "here": visit.path,
            "error": "", "note": _notes.get(visit.query.get("done", ""), ""), "once": self.seams.random_hex(8),
        }  # fmt: skip
        return self.pages.page(template, {**frame, **values}, status)

    def _forget(self, response: Response) -> Response:
        response.delete_cookie(
            self.sessions.cookie, path="/", secure=self.sessions.secure, httponly=True, samesite="lax"
        )
        return response

    def _remember(self, response: Response, session: Session) -> Response:
        response.set_cookie(
            self.sessions.cookie, self.sessions.write(session), max_age=8 * 3600, path="/", secure=self.sessions.secure, httponly=True,
            samesite="lax",
        )  # fmt: skip
        return response

    # --- sign in and out ----------------------------------------------------------------------------------------------

    def front(self, visit: Visit) -> Response:
        """GET /: the queue when something waits, else the runs."""
        self.session(visit)
        with self.opened(visit) as (unit, me):
            waits, mine = views.waiting_count(unit), store.waiting_count(unit, store.groups_of(me))
        return RedirectResponse("/approvals" if waits else "/tasks" if mine else "/runs", 303)

    def sign_in(self, visit: Visit, error: str = "", status: int = 200) -> Response:
        """GET /sign-in."""
        whys = {
            "revoked": "Your token has been revoked. Ask an owner of your tenant for a new one.",
            "inactive": "Your account is deactivated. Ask an owner of your tenant.",
            "signed_out": "You are signed out.",
        }
        if visit.session is not None and visit.session.tenant and not visit.form:
            # A link from elsewhere must not end a session; one that no longer holds is ended by the page it leads to.
            return RedirectResponse(local_path(visit.query.get("next", "")), 303)
        session = self.sessions.anonymous()
        values = {
            "csrf": self.sessions.csrf(session), "error": error, "note": whys.get(visit.query.get("why", ""), ""),
            "next": local_path(visit.form.get("next", "") or visit.query.get("next", "")),
        }  # fmt: skip
        return self._remember(self.pages.page("sign_in.html", values, status), session)

    def signing_in(self, visit: Visit) -> Response:
        """POST /sign-in: a token for a session."""
        try:
            self.sessions.check_csrf(visit.session, visit.form.get("csrf", ""))
            caller = by_token(self.seams.route, visit.form.get("token", "").strip())
            check_reader(self.seams.database, caller)
        except Refused as refused:
            return self.sign_in(visit, sentence(refused), problems.status_of(refused))
        return self._remember(
            RedirectResponse(local_path(visit.form.get("next", "")), 303), self.sessions.signed_in(caller)
        )

    def sign_out(self, visit: Visit) -> Response:
        """POST /sign-out."""
        self.sessions.check_csrf(self.session(visit), visit.form.get("csrf", ""))
        return self._forget(RedirectResponse("/sign-in?why=signed_out", 303))

    # --- runs ---------------------------------------------------------------------------------------------------------

    def runs(self, visit: Visit) -> Response:
        """GET /runs."""
        state, workflow = visit.query.get("state", ""), visit.query.get("workflow", "")
        if state and state not in views.STATES:
            raise CallerError(
                f"{state[:40]!r} is not a state", code="unknown_state", field="state", next_step="use the filter"
            )
        with self.opened(visit) as (unit, _):
            rows = views.runs(
                unit, state=state, workflow=workflow, after=read_page(visit.query.get("after", "")), limit=page_rows + 1
            )
            values = {
                "rows": rows[:page_rows], "state": state, "workflow": workflow, "states": story.STATES, "all_states": views.STATES,
                "counts": views.open_counts(unit), "workflows": views.workflows_run(unit), "names": names(unit),
                "parked": views.parked(unit, queue_rows),
                "next": _next("/runs", rows, {"state": state, "workflow": workflow}), "first": "after" not in visit.query,
            }  # fmt: skip
        return self.show(visit, "runs.html", values)

    def run(self, visit: Visit, error: str = "", status: int = 200) -> Response:
        """GET /runs/{run}."""
        name = visit.params["run"]
        with self.opened(visit) as (unit, me):
            run = views.run(unit, name)
            steps = views.steps(unit, name)
            asked = [questions.load(unit, one, me, "") for one in approvals.of_run(unit, name)]
            known = people.profiles(unit)
            entries = views.happened(unit, name)
            values = {
                "run": run, "steps": steps, "asked": asked, "names": {p.person: p.name for p in known.values()},
                "why": story.why(run, steps, asked, unit.now()), "verdicts": views.verdicts(unit, name), "bundle": views.bundle(unit, name),
                "receipts": receipts(unit, self.seams.verify, name), "lines": [(one, *story.line(one.entry, known)) for one in entries],
                "error": error, "typed": visit.form, "unknown": [one for one in doubts.of_run(unit, name) if one.is_open],
                "tasks": {one.promise: one for one in store.of_run(unit, name)},
                "parked": run.trouble.startswith("parked") or any(s.work == "parked" and s.state != "unknown" for s in steps),
                "step_names": {s.promise: s.step for s in steps}, "read_only": {s.promise: s.kind == "read" for s in steps},
                "changes_of": questions.changes,
            }  # fmt: skip
        return self.show(visit, "run.html", values, status)

    def cancel(self, visit: Visit) -> Response:
        """POST /runs/{run}/cancel."""
        session, run = self.acting(visit), visit.params["run"]
        try:
            reason = visit.form.get("reason", "").strip()
            if not reason:
                raise CallerError("say why, so that others can read it", code="reason_required", field="reason")
            self.seams.cancel.cancel(session.tenant, session.caller.actor, run, reason)
        except TwokeysError as refused:
            return self.run(visit, *told(refused))
        return RedirectResponse(f"/runs/{quote(run, safe='')}?done=canceled", 303)

    def resolve(self, visit: Visit) -> Response:
        """POST /runs/{run}/resolve: a person's word about an outcome that nobody knows."""
        session, run = self.acting(visit), visit.params["run"]
        how, promise = visit.form.get("how", ""), visit.form.get("promise", "")
        try:
            reason = visit.form.get("reason", "").strip()
            once = dedupe_key("console", session.caller, f"{run}/{promise}/{how}", visit.form.get("once", ""))
            doubt = visit.form.get("doubt", "")
            self.seams.resolve.resolve(
                session.tenant,
                session.caller.actor,
                run,
                promise,
                how,
                reason,
                via="console",
                doubt=doubt,
                dedupe_key=once,
            )
        except TwokeysError as refused:
            return self.run(visit, *told(refused))
        return RedirectResponse(f"/runs/{quote(run, safe='')}?done={quote(how, safe='')}", 303)

    def retry(self, visit: Visit) -> Response:
        """POST /runs/{run}/retry: what came back too often is tried again."""
        session, run = self.acting(visit), visit.params["run"]
        try:
            self.seams.retry.retry(session.tenant, session.caller.actor, run)
        except TwokeysError as refused:
            return self.run(visit, *told(refused))
        return RedirectResponse(f"/runs/{quote(run, safe='')}?done=retried", 303)

    def bundle(self, visit: Visit) -> Response:
        """GET /runs/{run}/bundle."""
        session = self.session(visit)
        with self.opened(visit):
            pass
        return download(self.seams, session.caller, visit.params["run"])

    def trust(self, visit: Visit) -> Response:
        """GET /trust: what an auditor pins, best fetched once and kept."""
        session = self.session(visit)
        with self.opened(visit):
            pass
        headers = {"Content-Disposition": f'attachment; filename="{session.tenant}-trust.txt"'}
        return Response(self.seams.trust(session.tenant), media_type="text/plain; charset=utf-8", headers=headers)

    # --- approvals ----------------------------------------------------------------------------------------------------

    def queue(self, visit: Visit) -> Response:
        """GET /approvals: what waits, the nearest deadline first."""
        with self.opened(visit) as (unit, me):
            found = views.waiting(unit, read_page(visit.query.get("after", "")), queue_rows + 1)
            asked = [questions.load(unit, approval, me, "") for approval, _ in found[:queue_rows]]
        more = found[queue_rows - 1] if len(found) > queue_rows else None
        values = {"asked": asked, "next": f"/approvals?after={write_page(Page(more[1], more[0]))}" if more else ""}
        return self.show(visit, "approvals.html", values)

    def approval(self, visit: Visit, answer: tuple[bool, str] | None = None, status: int = 200) -> Response:
        """GET /approvals/{approval}: the whole of one request."""
        session = self.session(visit)
        with self.opened(visit) as (unit, me):
            question = questions.load(unit, visit.params["approval"], me, "")
            values = {
                "q": question, "r": question.record, "names": names(unit), "answer": answer, "typed": visit.form,
                "stale": not self._is_fresh(session, question),
            }  # fmt: skip
        return self.show(visit, "approval.html", values, status)

    def decide(self, visit: Visit) -> Response:
        """POST /approvals/{approval}: a key or a rejection, bound to what this page showed."""
        session = self.acting(visit)
        approval, form = visit.params["approval"], visit.form
        with self.opened(visit) as (unit, me):
            question = questions.load(unit, approval, me, "")
        kind = form.get("kind", "")
        if kind == "key" and not self._stepped_up(session, question, form.get("token", "")):
            said = "Policy wants a fresh sign-in for this key: enter your personal token again. Nothing was recorded."
            return self.approval(visit, (False, said), 403)
        # The action's digest is checked where keys are counted; a page that showed other words is as stale as another digest.
        unchanged = form.get("shown", "") == question.shown
        answer = self.seams.decide.decide(
            Press(
                tenant=session.tenant, approval=approval, actor_kind="token", actor_ref=session.ref, kind=kind,
                digest16=form.get("digest16", "") if unchanged else "", card_rev=question.record.card_rev, via="console",
                reason=form.get("reason", "").strip(), ticket=form.get("ticket", ""),
                dedupe_key=dedupe_key("console", session.caller, approval, form.get("once", "")),
                blocks_sha256=question.shown,
            )
        )  # fmt: skip
        status = 200 if answer.ok else problems.status_of(Refused(answer.sentence, code=answer.code))
        return self.approval(visit, (answer.ok, answer.sentence), 403 if status == 401 else status)

    def edit(self, visit: Visit) -> Response:
        """POST /approvals/{approval}/edit: other values for what this page showed; it is judged and asked anew."""
        session, form = self.acting(visit), visit.form
        approval = visit.params["approval"]
        with self.opened(visit) as (unit, me):
            question = questions.load(unit, approval, me, "")
        try:
            done = self.seams.edit.edit(gate.changed(session, question, form))
        except TwokeysError as refused:
            said, status = told(refused)
            return self.approval(visit, (False, said), status)
        return self.approval(visit, (True, done.sentence))

    def _is_fresh(self, session: Session, question: questions.Question) -> bool:
        wanted = question.step_up_seconds
        return wanted is None or self.sessions.is_fresh(session, wanted)

    def _stepped_up(self, session: Session, question: questions.Question, token: str) -> bool:
        """Policy does not ask, a session of the last minutes, or the same person's token typed again."""
        if self._is_fresh(session, question):
            return True
        try:
            caller = by_token(self.seams.route, token.strip())
            return caller.tenant == session.tenant and check_reader(self.seams.database, caller).person == (
                check_reader(self.seams.database, session.caller).person
            )
        except Refused:
            return False

    # --- tasks --------------------------------------------------------------------------------------------------------

    def tasks(self, visit: Visit) -> Response:
        """GET /tasks: what waits for the visitor's answer, the nearest deadline first."""
        place = read_page(visit.query.get("after", ""))
        with self.opened(visit) as (unit, me):
            found = store.waiting(unit, store.groups_of(me), (place.at, place.id) if place else None, queue_rows + 1)
            shown = [tasks.of(unit, one, me) for one in found[:queue_rows]]
        more = found[queue_rows - 1] if len(found) > queue_rows else None
        values = {
            "shown": shown,
            "next": f"/tasks?after={write_page(Page(more.expires_at, more.task))}" if more else "",
        }
        return self.show(visit, "tasks.html", values)

    def task(self, visit: Visit, told: Told | None = None, status: int = 200) -> Response:
        """GET /tasks/{task}: the form of one task."""
        with self.opened(visit) as (unit, me):
            one = tasks.load(unit, visit.params["task"], me)
        typed = tasks.typed(one.record, visit.form) if told and not told.ok else {}
        values = {
            "t": one,
            "r": one.record,
            "told": told,
            "typed": typed,
            "faults": told.faults if told else {},
            "prefix": tasks.prefix,
        }
        return self.show(visit, "task.html", values, status)

    def answer(self, visit: Visit) -> Response:
        """POST /tasks/{task}: an answer to the form that this page showed."""
        session, task = self.acting(visit), visit.params["task"]
        with self.opened(visit) as (unit, _):
            record = store.load(unit, task)
        once = dedupe_key("console", session.caller, task, visit.form.get("once", ""))
        told = self.seams.answers.answer(
            Filled(
                session.tenant,
                task,
                session.caller.actor,
                visit.form.get("digest16", ""),
                tasks.typed(record, visit.form),
                "console",
                once,
            )
        )
        status = 200 if told.ok else problems.status_of(Refused(told.sentence, code=told.code))
        return self.task(visit, told, 403 if status == 401 else status)

    # --- workflows and people -----------------------------------------------------------------------------------------

    def workflows(self, visit: Visit) -> Response:
        """GET /workflows: every version."""
        with self.opened(visit) as (unit, _):
            values = {"rows": templates.listed(unit), "names": names(unit)}
        return self.show(visit, "workflows.html", values)

    def people(self, visit: Visit, error: str = "", status: int = 200) -> Response:
        """GET /people: who there is, who is away, and who stands in for them."""
        with self.opened(visit) as (unit, _):
            values = {
                "rows": views.people(unit),
                "groups": views.groups(unit),
                "away": absences.known(unit),
                "names": names(unit),
            }
        return self.show(visit, "people.html", {**values, "error": error}, status)


def names(unit: Unit) -> dict[str, str]:
    """What people are called."""
    return {p.person: p.name for p in people.profiles(unit).values()}


def _query(request: Request) -> dict[str, str]:
    return {name: value.replace("\x00", "\ufffd") for name, value in request.query_params.items()}


def _back(visit: Visit) -> str:
    """Where to go on after sign-in; a form is never sent again."""
    return "/" if visit.form else visit.path


def _next(path: str, rows: tuple[views.RunView, ...], query: dict[str, str]) -> str:
    if len(rows) <= page_rows:
        return ""
    last = rows[page_rows - 1]
    kept = {name: value for name, value in query.items() if value}
    return f"{path}?" + urlencode({**kept, "after": write_page(Page(last.created_at, last.run))})
