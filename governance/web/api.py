"""/v1: the same commands as every other entry, over strict JSON; one table makes the routes and the OpenAPI document."""

from __future__ import annotations

import asyncio
import datetime
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any
from urllib.parse import parse_qsl

from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.errors import CallerError, Refused
from engine.journal.events import decode_row, to_value
from engine.limits import json_bytes_max, yaml_bytes_max
from governance import clock, log
from governance.commands.answer import Filled
from governance.commands.authority import allowed
from governance.commands.decide import Press
from governance.commands.edit import Changed
from governance.store import approvals, doubts, journals, people, views
from governance.store import tasks as store
from governance.store.people import Profile
from governance.store.unit import Unit
from governance.store.views import Page, RunView
from governance.web import actions, openapi, policies, questions, story, tasks, tenants
from governance.web import gate_models as gate_shape
from governance.web import models as shape
from governance.web.auth import Caller, bearer, check_reader, dedupe_key, reader
from governance.web.evidence import Shown, download, receipts
from governance.web.forms import content_type, read_body, shaped, strict
from governance.web.openapi import Operation
from governance.web.paging import read_page, write_page
from governance.web.questions import Question
from governance.web.seams import Seams

page_rows = 100
queue_rows = 50
look_again_seconds = 0.25  # while a request waits for the end of an action

