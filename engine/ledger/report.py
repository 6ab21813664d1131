"""The readable page and the note inside a bundle: derived from the entries, for people, never evidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from engine.ledger.entries import Entry

_style = """
:root{--ink:#1b2430;--soft:#5b6877;--line:#dfe4ea;--paper:#fff;--wash:#f4f6f8;--good:#19724a;--bad:#b3261e;--hold:#8a5a00;
--accent:#24507a}
@media(prefers-color-scheme:dark){:root{--ink:#e6ebf1;--soft:#9aa7b5;--line:#33404d;--paper:#161c23;--wash:#1e262f;
--good:#62c796;--bad:#f2938c;--hold:#e2b34f;--accent:#8bb8e4}}
*{box-sizing:border-box}
body{margin:0;background:var(--wash);color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:66rem;margin:0 auto;padding:2.5rem 1.25rem 4rem}
h1{font-size:1.6rem;margin:0 0 .25rem;letter-spacing:-.01em}
h2{font-size:1.05rem;margin:2.25rem 0 .75rem}
p{margin:.4rem 0}
.soft{color:var(--soft)}
.warn{border-left:4px solid var(--hold);background:var(--paper);padding:.7rem 1rem;margin:1.25rem 0;border-radius:0 6px 6px 0}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));gap:.75rem;margin:1.5rem 0}
.fact{background:var(--paper);border:1px solid var(--line);border-radius:8px;padding:.7rem .9rem}
.fact b{display:block;font-size:.78rem;font-weight:500;color:var(--soft)}
.fact span{overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%;background:var(--paper);border:1px solid var(--line);border-radius:8px;overflow:hidden}
th,td{text-align:left;vertical-align:top;padding:.5rem .8rem;border-top:1px solid var(--line)}
thead th{border-top:0;font-size:.78rem;font-weight:600;color:var(--soft);background:var(--wash)}
td code,.fact code{font:12.5px/1.5 ui-monospace,"SFMono-Regular",Menlo,monospace;overflow-wrap:anywhere}
.tag{display:inline-block;border:1px solid currentColor;border-radius:99px;padding:0 .55rem;font-size:.8rem;white-space:nowrap}
.good{color:var(--good)}.bad{color:var(--bad)}.hold{color:var(--hold)}.plain{color:var(--accent)}
.wide{overflow-x:auto}
.whole{white-space:nowrap}
@media print{body{background:#fff}main{padding:0}}
"""

_tones = {
    "allow": "good",
    "deny": "bad",
    "needs_approval": "hold",
    "succeeded": "good",
    "ok": "good",
    "canceled": "hold",
    "unknown": "hold",
}

# What people read of each type of entry: a sentence with the body's own words.
SENTENCES = {
    "run.queued": "Run of {workflow} {version} queued ({trigger_type})",
    "run.started": "Run started",
    "action.proposed": "Step {step} proposes {connector}.{operation} ({kind}, {risk} risk)",
    "verdict.given": "Policy says {effect}",
    "approval.asked": "{keys} key(s) asked of {groups}",
    "key.given": "{person} turned a key: {given} of {needed}",
    "key.refused": "{person} refused as a key holder: {code}",
    "approval.released": "Approval released by {persons}",
    "action.edited": "{person} changed the proposal: {approval} is void",
    "rejection.given": "{person} rejected: {given} of {needed}",
    "approval.rejected": "Rejected by {person}",
    "approval.stopped": "Approved and stopped by {person}",
    "glass.broken": "{person} broke the glass, one key for all; a review is owed until {due_at}",
    "review.given": "{person} reviewed the broken glass: {how}, {given} of {needed}",
    "debt.overdue": "Reviews of broken glass were overdue: {reviews}",
    "approval.reminded": "{share} % of the time over, reminded {persons}",
    "approval.escalated": "Escalated to {group}: told {persons}",
    "approval.expired": "Approval expired unanswered",
    "approval.canceled": "Approval withdrawn: {why}",
    "effect.intended": "Effect intended, attempt {attempt}",
    "effect.receipted": "Effect receipted: {status}",
    "effect.unknown": "Outcome unknown, attempt {attempt}",
    "effect.resolved": "Unknown outcome resolved: {how} {person}",
    "effect.looked": "Looked again, attempt {attempt}: still unknown",
    "doubt.asked": "People are asked whether attempt {attempt} happened",
    "word.given": "{person} asks: {how} ({given} of {needed} for a retry)",
    "word.refused": "{person} refused as a speaker: {code}",
    "effect.retried": "Attempt {attempt} failed ({error_class}) and is tried again",
    "effect.reused": "Earlier receipt of run {run} reused",
    "reversal.proposed": "{step} is to undo operation {of}",
    "step.completed": "Step {step} completed",
    "step.failed": "Step {step} failed: {error_class}",
    "operator.asked": "Operators asked to mend what step {step} met: {error_class}",
    "operator.answered": "{person} says about what was to be mended: {how}",
    "operator.expired": "Nobody mended in time what operation {promise} met",
    "operator.canceled": "Mending of what operation {promise} met is no longer asked for: {why}",
    "signal.sent": "Signal {name} number {delivery} sent by {person}",
    "cancel.requested": "Cancel requested by {person}",
    "cancel.inherited": "Cancel passed on by the parent run {run}",
    "parent.named": "Started by run {run} as its operation {promise}, {depth} below the first",
    "child.started": "Child run {run} of {workflow} {version} started as operation {promise}",
    "run.continued": "Run {run} of {workflow} {version} started to go on from operation {promise}",
    "child.ended": "Child run {run} ended: {status} {error_class}",
    "run.migrated": "Goes on under the code of {version}, by order of {person}",
    "run.retried": "{person} let {count} parked item(s) go on",
    "run.closed": "Run closed: {status}, {entries} entries",
}


def render_readme(entries: Sequence[Entry]) -> str:
    """The note that somebody finds who opens the bundle by hand."""
    first = entries[0]
    return f"""Evidence of run {first.chain} of tenant {first.tenant}.

Do not trust this bundle because of what it says about itself. Get verify.py and the trust policy from
somebody you trust, not from here, then:

    python verify.py BUNDLE.zip --trust policy.txt

The copies in data/verify.py and data/trust.txt are a convenience. data/report.html is a readable summary,
derived from data/entries.jsonl; it is not evidence.

entries.jsonl     every audit entry of the run, the exact bytes that were hashed
proofs.jsonl      for each entry, where it stands in the tenant's log and its inclusion proof
checkpoint        the log's signed tree head
payloads/         documents that entries commit to (policy inputs and findings)
withheld.json     commitments to documents that are kept encrypted outside this bundle
receipts/         signed receipts of effects
definition.cbor   the workflow that the run was pinned to: its definition, or its Python code
code/             the code that the run was moved to later, if it was
journal.json      the run's journal, byte for byte
policies/         the policy files that verdicts were given under
"""


def render_report(entries: Sequence[Entry], withheld: int, last_index: int) -> str:
    """The readable page: one file, no script, nothing loaded from anywhere."""
    first, last = entries[0], entries[-1]
    status = str(last.body.get("status", "open"))
    facts = [
        ("Status", _tag(status)),
        ("Workflow", escape(f"{first.body.get('workflow', '')} {first.body.get('version', '')}")),
        ("Tenant", escape(first.tenant)),
        ("Started by", _code(first.actor["id"] or first.actor["type"])),
        ("From", escape(_short_time(first.at))),
        ("To", escape(_short_time(last.at))),
        ("Entries", f"{len(entries)}, the last at log index {last_index}"),
        ("Kept outside", f"{withheld} documents"),
    ]
    boxes = "".join(f'<div class="fact"><b>{name}</b><span>{value}</span></div>' for name, value in facts)
    parts = [
        f"<h1>Run {escape(first.chain)}</h1>",
        '<p class="soft">What an automation proposed, what policy said, who turned the keys, and what happened.</p>',
        '<p class="warn"><b>This page is not evidence.</b> It was derived from data/entries.jsonl when the bundle was '
        "sealed. Only the verifier, run with a trust policy from outside this bundle, says whether it is true.</p>",
        f'<div class="facts">{boxes}</div>',
        _section("Proposed and judged", ("Action", "Proposal", "Verdict", "Keys", "Policy revision"), _judged(entries)),
        _section("Approvals", ("Approval", "Asked", "Keys turned", "Refused", "Ended"), _approvals(entries)),
        _section("Effects", ("Action", "Attempt", "Outcome", "Receipt", "Signed by"), _effects(entries)),
        _section("Everything, in order", ("#", "Time (UTC)", "Entry", "What", "By"), _timeline(entries)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Run {escape(first.chain)}: summary, not evidence</title><style>{_style}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _judged(entries: Sequence[Entry]) -> list[list[str]]:
    proposals = {entry.body["promise"]: entry.body for entry in entries if entry.type == "action.proposed"}
    rows = []
    for entry in entries:
        if entry.type == "verdict.given":
            body = entry.body
            proposal = proposals.get(body["promise"], {})
            what = f"{proposal.get('connector', '')}.{proposal.get('operation', '')}"
            again = " on recheck" if body["purpose"] == "recheck" else ""
            reasons = f'<br><span class="soft">{escape(", ".join(body["reasons"]))}</span>'
            rows.append(
                [
                    _code(body["promise"]),
                    f"{escape(what)}<br>{_code(body['action_sha256'][:16])}",
                    f"{_tag(body['effect'])}{again}{reasons}",
                    escape(str(body["keys"] or "none")),
                    _code(body["policy_revision"][:16]),
                ]
            )
    return rows


def _approvals(entries: Sequence[Entry]) -> list[list[str]]:
    rows = []
    for asked in entries:
        if asked.type != "approval.asked":
            continue
        name = asked.body["approval"]
        own = [entry for entry in entries if entry.body.get("approval") == name and entry is not asked]
        given = [f"{_code(e.body['person'])} {_short_time(e.at)}" for e in own if e.type == "key.given"]
        refused = [f"{_code(e.body['person'])} {escape(e.body['code'])}" for e in own if e.type == "key.refused"]
        ends = tuple(f"approval.{end}" for end in ("released", "rejected", "stopped", "expired", "canceled"))
        ended = [
            _tag(e.type.partition(".")[2], "good" if e.type.endswith("released") else "bad")
            for e in own
            if e.type in ends
        ]
        groups = ", ".join(asked.body["groups"])
        asks = f"{asked.body['keys']} key(s) of {escape(groups)}<br>{_tag(asked.body['tier'], 'plain')}"
        rows.append([_code(name), asks, "<br>".join(given), "<br>".join(refused), " ".join(ended)])
    return rows


def _effects(entries: Sequence[Entry]) -> list[list[str]]:
    rows = []
    for entry in entries:
        if entry.type in ("effect.receipted", "effect.unknown", "effect.resolved"):
            body = entry.body
            outcome = body.get("status") or entry.type.partition(".")[2]
            who = f"<br>{escape(body['how'])} {_code(body['person'])}" if entry.type == "effect.resolved" else ""
            rows.append(
                [
                    f"{_code(body['promise'])} {_code(body['action_sha256'][:16])}",
                    str(body["attempt"]),
                    _tag(outcome) + who,
                    _code(body["receipt_sha256"][:16]),
                    _code(body["signed_by"]),
                ]
            )
    return rows


def _timeline(entries: Sequence[Entry]) -> list[list[str]]:
    return [
        [
            str(entry.chain_seq),
            f'<span class="whole">{escape(_short_time(entry.at))}</span>',
            _code(entry.type),
            escape(_sentence(entry)),
            _code(entry.actor["id"] or entry.actor["type"]),
        ]
        for entry in entries
    ]


def _sentence(entry: Entry) -> str:
    words = {name: ", ".join(map(str, item)) if type(item) is list else item for name, item in entry.body.items()}
    return SENTENCES.get(entry.type, "").format_map(words)


def _section(title: str, heads: Iterable[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return f'<h2>{title}</h2><p class="soft">None.</p>'
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<h2>{title}</h2><div class="wide">{table}</div>'


def _tag(word: str, tone: str = "") -> str:
    return f'<span class="tag {tone or _tones.get(word, "bad")}">{escape(word.replace("_", " "))}</span>'


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _short_time(at: str) -> str:
    return at[:10] + " " + at[11:19]
