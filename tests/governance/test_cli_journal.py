"""`twokeys journal`: show, export, check, replay and diff of real runs, and rows that somebody edited in the database."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import psycopg
import pytest

from engine.ids import PromiseId
from engine.journal import events as ev
from engine.journal.history import History
from governance.cli import frame
from governance.cli import journal as orders
from governance.local import postgres
from tests.engine.journal.stories import EXAMPLE_FULL, FIRE_AT, ROOT, told
from tests.governance.test_cli import Cli, cli, shell
from tests.kit.wait import until
from tests.kit.world import World, parts, slack_sink, world

__all__ = ["cli", "parts", "slack_sink", "world"]


def finished(world: World, ref: str = "") -> str:
    """A run that needed nobody's key or got the keys it needed."""
    run = world.start(ref=ref)
    world.until(run, "waiting_approval", "succeeded")
    while world.case(run).state == "waiting_approval":
        asked = world.waiting(run)
        for name in ("ana", "bo", "cleo")[: asked.asked.keys]:
            answer = world.press(asked, name)
            assert answer.ok, answer
        world.until(run, "waiting_approval", "succeeded")
    return run


def superuser(server: postgres.Postgres, database: postgres.Database, statement: str, *values: object) -> None:
    """What only somebody can do who holds the whole database: past the triggers that keep rows as they are."""
    with psycopg.connect(server.url(postgres.SUPERUSER, database.name)) as connection:
        connection.execute("set session_replication_role = replica")
        assert connection.execute(statement, values).rowcount == 1


def test_show_prints_the_table_of_the_document_and_the_promises(cli: Cli, world: World) -> None:
    """Issue 3: seq, state and event of every entry, then a tree of the promises; JSON has the same states."""
    run = finished(world)
    shown = cli("journal", "show", run, **shell(world, "aud"))
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert lines[0].split() == ["seq", "state", "event"]
    assert lines[1].startswith("  0  Running     ExecutionStarted(sha256:")
    blocked = next(line for line in lines if "ExecutionAwaiting" in line)
    assert blocked.split(maxsplit=2)[1:] == ["Blocked", "ExecutionAwaiting([root.0], Single)"]
    assert "root  Completed" in lines
    assert any(line.startswith("├─ root.0  invoke servicenow.") and "completed, attempt 1" in line for line in lines)
    assert "\x1b" not in shown.out
    rows = cli("journal", "show", run, "-o", "json", **shell(world, "aud")).data
    assert [row["sequence"] for row in rows] == list(range(len(rows)))
    assert (rows[0]["state"], rows[-1]["state"]) == ("Running", "Completed")
    assert cli("journal", "show", "0" * 32, **shell(world, "aud")).code == frame.USAGE


def test_the_full_example_of_the_document_renders_as_printed() -> None:
    """S003-X1: promises as root.n, the kind of a wait, attempts by name, join set members below their set."""
    history = told([event for event, _ in EXAMPLE_FULL])
    said = [orders.said(entry.event, ROOT) for entry in history.pending()]
    assert said[3] == "ExecutionAwaiting([root.1], Single)"
    assert said[4] == "InvokeStarted(root.1, attempt=1)"
    assert said[6] == "ExecutionResumed"
    assert said[9] == "JoinSetSubmitted(root.2, root.3)"
    assert said[12] == "ExecutionAwaiting([root.3, root.4], Any)"
    assert orders.tree(history) == [
        "root  Completed",
        "├─ root.0  random value",
        "├─ root.1  invoke fn: completed, attempt 1",
        "└─ root.2  join set: 2 submitted, 2 taken",
        "   ├─ root.3  invoke fn: completed, attempt 2, taken",
        "   └─ root.4  invoke fn: completed, attempt 1, taken",
    ]


def test_the_other_kinds_of_promise_have_a_line_each() -> None:
    """Timers, signals and times, and a wait for a signal by its name."""
    history = History(ROOT)
    for event in (
        ev.ExecutionStarted("d", "i", ROOT, "k"),
        ev.TimeRecorded(ROOT.child(0), 7),
        ev.TimerScheduled(ROOT.child(1), 5, FIRE_AT),
        ev.ExecutionAwaiting(frozenset({ROOT.child(2)}), ev.AwaitSignal("go", ROOT.child(2))),
        ev.SignalDelivered("go", "x\x1b[2J" * 20, 1),
        ev.SignalReceived(ROOT.child(2), "go", "x\x1b[2J" * 20, 1),
    ):
        history.append(event, FIRE_AT)
    said = [orders.said(entry.event, ROOT) for entry in history.pending()]
    assert said[3] == 'ExecutionAwaiting([root.2], Signal("go"))'
    assert "\x1b" not in said[4]
    assert len(said[4]) < 90
    assert orders.place(PromiseId(2, (3,)), ROOT) == "2.3"
    assert orders.tree(history)[1:] == [
        "├─ root.0  time",
        "├─ root.1  timer due at 50: sleeping",
        "└─ root.2  signal go: delivery 1",
    ]


