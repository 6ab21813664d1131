"""The shapes of /v1/policies and /v1/freezes: what is read is exactly this and nothing else."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from governance.web.models import Needed, Reason, _Shape

DraftName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,62}$")]


class BeginDraft(_Shape):
    """Begin a draft that says what the policy in force says."""

    draft: DraftName


class EditDraft(_Shape):
    """The whole of a draft from now on: modules and tests by path, the tenant's data, and tests that are dropped on purpose."""

    modules: dict[str, str]
    tests: dict[str, str]
    data: dict[str, Any]
    dropped: list[str] = Field(default_factory=list)


class ProposeDraft(_Shape):
    """Ask for a draft; with `minutes` in an emergency and for so long at most, which takes a reason."""

    reason: Reason = ""
    minutes: Annotated[int, Field(ge=1, le=240)] | None = None


class RollBack(_Shape):
    """Ask for an earlier policy, named by 8 or more digits of its revision."""

    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{8,64}$")]
    reason: Reason = ""


class BeginFreeze(_Shape):
    """Stop what is changed; `name` is that of the workspace or the connector."""

    scope: Literal["tenant", "workspace", "connector", "kill_switch"] = "tenant"
    name: Annotated[str, Field(max_length=100, pattern=r"^[^\x00]*$")] = ""
    reason: Needed


class Thaw(_Shape):
    """Ask for the end of a freeze."""

    reason: Needed


class ActivationOut(_Shape):
    """A policy that came into force by a change."""

    revision: str
    base_revision: str
    how: str
    run: str
    at: datetime.datetime
    until: datetime.datetime | None


class DraftOut(_Shape):
    """A draft as it is listed."""

    draft: str
    state: str
    edit: int
    base_revision: str
    revision: str
    authors: list[str]
    changed_at: datetime.datetime


class PoliciesOut(_Shape):
    """The policy in force, how it came to be, and the drafts."""

    in_force: str
    activations: list[ActivationOut]
    drafts: list[DraftOut]


class DraftDetailOut(_Shape):
    """A draft with its content."""

    draft: DraftOut
    modules: dict[str, str]
    tests: dict[str, str]
    data: dict[str, Any]
    dropped: list[str]


class FaultOut(_Shape):
    """One fault of a draft, at its place."""

    file: str
    line: int
    column: int
    message: str
    text: str
    hint: str


class CheckedOut(_Shape):
    """What is wrong with a draft, how its tests went, what it changes and how many people besides its authors that takes."""

    valid: bool
    faults: list[FaultOut]
    failed: dict[str, str]
    gone: list[str]
    coverage: float
    people: int
    weight: list[str]
    diff: list[str]
    revision: str


class ReplayedOut(_Shape):
    """What a draft would have decided of everything recorded; `done` is false while more is left: send the request again."""

    done: bool
    seen: int
    matrix: dict[str, int]
    looser: int
    tighter: int
    same: int
    lines: list[str]
    flips: list[dict[str, Any]]


class ChangeOut(_Shape):
    """The run that asks people; GET /v1/actions/{run} says how far it is."""

    run: str
    new: bool


class FreezeOut(_Shape):
    """A freeze in force."""

    freeze: str
    scope: str
    name: str
    reason: str
    by: str
    at: datetime.datetime


class FreezesOut(_Shape):
    """What stands still."""

    freezes: list[FreezeOut]
