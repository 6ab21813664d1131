"""P9: what left the house is in the bucket first, and a database that the bucket knows further or otherwise signs nothing more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from engine.ledger.notes import read_checkpoint, read_note
from engine.ledger.tiles import Tiles, entries_name, hashes_at, read_entries, read_hashes, tile_name, tile_width
from engine.ledger.tree import leaf_hash
from governance.evidence import budget
from governance.evidence.publish import checkpoint_key, log_prefix
from governance.local import postgres
from governance.store import evidence, published
from governance.store.published import Lag
from governance.wiring import Parts
from tests.flow.test_long_logs import grown
from tests.kit.seams import begin, notes
from tests.kit.servers import Databases
from tests.kit.world import World


def recorded(world: World, name: str) -> str:
    """A run more, in the log, signed and published."""
    run = begin(world, notes(name, "note"))
    world.until(run, "succeeded")
    while world.parts.log.step():
        pass
    world.parts.publisher.step()
    return run


def sizes(world: World, which: str = "note is not null") -> list[int]:
    rows = world.rows(f"select size from checkpoint where tenant = :tenant and {which} order by size")
    return [row["size"] for row in rows]


def test_the_bucket_alone_gives_the_log_back(sealing_world: World) -> None:
    world, vault = sealing_world, sealing_world.parts.vault
    grown(world, 300)
    recorded(world, "one")
    grown(world, 300)
    recorded(world, "two")
    size = sizes(world, "published_at is not null")[-1]
    note = vault.first(checkpoint_key(world.tenant, size))
    assert note is not None
    checkpoint = read_checkpoint(read_note(note).text)
    assert checkpoint.size == size > 600

    def read(level: int, since: int, count: int) -> list[bytes]:
        width = min(tile_width, hashes_at(size, level) - since)
        data = vault.first(log_prefix(world.tenant) + tile_name(level, since // tile_width, width))
        assert data is not None
        return read_hashes(data)[:count]

    tiles = Tiles(size, read)
    assert tiles.root() == checkpoint.root
    bodies = []
    for n in range(-(-size // tile_width)):
        data = vault.first(log_prefix(world.tenant) + entries_name(n, min(tile_width, size - n * tile_width)))
        assert data is not None
        bodies += read_entries(data)
        assert [leaf_hash(body) for body in bodies[n * tile_width :]] == list(tiles.tile(0, n))
    stored = world.rows(
        "select body from entry where tenant = :tenant and position < :size order by position", size=size
    )
    assert bodies == [bytes(row["body"]) for row in stored]


def test_a_process_that_starts_anew_agrees_and_goes_on(sealing_world: World, tmp_path: Path) -> None:
    world = sealing_world
    recorded(world, "one")
    again = Parts(world.parts.settings, "again", tmp_path, world.parts.check_commit)
    try:
        recorded(replace(world, parts=again), "two")
        assert sizes(world, "published_at is null") == []
        assert again.publisher.may_sign(world.tenant)
    finally:
        again.close()


def test_no_bundle_is_ahead_of_the_bucket(sealing_world: World) -> None:
    world = sealing_world
    run = begin(world, notes("early", "note"))
    world.until(run, "succeeded")
    while world.parts.log.step():
        pass
    world.hurry()
    world.drain()
    assert world.rows("select 1 from bundle where tenant = :tenant and run = :run", run=run) == []
    world.parts.publisher.step()
    world.hurry()
    world.drain()
    assert world.rows("select state from bundle where tenant = :tenant and run = :run", run=run) == [
        {"state": "sealed"}
    ]


@pytest.fixture
def backup(
    sealing_world: World,
    database: postgres.Database,
    databases: Databases,
    postgres_server: postgres.Postgres,
    tmp_path: Path,
) -> Iterator[World]:
    """The tenant as it was when a backup was made, on a database of its own, with the bucket of today."""
    recorded(sealing_world, "before")
    sealing_world.parts.database.close()  # a database is copied while nobody is connected to it
    with psycopg.connect(postgres_server.superuser_url, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (database.name,)
        )
    restored = databases.clone(database.name)
    settings = sealing_world.parts.settings.model_copy(update={"database_url": restored.app_url})
    parts = Parts(settings, "restored", tmp_path, sealing_world.parts.check_commit)
    yield replace(sealing_world, parts=parts)
    parts.close()
    databases.drop(restored)


def test_a_database_restored_from_an_older_backup_refuses_to_sign(sealing_world: World, backup: World) -> None:
    world = sealing_world
    run = begin(world, notes("since", "note"))
    world.until(run, "succeeded")
    world.seal(run)
    before = sizes(backup)
    begin(backup, notes("other", "note"))
    backup.drain()
    while backup.parts.log.step():
        pass
    assert sizes(backup) == before
    assert not backup.parts.publisher.may_sign(backup.tenant)
    assert backup.rows("select count(*) as n from entry_pending where tenant = :tenant") == [{"n": 0}], (
        "nothing is lost"
    )
    backup.forget()


def test_a_database_restored_beneath_a_process_stops_it_at_the_next_checkpoint(
    sealing_world: World, backup: World
) -> None:
    """It compared when it started and asks no more, but nothing is published over what the bucket has."""
    assert backup.parts.publisher.may_sign(backup.tenant), "nothing speaks against it yet"
    recorded(sealing_world, "original")
    before = sizes(backup, "published_at is not null")
    recorded(backup, "fork")
    assert not backup.parts.publisher.may_sign(backup.tenant)
    assert sizes(backup, "published_at is not null") == before
    signed = sizes(backup)
    recorded(backup, "fork2")
    assert sizes(backup) == signed
    backup.forget()


def test_a_process_that_signed_more_than_the_database_has_signs_no_more(world: World) -> None:
    world.parts.log._signed[world.tenant] = 10_000
    begin(world, notes("fork", "note"))
    world.drain()
    assert world.parts.log.step() > 0
    assert sizes(world) == []


def test_a_bucket_that_was_emptied_or_exchanged_stops_the_log(sealing_world: World, tmp_path: Path) -> None:
    world = sealing_world
    recorded(world, "one")
    again = Parts(world.parts.settings, "again", tmp_path, world.parts.check_commit)
    try:
        again.vault.first = lambda key: None  # type: ignore[method-assign]
        assert not again.publisher.may_sign(world.tenant)
    finally:
        again.close()


def test_a_bucket_that_does_not_answer_is_asked_again(sealing_world: World, tmp_path: Path) -> None:
    world = sealing_world
    recorded(world, "one")
    nowhere = world.parts.settings.model_copy(update={"s3_endpoint": "http://127.0.0.1:1"})
    away = Parts(nowhere, "away", tmp_path, world.parts.check_commit)
    before = sizes(world)
    try:
        begin(world, notes("two", "note"))
        world.drain()
        while away.log.step():
            pass
        assert sizes(world) == before, "nothing is signed before the bucket was asked"
        away.__dict__["vault"].close()
        away.publisher._shelf = world.parts.vault
        away.log.step()
        assert len(sizes(world)) == len(before) + 1
    finally:
        away.close()


# --- the budget -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lag", "word"),
    [
        (Lag(0, 0, 0), ""), (Lag(30, 300, 1800), ""), (Lag(31, 0, 0), "its place"), (Lag(0, 301, 0), "published"),
        (Lag(0, 0, 1801), "witness"),
    ],
)  # fmt: skip
def test_what_is_over_its_budget_is_named(lag: Lag, word: str) -> None:
    assert word in budget.excess(lag)
    assert bool(word) == bool(budget.excess(lag))


def test_lag_is_measured_from_the_oldest_entry_that_is_not_covered(sealing_world: World) -> None:
    world = sealing_world

    def lag() -> Lag:
        with world.parts.database.unit(world.tenant, write=False) as unit:
            return published.lag(unit, witnessed=True)

    before = lag()
    assert before.place > 0
    assert before.place == pytest.approx(before.published, abs=0.5)
    while world.parts.log.step():
        pass
    placed = lag()
    assert placed.place == 0
    assert placed.published > 0
    world.parts.publisher.step()
    after = lag()
    assert (after.place, after.published) == (0, 0)
    assert after.witnessed > 0


def test_a_log_that_is_too_far_behind_begins_no_new_effect(
    sealing_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = sealing_world
    monkeypatch.setattr(budget, "place_seconds_max", -1.0)
    monkeypatch.setattr(budget, "look_seconds", 0.0)
    run = begin(world, notes("waits", "note"))
    world.drain()
    steps = world.steps(run)
    assert all(text.startswith("failed_retryable log_lag: ") for text in steps.values()), steps
    assert world.rows("select 1 from intent where tenant = :tenant and run = :run", run=run) == []
    monkeypatch.undo()
    world.parts.budget._known.clear()
    world.until(run, "succeeded")


def test_a_stored_bundle_is_found_by_its_digest_with_its_lock(sealing_world: World) -> None:
    """What `twokeys evidence verify --s3` asks."""
    world = sealing_world
    run = begin(world, notes("stored", "note"))
    world.until(run, "succeeded")
    sealed = world.seal(run)
    with world.parts.database.unit(world.tenant, write=False) as unit:
        found = evidence.sealed_as(unit, bytes.fromhex(sealed["sha256"]))
        assert evidence.sealed_as(unit, bytes(32)) is None
    assert found is not None
    assert found[0] == run
    mode, until = world.parts.vault.lock_of(sealed["object_key"], sealed["version_id"])
    assert mode == "COMPLIANCE"
    assert until is not None
    assert until == found[1].retain_until
