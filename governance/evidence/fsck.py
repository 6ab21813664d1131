"""Fsck: holds everything that is stored about a tenant against everything else and names what does not agree; changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from engine.canonical import read_json, sha256
from engine.errors import TwokeysError
from engine.gate import receipt
from engine.gate.action import action_digest
from engine.journal.invariants import guards, violations
from engine.journal.status import name as status_name
from engine.ledger.entries import GENESIS, Entry, read_entry
from engine.ledger.notes import log_origin, read_checkpoint, read_note, read_vkey, signed_by_log, write_vkey
from engine.ledger.tiles import tile_root, tile_width
from engine.ledger.tree import Frontier, leaf_hash
from governance.store import approvals, cases, checks, entries, secrets
from governance.store.case import Case
from governance.store.checks import Held, RunRow
from governance.store.unit import Database, Unit

Verify = Callable[[str, bytes, bytes], bool]
page = 200
# The phase of an operation's journal that each state of its row stands for.
_phases = {
    "ready": ("scheduled",), "waiting_approval": ("scheduled", "retrying"), "waiting_task": ("scheduled", "retrying"),
    "failed_retryable": ("scheduled", "retrying"),
    "running": ("started",), "unknown": ("started",), "succeeded": ("completed",), "failed_terminal": ("completed",),
    "canceled": ("scheduled", "started", "retrying"),
}  # fmt: skip
# One entry for each row of these, neither fewer nor more. (An intent is held over the attempts of its turn.)
_counted = {
    "actions": ("action.proposed",), "verdicts": ("verdict.given",),
    "receipts": ("effect.receipted", "effect.unknown", "effect.resolved"), "doubts": ("doubt.asked",), "words": ("word.given",),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """Something stored that disagrees with something else stored."""

    tenant: str
    place: str
    rule: str
    what: str


class Fsck:
    """Reads one tenant, a run at a time, each as of one moment, while everything goes on."""

    def __init__(self, database: Database, deployment: str, verify: Callable[[str, str, bytes, bytes], bool]) -> None:
        self._database = database
        self._deployment = deployment
        self._verify = verify

    def size(self, tenant: str) -> int:
        """How many steps `check` will take: the runs and the log."""
        with self._database.unit(tenant, write=False) as unit:
            return checks.count(unit) + 1

    def check(self, tenant: str, stepped: Callable[[], None]) -> Iterator[Finding]:
        """Everything found in one tenant; `stepped` is called after each run and after the log."""

        def verify(key: str, data: bytes, signature: bytes) -> bool:
            return self._verify(tenant, key, data, signature)

        after = ""
        while True:
            with self._database.unit(tenant, write=False) as unit:
                names = checks.runs(unit, after, page)
            for name in names:
                with self._database.unit(tenant, write=False, statement_seconds=30) as unit:
                    yield from (Finding(tenant, f"run/{name}", *one) for one in of_run(unit, name, verify))
                stepped()
            if len(names) < page:
                break
            after = names[-1]
        with self._database.unit(tenant, write=False, statement_seconds=30) as unit:
            yield from (Finding(tenant, chain, *one) for chain, *one in _of_chains(unit))
            yield from (Finding(tenant, "log", *one) for one in _of_log(unit, self._deployment))
        stepped()


Said = tuple[str, str]


def of_run(unit: Unit, run: str, verify: Verify) -> Iterator[Said]:
    """(rule, what is wrong) of one run."""
    row, rows = checks.run_row(unit, run), checks.held(unit, run)
    said = yield from _of_chain(unit, run, row.chain_seq, row.chain_head)
    for table, kinds in _counted.items():
        here, there = len(getattr(rows, table)), sum(said.get(kind, 0) for kind in kinds)
        if here != there:
            yield "entries", f"{here} {table} are stored and {there} stand in the log"
    if len(rows.intents) > said.get("effect.intended", 0):
        yield "entries", f"{len(rows.intents)} intents are stored and {said.get('effect.intended', 0)} stand in the log"
    if said.get("run.closed", 0) != int(row.ended):
        yield (
            "entries",
            f"the run {'has' if row.ended else 'has not'} ended and was closed {said.get('run.closed', 0)} times",
        )
    yield from _of_gate(rows, verify)
    try:
        case = cases.load(unit, run)
    except TwokeysError as error:
        yield "journal", str(error)
        return
    yield from _of_journal(case, row)
    yield from _of_promises(case, rows)
    yield from _of_approvals(unit, case)
    yield from _of_queue(unit, case, row, rows)


def _of_chain(unit: Unit, chain: str, count: int, head: bytes) -> Generator[Said, None, dict[str, int]]:
    """Each entry follows the one before, and the chain ends where its owner's row says; returns how often each type occurs."""
    seen: dict[str, int] = {}
    before = GENESIS
    logged = entries.chain_of(unit, chain)
    for n, stored in enumerate(logged):
        try:
            entry: Entry = read_entry(stored.body)
        except TwokeysError as error:
            yield "chain", f"entry {n} cannot be read: {error}"
            return seen
        if (entry.tenant, entry.chain, entry.chain_seq, stored.chain_seq) != (unit.tenant, chain, n, n):
            yield "chain", f"entry {stored.chain_seq} stands where {n} should"
            return seen
        if entry.prev != before.hex() or entry.leaf != stored.leaf:
            yield "chain", f"entry {n} does not follow entry {n - 1}" if n else "the first entry follows something"
            return seen
        before = entry.leaf
        seen[entry.type] = seen.get(entry.type, 0) + 1
    if (len(logged), before) != (count, head):
        yield "chain", f"{len(logged)} entries are stored, and {count} were written or the last is another"
    return seen


