"""Draws a definition as SVG: every step at its place, what it leads to, and where each branch goes on."""

from __future__ import annotations

from html import escape

from engine.program.definition import Definition
from engine.program.kinds import (
    ActionStep,
    BranchStep,
    ContinueStep,
    ParallelStep,
    RepeatStep,
    Step,
    SubworkflowStep,
    WaitStep,
)
from engine.program.layout import Placed, bodies, routes

_row, _indent, _width, _height = 46, 34, 300, 32
_colors = {
    "action": "#fde68a", "task": "#bfdbfe", "branch": "#e9d5ff", "repeat": "#e9d5ff", "parallel": "#e9d5ff", "wait": "#d1fae5",
    "subworkflow": "#fbcfe8", "continue_with": "#fbcfe8", "complete": "#bbf7d0", "fail": "#fecaca",
}  # fmt: skip
_ways = ("success", "failure", "timeout")


def svg(definition: Definition) -> str:
    """The picture: steps from top to bottom, what stands inside a step further to the right, dashed where a branch begins."""
    places = {id(each.step): number for number, each in enumerate(definition.flat)}
    spots: dict[int, tuple[int, int]] = {}
    labels: list[tuple[int, int, str]] = []
    bottom = _lay(definition.steps, 0, 0, places, spots, labels)
    ends = (20, bottom * _row + 20)
    lines = [_edge(number, each, spots, ends) for number, each in enumerate(definition.flat)]
    boxes = [_box(each.step, spots[number]) for number, each in enumerate(definition.flat)]
    words = [
        f'<text x="{20 + depth * _indent}" y="{row * _row + 42}" class="w">{escape(text)}</text>'
        for depth, row, text in labels
    ]
    deepest = max((x for x, _ in spots.values()), default=20)
    size = (deepest + _width + 60, bottom * _row + 70)
    title = escape(f"{definition.name} {definition.version}: {definition.title}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}" height="{size[1]}" role="img">'
        f"<title>{title}</title><style>text{{font:13px sans-serif}}.w{{font-size:11px;fill:#555}}"
        "path{fill:none;stroke:#666}.d{stroke-dasharray:4 3}rect{stroke:#444}</style>"
        + "".join(lines)
        + "".join(boxes)
        + "".join(words)
        + f'<text x="{ends[0]}" y="{ends[1] + 20}">end</text></svg>\n'
    )


def kind_name(step: Step) -> str:
    """What an author calls the kind of a step."""
    name = type(step).__name__.removesuffix("Step").lower()
    return {"reference": "business_reference", "continue": "continue_with"}.get(name, name)


def _lay(
    steps: tuple[Step, ...], depth: int, row: int, places: dict[int, int], spots: dict[int, tuple[int, int]],
    labels: list[tuple[int, int, str]],
) -> int:  # fmt: skip
    """Give every step its spot; the row below the last of them."""
    for step in steps:
        spots[places[id(step)]] = (20 + depth * _indent, row * _row + 20)
        row += 1
        inner = [(f"on {way}", body) for way, body in zip(_ways, routes(step), strict=True)]
        inner += zip(_names(step), bodies(step), strict=True)
        for name, body in inner:
            if body:
                labels.append((depth + 1, row, name))
                row = _lay(body, depth + 1, row + 1, places, spots, labels)
    return row


def _names(step: Step) -> list[str]:
    match step:
        case BranchStep(arms=arms):
            return [*(f"when {arm.when}" for arm in arms), "otherwise"]
        case RepeatStep(name=name, until=until):
            return [f"until {until}" if until else f"for each {name}"]
        case ParallelStep(lanes=lanes):
            return [f"lane {lane.id}" + (f", after {', '.join(lane.needs)}" if lane.needs else "") for lane in lanes]
    return []


def _box(step: Step, spot: tuple[int, int]) -> str:
    kind = kind_name(step)
    said = kind
    if isinstance(step, ActionStep):
        said = f"{step.connector}.{step.operation}, {step.risk} risk"
    elif isinstance(step, SubworkflowStep | ContinueStep):
        said = f"{kind} {step.workflow}"
    elif isinstance(step, WaitStep):
        said = f"wait for {step.signal or 'a time'}"
    x, y = spot
    text = escape(f"{step.id}: {said}"[:44])
    return (
        f'<rect x="{x}" y="{y}" width="{_width}" height="{_height}" rx="5" fill="{_colors.get(kind, "#f3f4f6")}"/>'
        f'<text x="{x + 10}" y="{y + 21}">{text}</text>'
    )


def _edge(number: int, here: Placed, spots: dict[int, tuple[int, int]], ends: tuple[int, int]) -> str:
    x, y = spots[number]
    drawn = []
    if here.next >= 0:
        to = spots.get(here.next, ends)
        bend = x + _width + 14 if to[1] - y != _row else x + 14
        if to[1] - y == _row and to[0] == x:
            drawn.append(f'<path d="M{x + 14} {y + _height}V{to[1]}"/>')
        else:
            drawn.append(
                f'<path d="M{x + _width} {y + 16}H{bend}V{to[1] + 10}H{to[0] + (_width if here.next in spots else 30)}"/>'
            )
    for to_place in (here.success, here.failure, here.timeout, *here.into):
        if to_place in spots:
            to = spots[to_place]
            drawn.append(f'<path class="d" d="M{x + 8} {y + _height}V{to[1] + 16}H{to[0]}"/>')
    return "".join(drawn)
