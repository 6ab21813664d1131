"""What a verdict costs and how fast a replay is: embedded and, where an opa is there, against a local server, in one run.

Asserts the bounds of issue 5: p50 of a verdict embedded and against a local OPA server, verdicts a second on one core, overhead
over a bare evaluation of the same library, a replay of 10,000 decisions from a real database, and memory that stays flat
(EVALUATIONS=100000 for the long form). Prints one JSON object. A busy machine shows in `load`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psycopg
from opa_bindings import OpaEngine

from engine.canonical import jcs
from engine.catalog.draft import Draft
from engine.gate.verdict import Policy, judge
from governance import clock
from governance.local import postgres
from governance.local.children import Children
from governance.policy import bundle
from governance.policy.bundle import Bundle
from governance.policy.child import FINDINGS_PATH
from governance.policy.embedded import Embedded, resident_bytes
from governance.policy.managed import Managed
from governance.policy.replay import Job, run
from governance.store import migrate
from governance.store.unit import Database
from tests.governance.policy.kit import question_of
from tests.governance.policy.test_table import generated

P50_EMBEDDED_MS, P50_SERVER_MS = 0.6, 3.0
VERDICTS_A_SECOND, OVERHEAD_MAX = 2_000, 3.0
REPLAY, REPLAY_SECONDS = 10_000, 30.0
EVALUATIONS = int(os.environ.get("EVALUATIONS", "20000"))
GROWTH_MAX_BYTES = 32 * 1024**2
ROUNDS = 2_000


def questions(count: int) -> list[Any]:
    """Valid questions of every kind."""
    dice = random.Random(3)
    found: list[Any] = []
    while len(found) < count:
        document = generated(dice, odd=0)
        if document["action"]["target"]["id"].isascii():
            found.append(question_of(document))
    return found


def verdicts(policy: Policy, revision: str, asked: list[Any]) -> tuple[list[float], float]:
    """Milliseconds of each verdict, and verdicts a second."""
    times = []
    begun = time.perf_counter()
    for question in asked:
        start = time.perf_counter()
        judge(question, policy, accepted=(revision,), monotonic=clock.monotonic)
        times.append((time.perf_counter() - start) * 1000)
    return times, len(asked) / (time.perf_counter() - begun)


def bare(made: Bundle, asked: list[Any]) -> list[float]:
    """The same library in this process, with nothing around it."""
    engine = OpaEngine()
    for path, text in made.modules:
        engine.add_policy(path, text)
    engine.add_data(dict(made.data))
    documents = [json.loads(question.input_bytes) for question in asked]
    engine.eval_document(FINDINGS_PATH, documents[0])
    times = []
    for document in documents:
        start = time.perf_counter()
        engine.eval_document(FINDINGS_PATH, document)
        times.append((time.perf_counter() - start) * 1000)
    return times


def batched(engine: Embedded, asked: list[Any]) -> float:
    """Evaluations a second in batches of 64."""
    inputs = [question.input_bytes for question in asked]
    begun = time.perf_counter()
    for start in range(0, len(inputs), 64):
        engine.evaluate_many(inputs[start : start + 64])
    return len(inputs) / (time.perf_counter() - begun)


def processor_seconds(pid: int) -> float:
    """What a process has used of the processor, which a busy machine changes less than the clock."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(engine: Embedded, asked: list[Any]) -> tuple[int, int]:
    """Bytes of the child after a tenth of the evaluations and after all of them."""
    inputs = [question.input_bytes for question in asked[:64]]
    early = 0
    for n in range(EVALUATIONS // 64):
        engine.evaluate_many(inputs)
        if n == EVALUATIONS // 640:
            early = resident_bytes(engine.pid)
    return early, resident_bytes(engine.pid)


def fill(url: str, made: Bundle, asked: list[Any]) -> None:
    """Stored verdicts as a run leaves them, without the run: as superuser, past foreign keys."""
    encoded = draft_of(made)
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("set session_replication_role = replica")
        cursor.execute("insert into tenant (tenant, name, environment, salt_key) values ('test', 'T', 'prod', '')")
        cursor.execute(
            "insert into policy_draft (tenant, draft, base_revision, created_by) values ('test', 'd', %s, 'p')",
            (made.revision,),
        )
        cursor.execute(
            "insert into policy_edit (tenant, draft, n, author, digest, body) values ('test', 'd', 1, 'p', '', %s)",
            (encoded,),
        )
        cursor.executemany(
            "insert into verdict (tenant, run, promise, n, purpose, effect, action_digest, revision, body, input, findings) values "
            "('test', %s, '0', 1, 'enforce', 'allow', '', 'other', %s, %s, '')",
            [(f"{n:08d}", jcs({"deny_kind": ""}), asked[n % len(asked)].input_bytes) for n in range(REPLAY)],
        )
        connection.commit()
        cursor.execute("analyze verdict")


def draft_of(made: Bundle) -> bytes:
    return Draft(dict(made.modules), {}, {}).body


def replayed(directory: Path, asked: list[Any]) -> float:
    """Seconds to replay 10,000 stored decisions under two policies, database included."""
    base = bundle.shipped({})
    source = bundle.read_source(bundle.shipped_directory())
    changed = {**source.data["tenants"]["test"], "blocked_targets": []}
    draft = bundle.build(source.modules, {**source.data, "tenants": {**source.data["tenants"], "test": changed}}, {})
    with Children(directory / "logs") as children:
        server = postgres.start(children, directory)
        application = server.create_application("bench")
        migrate.upgrade(application.owner_url, postgres.APP_ROLE)
        fill(server.url(postgres.SUPERUSER, "bench"), base, asked)
        store = Database(application.app_url)
        begun = time.perf_counter()
        done = run(store, Job("test", "d", 1, base, draft))
        seconds = time.perf_counter() - begun
        store.close()
    assert done.tally.replayed == REPLAY, done.tally.to_value()
    return seconds


def bench(directory: Path) -> dict[str, Any]:
    made, asked = bundle.shipped({}), questions(ROUNDS)
    engine = Embedded(deadline_seconds=5.0)  # a busy machine would otherwise end the child in mid-bench
    engine.load(made)
    verdicts(engine, made.revision, asked[:200])
    ours, theirs = time.process_time(), processor_seconds(engine.pid)
    embedded, rate = verdicts(engine, made.revision, asked)
    ours, theirs = time.process_time() - ours, processor_seconds(engine.pid) - theirs
    plain = bare(made, asked)
    found: dict[str, Any] = {
        "bench": "policy", "load": os.getloadavg()[0], "rounds": ROUNDS,
        "verdict_embedded_ms": spread(embedded), "evaluation_bare_ms": spread(plain),
        "processor_ms_a_verdict": {"gate": round(ours * 1000 / ROUNDS, 3), "engine": round(theirs * 1000 / ROUNDS, 3)},
        "overhead": round(statistics.median(embedded) / statistics.median(plain), 2), "verdicts_a_second": round(rate),
        "evaluations_a_second_batched": round(batched(engine, asked)),
    }  # fmt: skip
    early, late = memory(engine, asked)
    engine.close()
    found["memory_mb"] = {"evaluations": EVALUATIONS, "early": early // 2**20, "late": late // 2**20}
    binary = shutil.which("opa")
    if binary:
        server = Managed(Path(binary), directory / "opa")
        server.load(made)
        verdicts(server, made.revision, asked[:200])
        found["verdict_server_ms"] = spread(verdicts(server, made.revision, asked[:1000])[0])
        server.close()
    found["replay_10000_seconds"] = round(replayed(directory, asked), 1)
    found["missed"] = missed(found, late - early)
    return found


def missed(found: dict[str, Any], growth: int) -> list[str]:
    """The bounds that this run did not keep."""
    bounds = {
        "p50 embedded": found["verdict_embedded_ms"]["p50"] <= P50_EMBEDDED_MS,
        "p50 of a local server": found.get("verdict_server_ms", {"p50": 0})["p50"] <= P50_SERVER_MS,
        "verdicts a second": found["verdicts_a_second"] >= VERDICTS_A_SECOND,
        "overhead": found["overhead"] <= OVERHEAD_MAX,
        "replay": found["replay_10000_seconds"] <= REPLAY_SECONDS,
        "memory": growth <= GROWTH_MAX_BYTES,
    }
    return [name for name, kept in bounds.items() if not kept]


def spread(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {"p50": round(statistics.median(ordered), 3), "p99": round(ordered[len(ordered) * 99 // 100], 3)}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="tk-bench-") as place:
        Path(place).chmod(0o711)
        found = bench(Path(place))
    print(json.dumps(found, indent=1))
    sys.exit(1 if found["missed"] else 0)


if __name__ == "__main__":
    main()
