"""Posting to Slack as an effect of a run: the same sender as the cards, behind a permit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from engine.gate.action import Action, FieldSpec, OperationSpec
from engine.gate.permit import Permit
from engine.gate.receipt import Outcome
from engine.gate.retry import AGAIN, MEND, NEVER, UNKNOWN, Fault, Faults, outcome_of
from governance.connectors.http import overslept

SPECS = (
    OperationSpec(
        "slack", "post", "message", "channel", (FieldSpec("text", required=True, chars_max=3_000), FieldSpec("thread_ts")),
        reversible=True, reversal="manual", key_template="slack:post:{target}:{thread}:{fields_hash}", summary="Post to Slack",
        result_fields=("channel", "ts"),
    ),
)  # fmt: skip

# Each fault that a post can meet, and what it means.
_invite = "invite the bot to the channel, or name another one in the workflow"
_install = "install the Slack app again: `twokeys tenant slack`"
FAULTS: Faults = {
    "unreachable": Fault(AGAIN, AGAIN),  # nothing was sent
    "lease_expired": Fault(AGAIN, AGAIN),  # nor here: this process slept past the end of its lease
    "rate_limited": Fault(AGAIN, AGAIN),
    "connection_lost": Fault(UNKNOWN, UNKNOWN),  # Slack has no way to ask whether a message is there
    "not_in_channel": Fault(MEND, MEND, _invite),
    "channel_not_found": Fault(MEND, MEND, _invite),
    "is_archived": Fault(MEND, MEND, "open the channel again, or name another one in the workflow"),
    "not_installed": Fault(MEND, MEND, _install),
    "invalid_auth": Fault(MEND, MEND, _install),
    "not_authed": Fault(MEND, MEND, _install),
    "token_revoked": Fault(MEND, MEND, _install),
    "token_expired": Fault(MEND, MEND, _install),
    "account_inactive": Fault(MEND, MEND, _install),
    "missing_scope": Fault(MEND, MEND, "give the app the scopes of manifest.yml and install it again"),
    "rejected": Fault(NEVER, NEVER),
}


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
    faults = FAULTS
    calls_per_min = 300  # "several hundred messages per minute" for a workspace

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
        known = {
            "later": "rate_limited" if sent.retry_after_seconds else "unreachable",
            "rejected": sent.error if sent.error in FAULTS else "rejected",
        }.get(sent.kind, "connection_lost")
        lost = outcome_of(FAULTS, known, sent.error, changes=True, retry_after_seconds=sent.retry_after_seconds)
        return replace(lost, request=request, response={"error": sent.error} if sent.kind == "rejected" else {})

    def look(self, permit: Permit) -> Outcome | None:
        """Slack offers no way to ask (no history scope, no idempotency key): nobody can tell."""
        return None
