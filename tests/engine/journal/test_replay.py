"""The recovery index, and the line that `twokeys journal check` prints."""

from __future__ import annotations

import json

import pytest

from engine.journal.events import LINE_BYTES_MAX, Exported, from_json, to_json, to_value
from engine.journal.replay import JoinIndex, check, check_line, recover
from tests.engine.journal.stories import (
    EXAMPLES,
    ROOT,
    begin,
    done,
    fired,
    got,
    journal,
    js,
    now,
    ok,
    p,
    put,
    resume,
    retry,
    rnd,
    sched,
    sig,
    sleep,
    start,
    take,
    wait,
    wait_signal,
)

BUSY = journal(
    (
        start(),
        rnd(0),
        now(1),
        sleep(2),
        sleep(3),
        js(4),
        sched(5),
        put(4, 5),
        sched(6),
        put(4, 6),
        begin(5),
        done(5),
        take(4, 5),
        sig(payload="a"),
        sig(2, payload="b"),
        got(7, payload="a"),
        fired(2),
        begin(6),
        retry(6),
        wait(6),
    )
)


def test_the_index_holds_what_replay_looks_up_and_what_is_open() -> None:
    """S003-P1, S003-P2, S003-P5, S003-Y2, S003-G5: a hit is returned, a miss is the next child."""
    found = recover(BUSY)
    assert found.cached == {p(0): "7", p(1): 7, p(2): "", p(5): "r", p(7): "a"}
    assert list(found.open_invokes) == [p(6)]
    assert list(found.open_timers) == [p(3)]
    assert found.buffered == {"s": [(2, "b")]}
    assert found.join_sets == {p(4): JoinIndex([p(5), p(6)], [p(5)])}
    assert (found.version, found.next_child, found.can_resume) == (20, 8, False)


def test_taking_up_new_entries_gives_the_index_of_the_whole() -> None:
    """S003-C6, S003-I0: at every prefix, index plus tail is the index from the start."""
    for cut in range(len(BUSY) + 1):
        assert recover(BUSY[:cut]).take(BUSY[cut:]) == recover(BUSY)


def test_a_run_resumes_by_the_kind_of_its_wait() -> None:
    """S003-R1..R4: the index and the writer agree, also where a promise is cached but cannot resolve."""
    story = (start(), sched(0), sched(1), begin(0), begin(1))
    assert not recover(journal((*story, wait(0, 1, kind="All"), done(0)))).can_resume
    assert recover(journal((*story, wait(0, 1, kind="Any"), done(0)))).can_resume
    assert recover(journal((start(), wait_signal(0), sig(), got(0)))).can_resume
    assert not recover(journal((start(), sched(0), begin(0), wait_signal(0), done(0)))).can_resume
    assert not recover(journal((start(), rnd(0), wait(0)))).can_resume
    assert not recover(journal((start(),))).can_resume


def line(events: tuple[object, ...], **more: object) -> str:
    value = json.loads(to_json(ROOT, journal(events)))  # type: ignore[arg-type]
    return json.dumps({**value, **more})


def test_every_broken_invariant_is_reported_and_guards_only_where_none_is() -> None:
    """spec.md 1: violates, guards, status and statuses of one line."""
    assert check_line(line((start(), sched(0), done(0), ok(), ok()))) == {
        "valid": False,
        "violates": ["S-3", "S-4", "SE-2"],
        "guards": [],
        "status": "Completed",
        "statuses": ["Running", "Running", "Running", "Completed", "Completed"],
    }
    assert check_line(line((start(), sched(1), resume()))) == {
        "valid": False,
        "violates": [],
        "guards": ["G-01", "G-20"],
        "status": "Running",
        "statuses": ["Running"] * 3,
    }
    named = check_line(line((start(), sched(1), resume())), named_only=True)
    assert (named["valid"], named["guards"]) == (True, [])


def test_the_stored_status_is_compared_with_the_fold() -> None:
    """S003-INV4, S003-J4."""
    blocked = (start(), sched(0), wait(0))
    assert check_line(line(blocked, stored_status={"tag": "Blocked"}))["valid"]
    wait_value = {"waiting_on": [[1, 0]], "kind": "Single"}
    assert check_line(line(blocked, stored_status={"tag": "Blocked", "value": wait_value}))["valid"]
    other = {"tag": "Blocked", "value": {**wait_value, "kind": "Any"}}
    assert check_line(line(blocked, stored_status=other))["violates"] == ["INV-4"]
    assert check_line(line(blocked, stored_status={"tag": "Running"}))["violates"] == ["INV-4"]


