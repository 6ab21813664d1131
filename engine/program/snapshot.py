"""Where a run stands: business state, results and the place to go on, as a value that survives a restart byte for byte."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.canonical import encode
from engine.errors import CallerError

_keys = ("step", "state", "steps", "next_child", "waiting", "error_class", "error")
# Only where there is something in it.
_kinds = {"done": list, "undo": list, "caught": dict, "loops": list, "lanes": list, "joins": list, "reference": str}


@dataclass(frozen=True, slots=True)
class Frame:
    """The place in the program (engine state) and what the author's steps have made (business state), apart."""

    step: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, Any] = field(default_factory=dict)
    next_child: int = 0
    waiting: int | None = None
    error_class: str = ""  # why the step that was waited for did not succeed; empty while nothing has failed
    error: str = ""
    done: list[list[int]] = field(default_factory=list)  # [child, place] of what succeeded, where it may be undone
    undo: list[list[int]] = field(default_factory=list)  # of those, what is still to be undone, the newest first
    caught: dict[str, str] = field(default_factory=dict)  # what the failure that a branch deals with was

    loops: list[list[Any]] = field(
        default_factory=list
    )  # [place, turn, items] of the repeats it is in, the innermost last
    lanes: list[dict[str, Any]] = field(default_factory=list)  # the lines of steps that go on beside the run's own
    joins: list[list[Any]] = field(
        default_factory=list
    )  # [line, lanes that are done] of every line that waits for its lanes
    reference: str = ""  # what people call this piece of business by, once a step has said so

    @property
    def open(self) -> list[int]:
        """The operations that some line waits for, in the order in which they were asked for."""
        found = [self.waiting, *(lane["waiting"] for lane in self.lanes)]
        return sorted(child for child in found if child is not None)

    def to_value(self) -> dict[str, Any]:
        """The canonical value: every key present, but for those that only branches and reversals need."""
        more = {name: getattr(self, name) for name in _kinds if getattr(self, name)}
        return {**{name: getattr(self, name) for name in _keys}, **more}

    @property
    def body(self) -> bytes:
        """Deterministic CBOR: what a snapshot stores."""
        return encode(self.to_value())


def frame_from(value: Any) -> Frame:
    """The frame that a stored value holds; exact keys and exact types only."""
    if type(value) is not dict or set(value) - set(_kinds) != set(_keys):
        raise CallerError("not a frame", code="not_a_frame")
    kinds = {
        **{name: kind for name, kind in _kinds.items() if name in value},
        "step": int,
        "state": dict,
        "steps": dict,
        "next_child": int,
        "error_class": str,
        "error": str,
    }
    for name, kind in kinds.items():
        if type(value[name]) is not kind:
            raise CallerError(f"{name} of a frame is {kind.__name__}", code="not_a_frame")
    waiting = value["waiting"]
    if waiting is not None and type(waiting) is not int:
        raise CallerError("waiting of a frame is a child number or nothing", code="not_a_frame")
    if value["step"] < 0 or value["next_child"] < 0:
        raise CallerError("a frame counts from 0", code="not_a_frame")
    return Frame(**value)