def _of_gate(rows: Held, verify: Verify) -> Iterator[Said]:
    """Proposals, verdicts, intents and receipts name each other by digests that hold."""
    proposed: dict[str, set[bytes]] = {}
    for promise, rev, digest, body in rows.actions:
        if action_digest(bytes(body)) != bytes(digest):
            yield "action", f"proposal {rev} of {promise} is not what its digest says"
        proposed.setdefault(promise, set()).add(bytes(digest))
    for promise, n, digest, body, asked, found in rows.verdicts:
        verdict = read_json(bytes(body))
        if bytes(digest) not in proposed.get(promise, ()) or verdict["action_sha256"] != bytes(digest).hex():
            yield "verdict", f"verdict {n} of {promise} is about no proposal of it"
        if (verdict["input_sha256"], verdict["findings_sha256"]) != tuple(
            sha256(bytes(part)).hex() for part in (asked, found)
        ):
            yield "verdict", f"verdict {n} of {promise} names another question or other findings than are stored"
    for _, turn, promise, digest in rows.intents:
        if bytes(digest) not in proposed.get(promise, ()):
            yield "intent", f"intent {turn} of {promise} is for no proposal of it"
    for _, attempt, n, promise, status, digest, body, signature, key_id in rows.receipts:
        where = f"receipt {attempt}.{n} of {promise}"
        try:
            read = receipt.read(bytes(body), bytes(signature), key_id, verify)
        except TwokeysError as error:
            yield "receipt", f"{where}: {error}"
            continue
        told = (read.attempt, read.n, read.origin.promise, read.status, read.action_sha256)
        if told != (attempt, n, promise, status, bytes(digest).hex()) or bytes(digest) not in proposed.get(promise, ()):
            yield "receipt", f"{where} says something else than its row"


def _of_journal(case: Case, row: RunRow) -> Iterator[Said]:
    journal = tuple(case.stored)
    broken = [*violations(journal), *guards(journal, case.history.execution)] if journal else []
    if broken:
        yield "journal", f"breaks {', '.join(broken)}"
    status = status_name(case.history.status) if journal else ""
    if row.status != status:
        yield "projection", f"the run is shown as {row.status or 'not begun'}, its journal says {status or 'not begun'}"


def _of_promises(case: Case, rows: Held) -> Iterator[Said]:
    succeeded = {key for key, *rest in rows.receipts if rest[3] == "ok"}
    receipted = {key for key, *_ in rows.receipts}
    for promise in case.promises.values():
        invoke = case.history.invoke(case.promise_id(promise.promise))
        if invoke is None:
            yield "projection", f"{promise.promise} is shown and never was scheduled"
        elif invoke.phase not in _phases[promise.state]:
            yield "projection", f"{promise.promise} is shown as {promise.state}, its journal says {invoke.phase}"
    for key, _, name, _ in rows.intents:
        state = case.promises[name].state if name in case.promises else ""
        if state == "succeeded" and key not in succeeded:
            yield "receipt", f"{name} succeeded without a receipt that says so"
        elif key not in receipted and state not in ("running", "unknown"):
            yield "intent", f"{name} was begun, is {state or 'gone'}, and has no receipt"


