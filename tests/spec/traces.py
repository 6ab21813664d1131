"""Random traces of the model, from Quint's simulator to the writer: every attempt must meet the same answer in both.

`python -m tests.spec.traces SEED` writes the committed sample again from that seed.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import BrokenJournal
from engine.ids import PromiseId
from engine.journal.events import Entry, event_from, event_value
from engine.journal.history import History
from engine.journal.status import name

HERE = Path(__file__).parent
MODEL = HERE / "journal.qnt"
SAMPLE = HERE / "traces.jsonl"
WORKPLACE = HERE.parent / "out" / "quint"
ROOTS = (1, 2)
STEPS = 80
SAMPLE_TRACES = 48
INVARIANTS = (
    *("S_1", "S_2", "S_3", "S_4", "S_5", "SE_1", "SE_2", "SE_3", "SE_4", "SE_5", "CF_1", "CF_2", "CF_3", "CF_4"),
    *("JS_1", "JS_2", "JS_3", "JS_4", "JS_5", "JS_6", "JS_7", "INV_4", "INV_6", "G_20"),
)

Trace = list[list[Any]]  # attempts: [run, clock, event, rules it breaks in the model, status of the run after it]


# --- the simulator ----------------------------------------------------------------------------------------------------


def prepared() -> Path:
    """The simulator at its pinned version, installed once beside the other things that tests leave behind."""
    program = WORKPLACE / "node_modules" / ".bin" / "quint"
    files = {name: (HERE / name).read_bytes() for name in ("package.json", "package-lock.json")}
    if not (program.exists() and all((WORKPLACE / n).read_bytes() == b for n, b in files.items())):
        WORKPLACE.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            (WORKPLACE / file).write_bytes(content)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"]
        subprocess.run(command, cwd=WORKPLACE, check=True, stdin=subprocess.DEVNULL, timeout=600)
    return program


def simulate(
    model: Path, *, seed: str, traces: int, keep: Path | None = None, invariants: Sequence[str] = INVARIANTS
) -> str:
    """Run the model; what the simulator says, which opens with [ok] or [violation]. `keep` gets one file per trace."""
    command = [str(prepared()), "run", str(model), "--main", "journal", "--backend", "typescript", "--seed", seed]
    command += ["--max-samples", str(traces), "--max-steps", str(STEPS), "--verbosity", "1"]
    command += ["--invariants", *invariants]
    if keep is not None:
        command += ["--n-traces", str(traces), "--out-itf", str(keep / "{seq}.itf.json")]
    # One simulator is one process on one core, and needs nothing of this machine but its path.
    environment = {"PATH": os.environ["PATH"], "HOME": str(WORKPLACE)}
    done = subprocess.run(
        command, cwd=WORKPLACE, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=3000
    )
    return (done.stdout + done.stderr).strip()


# --- from the simulator's format --------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A value of the Informal Trace Format as JSON has it; a set becomes a sorted list."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "#bigint" in value:
        return int(value["#bigint"])
    if "#set" in value:
        return sorted(plain(item) for item in value["#set"])
    if "#map" in value:
        return {plain(key): plain(item) for key, item in value["#map"]}
    if "#tup" in value:
        return {}
    return {key: plain(item) for key, item in value.items()}


def await_kind(value: dict[str, Any]) -> Any:
    return {"AwaitSignal": value["value"]} if value["tag"] == "AwaitSignal" else value["tag"]


def read_itf(text: str) -> Trace:
    """The attempts of one simulated trace."""
    found: Trace = []
    states = [plain(state) for state in json.loads(text)["states"]]
    for before, state in itertools.pairwise(states):
        tried, status = state["tried"], state["histories"][state["tried"]["root"]]["status"]["tag"]
        event = {"type": tried["event"]["tag"], **tried["event"]["value"]}
        if event["type"] == "ExecutionAwaiting":
            event["kind"] = await_kind(event["kind"])
        found.append([tried["root"], before["clock"], event, tried["broken"], status])
    return found


def simulated(folder: Path) -> list[Trace]:
    """The traces that the simulator left in a folder, in order."""
    files = sorted(folder.glob("*.itf.json"), key=lambda file: int(file.name.split(".")[0]))
    return [read_itf(file.read_text()) for file in files]


def committed() -> list[Trace]:
    """The sample in this repository."""
    return [json.loads(line) for line in SAMPLE.read_text().splitlines()]


# --- to the writer ----------------------------------------------------------------------------------------------------


@dataclass
class Replayed:
    """What the writer made of one trace."""

    histories: dict[int, History] = field(default_factory=lambda: {root: History(PromiseId(root)) for root in ROOTS})
    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def journals(self) -> Iterator[tuple[PromiseId, tuple[Entry, ...]]]:
        for history in self.histories.values():
            if history.started:
                yield history.execution, history.pending()


def replay(trace: Trace) -> Replayed:
    """Give every attempt to the writer: it accepts what breaks no rule of the model and refuses by a rule that is broken."""
    done = Replayed()
    for place, (root, clock, value, broken, status) in enumerate(trace):
        history = done.histories[root]
        event = event_from(value)
        assert event_value(event) == value
        rule = ""
        try:
            history.append(event, clock)
        except BrokenJournal as refusal:
            rule = refusal.rule
        said = f"attempt {place} on run {root}, {value}: the model names {broken}, the writer {rule or 'nothing'}"
        assert (rule in broken) if broken else not rule, said
        assert not history.started or name(history.status) == status, said
        if rule:
            done.refused[rule] += 1
        else:
            done.accepted[value["type"]] += 1
    return done


def main(seed: str) -> None:
    folder = WORKPLACE / "sample"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.itf.json"):
        old.unlink()
    sys.stdout.write(simulate(MODEL, seed=seed, traces=SAMPLE_TRACES, keep=folder) + "\n")
    lines = [json.dumps(trace, separators=(",", ":")) for trace in simulated(folder)]
    SAMPLE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
