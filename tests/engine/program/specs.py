"""The operations that definitions in these tests may use: a copy of what the shipped connectors declare, and a payment."""

from __future__ import annotations

from engine.gate.action import FieldSpec, OperationSpec

INCIDENT = ("number", "sys_id", "short_description", "priority", "state", "assignment_group", "impact")

_SPECS = (
    OperationSpec(
        "servicenow",
        "lookup",
        "read",
        "incident",
        (),
        reversible=True,
        summary="Look up incident",
        result_fields=INCIDENT,
    ),
    OperationSpec(
        "servicenow",
        "update",
        "write",
        "incident",
        (
            FieldSpec("assignment_group"),
            FieldSpec("work_notes", op="append"),
            FieldSpec("state"),
            FieldSpec("impact"),
            FieldSpec("urgency"),
        ),
        reversible=True,
        reversal="inverse",
        risk="low",
        key_template="sn:incident:update:{instance}:{target}:{fields_hash}",
        summary="Update incident",
    ),
    OperationSpec(
        "servicenow",
        "close",
        "write",
        "incident",
        (FieldSpec("close_code"), FieldSpec("close_notes"), FieldSpec("comments", op="append"), FieldSpec("state")),
        reversible=True,
        reversal="manual",
        risk="high",
        key_template="sn:incident:close:{instance}:{target}:{fields_hash}",
        summary="Close incident",
    ),
    OperationSpec(
        "slack",
        "post",
        "message",
        "channel",
        (FieldSpec("text", required=True, chars_max=3_000), FieldSpec("thread_ts")),
        reversible=True,
        reversal="manual",
        risk="low",
        key_template="slack:post:{target}::{fields_hash}",
        summary="Post message",
    ),
    OperationSpec("bank", "refund", "payment", "order", (FieldSpec("note"),), reversible=False, risk="high"),
)

CATALOG = {(spec.connector, spec.operation): spec for spec in _SPECS}
