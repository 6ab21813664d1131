"""Posting to Slack as an effect of a run: the same sender as the cards, behind a permit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.gate.action import Action, FieldSpec, OperationSpec
from engine.gate.permit import Permit
from engine.gate.receipt import Outcome
from governance.connectors.http import overslept

SPECS = (
    OperationSpec(
        "slack", "post", "message", "channel", (FieldSpec("text", required=True, chars_max=3_000), FieldSpec("thread_ts")),
        reversible=True, reversal="manual", key_template="slack:post:{target}:{thread}:{fields_hash}", summary="Post to Slack",
        result_fields=("channel", "ts"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Posted:
    """What the sender says: ok with a timestamp, later, rejected or unknown."""

    kind: str
    channel: str
    ts: str
    error: str
    retry_after_seconds: int


Post = Callable[[str, str, str, str, str], Posted]  # tenant, channel, thread_ts, text, client_msg_id


class SlackMessages:
    """The connector; the sender is handed in by wiring because Slack has one home."""

    specs = SPECS

    def __init__(self, post: Post) -> None:
        self._post = post

    def close(self) -> None:
        """Nothing is held: the sender belongs to the Slack room."""

    def observe(self, action: Action) -> Mapping[str, str]:
        """A message relies on nothing."""
        return {}

    def perform(self, permit: Permit) -> Outcome:
        """Post once."""
        action = permit.action
        fields = {f.name: f.value for f in action.fields}
        text, thread = fields.get("text", ""), fields.get("thread_ts", "")
        request = {"method": "chat.postMessage", "channel": action.target.id, "bytes": len(text.encode())}
        if too_late := overslept(permit.send_by):
            return too_late
        sent = self._post(action.tenant, action.target.id, thread, text, permit.key)
        if sent.kind == "ok":
            found = {"channel": sent.channel, "ts": sent.ts}
            return Outcome("ok", request, found, found, how_to_reverse={"operation": "delete", **found})
        if sent.kind == "later":
            return Outcome(
                "error",
                request,
                {},
                {},
                "rate_limited" if sent.retry_after_seconds else "unreachable",
                sent.error,
                True,
                sent.retry_after_seconds,
            )
        if sent.kind == "unknown":
            return Outcome("unknown", request, {}, {}, "connection_lost", sent.error)
        return Outcome("rejected", request, {"error": sent.error}, {}, "rejected", sent.error)

    def look(self, permit: Permit) -> Outcome | None:
        """Slack offers no way to ask (no history scope, no idempotency key): nobody can tell."""
        return None
