"""P9: the log goes on to others in order, at least once and past no gap, whatever dies in between; and nobody else's network is reached."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.errors import BrokenLedger, CallerError, OperatorError, Refused
from engine.ledger.lines import line_bytes_max, read_line
from engine.ledger.notes import log_origin
from governance import metrics
from governance.cli import frame
from governance.cli.exports import _tail
from governance.commands.export import SetExport
from governance.evidence.export import Exports
from governance.evidence.outward import check_url
from governance.store import exports, published
from governance.wiring import Parts
from tests.flow.test_long_logs import grown
from tests.governance.test_cli import Cli, cli, operator
from tests.kit.world import World, parts, sealing_parts, sealing_world, slack_sink, world

__all__ = ["cli", "parts", "sealing_parts", "sealing_world", "slack_sink", "world"]

URL = "http://127.0.0.1:9/in"
SECRET = "a-secret-of-the-receiver"


@pytest.fixture(autouse=True)
def alone(parts: Parts) -> Iterator[None]:
    """Nobody else's export is in the way of counting."""
    yield
    for tenant in parts.dispatch.tenants():
        with parts.database.unit(tenant) as unit:
            unit.run("delete from export where tenant = :tenant")


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Outside:
    """A receiver that keeps every post, and loses answers or dies as it is told."""

    posts: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    faults: list[Any] = field(default_factory=list)  # one for each post: raised before ("lost" after) it was taken

    def post(self, url: str, body: bytes, headers: dict[str, str], secret: str, **_: Any) -> None:
        assert (url, secret) == (URL, SECRET)
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None and not isinstance(fault, tuple):
            raise fault
        self.posts.append((headers, body))
        if fault is not None:
            raise fault[0]

    def indexes(self) -> list[int]:
        return [read_line(line)[1] for _, body in self.posts for line in body.splitlines()]


@pytest.fixture
def outside() -> Outside:
    return Outside()


def exporter(world: World, outside: Outside) -> Exports:
    parts = world.parts
    return Exports(
        parts.database,
        parts.vault,
        deployment="test",
        unseal=parts.secrets.unseal,
        allow_local=True,
        s3_rest=0.0,
        post=outside.post,
    )


@pytest.fixture
def sender(world: World, outside: Outside) -> Iterator[Exports]:
    made = exporter(world, outside)
    yield made
    made.close()


def publish(world: World) -> int:
    """Give every entry its place, as if the bucket had it; how many there are."""
    while world.parts.log.step():
        pass
    with world.parts.database.unit(world.tenant) as unit:
        size = int(
            unit.run("select max(size) from checkpoint where tenant = :tenant and note is not null").scalar_one()
        )
        published.mark(unit, size)
    return size


def webhook(world: World, name: str = "siem", **more: Any) -> None:
    world.parts.set_export.set(world.tenant, None, name, target="webhook", url=URL, secret=SECRET, **more)


def stored(world: World, size: int) -> list[bytes]:
    rows = world.rows("select body from entry where tenant = :tenant and position < :size order by position", size=size)
    return [bytes(row["body"]) for row in rows]


def of(world: World, name: str = "siem") -> exports.Export:
    with world.parts.database.unit(world.tenant, write=False) as unit:
        found = exports.named(unit, name)
    assert found is not None
    return found


def later(world: World) -> None:
    """As if every lease and every pause were over."""
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update export set eligible_at = clock_timestamp() where tenant = :tenant")


def test_every_entry_arrives_in_order_with_its_stored_bytes(
    world: World, outside: Outside, sender: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "batch_entries", 30)
    webhook(world)
    size = publish(world)
    assert 30 < size <= 60
    while sender.step():
        pass
    assert outside.indexes() == list(range(size))
    lines = [read_line(line) for _, body in outside.posts for line in body.splitlines()]
    assert [body for _, _, body in lines] == stored(world, size)
    assert {origin for origin, _, _ in lines} == {log_origin("test", world.tenant)}
    (first, _), (second, _) = outside.posts
    assert (first["X-Twokeys-First"], first["X-Twokeys-Last"], first["X-Twokeys-Export"]) == (
        "0",
        "29",
        f"{world.tenant}/siem",
    )
    assert (second["X-Twokeys-First"], second["X-Twokeys-Last"]) == ("30", str(size - 1))
    assert of(world).position == size
    assert not sender.step(), "nothing is sent twice that was answered"


