"""The rule that recorded findings give the recorded verdict again: no verdict of a bundle is believed for its own sake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from engine.canonical import read_json
from engine.errors import BrokenLedger, CallerError
from engine.gate.reducer import Unfit, check_findings, reduce, source_fault, subject_of


def derive_verdict(
    body: dict[str, Any], proposal: dict[str, Any], documents: Mapping[str, bytes], tenant: str, run: str
) -> tuple[str, list[dict[str, Any]]]:
    """The recorded findings must give the recorded verdict; doubt may only have become a denial. Returns a remark, or "", and what
    the findings oblige to.

    Before holds kept their own groups a verdict said nothing of `needs`, and the groups of all holds came together. Such
    a verdict is held to what was in force then, and the remark says so.
    """
    if body["effect"] not in ("allow", "deny", "needs_approval"):
        _finding_broken("verdict-effect", f"{body['effect'][:40]!r} is no effect")
    if body["effect"] == "deny" and body["deny_kind"] == "fault":
        return "", []
    document = _judged_document(documents, body["input_sha256"], "input")
    findings = _judged_document(documents, body["findings_sha256"], "findings")
    try:
        subject = subject_of(document)
        said = (document["action"]["sha256"], document["tenant"]["id"], document["run"]["id"])
        checked = check_findings(findings)
        differs = source_fault(checked, document["request"]["id"], body["action_sha256"], body["policy_revision"])
    except (KeyError, TypeError, Unfit) as error:
        _finding_broken(
            "verdict-documents", f"the documents of this verdict are not what policy reads and writes: {error}"
        )
    if differs:
        _finding_broken("verdict-echo", f"the findings do not answer this question: {differs}")
    if said != (body["action_sha256"], tenant, run):
        _finding_broken("verdict-input", "the input document is about another action, run or tenant")
    facts = {"kind": proposal["kind"], "risk_tier": proposal["risk"], "reversible": proposal["reversible"]}
    if subject != facts:
        _finding_broken("verdict-input", "the input document describes the action otherwise than the proposal")
    ruling = reduce(findings, subject)
    derived = {
        "effect": ruling["effect"],
        "deny_kind": ruling["deny_kind"],
        "tier": ruling["tier"],
        "keys": ruling["keys"],
        "counts": [[group, count] for group, count in sorted(ruling["counts"].items())],
        "groups": list(ruling["groups"]),
        "expires_in_s": ruling["expires_in_s"],
        "reasons": [reason["code"] for reason in ruling["reasons"]],
    }
    for name, value in derived.items():
        if body[name] != value:
            _finding_broken(
                "verdict-derived", f"the recorded findings give {name} {value!r}, the verdict says {body[name]!r}"
            )
    if "needs" in body and body["needs"] != ruling["needs"]:
        _finding_broken("verdict-derived", f"the recorded findings give needs {ruling['needs']!r}, the verdict others")
    remark = ""
    if ruling["needs"] and "needs" not in body:
        remark = (
            f"verdict {body['n']} of promise {body['promise']} is from before holds kept their own groups: "
            "a key from any of the groups could satisfy each of them"
        )
    return remark, ruling["obligations"]


def _judged_document(documents: Mapping[str, bytes], digest: str, what: str) -> Any:
    if digest not in documents:
        _finding_broken("verdict-documents", f"the {what} of this verdict is not in the bundle")
    try:
        return read_json(documents[digest])
    except CallerError as error:
        _finding_broken("verdict-documents", f"the {what} of this verdict is not strict JSON: {error.reason}")


def _finding_broken(code: str, reason: str) -> NoReturn:
    raise BrokenLedger(reason, code=code)
