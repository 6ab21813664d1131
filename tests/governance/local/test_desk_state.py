"""The desk's memory: handles that expire, and timestamps that never repeat."""

from __future__ import annotations

from pathlib import Path

import pytest

from governance import clock
from governance.local.desk import Workspace
from governance.local.desk.state import RESPONSE_SECONDS, Desk, SlackError
from tests.kit.desk import BOT_TOKEN, PEOPLE, SIGNING_SECRET


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(Workspace("http://127.0.0.1:9/", SIGNING_SECRET, BOT_TOKEN, PEOPLE), tmp_path / "state.json")


def test_a_trigger_lives_for_three_seconds(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    now = clock.monotonic()
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    early, late = desk.new_trigger("U0BOB"), desk.new_trigger("U0BOB")
    monkeypatch.setattr(clock, "monotonic", lambda: now + 2.9)
    assert desk.spend_trigger(early) == "U0BOB"
    monkeypatch.setattr(clock, "monotonic", lambda: now + 3.1)
    with pytest.raises(SlackError, match="expired_trigger_id"):
        desk.spend_trigger(late)


def test_a_response_url_lives_for_thirty_minutes(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    key = desk.new_response_url("C0APPROVALS", "U0BOB", None).rpartition("/")[2]
    assert desk.spend_response(key)["user"] == "U0BOB"
    now = clock.epoch_seconds()
    monkeypatch.setattr(clock, "epoch_seconds", lambda: now + RESPONSE_SECONDS + 1)
    with pytest.raises(SlackError, match="expired_url"):
        desk.spend_response(key)


def test_timestamps_rise_also_when_the_clock_does_not(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = clock.now_utc()
    monkeypatch.setattr(clock, "now_utc", lambda: stopped)
    stamps = [desk.new_ts() for _ in range(3)]
    assert stamps == sorted(set(stamps))