def _of_approvals(unit: Unit, case: Case) -> Iterator[Said]:
    """What is approved has its keys, of different people, none of the lineage, bound to what was shown."""
    for name in approvals.of_run(unit, case.origin.run):
        found = approvals.load(unit, name)
        keys = [vote for vote in found.votes if vote.kind == "key"]
        people = {vote.person for vote in keys}
        if found.asked.status == "approved" and not found.glass and len(people) < found.asked.keys:
            yield "approval", f"{name} is approved by {len(people)} people and needs {found.asked.keys}"
        if wrong := sorted(people & set(found.asked.lineage)):
            yield "approval", f"{name} counts a key of {', '.join(wrong)}, who is part of what it is about"
        if any(vote.action_digest != found.asked.action_digest for vote in keys):
            yield "approval", f"{name} has a key that was turned for something else"


def _of_queue(unit: Unit, case: Case, row: RunRow, rows: Held) -> Iterator[Said]:
    """A run that goes on has something that will move it; one that is over has nothing left but its evidence."""
    waits = row.waits_for or approvals.open_of_run(unit, case.origin.run) or rows.due or rows.work or rows.children
    if not row.ended and not waits:
        yield "queue", "the run goes on and nothing will ever move it"
    if row.ended:
        for item, stage, state in rows.work:
            if stage != "seal" and state == "parked":  # anything else is taken up, found to be late, and dropped
                yield "queue", f"{stage} of {item or 'the run'} is parked and the run has ended"
        if not any(stage == "seal" for _, stage, _ in rows.work) and (
            rows.bundle is None or rows.bundle[0] != "sealed"
        ):
            yield "queue", "the run has ended, and nothing will ever seal its evidence"
    if rows.bundle is not None and rows.bundle[0] == "sealed" and (not row.ended or rows.bundle[1] is None):
        yield "bundle", "a bundle is sealed whose run goes on, or whose digest is unknown"


def _of_chains(unit: Unit) -> Iterator[tuple[str, str, str]]:
    for chain, count, head in checks.chains(unit):
        yield from ((chain, *one) for one in _of_chain(unit, chain, count, head))


def _of_log(unit: Unit, deployment: str) -> Iterator[Said]:
    """The tree over the stored bytes has the root that the head and every signed checkpoint name."""
    size, root, _ = checks.log_head(unit)
    signed = checks.checkpoints(unit)
    origin = log_origin(deployment, unit.tenant)
    keys = [read_vkey(write_vkey(origin, key.public)) for key in secrets.public_keys(unit) if key.purpose == "log"]
    roots: dict[int, bytes] = {}
    wanted = {one[0] for one in signed}
    tree = Frontier()
    row: list[bytes] = []
    tiles: list[bytes] = []
    while tree.size < size:
        found = checks.bodies(unit, tree.size, min(page, size - tree.size))
        if not found:
            yield "tree", f"the log has {tree.size} entries and its head says {size}"
            return
        for position, body, leaf in found:
            if position != tree.size or leaf_hash(body) != leaf:
                yield "tree", f"entry {position} of the log is not what was hashed, or one before it is missing"
                return
            tree = tree.append(leaf)
            row.append(leaf)
            if len(row) == tile_width:
                tiles.append(tile_root(row))
                row = []
            if tree.size in wanted:
                roots[tree.size] = tree.root
    yield from _of_nodes(unit, tiles)
    if size and tree.root != root:
        yield "tree", "the stored entries do not hash to the head of the log"
    for at, fixed, data in signed:
        note = read_note(data)
        checkpoint = read_checkpoint(note.text)
        if not any(signed_by_log(note, key) for key in keys):
            yield "checkpoint", f"the checkpoint at {at} is not signed by a key of this log"
        if (checkpoint.origin, checkpoint.size, checkpoint.root) != (origin, at, fixed) or roots.get(at) != fixed:
            yield "checkpoint", f"the checkpoint at {at} says another root than the stored entries have"


def _of_nodes(unit: Unit, hashes: list[bytes]) -> Iterator[Said]:
    """What proofs are read from is what the entries hash to, level by level; what is not stored yet is no fault."""
    level = 1
    while hashes:
        for at, stored in enumerate(checks.nodes(unit, level)):
            if at >= len(hashes) or stored != hashes[at]:
                yield "tree", f"node {at} of level {level} is not what the entries below it hash to"
                return
        full = len(hashes) // tile_width
        hashes = [tile_root(hashes[n * tile_width : (n + 1) * tile_width]) for n in range(full)]
        level += 1
