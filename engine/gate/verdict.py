"""The verdict: what policy decided about one action, judged so that every doubt is a denial."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from engine.canonical import read_json, sha256
from engine.errors import CallerError, OperatorError
from engine.gate import reducer
from engine.gate.question import Question
from engine.limits import policy_bytes_max, policy_input_depth_max

EFFECTS = ("allow", "deny", "needs_approval")
# Doubts that pass by themselves. Everything else would only be asked the same again.
RETRYABLE = frozenset(
    (
        "timeout",  # no answer inside the deadline
        "refused",  # nobody listens, or the connection broke
        "unavailable",  # the server says 502, 503 or 504
        "breaker_open",  # too many doubts in a row; a probe closes it again
        "revision_mismatch",  # a bundle is being activated
        "engine_exit",  # the engine's process ended; the next one starts
        "engine_not_ready",  # the engine did not yet answer its canaries
    )
)
_fault_code = re.compile(r"[a-z][a-z0-9_]{0,63}")
_revision = re.compile(r"[0-9a-f]{64}")


class PolicyFault(OperatorError):
    """The operator must act, unless the code is in RETRYABLE: a policy engine gave no answer that can be trusted."""

    def __init__(self, code: str, message: str, *, retryable: bool | None = None) -> None:
        super().__init__(message, code=code)
        self.retryable = code in RETRYABLE if retryable is None else retryable and code in RETRYABLE


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine returned: the findings' bytes, the revision that its source vouches for, and which engine it was."""

    findings: bytes
    revision: str
    engine: str
    version: str


class Policy(Protocol):
    """A policy engine: it answers with findings or raises PolicyFault; it never answers with a decision."""

    def evaluate(self, input_bytes: bytes) -> Answer:
        """The findings about this input document."""


class Reason(NamedTuple):
    """Why: a code for machines and a sentence for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What policy decided about exactly one action under exactly one revision."""

    effect: str
    deny_kind: str
    retryable: bool
    tier: str
    keys: int
    counts: tuple[tuple[str, int], ...]
    groups: tuple[str, ...]
    expires_in_s: int
    reasons: tuple[Reason, ...]
    obligations: tuple[dict[str, Any], ...]
    policy_revision: str
    engine: str
    engine_version: str
    action_sha256: str
    input_sha256: str
    findings_sha256: str
    purpose: str
    duration_us: int
    needs: tuple[dict[str, Any], ...] = ()  # where holds ask for different things: what each of them asks for

    def to_value(self) -> dict[str, Any]:
        """The canonical value: every key present, and `needs` where holds ask for different things."""
        value: dict[str, Any] = {name: getattr(self, name) for name in _plain}
        value["counts"] = [[group, count] for group, count in self.counts]
        value["groups"] = list(self.groups)
        value["reasons"] = [{"code": reason.code, "message": reason.message} for reason in self.reasons]
        value["obligations"] = [dict(obligation) for obligation in self.obligations]
        if self.needs:
            value["needs"] = [dict(need) for need in self.needs]
        return value


