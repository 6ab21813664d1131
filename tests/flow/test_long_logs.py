"""A proof costs as much in a long log as in a short one: the roots of full tiles are stored as the log grows."""

from __future__ import annotations

import psycopg
import pytest

from engine.ledger.entries import Fact
from engine.ledger.tree import Tree
from governance.local import postgres
from governance.store import entries, trees
from governance.store.entries import Sequencer
from tests.kit.seams import begin, notes
from tests.kit.world import World


def grown(world: World, count: int) -> None:
    """So many entries more in the tenant's log, all in their places."""
    fact = Fact("evidence.downloaded", {"type": "system", "id": "test"}, {"sha256": "ab" * 32, "person": "p"})
    with world.parts.database.unit(world.tenant) as unit:
        for _ in range(count):
            entries.note(unit, "test/long", fact)
    placed(world)


def placed(world: World) -> None:
    while world.parts.log.step():
        pass


def leaves(world: World) -> list[bytes]:
    rows = world.rows("select leaf from entry where tenant = :tenant order by position")
    return [bytes(row["leaf"]) for row in rows]


def test_the_roots_of_full_tiles_are_stored_and_proofs_come_from_them(world: World) -> None:
    grown(world, 560)
    tree = Tree(leaves(world))
    stored = world.rows("select level, position, hash from node where tenant = :tenant order by level, position")
    assert [(row["level"], row["position"]) for row in stored] == [(1, n) for n in range(tree.size // 256)]
    assert tree.size // 256 >= 2
    with world.parts.database.unit(world.tenant, write=False) as unit:
        tiles = trees.tiles_of(unit, tree.size)
        for index in (0, 255, 256, tree.size - 1):
            assert tiles.inclusion(index) == tree.inclusion(index)
        assert tiles.consistency(300) == tree.consistency(300)
    assert list(world.parts.fsck.check(world.tenant, lambda: None)) == []


def test_a_log_that_an_older_release_wrote_is_made_up_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "grow", lambda connection, tenant, size: 0)
    grown(world, 300)
    assert world.rows("select 1 from node where tenant = :tenant") == []
    monkeypatch.undo()
    assert Sequencer(world.parts.database).step(world.tenant, 10) == 0
    assert len(world.rows("select 1 from node where tenant = :tenant")) == 1


@pytest.mark.inconsistent("a node of the tree is another than its entries make")
def test_a_node_that_somebody_changed_proves_nothing_and_is_named(
    sealing_world: World, database: postgres.Database, postgres_server: postgres.Postgres
) -> None:
    world = sealing_world
    grown(world, 300)
    with psycopg.connect(postgres_server.url(postgres.SUPERUSER, database.name), autocommit=True) as connection:
        connection.execute("set session_replication_role = replica")
        changed = connection.execute(
            "update node set hash = sha256(hash) where tenant = %s and position = 0 returning hash", (world.tenant,)
        )
        assert changed.fetchone() is not None
    said = [one.what for one in world.parts.fsck.check(world.tenant, lambda: None)]
    assert said == ["node 0 of level 1 is not what the entries below it hash to"]
    run = begin(world, notes("late", "note"))
    world.until(run, "succeeded")
    with pytest.raises(AssertionError, match="was not sealed"):
        world.seal(run)
