"""The published catalogue of entries, written for people from the catalogue itself: docs/events.md."""

from __future__ import annotations

import re
import sys

from engine.ledger.entries import CATALOGUE, OPTIONAL, holds_of
from engine.ledger.report import SENTENCES

# Whose chain an entry stands in, by the first word of its type; a run's own chain where none is named here.
_chains = {
    "schedule": "template/NAME",
    "template": "template/NAME",
    "person": "person/ID",
    "group": "person/ID",
    "freeze": "tenant/NAME",
    "workspace": "tenant/NAME",
    "tenant": "tenant/NAME",
    "policy": "policy/main",
    "key": "key/PURPOSE",
    "export": "export/NAME",
    "log": "log/export",
    "caps": "tenant/NAME",
    "gate": "tenant/NAME",
}
_in_runs = ("key.given", "key.refused")
_head = """# Events

Every fact of governance is one entry of its tenant's log. This page is written from the catalogue that the product builds and
reads entries with (`make events`); an entry of any other type, or with any other key in its body, is refused.

An entry is one JSON object in canonical form (RFC 8785, no fractions):

| key | holds |
|---|---|
| `v` | 1 |
| `tenant` | whose log it stands in |
| `chain`, `chain_seq` | the run, or the object that it is about, and its number there |
| `prev` | the leaf hash of the chain's entry before, 64 zeros for the first |
| `at` | when, UTC with six digits, by the database's clock |
| `type` | one of those below: dotted, past tense |
| `actor` | `{"type": "person", "service" or "system", "id"}`; people are pseudonyms |
| `body` | exactly the keys below; metadata only |
| `commit` | digests of documents that it commits to |

Field values never stand in a body: what is guessable is hashed under a secret of the tenant, documents are committed to. In a body
`…_sha256` is a digest in hexadecimal, or empty.

"""


# What people read of the entries that stand in no run; those of runs have the sentences of the report.
_told = {
    "template.paused": "A workflow's version starts no runs for now",
    "schedule.set": "A workflow is started by the clock from now on",
    "schedule.dropped": "It is started by the clock no more",
    "schedule.fired": "The clock started a run",
    "schedule.skipped": "Moments passed without a run, and why",
    "evidence.sealed": "The bundle is stored, locked and read back",
    "evidence.downloaded": "Somebody took a bundle",
    "template.created": "A workflow's version was stored",
    "template.activated": "A workflow's version starts runs from now on",
    "template.archived": "A workflow's version starts no more runs",
    "tenant.created": "A tenant was made",
    "key.created": "A key was made",
    "export.changed": "A named export was set, paused, resumed or removed",
    "log.exported": "Somebody is about to take the log along from this index on",
    "key.rotated": "A new key signs from now on",
    "key.compromised": "A key is believed no more",
    "task.asked": "A form waits for people",
    "task.answered": "Somebody filled the form",
    "task.expired": "Nobody filled it in time",
    "task.canceled": "It is no longer asked for",
    "change.proposed": "A change of policy was put before people",
    "person.added": "A person or a service was added",
    "person.linked": "An identity leads to a person",
    "person.owned": "Somebody answers for a service",
    "person.deactivated": "A person decides and starts nothing more",
    "person.away": "Somebody stands in for whoever is away",
    "group.changed": "Somebody joined or left a group",
    "workspace.added": "A workspace was added",
    "policy.published": "A draft was released to judge",
    "policy.drafted": "A draft of the rules was stored",
    "policy.withdrawn": "A draft was withdrawn",
    "policy.shadowed": "A draft judges beside the policy in force, or stops to",
    "freeze.begun": "No new effect begins from now on",
    "freeze.ended": "Effects begin again",
    "caps.changed": "How much may be under way was set",
    "gate.changed": "How approvals are asked for was set",
    "policy.activated": "A revision judges from now on",
}


def render_events() -> str:
    """The page."""
    parts = [_head]
    groups: dict[str, list[str]] = {}
    for kind in CATALOGUE:
        groups.setdefault(kind.partition(".")[0], []).append(kind)
    for group, kinds in groups.items():
        parts.append(f"## {group}\n\n| entry | says | chain | body |\n|---|---|---|---|\n")
        for kind in kinds:
            chain = "the run's" if group not in _chains or kind in _in_runs else f"`{_chains[group]}`"
            says = _told.get(kind) or re.sub(r"{(\w+)}", r"*\1*", SENTENCES.get(kind, ""))
            body = [_key(name) for name in CATALOGUE[kind]] + [
                f"{_key(name)}, where there is one" for name in OPTIONAL.get(kind, ())
            ]
            parts.append(f"| `{kind}` | {says} | {chain} | {'; '.join(body)} |\n")
        parts.append("\n")
    return "".join(parts).rstrip() + "\n"


def _key(name: str) -> str:
    holds = holds_of(name)
    return f"`{name}` ({holds})" if holds else f"`{name}`"


if __name__ == "__main__":
    sys.stdout.write(render_events())
