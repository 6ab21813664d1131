"""P9: a rewrite by whoever holds our own keys is seen, because somebody outside our control saw the log before."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import OperatorError
from engine.ledger.notes import COSIGNATURE, Checkpoint, log_origin, read_vkey, sign_note, write_vkey
from engine.ledger.tree import Tree, leaf_hash
from engine.ledger.witnessing import write_submission
from governance.evidence.sequence import Log
from governance.evidence.witnesses import Address, Told, Witnesses, addresses, ask
from governance.store import cosigned
from governance.wiring import Parts
from governance.witness import Witness, logs_from, server
from tests.flow.test_a_governed_run import verify
from tests.kit.seams import begin, notes
from tests.kit.world import World


class Outside:
    """A witness of this world's log, at a door of its own."""

    def __init__(self, world: World, directory: Path) -> None:
        self.world = world
        self.signer = world.parts.secrets.signer(world.tenant, "log")
        self.origin = log_origin("test", world.tenant)
        self.logs = logs_from([write_vkey(self.origin, self.signer.public)])
        self.witness = Witness(directory, "customer.example/witness")
        self._server = server(self.witness, self.logs, "127.0.0.1", 0)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.address = Address(read_vkey(self.witness.vkey), f"http://127.0.0.1:{self._server.server_address[1]}")

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def shows(self) -> Witnesses:
        """A process of ours that was just started."""
        return Witnesses(self.world.parts.database, [self.address])

    def log(self, witnesses: Witnesses) -> Log:
        parts = self.world.parts
        return Log(
            parts.database,
            deployment="test",
            signer=lambda tenant: parts.secrets.signer(tenant, "log"),
            may_sign=witnesses.may_sign,
        )

    def sees(self, size: int, *, of: bytes = b"another log") -> None:
        """Somebody with our key showed the witness this many entries that the database does not have."""
        tree = Tree(leaf_hash(of + bytes([n])) for n in range(size))
        note = sign_note(
            Checkpoint(self.origin, size, tree.root()).text, self.origin, self.signer.public, self.signer.sign
        )
        answer = self.witness.cosign(write_submission(0, (), note), lambda origin: self.logs.get(origin, ()))
        assert isinstance(answer, bytes)


@pytest.fixture
def outside(sealing_world: World, tmp_path: Path) -> Iterator[Outside]:
    made = Outside(sealing_world, tmp_path / "witness")
    yield made
    made.close()


def signed_sizes(world: World) -> list[int]:
    return [
        r["size"]
        for r in world.rows("select size from checkpoint where tenant = :tenant and note is not null order by size")
    ]


def moved(log: Log) -> None:
    while log.step():
        pass


def test_every_checkpoint_is_shown_and_the_log_goes_on_from_any_of_them(outside: Outside) -> None:
    world, shows = outside.world, outside.shows()
    log = outside.log(shows)
    for n in range(4):
        begin(world, notes(f"grow{n}", "note"))
        world.drain()
        moved(log)
        assert shows.step() >= 1
        newest = signed_sizes(world)[-1]
        seen = outside.witness.seen(outside.origin)
        assert seen is not None
        assert seen.size == newest
    assert shows.step() == 0, "nothing new, nothing asked"
    assert outside.shows().step() == 0, "a new process asks again and learns nothing new"


def test_a_bundle_carries_the_cosignature_and_the_trust_policy_asks_for_it(outside: Outside, tmp_path: Path) -> None:
    world, shows = outside.world, outside.shows()
    named = Parts(
        world.parts.settings.model_copy(update={"witnesses": f"{outside.witness.vkey} {outside.address.url}"}), "named", tmp_path,
        world.parts.check_commit,
    )  # fmt: skip
    seen = World(named, world.tenant, world.slack, world.servicenow, world.who)
    run = begin(seen, notes("seen", "note"))
    seen.until(run, "succeeded")
    moved(named.log)
    seen.drain()
    state = seen.rows("select 1 from bundle where tenant = :tenant and run = :run", run=run)
    assert state == [], "a bundle waits for the witness"
    assert shows.step() == 1
    seen.hurry()
    sealed = seen.seal(run)
    body = named.vault.get(sealed["object_key"], sealed["version_id"])
    policy = named.trust(world.tenant)
    assert "quorum w1" in policy
    done = verify(tmp_path, body, policy)
    assert done.returncode == 0, done.stdout + done.stderr
    named.close()


