"""Proves that any desk becomes a Home tab that Slack takes, in literal text, and that its buttons are ours."""

from __future__ import annotations

import datetime
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from governance.slack import home
from governance.slack.buttons import FILL, REJECT, REVIEW, is_ours, read_value
from governance.store.home import Decided, Desk, Item, Under
from tests.governance.slack.kit import mac
from tests.governance.slack.nasty import words
from tests.governance.slack.rules import check_home, walk

AT = datetime.datetime(2027, 1, 15, 9, tzinfo=datetime.UTC)
many = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@st.composite
def items(draw: st.DrawFn, most: int) -> tuple[Item, ...]:
    def one(n: int) -> Item:
        kind = draw(st.sampled_from(("ap", "ta")))
        return Item(f"{kind}_{n:016x}", draw(words), draw(words), draw(words), 1, 2, AT, 1, "ab" * 8)

    return tuple(one(n) for n in range(draw(st.integers(0, most))))


@st.composite
def desks(draw: st.DrawFn) -> Desk:
    runs = tuple(Under("9f" * 16, draw(words), draw(words) or "running", AT) for _ in range(draw(st.integers(0, 10))))
    decided = tuple(
        Decided(f"ap_{n:016x}", draw(words), AT, draw(words), draw(words)) for n in range(draw(st.integers(0, 10)))
    )
    return Desk(
        draw(items(20)), draw(st.integers(0, 5_000)), draw(items(10)), draw(st.integers(0, 5_000)), runs, decided
    )


def shown(desk: Desk, name: str = "Ana") -> dict[str, Any]:
    return home.view(name, desk, tenant="acme", base="https://twokeys.example.com", deployment="prod-1", mac=mac)


@many
@given(desks(), words)
def test_any_desk_becomes_a_tab_that_slack_takes(desk: Desk, name: str) -> None:
    view = shown(desk, name)
    check_home(view)
    for part in walk(view["blocks"]):
        if part.get("type") == "button":
            pressed = read_value(part["value"])
            assert pressed
            assert part["action_id"] in (REVIEW, REJECT, FILL)
            assert is_ours(pressed, "acme", part["action_id"], mac)


def test_nobody_approves_from_a_line() -> None:
    """What Home shows of a request is never all of it, so Approve is in the window that shows everything."""
    item = Item("ap_" + "1" * 16, "Close", "INC1", "low", 0, 1, AT, 1, "ab" * 8)
    view = shown(Desk((item,), 1, (), 0, (), ()))
    assert {part["action_id"] for part in walk(view["blocks"]) if "action_id" in part} == {REVIEW, REJECT}


def test_a_stranger_reads_what_to_ask_for() -> None:
    view = home.stranger("T0ACME:U0NEW")
    check_home(view)
    assert "--team T0ACME --user U0NEW" in str(view)