def test_a_journal_without_entries_breaks_its_first_rule() -> None:
    """S003-S2, S003-St4: there is no first event and no status."""
    expected = {"valid": False, "violates": ["S-2"], "guards": [], "status": None, "statuses": []}
    assert check_line('{"execution_id":[1],"journal":[]}') == expected
    assert check(Exported(ROOT, (), {"tag": "Running"}))["violates"] == ["S-2", "INV-4"]


def test_a_line_that_cannot_be_read_is_invalid_and_says_where() -> None:
    """spec.md 1, P14: unknown types and fields are refused with their position."""
    value = json.loads(line((start(), sched(0))))
    value["journal"][1]["event"]["type"] = "InvokePlanned"
    found = check_line(json.dumps(value))
    assert (found["valid"], found["status"]) == (False, None)
    assert found["error"] == "journal[1].event.type: 'InvokePlanned' is not an event type"
    assert not check_line("nonsense")["valid"]
    assert not check_line(b"\xff")["valid"]
    assert "stored_status" in check_line(line((start(),), stored_status={"state": "Running"}))["error"]


def second(**changes: object) -> str:
    """A line whose second entry is not as it should be."""
    value = json.loads(line((start(), sched(0))))
    value["journal"][1] |= changes
    return json.dumps(value)


EVENT = {"type": "InvokeStarted", "promise_id": [1, 0], "attempt": 1}
HOSTILE = {
    "unknown type": (second(event={"type": "X"}), "journal[1].event.type: 'X' is not an event type"),
    "missing field": (second(event={"type": "TimerFired"}), "journal[1].event: has no promise_id"),
    "extra field": (second(event={**EVENT, "by": 1}), "journal[1].event: has an unknown field 'by'"),
    "wrong type": (second(event={**EVENT, "attempt": "1"}), "journal[1].event.attempt: is an integer, not str"),
    "2^63": (second(sequence=2**63), "journal[1].sequence: is an integer of at most 53 bits"),
    "2^64": (second(timestamp=2**64), "journal[1].timestamp: is an integer of at most 53 bits"),
    "10^30": (second(sequence=10**30), "body: 1" + "0" * 30 + " is out of range"),
    "nesting": (second(event={**EVENT, "attempt": json.loads("[" * 40 + "]" * 40)}), "body: nested deeper than 32"),
}


@pytest.mark.parametrize(("text", "error"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_line_is_refused_with_position_and_reason(text: str, error: str) -> None:
    """Issue 3, P14: what cannot be an entry is not half read."""
    found = check_line(text)
    assert (found["valid"], found["status"]) == (False, None)
    assert found["error"].startswith(error)


def test_a_gap_in_the_sequence_is_a_broken_rule_and_no_loss_of_the_rest() -> None:
    """S003-S1: the line is read, and everything it breaks is named."""
    found = check_line(second(sequence=2))
    assert (found["violates"], found["statuses"]) == (["S-1"], ["Running", "Running"])


def test_a_line_of_64_mebibytes_is_read_and_one_byte_more_is_not() -> None:
    """spec.md 1: the bound itself, with a payload that fills the line."""
    value = json.loads(line((start(),)))
    value["journal"][0]["event"]["input"] = ""
    size = len(json.dumps(value))
    value["journal"][0]["event"]["input"] = "x" * (LINE_BYTES_MAX - size)
    longest = json.dumps(value)
    assert len(longest) == LINE_BYTES_MAX == 64 * 1024 * 1024
    assert check_line(longest)["valid"]
    assert check_line(longest + " ")["error"].startswith(f"body: {LINE_BYTES_MAX + 1} bytes")


def test_a_run_with_a_hex_root_is_read_like_any_other() -> None:
    """spec.md 1: the root may be a number or a hex string."""
    text = line(tuple(event for event, _ in EXAMPLES["S003-X1"])).replace("[1", '["ab12"')
    assert check_line(text)["valid"]
    found = from_json(text)
    assert json.loads(to_json(found.execution, found.entries))["journal"][1] == to_value(found.entries[1])