_ref = re.compile(r"[A-Za-z0-9._:/@-]{1,128}")


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the API, read and shaped; who asks is looked up by whoever does something."""

    caller: Caller
    path: dict[str, str]
    query: Any
    body: Any
    key: str  # Idempotency-Key, empty when there is none


class Api:
    """Every operation of /v1."""

    def __init__(self, seams: Seams) -> None:
        self.seams = seams
        self.document = openapi.document(OPERATIONS, metadata.version("twokeys"), seams.public_url.rstrip("/"))

    def routes(self) -> list[Route]:
        """Every address of the API."""
        return [Route(one.path, self._endpoint(one), methods=[one.method]) for one in OPERATIONS]

    def _endpoint(self, one: Operation) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            if one.open:
                return _json(one.work(self, None), one.status)
            caller = await run_in_threadpool(self._admit, request.headers.get("authorization", ""))
            body = await _body(one, request)
            query = shaped(_query(request.url.query), one.query) if one.query else None
            call = Call(caller, dict(request.path_params), query, body, _key(one, request))
            request.state.tenant = caller.tenant
            with log.about(tenant=caller.tenant, run=call.path.get("run", "")):
                found = await run_in_threadpool(one.work, self, call)
                if one.again is not None and one.waits is not None:
                    found = await self._wait(one, call, found)
            return found if isinstance(found, Response) else _json(found, one.status)

        return endpoint

    async def _wait(self, one: Operation, call: Call, found: Any) -> Any:
        """Ask again until it has ended or the request may wait no longer; no thread is held meanwhile."""
        assert one.again is not None
        assert one.waits is not None
        late = clock.monotonic() + one.waits(call)
        while not found.ended and (left := late - clock.monotonic()) > 0:
            await asyncio.sleep(min(look_again_seconds, left))
            call.path["action"] = found.action
            found = await run_in_threadpool(one.again, self, call)
        return found

    def _admit(self, header: str) -> Caller:
        """Before a byte of the body is read: the token is linked and its person active."""
        caller = bearer(self.seams.route, header)
        check_reader(self.seams.database, caller)
        return caller

    # --- runs ---------------------------------------------------------------------------------------------------------

    def start_run(self, call: Call) -> shape.BegunOut:
        """POST /v1/runs."""
        asked: shape.StartRun = call.body
        if call.key and asked.ref and call.key != asked.ref:
            raise CallerError("the header and the body give different references", code="invalid_body", field="ref")
        begun = self.seams.start.by_hand(
            call.caller.tenant,
            call.caller.actor,
            asked.workflow,
            asked.input,
            call.key or asked.ref or "",
            asked.workspace,
        )
        return shape.BegunOut(run=begun.run, new=begun.new)

    def list_runs(self, call: Call) -> shape.RunsOut:
        """GET /v1/runs."""
        asked: shape.ListRuns = call.query
        if asked.state and asked.state not in views.STATES:
            raise CallerError(
                f"{asked.state[:40]!r} is not a state",
                code="invalid_body",
                field="state",
                next_step=f"one of {', '.join(views.STATES)}",
            )
        with self.seams.database.unit(call.caller.tenant, write=False) as unit:
            found = views.runs(
                unit, state=asked.state, workflow=asked.workflow, after=read_page(asked.after), limit=page_rows + 1
            )
        last = found[page_rows - 1] if len(found) > page_rows else None
        more = write_page(Page(last.created_at, last.run)) if last else ""
        return shape.RunsOut(runs=[shape.RunOut(**_run(run)) for run in found[:page_rows]], next=more)

    def show_run(self, call: Call) -> shape.RunDetailOut:
        """GET /v1/runs/{run}."""
        name = call.path["run"]
        with self.seams.database.unit(call.caller.tenant, write=False) as unit:
            me = reader(unit, call.caller)
            run, steps, bundle = views.run(unit, name), views.steps(unit, name), views.bundle(unit, name)
            asked = [questions.load(unit, one, me, "") for one in approvals.of_run(unit, name)]
            verdicts = views.verdicts(unit, name)
            given = receipts(unit, self.seams.verify, name)
            unsure = doubts.of_run(unit, name)
            now = unit.now()
        why = story.why(run, steps, asked, now)
        return shape.RunDetailOut(
            **_run(run), why=why.text, waits_until=why.until, definition_sha256=run.definition.hex(),
            code_sha256=run.code.hex(), parent=run.parent, parent_promise=run.parent_promise, cancel_requested=run.cancel_requested,
            steps=[shape.StepOut(**{name: getattr(s, name) for name in shape.StepOut.model_fields}) for s in steps],
            verdicts=[_verdict(v) for v in verdicts], approvals=[q.record.approval for q in asked], receipts=[_receipt(r) for r in given],
            doubts=[shape.DoubtOut(**{name: getattr(d, name) for name in shape.DoubtOut.model_fields}) for d in unsure],
            bundle=shape.BundleOut(**asdict(bundle)) if bundle else None,
        )  # fmt: skip

    def cancel_run(self, call: Call) -> shape.StateOut:
        """POST /v1/runs/{run}/cancel."""
        run = call.path["run"]
        state = self.seams.cancel.cancel(call.caller.tenant, call.caller.actor, run, call.body.reason)
        return shape.StateOut(run=run, state=state)

    def resolve_run(self, call: Call) -> shape.ResolvedOut:
        """POST /v1/runs/{run}/resolve."""
        asked: shape.ResolveRun = call.body
        run, caller = call.path["run"], call.caller
        found = self.seams.resolve.resolve(
            caller.tenant, caller.actor, run, asked.promise, asked.how, asked.reason, via="api", doubt=asked.doubt,
            dedupe_key=dedupe_key("api", caller, f"{run}/{asked.promise}/{asked.how}", call.key),
        )  # fmt: skip
        return shape.ResolvedOut(**{name: getattr(found, name) for name in shape.ResolvedOut.model_fields})

    def run_bundle(self, call: Call) -> Response:
        """GET /v1/runs/{run}/bundle."""
        return download(self.seams, call.caller, call.path["run"])

    def run_journal(self, call: Call) -> shape.JournalOut:
        """GET /v1/journal/{run}."""
        run = call.path["run"]
        with self.seams.database.unit(call.caller.tenant, write=False) as unit:
            allowed(unit, call.caller.actor, "audit")
            views.run(unit, run)
            rows = journals.rows(unit, run)
        return shape.JournalOut(
            run=run,
            rows=[
                shape.JournalRowOut(first_seq=first, head=head.hex(), entries=[to_value(e) for e in decode_row(body)])
                for first, body, head in rows
            ],
        )

    # --- actions ------------------------------------------------------------------------------------------------------

    def propose_action(self, call: Call) -> shape.ActionOut:
        """POST /v1/actions."""
        return actions.propose(self.seams, call)

    def show_action(self, call: Call) -> shape.ActionOut:
        """GET /v1/actions/{action}."""
        return actions.show(self.seams, call)

    # --- approvals ----------------------------------------------------------------------------------------------------

    def list_approvals(self, call: Call) -> shape.ApprovalsOut:
        """GET /v1/approvals."""
        with self.seams.database.unit(call.caller.tenant, write=False) as unit:
            me = reader(unit, call.caller)
            found = views.waiting(unit, read_page(call.query.after), queue_rows + 1)
            known = _names(unit)
            rows = [_approval(questions.load(unit, one, me, ""), known) for one, _ in found[:queue_rows]]
        last = found[queue_rows - 1] if len(found) > queue_rows else None
        return shape.ApprovalsOut(approvals=rows, next=write_page(Page(last[1], last[0])) if last else "")

    def show_approval(self, call: Call) -> shape.ApprovalOut:
        """GET /v1/approvals/{approval}."""
        with self.seams.database.unit(call.caller.tenant, write=False) as unit:
            me: Profile = reader(unit, call.caller)
            return _approval(questions.load(unit, call.path["approval"], me, ""), _names(unit))

    def decide_approval(self, call: Call) -> shape.DecidedOut:
        """POST /v1/approvals/{approval}/decide."""
        asked: shape.DecideApproval = call.body
        approval = call.path["approval"]
        with self.seams.database.unit(call.caller.tenant, write=False) as unit:
            question = questions.load(unit, approval, None, "")
        answer = self.seams.decide.decide(
            Press(
                tenant=call.caller.tenant, approval=approval, actor_kind="token", actor_ref=call.caller.actor.ref, kind=asked.kind,
                digest16=asked.digest16, card_rev=question.record.card_rev, via="api", reason=asked.reason.strip(), ticket=asked.ticket,
                dedupe_key=dedupe_key("api", call.caller, approval, call.key), blocks_sha256=question.shown,
            )
        )  # fmt: skip
        if not answer.ok:
            raise Refused(answer.sentence, code=answer.code)
        return shape.DecidedOut(
            code=answer.code, sentence=answer.sentence, status=answer.status, given=answer.given, needed=answer.needed
        )

    def edit_approval(self, call: Call) -> gate_shape.EditedOut:
        """POST /v1/approvals/{approval}/edit."""
        asked: gate_shape.EditApproval = call.body
        approval = call.path["approval"]
        done = self.seams.edit.edit(
            Changed(
                call.caller.tenant, approval, call.caller.actor, asked.digest16, asked.fields, asked.reason.strip(), "api",
                asked.amount_minor, dedupe_key("api", call.caller, f"{approval}/edit", call.key),
            )
        )  # fmt: skip
        return gate_shape.EditedOut(**asdict(done))

    def review_approval(self, call: Call) -> gate_shape.ReviewedOut:
        """POST /v1/approvals/{approval}/review."""
        asked: gate_shape.ReviewApproval = call.body
        done = self.seams.gate.review.review(
            call.caller.tenant, call.caller.actor, call.path["approval"], asked.how, asked.reason.strip(), "api"
        )
        return gate_shape.ReviewedOut(**asdict(done))

    # --- tasks --------------------------------------------------------------------------------------------------------

    def list_tasks(self, call: Call) -> shape.TasksOut:
        """GET /v1/tasks."""
        place = read_page(call.query.after)
        with self.seams.database.unit(call.caller.tenant, write=False) as unit:
            me = reader(unit, call.caller)
            found = store.waiting(unit, store.groups_of(me), (place.at, place.id) if place else None, queue_rows + 1)
            rows = [tasks.out(tasks.of(unit, one, me)) for one in found[:queue_rows]]
        last = found[queue_rows - 1] if len(found) > queue_rows else None
        return shape.TasksOut(tasks=rows, next=write_page(Page(last.expires_at, last.task)) if last else "")

    def show_task(self, call: Call) -> shape.TaskOut:
        """GET /v1/tasks/{task}."""
        with self.seams.database.unit(call.caller.tenant, write=False) as unit:
            return tasks.out(tasks.load(unit, call.path["task"], reader(unit, call.caller)))

    def answer_task(self, call: Call) -> shape.AnsweredOut:
        """POST /v1/tasks/{task}/answer."""
        asked: shape.AnswerTask = call.body
        caller, task = call.caller, call.path["task"]
        once = dedupe_key("api", caller, task, call.key)
        told = self.seams.answers.answer(
            Filled(caller.tenant, task, caller.actor, asked.digest16, asked.values, "api", once)
        )
        told.check()
        return shape.AnsweredOut(code=told.code, sentence=told.sentence, status=told.status)

    # --- the rest -----------------------------------------------------------------------------------------------------

    def apply_workflow(self, call: Call) -> shape.PublishedOut:
        """POST /v1/workflows."""
        found = self.seams.publish.apply(call.caller.tenant, call.caller.actor, call.body, "workflow.yaml")
        return shape.PublishedOut(name=found.name, version=found.version, digest=found.digest, state=found.state)

    def show_caps(self, call: Call) -> shape.CapsOut:
        """GET /v1/caps."""
        return tenants.show_caps(self.seams, call)

    def set_caps(self, call: Call) -> shape.CapOut:
        """PUT /v1/caps."""
        return tenants.set_caps(self.seams, call)

    def list_workspaces(self, call: Call) -> shape.WorkspacesOut:
        """GET /v1/workspaces."""
        return tenants.list_workspaces(self.seams, call)

    def add_workspace(self, call: Call) -> shape.WorkspaceOut:
        """POST /v1/workspaces."""
        return tenants.add_workspace(self.seams, call)

    def trust_policy(self, call: Call) -> Response:
        """GET /v1/trust."""
        return Response(self.seams.trust(call.caller.tenant), media_type="text/plain; charset=utf-8")

    def openapi_document(self, call: Call | None) -> dict[str, Any]:
        """GET /v1/openapi.json."""
        return self.document


# --- reading a request ------------------------------------------------------------------------------------------------


async def _body(one: Operation, request: Request) -> Any:
    if not one.has_body:
        return None
    given = content_type(request)
    if given not in (one.takes, "application/x-yaml" if one.raw else one.takes):
        raise CallerError(
            f"{given[:60] or 'no content type'} is not read here", code="unsupported_media_type", field="Content-Type",
            next_step=f"send {one.takes}",
        )  # fmt: skip
    if one.body is None:
        return await read_body(request, yaml_bytes_max)
    return strict(await read_body(request, json_bytes_max), one.body, bytes_max=json_bytes_max)


def _query(text: str) -> dict[str, str]:
    pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=20)
    found = dict(pairs)
    if len(found) != len(pairs):
        raise CallerError("a query parameter stands twice", code="invalid_body", field="query")
    return {name: value.replace("\x00", "") for name, value in found.items()}


def _key(one: Operation, request: Request) -> str:
    key = request.headers.get("idempotency-key", "") if one.idempotency_key else ""
    if key and not _ref.fullmatch(key):
        raise CallerError(
            "is not a reference",
            code="invalid_body",
            field="Idempotency-Key",
            next_step="1-128 of A-Z a-z 0-9 . _ : / @ -",
        )
    return key


def _json(value: Any, status: int) -> Response:
    text = value.model_dump_json() if isinstance(value, BaseModel) else json.dumps(value)
    return Response(text, status, media_type="application/json")


# --- shaping an answer ------------------------------------------------------------------------------------------------


def _names(unit: Unit) -> dict[str, str]:
    return {p.person: p.name for p in people.profiles(unit).values()}


def _run(run: RunView) -> dict[str, Any]:
    return {name: _utc(getattr(run, name)) for name in shape.RunOut.model_fields}


def _utc(value: Any) -> Any:
    return value.astimezone(datetime.UTC) if isinstance(value, datetime.datetime) else value


def _verdict(view: views.VerdictView) -> shape.VerdictOut:
    v = view.verdict
    return shape.VerdictOut(
        promise=view.promise, n=view.n, at=_utc(view.at), purpose=v.purpose, effect=v.effect, tier=v.tier, keys=v.keys,
        reasons=[(r.code, r.message) for r in v.reasons], action_sha256=v.action_sha256, policy_revision=v.policy_revision, engine=v.engine,
    )  # fmt: skip


def _receipt(shown: Shown) -> shape.ReceiptOut:
    row = shown.row
    return shape.ReceiptOut(
        promise=row.promise, key=row.key, attempt=row.attempt, n=row.n, status=row.status, at=_utc(row.at), how=shown.how,
        resolved_by=shown.resolved_by, reversible=shown.reversible, error=shown.error,
        executor=shown.executor, fields=list(shown.fields), sha256=shown.sha256, key_id=row.key_id, sound=shown.sound,
    )  # fmt: skip


def _approval(q: Question, known: dict[str, str]) -> shape.ApprovalOut:
    r = q.record
    return shape.ApprovalOut(
        approval=r.approval, status=r.status, run=r.run, workflow=r.workflow, version=r.version, step=r.step, tier=r.tier, keys=q.needed,
        given=q.given, counts=list(r.counts), groups=list(r.groups),
        needs=[shape.DemandOut(keys=n["keys"], counts=[(g, c) for g, c in n["counts"]], groups=list(n["groups"])) for n in r.needs],
        requested_by=r.requested_by, requested_at=_utc(q.requested_at),
        expires_at=_utc(q.expires_at), summary=r.summary, connector=r.connector, operation=r.operation, kind=r.kind,
        reversible=r.reversible, target=dict(r.target), changes=list(r.changes), amount=r.amount, reasons=list(r.reasons),
        policy_revision=r.policy_revision, action_sha256=r.action_sha256, digest16=q.digest16, holders=[p.name for p in q.holders],
        excluded=list(q.excluded), refused_to_you=q.yours if q.is_open else "",
        decisions=[
            shape.KeyOut(person=known.get(v.person, v.person), kind=v.kind, at=_utc(v.at), via=v.via, reason=v.reason) for v in q.votes
        ],
    )  # fmt: skip


OPERATIONS: tuple[Operation, ...] = (
    Operation("POST", "/v1/runs", "startRun", "Start a run", Api.start_run, body=shape.StartRun, out=shape.BegunOut, status=202,
              idempotency_key=True),
    Operation("GET", "/v1/runs", "listRuns", "The newest runs first", Api.list_runs, query=shape.ListRuns, out=shape.RunsOut),
    Operation("GET", "/v1/runs/{run}", "showRun", "One run, with why it waits and for whom", Api.show_run, out=shape.RunDetailOut),
    Operation("POST", "/v1/runs/{run}/cancel", "cancelRun", "Ask for the end of a run", Api.cancel_run, body=shape.CancelRun,
              out=shape.StateOut),
    Operation("POST", "/v1/runs/{run}/resolve", "resolveRun", "Say what happened to an unknown outcome", Api.resolve_run,
              body=shape.ResolveRun, out=shape.ResolvedOut, idempotency_key=True),
    Operation("GET", "/v1/runs/{run}/bundle", "runBundle", "The sealed evidence bundle", Api.run_bundle, gives="application/zip"),
    Operation("POST", "/v1/actions", "proposeAction", "Propose one action: judged, perhaps asked, done once, receipted",
              Api.propose_action, body=shape.ProposeAction, query=shape.WaitAction, out=shape.ActionOut, status=202, idempotency_key=True,
              again=Api.show_action, waits=actions.seconds),
    Operation("GET", "/v1/actions/{action}", "showAction", "What became of a proposed action", Api.show_action, query=shape.WaitAction,
              out=shape.ActionOut, again=Api.show_action, waits=actions.seconds),
    Operation("GET", "/v1/journal/{run}", "runJournal", "The journal of a run", Api.run_journal, out=shape.JournalOut),
    Operation("GET", "/v1/approvals", "listApprovals", "What waits for people", Api.list_approvals, query=shape.ListApprovals,
              out=shape.ApprovalsOut),
    Operation("GET", "/v1/approvals/{approval}", "showApproval", "The whole of one request", Api.show_approval, out=shape.ApprovalOut),
    Operation("POST", "/v1/approvals/{approval}/decide", "decideApproval", "Give a key or reject", Api.decide_approval,
              body=shape.DecideApproval, out=shape.DecidedOut, idempotency_key=True),
    Operation("POST", "/v1/approvals/{approval}/edit", "editApproval", "Change what is proposed; it is judged and asked anew",
              Api.edit_approval, body=gate_shape.EditApproval, out=gate_shape.EditedOut, idempotency_key=True),
    Operation("POST", "/v1/approvals/{approval}/review", "reviewApproval", "Review what was done behind a broken glass",
              Api.review_approval, body=gate_shape.ReviewApproval, out=gate_shape.ReviewedOut),
    Operation("GET", "/v1/tasks", "listTasks", "What waits for your answer", Api.list_tasks, query=shape.ListTasks, out=shape.TasksOut),
    Operation("GET", "/v1/tasks/{task}", "showTask", "One task and its form", Api.show_task, out=shape.TaskOut),
    Operation("POST", "/v1/tasks/{task}/answer", "answerTask", "Fill in the form of a task", Api.answer_task, body=shape.AnswerTask,
              out=shape.AnsweredOut, idempotency_key=True),
    Operation("POST", "/v1/workflows", "applyWorkflow", "Publish a workflow and make it the active version", Api.apply_workflow,
              takes="application/yaml", raw=True, out=shape.PublishedOut),
    Operation("GET", "/v1/caps", "showCaps", "What is set, the widest scope first", Api.show_caps, out=shape.CapsOut),
    Operation("PUT", "/v1/caps", "setCaps", "Change the caps or the share of the tenant or a workspace", Api.set_caps,
              body=shape.SetCaps, out=shape.CapOut),
    Operation("GET", "/v1/workspaces", "listWorkspaces", "The parts of the tenant", Api.list_workspaces, out=shape.WorkspacesOut),
    Operation("POST", "/v1/workspaces", "addWorkspace", "Add a part with caps and a share of its own", Api.add_workspace,
              body=shape.AddWorkspace, out=shape.WorkspaceOut, status=201),
    Operation("GET", "/v1/trust", "trustPolicy", "The trust policy that an auditor pins", Api.trust_policy, gives="text/plain"),
    Operation("GET", "/v1/openapi.json", "openapi", "This document", Api.openapi_document, open=True),
    *policies.OPERATIONS,
)  # fmt: skip
