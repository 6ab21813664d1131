"""ServiceNow incidents through the Table API: look one up, update it, close it; `look` claims only what the API can prove."""

from __future__ import annotations

import datetime
import re
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.errors import OperatorError
from engine.gate.action import Action, FieldSpec, OperationSpec
from engine.gate.permit import Permit
from engine.gate.receipt import CannotLook, Outcome
from engine.gate.retry import NEVER, Fault, Faults, outcome_of
from governance.connectors import http
from governance.connectors.http import Answer, Exchange
from governance.connectors.registry import Change, ConnectionOf

_sys_id = re.compile(r"[0-9a-f]{32}")
_shown = ("number", "sys_id", "short_description", "priority", "state", "assignment_group", "impact", "urgency")
_appended = ("work_notes", "comments")
_seconds = 10.0
_audit_page = 2_000

# Each fault that an operation can meet, and what it means: the road's, and ours before anything is sent.
FAULTS: Faults = {**http.FAULTS, "bad_target": Fault(NEVER, NEVER)}

SPECS = (
    OperationSpec(
        "servicenow", "lookup", "read", "incident", (), reversible=True, summary="Look up incident",
        result_fields=(*_shown, "sys_mod_count"),
    ),
    OperationSpec(
        "servicenow", "update", "write", "incident",
        (
            FieldSpec("assignment_group"), FieldSpec("work_notes", op="append", chars_max=4_000), FieldSpec("state"),
            FieldSpec("impact"), FieldSpec("urgency"),
        ),
        reversible=True, reversal="inverse", inverse="update", key_template="sn:incident:update:{instance}:{target}:{fields_hash}",
        summary="Update incident", result_fields=(*_shown, "sys_mod_count"),
    ),
    OperationSpec(
        "servicenow", "close", "write", "incident",
        (
            FieldSpec("close_code"), FieldSpec("close_notes", chars_max=4_000), FieldSpec("comments", op="append", chars_max=4_000),
            FieldSpec("state"),
        ),
        reversible=True, reversal="manual", risk="high", key_template="sn:incident:close:{instance}:{target}:{fields_hash}",
        summary="Close incident", result_fields=(*_shown, "sys_mod_count"),
    ),
)  # fmt: skip