def test_a_bundle_that_no_witness_saw_is_incomplete_and_not_valid(outside: Outside, tmp_path: Path) -> None:
    world = outside.world
    run = begin(world, notes("unseen", "note"))
    world.until(run, "succeeded")
    sealed = world.seal(run)
    body = world.parts.vault.get(sealed["object_key"], sealed["version_id"])
    policy = world.parts.trust(world.tenant).replace("quorum none", f"witness w1 {outside.witness.vkey}\nquorum w1")
    done: subprocess.CompletedProcess[str] = verify(tmp_path, body, policy)
    assert done.returncode == 2, done.stdout


@pytest.mark.parametrize("size", [200, 3])
def test_a_database_that_disagrees_with_the_witness_signs_nothing_more(outside: Outside, size: int) -> None:
    """Restored from a backup (the witness saw more), or rewritten (it saw something else)."""
    world = outside.world
    begin(world, notes("before", "note"))
    world.drain()
    moved(world.parts.log)
    before = signed_sizes(world)
    outside.sees(size)
    shows = outside.shows()
    log = outside.log(shows)
    begin(world, notes("after", "note"))
    world.drain()
    moved(log)
    assert signed_sizes(world) == before
    assert not shows.may_sign(world.tenant)
    positions = world.rows("select count(*) as n from entry_pending where tenant = :tenant")
    assert positions == [{"n": 0}], "nothing is lost: entries have their places, and only the signature is withheld"


def test_a_witness_that_is_silent_stops_nothing(outside: Outside) -> None:
    world = outside.world

    def silent(_: Address, __: bytes) -> Told:
        raise ConnectionRefusedError("nobody there")

    shows = Witnesses(world.parts.database, [outside.address], silent)
    begin(world, notes("alone", "note"))
    world.drain()
    moved(outside.log(shows))
    assert signed_sizes(world)
    assert shows.step() == 0


@pytest.mark.parametrize(
    "told",
    [
        Told(200, b""), Told(200, b"nonsense\n"), Told(200, "— customer.example/witness AAAA\n".encode()), Told(409, b"many\n"),
        Told(500, b""), Told(301, b""), Told(403, b"no\n"),
    ],
)  # fmt: skip
def test_an_answer_that_is_no_cosignature_is_never_kept(outside: Outside, told: Told) -> None:
    world = outside.world
    begin(world, notes("odd", "note"))
    world.drain()
    moved(world.parts.log)
    shows = Witnesses(world.parts.database, [outside.address], lambda *_: told)
    assert shows.step() == 0
    assert world.rows("select 1 from cosignature where tenant = :tenant") == []
    assert shows.may_sign(world.tenant)


def test_a_cosignature_of_somebody_else_is_never_kept(outside: Outside, tmp_path: Path) -> None:
    world = outside.world
    begin(world, notes("else", "note"))
    world.drain()
    moved(world.parts.log)
    thief = Witness(tmp_path / "thief", "customer.example/witness")

    def other(_: Address, body: bytes) -> Told:
        answer = thief.cosign(body, lambda origin: outside.logs.get(origin, ()))
        # Logs of other tenants are unknown to it.
        return Told(200, answer) if isinstance(answer, bytes) else Told(answer.status, b"")

    assert Witnesses(world.parts.database, [outside.address], other).step() == 0
    with world.parts.database.unit(world.tenant, write=False) as unit:
        assert cosigned.seen_by(unit, "customer.example/witness") == 0


def test_an_answer_that_was_lost_is_asked_for_again(outside: Outside) -> None:
    """The witness remembers, we do not: it says how far it saw, and the next question goes on from there."""
    world = outside.world
    begin(world, notes("lost", "note"))
    world.drain()
    moved(world.parts.log)

    def lost(to: Address, body: bytes) -> Told:
        ask(to, body)
        raise ConnectionResetError("cut")

    assert Witnesses(world.parts.database, [outside.address], lost).step() == 0
    assert outside.shows().step() == 1


@pytest.mark.parametrize(
    "given",
    ["one", "a b c", "name+00000000+AAAA http://h", "{log} http://h", "{witness} ftp://h", "{witness} http://h; {witness} http://i"],
)  # fmt: skip
def test_a_witness_that_is_named_wrongly_is_refused_by_the_settings_name(outside: Outside, given: str) -> None:
    log = write_vkey(outside.origin, outside.signer.public)
    with pytest.raises(OperatorError) as caught:
        addresses(given.replace("{log}", log).replace("{witness}", outside.witness.vkey))
    assert caught.value.field == "TWOKEYS_WITNESSES"
    found = addresses(f" {outside.witness.vkey} http://h:1/w/ ; ")
    assert [(one.key.name, one.key.kind, one.url) for one in found] == [
        ("customer.example/witness", COSIGNATURE, "http://h:1/w")
    ]
