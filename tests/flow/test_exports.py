"""A stream of entries goes on where it ended, loses nothing, and shows by its indexes what came twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.errors import BrokenLedger, CallerError, OperatorError
from engine.ledger.tree import leaf_hash
from governance.evidence import export
from governance.evidence.export import Export, deliver, resume_at
from tests.flow.test_long_logs import grown
from tests.kit.world import World


def exported(world: World, since: int = 0, form: str = "jsonl") -> bytes:
    made = Export(world.parts.database, "test")
    return b"".join(batch.lines for batch in made.batches(world.tenant, since, form))


@pytest.mark.parametrize("form", export.FORMS)
def test_every_entry_stands_in_it_with_its_exact_bytes(
    world: World, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown(world, 20)
    monkeypatch.setattr(export, "page", 7)
    lines = exported(world, 0, form).splitlines()
    stored = world.rows("select body, leaf from entry where tenant = :tenant order by position")
    assert len(lines) == len(stored)
    for index, (line, row) in enumerate(zip(lines, stored, strict=True)):
        told = json.loads(line)
        body = bytes(row["body"])
        assert (told["index"], told["leaf"]) == (index, leaf_hash(body).hex())
        assert line.endswith(body + b"}"), "what is hashed is what is sent"
        if form == "cloudevents":
            assert told["id"] == f"test/log/{world.tenant}/0/{index}"
            assert told["type"] == f"twokeys.{told['data']['type']}"


def test_it_goes_on_where_it_ended(world: World) -> None:
    grown(world, 5)
    first = exported(world)
    at = resume_at(first.splitlines(keepends=True)[-1])
    grown(world, 5)
    more = exported(world, at)
    assert first + more == exported(world)
    assert json.loads(more.splitlines()[0])["index"] == at
    for broken in (first[:-1], b"{}\n", b"what\n", b""):
        with pytest.raises(BrokenLedger):
            resume_at(broken)


def test_an_index_that_the_log_has_not_is_refused_and_says_why(world: World) -> None:
    grown(world, 1)
    with pytest.raises(CallerError, match="none is at 99999") as caught:
        exported(world, 99_999)
    assert "older than what it said" in caught.value.next_step
    with pytest.raises(CallerError):
        exported(world, 0, "xml")


def test_a_batch_is_delivered_when_the_receiver_says_so(world: World, tmp_path: Path) -> None:
    grown(world, 1)
    (batch,) = Export(world.parts.database, "test").batches(world.tenant, 0, "jsonl")
    seen: list[tuple[bytes, dict[str, str]]] = []

    def answers(status: int) -> None:
        def send(url: str, body: bytes, headers: dict[str, str]) -> int:
            seen.append((body, headers))
            return status

        deliver("https://siem.example/in", b"secret", batch, send)

    answers(204)
    for status in (301, 400, 500):
        with pytest.raises(OperatorError, match=f"answered {status}"):
            answers(status)
    assert len({(body, headers["X-Twokeys-Signature"]) for body, headers in seen}) == 1, "a repeat is the same"
    with pytest.raises(OperatorError, match="does not answer"):
        deliver("http://127.0.0.1:1/in", b"secret", batch)
    with pytest.raises(CallerError):
        deliver("file:///etc/passwd", b"secret", batch)