def test_follow_prints_what_is_written_meanwhile_and_ends_with_the_run(
    cli: Cli, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--follow: every event once, in order, until the end of the run."""
    monkeypatch.setattr(orders, "FOLLOW_SECONDS", 0.05)
    run = world.start()
    world.until(run, "waiting_approval")
    cancelling = threading.Timer(
        0.3, lambda: world.parts.cancel.cancel(world.tenant, world.actor("rita"), run, "enough")
    )
    cancelling.start()
    shown = cli("journal", "show", run, "--follow", "-o", "jsonl", **shell(world, "aud"))
    cancelling.join()
    rows = [json.loads(line) for line in shown.out.splitlines()]
    assert [row["sequence"] for row in rows] == list(range(len(rows)))
    assert rows[-1]["state"] == "Cancelled"
    until(lambda: world.case(run).ended)
    assert cli("journal", "show", run, "--follow", "-o", "json", **shell(world, "aud")).code == frame.USAGE


def test_an_exported_run_checks_as_valid_and_a_changed_export_does_not(cli: Cli, world: World, tmp_path: Path) -> None:
    """Must show: check on an export says valid; spec.md section 1 says what it prints, one object a line."""
    run = finished(world)
    line = cli("journal", "export", run, **shell(world, "aud")).out
    file = tmp_path / "runs.jsonl"
    file.write_text(line + "\n" + line.replace('"attempt":1', '"attempt":2', 1) + "not json\n")
    done = cli("journal", "check", str(file))
    good, changed, unread = (json.loads(text) for text in done.out.splitlines())
    assert done.code == frame.FAILED
    assert set(good) == {"valid", "violates", "guards", "status", "statuses"}
    assert (good["valid"], good["violates"], good["guards"], good["status"]) == (True, [], [], "Completed")
    assert (changed["valid"], changed["violates"], changed["guards"]) == (False, [], ["G-07"])
    assert unread["valid"] is False
    assert "error" in unread
    file.write_text(line)
    assert cli("journal", "check", str(file)).code == 0
    assert cli("journal", "check", str(tmp_path / "none")).code == frame.UNAVAILABLE


def test_check_reads_a_long_line_and_refuses_one_that_is_too_long(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines up to the limit are read; a longer one is invalid, is never held whole, and hides no line after it."""
    assert ev.LINE_BYTES_MAX == 64 * 1024 * 1024
    monkeypatch.setattr(ev, "LINE_BYTES_MAX", 3_000)
    start = {"type": "ExecutionStarted", "component_digest": "d", "input": "", "parent_id": [1], "idempotency_key": "k"}
    line = {"execution_id": [1], "journal": [{"sequence": 0, "timestamp": 0, "event": start}]}
    short = json.dumps(line)

    def padded(size: int) -> str:
        start["input"] = "x" * (size - len(short))
        return json.dumps(line)

    file = tmp_path / "long.jsonl"
    file.write_text("\n".join([padded(3_000), padded(3_001), padded(9_001), padded(3_000)]))
    done = cli("journal", "check", str(file))
    assert [json.loads(text)["valid"] for text in done.out.splitlines()] == [True, False, False, True]
    assert max(map(len, orders.lines_of(str(file)))) <= 3_002


def test_replay_says_that_everything_stored_follows_from_the_journal(cli: Cli, world: World) -> None:
    """P8: history, run row and snapshot, for a run that waits and for one that has ended."""
    run = world.start()
    world.until(run, "waiting_approval")
    waiting = cli("journal", "replay", run, "-o", "json", **shell(world, "aud"))
    assert (waiting.code, waiting.data["same"], waiting.data["difference"]) == (0, True, "")
    ended = finished(world, ref="second")
    done = cli("journal", "replay", ended, "-o", "json", **shell(world, "aud"))
    assert (done.code, done.data["same"]) == (0, True)
    assert done.data["commits"] < done.data["events"]


def test_a_row_that_a_superuser_edited_is_named_by_its_sequence(
    cli: Cli, world: World, database: postgres.Database, postgres_server: postgres.Postgres
) -> None:
    """Must show: the chain finds an edit that no trigger could prevent, whichever way it was made."""
    run = finished(world)
    rows = world.rows("select first_seq, body from journal where tenant = :tenant and run = :run order by 1", run=run)
    where = "where tenant = %s and run = %s"
    at = int(rows[2]["first_seq"])
    body = bytes(rows[2]["body"])
    edit = f"update journal set body = %s {where} and first_seq = %s"
    entries = ev.decode_row(body)
    forged = ev.encode_row([ev.Entry(e.sequence, e.timestamp + 1, e.event) for e in entries])
    for bad in (forged, body[:-1]):
        superuser(postgres_server, database, edit, bad, world.tenant, run, at)
        for order in ("show", "export", "replay"):
            refused = cli("journal", order, run, **shell(world, "aud"))
            assert refused.code == frame.FAILED, order
            assert f"entry {at}:" in refused.err, refused.err
        superuser(postgres_server, database, edit, body, world.tenant, run, at)
    assert cli("journal", "replay", run, **shell(world, "aud")).code == 0
    last = int(rows[-1]["first_seq"])
    superuser(postgres_server, database, f"delete from journal {where} and first_seq = %s", world.tenant, run, last)
    short = cli("journal", "show", run, **shell(world, "aud"))
    assert (short.code, f"entry {last}:" in short.err) == (frame.FAILED, True)


def test_replay_names_the_first_thing_that_the_journal_does_not_give(
    cli: Cli, world: World, database: postgres.Database, postgres_server: postgres.Postgres
) -> None:
    """Exit 1 with the first difference: the run's row, the snapshot's bytes, a field of the frame."""
    from engine.canonical import decode, encode, sha256

    run = world.start()
    world.until(run, "waiting_approval")
    where = "where tenant = %s and run = %s"

    def replayed() -> str:
        done = cli("journal", "replay", run, "-o", "json", **shell(world, "aud"))
        assert done.code == (frame.FAILED if done.data["difference"] else 0)
        return str(done.data["difference"])

    superuser(postgres_server, database, f"update run set status = 'Completed' {where}", world.tenant, run)
    assert replayed() == "the run's status: stored Completed, replayed Blocked"
    superuser(postgres_server, database, f"update run set status = 'Blocked' {where}", world.tenant, run)
    assert replayed() == ""
    row = world.row("select events, body from snapshot where tenant = :tenant and run = :run", run=run)
    assert row is not None
    value = decode(bytes(row["body"]))
    value["step"] += 1
    forged = encode(value)
    superuser(postgres_server, database, f"update snapshot set body = %s {where}", forged, world.tenant, run)
    assert "its bytes are not those of its hash" in replayed()
    superuser(postgres_server, database, f"update snapshot set sha256 = %s {where}", sha256(forged), world.tenant, run)
    assert f"the snapshot at event {row['events']}, step: stored" in replayed()


def test_diff_puts_two_runs_side_by_side(cli: Cli, world: World) -> None:
    """The same program on the same input gives the same rows; another course is marked where it parts."""
    one, two = finished(world, ref="one"), finished(world, ref="two")
    same = cli("journal", "diff", one, two, "-o", "json", **shell(world, "aud"))
    assert all(row["same"] for row in same.data), [row for row in same.data if not row["same"]]
    assert same.code == 0
    stopped = world.start(ref="three")
    world.until(stopped, "waiting_approval")
    world.parts.cancel.cancel(world.tenant, world.actor("rita"), stopped, "enough")
    other = cli("journal", "diff", one, stopped, "-o", "json", **shell(world, "aud"))
    assert other.code == frame.FAILED
    assert other.data[0]["same"] is True
    assert any("CancelRequested" in row["right"] and not row["same"] for row in other.data)
    assert "same" in cli("journal", "diff", one, stopped, **shell(world, "aud")).out


def test_colour_is_for_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """rich is loaded when somebody looks, and colours a line by its state."""
    orders._print([("0  Running", "cyan")])
    assert capsys.readouterr().out == "0  Running\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    orders._print([("0  Running", "cyan")])
    assert capsys.readouterr().out == "\x1b[36m0  Running\x1b[0m\n"