class ServiceNow:
    """The connector; one exchange per instance and tenant."""

    specs = SPECS
    faults = FAULTS
    calls_per_min = None  # each instance has rules of its own: `twokeys tenant connect --calls-per-min`

    def __init__(self, connection_of: ConnectionOf) -> None:
        self._connection_of = connection_of
        self._lock = threading.Lock()
        self._open: dict[tuple[str, str, str, str], Exchange] = {}

    def _exchange(self, tenant: str) -> Exchange:
        c = self._connection_of(tenant, "servicenow")
        name = (c.base_url, c.user, c.secret, c.instance)
        with self._lock:
            if name not in self._open:
                self._open[name] = Exchange(c.base_url, c.user, c.secret, seconds=_seconds)
            return self._open[name]

    def _path(self, action: Action) -> str:
        if not _sys_id.fullmatch(action.target.id):
            text = "the target of an incident is its sys_id, 32 hexadecimal digits"
            raise CannotLook(outcome_of(FAULTS, "bad_target", text, changes=False))
        return f"/api/now/table/incident/{action.target.id}"

    def _record(self, action: Action) -> dict[str, str]:
        answer = self._exchange(action.tenant).call("GET", self._path(action), changes=False)
        if answer.outcome is not None:
            raise CannotLook(answer.outcome)
        record = _result(answer)
        if record is None:
            raise CannotLook(outcome_of(FAULTS, "malformed_answer", "the answer holds no record", changes=False))
        return record

    def answers(self, tenant: str) -> Outcome | None:
        """Whether one record may be listed with our account."""
        return (
            self._exchange(tenant)
            .call("GET", "/api/now/table/incident", changes=False, params={"sysparm_limit": "1"})
            .outcome
        )

    def audit(self, tenant: str, since: datetime.datetime, until: datetime.datetime) -> list[Change]:
        """Changes of incidents from `sys_audit`, a page at a time from the last one's second on."""
        found: dict[str, Change] = {}
        start, last = (
            f"{since.astimezone(datetime.UTC):%Y-%m-%d %H:%M:%S}",
            f"{until.astimezone(datetime.UTC):%Y-%m-%d %H:%M:%S}",
        )
        while True:
            params = {
                "sysparm_query": f"tablename=incident^sys_created_on>={start}^sys_created_on<={last}^ORDERBYsys_created_on",
                "sysparm_limit": str(_audit_page), "sysparm_fields": "sys_id,documentkey,fieldname,user,sys_created_on",
            }  # fmt: skip
            answer = self._exchange(tenant).call("GET", "/api/now/table/sys_audit", changes=False, params=params)
            rows = answer.body.get("result") if answer.outcome is None and type(answer.body) is dict else None
            if type(rows) is not list or any(type(row) is not dict for row in rows):
                said = answer.outcome.message if answer.outcome else "the answer holds no list"
                raise OperatorError(
                    f"sys_audit cannot be read: {said}", code="change_log", field="servicenow",
                    next_step="give the integration's account read access to sys_audit",
                )  # fmt: skip
            before = len(found)
            found |= {_text(row.get("sys_id")): _change(row) for row in rows}
            if len(rows) < _audit_page or len(found) == before:
                return list(found.values())
            start = _text(rows[-1].get("sys_created_on"))

    def close(self) -> None:
        """Give the connections back."""
        for exchange in self._open.values():
            exchange.close()

    def observe(self, action: Action) -> Mapping[str, str]:
        """Before values of what would be set, and the record's version."""
        if action.kind == "read":
            return {}
        record = self._record(action)
        seen = {"number": record.get("number", ""), "sys_mod_count": record.get("sys_mod_count", "")}
        for field in action.fields:
            if field.name not in _appended:
                seen[field.name] = record.get(field.name, "")
        return seen

    def perform(self, permit: Permit) -> Outcome:
        """One GET for a lookup, one PATCH for everything else."""
        action = permit.action
        request = {"method": "GET", "fields": []} if action.kind == "read" else {
            "method": "PATCH", "fields": [f.name for f in action.fields], "bytes": action.payload_bytes()
        }  # fmt: skip
        try:
            path = self._path(action)
        except CannotLook as error:
            return replace(error.outcome, request=request)
        if action.kind == "read":
            answer = self._exchange(action.tenant).call("GET", path, changes=False)
        else:
            changes = {f.name: "" if f.op == "clear" else f.value for f in action.fields}
            answer = self._exchange(action.tenant).call(
                "PATCH", path, changes=True, json=changes, send_by=permit.send_by
            )
        return _outcome(answer, request, action)

    def look(self, permit: Permit) -> Outcome | None:
        """An unchanged version proves that nothing was written; equal fields prove nothing, somebody else may have set them."""
        action = permit.action
        try:
            record = self._record(action)
        except CannotLook:
            return None
        version = dict(action.preconditions).get("sys_mod_count", "")
        if version and record.get("sys_mod_count") == version:
            return Outcome(
                "rejected", error_class="did_not_happen", message=f"version {version} is unchanged", retryable=True
            )
        return None


def _result(answer: Answer) -> dict[str, str] | None:
    body = answer.body
    if type(body) is not dict or type(body.get("result")) is not dict:
        return None
    return {name: _text(value) for name, value in body["result"].items()}


def _change(row: Mapping[str, Any]) -> Change:
    at = _text(row.get("sys_created_on")).replace(" ", "T") + ".000000Z"
    return Change(_text(row.get("documentkey")), _text(row.get("fieldname")), _text(row.get("user")), at)


def _text(value: Any) -> str:
    # A reference field comes as {"link":..,"value":..}; everything else is text on this wire.
    if type(value) is dict:
        return str(value.get("value", ""))
    return "" if value is None else str(value)


def _outcome(answer: Answer, request: Mapping[str, Any], action: Action) -> Outcome:
    if answer.outcome is not None:
        return replace(answer.outcome, request=request)
    record = _result(answer)
    if record is None:
        lost = outcome_of(FAULTS, "malformed_answer", "the answer holds no record", changes=action.kind != "read")
        return replace(lost, request=request, response={"status": answer.status})
    result = {name: record.get(name, "") for name in (*_shown, "sys_mod_count")}
    response = {"status": answer.status, "sys_mod_count": record.get("sys_mod_count", "")}
    undo: dict[str, Any] = {}
    if action.kind != "read":
        # The values to go back to stand in the recorded action's preconditions; a receipt travels and names no value.
        undo = {
            "operation": "update",
            "fields": [f.name for f in action.fields if f.name not in _appended],
            "values": "preconditions",
        }
    return Outcome("ok", request, response, result, how_to_reverse=undo)
