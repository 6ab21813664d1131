"""The model itself, under Quint's simulator: new random traces, and a proof that its invariants can fail. Deep: needs node."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.spec.traces import INVARIANTS, MODEL, replay, simulate, simulated

pytestmark = pytest.mark.deep

TRACES = 150
# What has to be taken out of the guards, or changed in the bookkeeping, before an invariant can fail.
GUARDS = {
    "S_2": ["S-2"], "S_3": ["S-3", "S-4", "G-17"], "S_4": ["S-4"], "S_5": ["S-5", "G-16"],
    "SE_1": ["SE-1"], "SE_2": ["SE-2"], "SE_3": ["SE-3"], "SE_4": ["SE-4", "G-07"], "SE_5": ["SE-5"],
    "CF_1": ["CF-1"], "CF_2": ["CF-2"], "CF_3": ["CF-3", "G-13"], "CF_4": ["CF-4"],
    "JS_1": ["JS-1"], "JS_2": ["JS-2"], "JS_3": ["JS-3"], "JS_4": ["JS-4"], "JS_5": ["JS-5"], "JS_6": ["JS-5"],
    "JS_7": ["JS-7", "G-10"], "INV_6": ["G-20"], "G_20": ["G-20"],
}  # fmt: skip
BOOKKEEPING = {
    "S_1": ("sequence: h.journal.length(), timestamp", "sequence: now, timestamp"),
    "INV_4": ("| ExecutionResumed => { ...h, status: Running }", "| ExecutionResumed => h"),
}
# Where random steps hardly ever come: the step of the model that its guard keeps on the right way, aimed past it.
AIMED = {
    "JS_4": (
        'invocations(h, Set("completed")).filter(n => ownerAt',
        'invocations(h, Set("started")).filter(n => ownerAt',
    ),
    "JS_7": (".filter(n => ownerAt(h, n) == -1)", ".filter(n => ownerAt(h, n) >= -1)"),
}


def test_new_random_traces_are_what_the_writer_does(tmp_path: Path) -> None:
    """S003-A01..A21, S003-I0: no invariant fails in any trace, and the writer answers every attempt as the model does."""
    seed = hex(secrets.randbits(48))
    said = simulate(MODEL, seed=seed, traces=TRACES, keep=tmp_path)
    assert said.startswith("[ok]"), f"seed {seed}: {said}"
    traces = simulated(tmp_path)
    assert len(traces) == TRACES
    for number, trace in enumerate(traces):
        try:
            replay(trace)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, trace {number}: {error}") from error


def test_every_invariant_has_a_way_to_fail() -> None:
    assert {*GUARDS, *BOOKKEEPING} == set(INVARIANTS)


@pytest.mark.parametrize("invariant", INVARIANTS)
def test_an_invariant_fails_when_its_guard_is_left_out(invariant: str, tmp_path: Path) -> None:
    """An invariant that no trace can break would prove nothing."""
    old, new = "pure val IGNORED: Set[str] = Set()", ""
    if invariant in BOOKKEEPING:
        old, new = BOOKKEEPING[invariant]
    else:
        new = old.replace("Set()", "Set(" + ", ".join(f'"{rule}"' for rule in GUARDS[invariant]) + ")")
    text = MODEL.read_text()
    for before, after in [(old, new), *([AIMED[invariant]] if invariant in AIMED else [])]:
        assert text.count(before) == 1
        text = text.replace(before, after)
    model = tmp_path / "journal.qnt"
    model.write_text(text)
    said = simulate(model, seed="0x5eed", traces=1_500, invariants=[invariant])
    assert "[violation]" in said, said