def test_what_the_bucket_does_not_know_does_not_leave(world: World, outside: Outside, sender: Exports) -> None:
    webhook(world)
    size = publish(world)
    grown(world, 5)
    while world.parts.log.step():
        pass
    while sender.step():
        pass
    assert outside.indexes() == list(range(size))


def test_cloudevents_come_as_a_batch(world: World, outside: Outside, sender: Exports) -> None:
    webhook(world, form="cloudevents")
    size = publish(world)
    sender.step()
    ((headers, body),) = outside.posts
    assert headers["Content-Type"] == "application/cloudevents-batch+json"
    assert [event["id"] for event in json.loads(body)] == [str(n) for n in range(size)]


@pytest.mark.parametrize("lost", [False, True])
def test_a_lost_answer_is_a_duplicate_and_never_a_gap(
    world: World, outside: Outside, sender: Exports, lost: bool
) -> None:
    fault = OperatorError("the answer is lost", code="not_delivered")
    outside.faults = [(fault,) if lost else fault]
    webhook(world)
    size = publish(world)
    assert not sender.step()
    found = of(world)
    assert (found.position, found.tries, found.last_error) == (0, 1, "the answer is lost")
    grown(world, 3)
    assert publish(world) > size
    assert not sender.step(), "it waits before it tries again"
    later(world)
    sender.step()
    assert outside.posts[-1][0]["X-Twokeys-Last"] == str(size - 1)
    if lost:
        assert outside.posts[0] == outside.posts[1], "what is sent again is the very same"
    found = of(world)
    assert (found.position, found.tries, found.last_error) == (size, 0, "")


def test_pauses_grow_and_the_last_error_stays_visible(world: World, outside: Outside, sender: Exports) -> None:
    outside.faults = [OperatorError("answered 503", code="not_delivered")] * 4
    webhook(world)
    publish(world)
    waits = []
    for _ in range(4):
        later(world)
        sender.step()
        waits += [
            row["s"]
            for row in world.rows("select extract(epoch from eligible_at - clock_timestamp())::float as s from export")
        ]
    assert all(least - 1 < wait <= least * 1.2 for least, wait in zip((5, 30, 120, 120), waits, strict=True)), waits
    assert metrics.text().count(b"twokeys_export_failing 1.0") == 1
    assert of(world).last_error == "answered 503"


