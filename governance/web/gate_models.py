"""The shapes of /v1 about edits of what is asked, absences, batches and reviews: read like those of governance.web.models."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from engine.limits import int_max
from governance.web.models import Needed, Reason, _Shape


class EditApproval(_Shape):
    """Change what is proposed, its fields or a payment's amount: it is judged and asked anew, and you hold no key for it."""

    digest16: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    fields: dict[
        Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")], Annotated[str, Field(pattern=r"^[^\x00]*$")]
    ] = Field(default_factory=dict, max_length=100)
    amount_minor: Annotated[int, Field(ge=1, le=int_max)] | None = None
    reason: Reason = ""


class EditedOut(_Shape):
    """The request that was withdrawn, and the run whose changed proposal is judged next."""

    approval: str
    run: str
    promise: str
    sentence: str


class ReviewApproval(_Shape):
    """Say whether it was justified that somebody broke the glass for this request."""

    how: Literal["justified", "unjustified"]
    reason: Needed


class ReviewedOut(_Shape):
    """Where the review stands."""

    approval: str
    given: int
    needed: int
    sentence: str