_listed = ("counts", "groups", "reasons", "obligations")
_plain = tuple(name for name in Verdict.__dataclass_fields__ if name not in (*_listed, "needs"))


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict with the two documents that it was derived from, as they are stored and hashed."""

    verdict: Verdict
    input_bytes: bytes
    findings_bytes: bytes


def verdict_from(value: object) -> Verdict:
    """The verdict that a stored value holds."""
    if type(value) is not dict or set(value) - {"needs"} != {*_plain, *_listed} or value["effect"] not in EFFECTS:
        raise CallerError("not a verdict", code="not_a_verdict")
    parts: dict[str, Any] = {name: value[name] for name in _plain}
    return Verdict(
        **parts,
        counts=tuple((group, count) for group, count in value["counts"]),
        groups=tuple(value["groups"]),
        reasons=tuple(Reason(reason["code"], reason["message"]) for reason in value["reasons"]),
        obligations=tuple(dict(obligation) for obligation in value["obligations"]),
        needs=tuple(dict(need) for need in value.get("needs", ())),
    )


def judge(question: Question, policy: Policy, *, accepted: Collection[str], monotonic: Callable[[], float]) -> Judged:
    """Put the question and reduce the answer. Only an interrupt passes: every other doubt is a denial of kind fault.

    `accepted` are the policy revisions that are in force: one, or two while a new one is being activated.
    """
    heard = _Heard()
    duration_us = 0
    try:
        begun = monotonic()
        ruling = _rule(question, policy, accepted, heard)
        duration_us = max(0, int((monotonic() - begun) * 1_000_000))
        retryable = False
    except PolicyFault as fault:
        ruling, retryable = _fault(fault.code, fault.reason), fault.retryable
    except Exception as error:  # the one place where doubt of any kind becomes a denial
        ruling, retryable = _fault("internal", f"the verdict could not be reached ({type(error).__name__})"), False
    return Judged(_verdict(question, ruling, retryable, heard, duration_us), question.input_bytes, heard.findings)


class _Heard:
    """What is kept of an answer even when it is refused, so that the record shows what was refused."""

    def __init__(self) -> None:
        self.findings = b""
        self.revision = ""
        self.engine = ""
        self.version = ""


def _rule(question: Question, policy: Policy, accepted: Collection[str], heard: _Heard) -> dict[str, Any]:
    if question.refusal[0] or not question.input_bytes:
        raise PolicyFault(question.refusal[0] or "input_rejected", question.refusal[1] or "the question has no bytes")
    answer = policy.evaluate(question.input_bytes)
    _hear(answer, heard)
    findings = read_findings(answer.findings)
    differs = reducer.source_fault(findings, question.request_id, question.action_sha256, answer.revision)
    if not differs and answer.revision not in accepted:
        differs = "revision_mismatch"
    if differs:
        raise PolicyFault(differs, "the answer is not to this question under the policy in force")
    ruling = reducer.reduce(findings, dict(question.subject))
    if ruling["effect"] == "needs_approval":
        _check_people(ruling, question)
    elif question.purpose != "recheck":
        _check_window(ruling)
    return ruling


def _hear(answer: object, heard: _Heard) -> None:
    if type(answer) is not Answer or type(answer.findings) is not bytes:
        raise PolicyFault("answer_type", "the engine returned something other than findings in bytes")
    for name in (answer.revision, answer.engine, answer.version):
        if type(name) is not str or len(name) > 128:
            raise PolicyFault("answer_type", "the engine does not say who it is")
    if len(answer.findings) > policy_bytes_max:
        raise PolicyFault(
            "too_large", f"the findings are {len(answer.findings)} bytes; at most {policy_bytes_max} are read"
        )
    heard.findings, heard.engine, heard.version = answer.findings, answer.engine, answer.version
    if not _revision.fullmatch(answer.revision):
        raise PolicyFault("revision_mismatch", "the engine names no policy revision")
    heard.revision = answer.revision


def read_findings(data: bytes) -> dict[str, Any]:
    """The findings of these bytes, strictly; PolicyFault with the code of the broken rule otherwise."""
    try:
        return reducer.check_findings(read_json(data, bytes_max=policy_bytes_max, depth_max=policy_input_depth_max))
    except CallerError as error:
        raise PolicyFault("malformed_findings", error.reason) from error
    except reducer.Unfit as unfit:
        raise PolicyFault(unfit.code, unfit.message) from unfit


def _check_window(ruling: dict[str, Any]) -> None:
    """A window in which people may stop something needs people who were asked: without a hold nobody could."""
    if ruling["effect"] == "allow" and any(one["type"] == "hold_window" for one in ruling["obligations"]):
        raise PolicyFault("window_without_hold", "policy wants a window to stop this in, and asks nobody about it")


def _check_people(ruling: dict[str, Any], question: Question) -> None:
    """A hold that nobody could ever release is a doubt about the policy, so it is found before anybody is asked."""
    groups = question.people.groups
    missing = [group for group in ruling["groups"] if group not in groups]
    if missing:
        raise PolicyFault("unknown_group", f"policy names a group that this tenant does not have: {missing[0]}")
    holders: dict[str, list[str]] = {}
    for group in ruling["groups"]:
        for person in groups[group] - question.people.lineage:
            holders.setdefault(person, []).append(group)
    if not reducer.is_satisfied(ruling, holders):
        raise PolicyFault(
            "too_few_people", f"{ruling['keys']} keys are needed and the groups do not have that many people for them"
        )


def _fault(code: str, message: str) -> dict[str, Any]:
    if not _fault_code.fullmatch(code):
        code = "internal"
    return reducer.fault_ruling(code, reducer.hidden_character.sub(" ", message)[:500] or code)


def _verdict(question: Question, ruling: dict[str, Any], retryable: bool, heard: _Heard, duration_us: int) -> Verdict:
    return Verdict(
        effect=ruling["effect"],
        deny_kind=ruling["deny_kind"],
        retryable=retryable and ruling["deny_kind"] == "fault",
        tier=ruling["tier"],
        keys=ruling["keys"],
        counts=tuple(sorted(ruling["counts"].items())),
        groups=tuple(ruling["groups"]),
        expires_in_s=ruling["expires_in_s"],
        reasons=tuple(Reason(reason["code"], reason["message"]) for reason in ruling["reasons"]),
        obligations=tuple(ruling["obligations"]),
        policy_revision=heard.revision,
        engine=heard.engine,
        engine_version=heard.version,
        action_sha256=question.action_sha256,
        input_sha256=sha256(question.input_bytes).hex(),
        findings_sha256=sha256(heard.findings).hex(),
        purpose=question.purpose,
        duration_us=duration_us,
        needs=tuple(ruling["needs"]),
    )
