"""When a schedule is due: cron across the hours that are missing and that come twice, missed moments, and every refusal by name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.catalog.schedule import Plan, due, next_times, plan
from engine.errors import CallerError

NEW_YORK = "America/New_York"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def said(moments: list[datetime]) -> list[str]:
    return [f"{moment:%m-%d %H:%M}" for moment in moments]


def test_an_hour_that_is_missing_is_not_skipped_and_one_that_comes_twice_is_not_doubled() -> None:
    gap = plan(cron="30 2 * * *", zone=NEW_YORK)
    assert said(next_times(gap, at("2026-03-07T12:00"), 2)) == ["03-08 07:00", "03-09 06:30"], "02:30 is 03:00 that day"
    twice = plan(cron="30 1 * * *", zone=NEW_YORK)
    assert said(next_times(twice, at("2026-10-31T12:00"), 2)) == ["11-01 05:30", "11-02 06:30"], (
        "once, at the first 01:30"
    )
    hourly = plan(cron="0 * * * *", zone=NEW_YORK)
    assert said(next_times(hourly, at("2026-11-01T04:30"), 4)) == [
        "11-01 05:00", "11-01 06:00", "11-01 07:00", "11-01 08:00",
    ]  # fmt: skip


def test_inside_the_second_of_the_two_hours_nothing_that_is_over_comes_again() -> None:
    found = plan(cron="30 1 * * *", zone=NEW_YORK)
    assert next_times(found, at("2026-11-01T06:10"), 1)[0] > at("2026-11-01T06:10")


@given(
    st.sampled_from(["* * * * *", "*/7 * * * *", "30 1,2 * * *", "0 0 1 * *", "15 2 * * SUN", "0 */5 * * *"]),
    st.sampled_from([NEW_YORK, "Europe/Berlin", "UTC", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    st.integers(0, 2 * 366 * 24 * 60),
)
@settings(deadline=None, max_examples=60)
def test_moments_come_in_order_and_after_the_one_asked_about(cron: str, zone: str, minutes: int) -> None:
    start = at("2026-01-01T00:00") + timedelta(minutes=minutes)
    found = next_times(plan(cron=cron, zone=zone), start, 5)
    assert len(found) == 5
    assert found == sorted(set(found))
    assert found[0] > start
    assert all(moment.tzinfo is UTC for moment in found)
    assert next_times(plan(cron=cron, zone=zone), found[0], 4) == found[1:], "from wherever one asks"


NOON = at("2026-06-01T12:00")


@pytest.mark.parametrize(
    ("catch_up", "most", "fire", "missed"),
    [
        ("skip", 0, [], ["06-01 08:00", "06-01 09:00", "06-01 10:00"]),
        ("one", 0, ["06-01 10:00"], ["06-01 08:00", "06-01 09:00"]),
        ("all", 2, ["06-01 09:00", "06-01 10:00"], ["06-01 08:00"]),
        ("all", 9, ["06-01 08:00", "06-01 09:00", "06-01 10:00"], []),
    ],
)
def test_what_was_missed_is_caught_up_as_was_asked(
    catch_up: str, most: int, fire: list[str], missed: list[str]
) -> None:
    found = plan(cron="0 8-10 * * *", catch_up=catch_up, most=most)
    wanted = due(found, at("2026-06-01T08:00"), NOON)
    assert (said(list(wanted.fire)), said(list(wanted.missed))) == (fire, missed)
    assert wanted.next == at("2026-06-02T08:00")


def test_a_moment_that_is_seconds_old_is_not_missed() -> None:
    found = plan(cron="0 12 * * *", catch_up="skip")
    assert due(found, NOON, NOON + timedelta(seconds=59)).fire == (NOON,)
    assert due(found, NOON, NOON + timedelta(seconds=61)).fire == ()
    assert due(found, NOON + timedelta(days=1), NOON).fire == ()


def test_years_of_missed_minutes_are_bounded() -> None:
    found = plan(cron="* * * * *", catch_up="all", most=3)
    wanted = due(found, at("2016-01-01T00:00"), NOON)
    assert said(list(wanted.fire)) == ["06-01 11:58", "06-01 11:59", "06-01 12:00"]
    assert len(wanted.missed) < 5_001


def test_once_is_once() -> None:
    found = plan(at="2026-06-01T14:00", zone="Europe/Berlin")
    assert next_times(found, at("2026-01-01T00:00")) == [NOON]
    assert due(found, NOON, NOON).fire == (NOON,)
    assert due(found, NOON, NOON).next is None
    assert next_times(found, NOON) == []


@pytest.mark.parametrize(
    ("given", "field", "reason"),
    [
        ({}, "at", "either a moment or a cron expression"),
        ({"at": "2026-06-01", "cron": "* * * * *"}, "at", "either a moment or a cron expression"),
        ({"at": "tomorrow"}, "at", "'tomorrow' is not a moment"),
        ({"cron": "* * * *"}, "cron", "is not a cron expression"),
        ({"cron": "61 * * * *"}, "cron", "Bad minute"),
        ({"cron": "0 0 31 2 *"}, "cron", "Bad day-of-month"),
        ({"cron": "@daily"}, "cron", "is not a cron expression"),
        ({"cron": "* * * * *", "zone": "Europe/Berln"}, "zone", "did you mean 'Europe/Berlin'"),
        ({"cron": "* * * * *", "zone": "../etc/passwd"}, "zone", "is not a time zone"),
        ({"cron": "* * * * *", "catch_up": "al"}, "catch_up", "did you mean 'all'"),
        ({"cron": "* * * * *", "overlap": "que"}, "overlap", "did you mean 'queue'"),
        ({"cron": "* * * * *", "catch_up": "all", "most": 101}, "most", "is 1 to 100, not 101"),
    ],
)
def test_every_refusal_names_its_field(given: dict[str, Any], field: str, reason: str) -> None:
    with pytest.raises(CallerError, match=reason) as caught:
        plan(**given)
    assert caught.value.field == field


def test_a_plan_is_a_plain_value() -> None:
    assert plan(cron=" 0   8 * * * ") == Plan("cron", "0 8 * * *", "UTC", "one", 1, "skip")