@pytest.mark.parametrize("moment", ["taken", "before", "after", "counted"])
def test_killed_at_any_moment_it_goes_on_where_it_was(
    world: World, outside: Outside, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Before and after each of the two commits and the post: duplicates at most, in order, and no gap."""
    monkeypatch.setattr(exports, "batch_entries", 12)
    webhook(world)
    size = publish(world)
    for _ in range(3):
        sender = exporter(world, outside)
        with monkeypatch.context() as patch:
            _kill(patch, outside, moment)
            with pytest.raises(Killed):
                sender.deliver(world.tenant, "siem")
            sender.close()
        rival = exporter(world, outside)
        assert rival.deliver(world.tenant, "siem") == (moment == "taken"), "who took it may still be sending"
        rival.close()
        later(world)
    last = exporter(world, outside)
    while last.deliver(world.tenant, "siem"):
        pass
    last.close()
    seen: list[int] = []
    for index in outside.indexes():
        assert index <= len(seen), f"{index} comes before {len(seen)}"
        seen += [index] if index == len(seen) else []
    assert seen == list(range(size))
    assert of(world).position == size


def _kill(patch: pytest.MonkeyPatch, outside: Outside, moment: str) -> None:
    """Die in the transaction that takes a slice, before or after the post, or in the transaction that counts it."""
    if moment in ("before", "after"):
        outside.faults = [(Killed(),) if moment == "after" else Killed()]
        return

    def dying(*_: Any, **__: Any) -> Any:
        raise Killed

    patch.setattr(exports, "take" if moment == "taken" else "delivered", dying)


def test_two_processes_never_send_one_export_at_the_same_time(world: World, outside: Outside) -> None:
    webhook(world)
    size = publish(world)
    rival, during = exporter(world, outside), []

    def post(*arguments: Any, **more: Any) -> None:
        during.append(rival.deliver(world.tenant, "siem"))
        outside.post(*arguments, **more)

    first = exporter(world, outside)
    first._post = post
    assert first.deliver(world.tenant, "siem")
    assert during == [False]
    assert outside.indexes() == list(range(size))
    rival.close()
    first.close()


def test_one_that_was_slower_than_its_lease_counts_for_nothing(world: World, outside: Outside) -> None:
    webhook(world)
    size = publish(world)
    rival = exporter(world, outside)

    def post(*arguments: Any, **more: Any) -> None:
        outside.post(*arguments, **more)
        later(world)
        assert rival.deliver(world.tenant, "siem")

    slow = exporter(world, outside)
    slow._post = post
    assert not slow.deliver(world.tenant, "siem")
    assert of(world).position == size
    assert outside.posts[0] == outside.posts[1]
    rival.close()
    slow.close()


def test_a_gap_stops_the_export_before_it_and_is_named(
    world: World, outside: Outside, sender: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook(world)
    size = publish(world)
    whole = exports.checked

    def holed(rows: list[Any], since: int) -> Any:
        return whole([row for row in rows if row[0] != 4], since)

    monkeypatch.setattr(exports, "checked", holed)
    assert sender.step() == 1
    assert outside.indexes() == [0, 1, 2, 3]
    assert sender.step() == 0
    found = of(world)
    assert (found.state, found.position, found.last_error) == ("stopped", 4, "index 4 is missing")
    later(world)
    assert sender.step() == 0, "it stays where it is"
    with pytest.raises(BrokenLedger, match="index 4 is missing"):
        sender.catch_up(world.tenant, "siem")
    monkeypatch.undo()
    assert sender.step() == 0, "somebody has to say so"
    world.parts.set_export.go_on(world.tenant, None, "siem")
    while sender.step():
        pass
    assert outside.indexes() == list(range(size))


def test_s3_holds_every_slice_once_whoever_stores_it(sealing_world: World, outside: Outside) -> None:
    world = sealing_world
    while world.parts.log.step():
        pass
    world.parts.publisher.step()
    world.parts.set_export.set(world.tenant, None, "lake", target="s3")
    sender = exporter(world, outside)
    keep, stored_at = world.parts.vault.keep, []

    def died(key: str, data: bytes, until: Any) -> str:
        version = keep(key, data, until)
        if "/export/" not in key:
            return version
        stored_at.append((key, version))
        if len(stored_at) == 1:
            raise OperatorError("the answer is lost", code="vault_unavailable")
        return version

    world.parts.vault.keep = died  # type: ignore[method-assign]
    try:
        assert not sender.deliver(world.tenant, "lake")
        grown(world, 10)
        while world.parts.log.step():
            pass
        world.parts.publisher.step()
        assert sender.catch_up(world.tenant, "lake") == 2
    finally:
        world.parts.vault.keep = keep  # type: ignore[method-assign]
        sender.close()
    assert stored_at[0] == stored_at[1], "the same place and the same version"
    size = of(world, "lake").position
    objects = world.parts.vault.later(f"{world.tenant}/export/lake/", "")
    assert len(objects) == 2
    lines = [line for key in objects for line in (world.parts.vault.first(key) or b"").splitlines()]
    assert [read_line(line)[1:] for line in lines] == list(enumerate(stored(world, size)))


# --- orders -----------------------------------------------------------------------------------------------------------


def test_a_file_is_resumed_where_it_was_cut(world: World, cli: Cli, tmp_path: Path) -> None:
    publish(world)
    words = ("evidence", "export", "--tenant", world.tenant, "--cloudevents", "--to", str(tmp_path / "log.jsonl"))
    shell, target = operator(world), tmp_path / "log.jsonl"
    assert cli(*words, **shell).code == frame.OK
    size = publish(world)  # the order itself is an entry
    assert cli(*words, "--resume", **shell).code == frame.OK
    whole = target.read_bytes()
    assert [read_line(line)[1:] for line in whole.splitlines()] == list(enumerate(stored(world, size)))
    for cut in (0, len(whole) - 1):
        target.write_bytes(whole[:cut])
        assert cli(*words, "--resume", **shell).code == frame.OK
        assert target.read_bytes()[: len(whole)] == whole, cut
    done = cli(*(one for one in words if one != "--cloudevents"), "--resume", **shell)
    assert "--cloudevents: the file holds lines of the other form" in done.err


def test_half_a_line_is_found_wherever_a_file_ends() -> None:
    text = b"".join(b"x" * n + b"\n" for n in (3, 1, 5))
    for cut in range(len(text) + 1):
        end, last = _tail(io.BytesIO(text[:cut]))
        whole = text[:cut].rpartition(b"\n")[0]
        assert end == (len(whole) + 1 if b"\n" in text[:cut] else 0)
        assert last == whole.rpartition(b"\n")[2]
    long = b"x" * line_bytes_max
    assert _tail(io.BytesIO(long + b"\n" + long[1:] + b"\n" + long)) == (2 * line_bytes_max + 1, long[1:])
    with pytest.raises(CallerError, match="no line of an export"):
        _tail(io.BytesIO(long * 4 + b"\n"))


def test_the_stream_begins_where_it_is_told(world: World, cli: Cli) -> None:
    size = publish(world)
    done = cli("evidence", "export", "--tenant", world.tenant, "--from", "5", **operator(world))
    assert [read_line(line.encode())[1] for line in done.out.splitlines()] == list(range(5, size))
    assert f"entries 5 to {size - 1}; the next one is {size}" in done.err
    none = cli("evidence", "export", "--tenant", world.tenant, "--from", str(size), **operator(world))
    assert (none.code, none.out) == (frame.OK, "")


def test_a_gap_ends_the_stream_with_its_index_and_code_one(
    world: World, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(world)
    whole = exports.checked
    monkeypatch.setattr(exports, "checked", lambda rows, since: whole([row for row in rows if row[0] != 4], since))
    done = cli("evidence", "export", "--tenant", world.tenant, **operator(world))
    assert done.code == frame.FAILED
    assert [read_line(line.encode())[1] for line in done.out.splitlines()] == [0, 1, 2, 3]
    assert "index 4 is missing" in done.err


def test_bad_input_is_refused_with_its_field(world: World, cli: Cli, tmp_path: Path) -> None:
    size = publish(world)
    shell, words = operator(world), ("--tenant", world.tenant)
    there = tmp_path / "there.jsonl"
    there.write_bytes(b"x\n")
    secret, short = tmp_path / "secret", tmp_path / "short"
    secret.write_text(SECRET)
    short.write_text("short")
    other = tmp_path / "other.jsonl"
    other.write_bytes(b'{"entry":{},"index":0,"leaf":"00","origin":"test/log/other/0"}\n')
    hook = ("--to", "webhook", "--secret-file", str(secret))
    table = (
        (("evidence", "export", "--to", str(there)), "--to: "),
        (("evidence", "export", "--to", str(there), "--resume"), "no line of an export"),
        (("evidence", "export", "--to", str(other), "--resume"), "no line of an export"),
        (("evidence", "export", "--resume"), "--resume: "),
        (("evidence", "export", "--from", str(size + 10)), "from: the published log has"),
        (("evidence", "export", "--from", "-1"), "--from"),
        (("evidence", "export", "--name", "nobody"), "name: there is no export"),
        (("evidence", "export", "--name", "siem", "--from", "0"), "--from: "),
        (("tenant", "export", "siem"), "--to: "),
        (("tenant", "export", "siem", "--to", "ftp"), "--to"),
        (("tenant", "export", "UP", "--to", "s3"), "name: "),
        (("tenant", "export", "siem", "--to", "s3", "--url", URL), "url: "),
        (("tenant", "export", "siem", *hook), "url: "),
        (("tenant", "export", "siem", *hook, "--url", "ftp://a.example"), "url: "),
        (("tenant", "export", "siem", "--to", "webhook", "--secret-file", str(short), "--url", URL), "secret: "),
        (("tenant", "export", "siem", *hook, "--url", URL, "--from", str(size + 10)), "from: "),
        (("tenant", "export", "siem", "--pause"), "name: there is no export"),
    )  # fmt: skip
    for line, said in table:
        done = cli(*line, *words, **shell)
        assert done.code != frame.OK, line
        assert said in done.err, (line, done.err)
    assert there.read_bytes() == b"x\n"
    assert world.rows("select 1 from export where tenant = :tenant") == []


def test_a_private_address_is_refused_where_it_is_production(world: World) -> None:
    orders = SetExport(world.parts.database, world.parts.secrets, lambda url: check_url(url, allow_local=False))
    for url in ("https://127.0.0.1/in", "https://169.254.169.254/latest", "https://localhost/in", "http://8.8.8.8/in"):
        with pytest.raises(CallerError) as refused:
            orders.set(world.tenant, None, "siem", target="webhook", url=url, secret=SECRET)
        assert refused.value.field == "url"


def test_auditors_read_and_owners_configure_and_both_are_written_down(world: World, cli: Cli, tmp_path: Path) -> None:
    shell = operator(world)
    secret = tmp_path / "secret"
    secret.write_text(SECRET)

    def by(name: str, *words: str) -> Any:
        return cli(*words, "--token", world.token(name), **{**shell, "TWOKEYS_TENANT": ""})

    line = ("tenant", "export", "siem", "--to", "webhook", "--url", URL, "--secret-file", str(secret))
    for name in ("aud", "ana"):
        assert by(name, *line).code == frame.FAILED
        assert by(name, "tenant", "export", "siem", "--remove").code == frame.FAILED
    with pytest.raises(Refused):
        world.parts.set_export.pause(world.tenant, world.actor("ana"), "siem")
    assert by("rita", *line).code == frame.OK
    size = publish(world)
    assert by("aud", "evidence", "export", "--from", "1").code == frame.OK
    shown = by("aud", "evidence", "exports", "-o", "json")
    assert shown.data[0] | {"behind_seconds": 0} == {
        "name": "siem", "target": URL, "form": "plain", "state": "active", "position": 0, "behind": size, "behind_seconds": 0,
        "delivered_at": "", "tries": 0, "last_error": "",
    }  # fmt: skip
    assert by("rita", "tenant", "export", "siem", "--pause").code == frame.OK
    assert by("aud", "evidence", "exports", "-o", "json").data[0]["state"] == "paused"
    assert "is paused" in by("rita", "evidence", "export", "--name", "siem").err
    assert by("rita", "tenant", "export", "siem", "--go-on").code == frame.OK
    assert by("rita", "tenant", "export", "siem", "--remove").code == frame.OK
    publish(world)
    found = [json.loads(body) for body in stored(world, publish(world))]
    changes = [one["body"] for one in found if one["type"] == "export.changed"]
    assert [one["change"] for one in changes] == ["set", "paused", "resumed", "removed"]
    assert {one["actor"]["id"] for one in found if one["type"] == "export.changed"} == {world.who["rita"]}
    (taken,) = [one["body"] for one in found if one["type"] == "log.exported"]
    assert taken == {"person": world.who["aud"], "position": 1, "size": size}
    assert SECRET not in "".join(map(str, found))


def test_the_worker_measures_how_far_exports_are_behind(world: World, outside: Outside, sender: Exports) -> None:
    webhook(world)
    size = publish(world)
    sender._measure()
    assert f"twokeys_export_behind {float(size)}".encode() in metrics.text()
    sender.step()
    assert b"twokeys_export_behind 0.0" in metrics.text()
    assert b"twokeys_export_stopped 0.0" in metrics.text()
