"""The child process may die, hang, lie or grow: each is a denial with its code, and the next question is answered again."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.gate.verdict import Answer, PolicyFault
from governance import clock
from governance.policy import bundle, embedded
from governance.policy.embedded import Embedded
from tests.governance.policy.kit import assert_fault, hostile_command, plain_question, ruled

BUNDLE = bundle.shipped({})


@pytest.fixture(scope="module")
def hostile() -> Iterator[Embedded]:
    engine = Embedded(command=hostile_command(), deadline_seconds=1.0)
    engine.load(BUNDLE)
    yield engine
    engine.close()


@pytest.fixture
def engine() -> Iterator[Embedded]:
    # Room for a busy machine; what the real deadline does is tested by itself.
    one = Embedded(deadline_seconds=5.0)
    one.load(BUNDLE)
    yield one
    one.close()


def allowed(policy: Any) -> bool:
    return ruled(policy, BUNDLE.revision).verdict.effect == "allow"


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


TRICKS = [
    ("hang", "timeout", True),
    ("drip", "timeout", True),
    ("exit", "engine_exit", True),
    ("signal", "engine_exit", True),
    ("raise", "engine_exit", True),
    ("unclosed", "engine_exit", True),
    ("garbage", "engine_noise", False),
    ("two", "engine_noise", False),
    ("id", "engine_noise", False),
    ("id-bool", "engine_noise", False),
    ("duplicate", "engine_noise", False),
    ("nan", "engine_noise", False),
    ("extra", "engine_noise", False),
    ("none", "engine_noise", False),
    ("item", "engine_noise", False),
    ("parts", "engine_noise", False),
    ("echo", "echo_mismatch", False),
    ("big", "too_large", False),
]


@pytest.mark.parametrize(("trick", "code", "retryable"), TRICKS, ids=[trick for trick, _, _ in TRICKS])
def test_a_child_that_misbehaves_is_a_denial_and_is_replaced(
    hostile: Embedded, trick: str, code: str, retryable: bool
) -> None:
    """Inside the deadline, with the right code; that very process is gone; the next question is allowed again."""
    assert allowed(hostile)
    before = hostile.pid
    begun = clock.monotonic()
    assert_fault(ruled(hostile, BUNDLE.revision, plain_question(step__id=trick)), code, retryable=retryable)
    assert clock.monotonic() - begun < 4
    assert is_gone(before)
    assert allowed(hostile)
    assert hostile.pid != before


@pytest.mark.parametrize(
    ("trick", "code"),
    [
        ("action", "echo_mismatch"),
        ("revision", "revision_mismatch"),
        ("shape", "malformed_findings"),
        ("fault", "engine_noise"),
    ],
)
def test_a_child_that_lies_in_good_form_is_a_denial(hostile: Embedded, trick: str, code: str) -> None:
    """The judge looks at the meaning: action, revision, shape; a child cannot pretend a retryable fault."""
    assert_fault(ruled(hostile, BUNDLE.revision, plain_question(step__id=trick)), code)
    assert allowed(hostile)


def test_a_line_that_comes_later_belongs_to_nobody(hostile: Embedded) -> None:
    """The answer before it was good; the question after it is a denial, and the child is replaced."""
    assert ruled(hostile, BUNDLE.revision, plain_question(step__id="late")).verdict.effect == "allow"
    before = hostile.pid
    clock.sleep(0.2)
    assert_fault(ruled(hostile, BUNDLE.revision), "engine_noise")
    assert is_gone(before)
    assert allowed(hostile)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_child_killed_between_questions_costs_one_question_at_most(engine: Embedded, number: signal.Signals) -> None:
    """The fault is retryable and nobody has to restart anything."""
    os.kill(engine.pid, number)
    clock.sleep(0.1)
    assert_fault(ruled(engine, BUNDLE.revision), "engine_exit", retryable=True)
    assert allowed(engine)


def test_a_stopped_child_is_a_timeout() -> None:
    """SIGSTOP looks like an evaluation that never ends; the deadline is 500 ms and the process is killed."""
    engine = Embedded()
    engine.load(BUNDLE)
    stopped = engine.pid
    os.kill(stopped, signal.SIGSTOP)
    begun = clock.monotonic()
    assert_fault(ruled(engine, BUNDLE.revision), "timeout", retryable=True)
    assert 0.5 <= clock.monotonic() - begun < 2
    assert is_gone(stopped)
    assert engine.pid == 0
    engine.close()


def changed(path: str, text: str) -> bundle.Bundle:
    source = bundle.read_source(bundle.shipped_directory())
    return bundle.build({**source.modules, path: source.modules[path] + text}, source.data, {})


def test_a_rule_that_does_not_end_is_stopped_by_the_deadline() -> None:
    """A real evaluation inside the library, which has no deadline of its own."""
    endless = changed(
        "twokeys/overlay.rego",
        '\ndeny contains {"code": "slow", "message": "slow"} if {\n\tinput.step.id == "slow"\n'
        "\tcount([1 | some i in numbers.range(1, 3000); some j in numbers.range(1, 3000); i * j == 1]) > 1\n}\n",
    )
    engine = Embedded()
    try:
        engine.load(endless)
        begun = clock.monotonic()
        assert_fault(ruled(engine, endless.revision, plain_question(step__id="slow")), "timeout", retryable=True)
        assert clock.monotonic() - begun < 4
        assert ruled(engine, endless.revision).verdict.effect == "allow"
    finally:
        engine.close()


def test_an_error_inside_a_builtin_is_a_denial_and_not_undefined() -> None:
    """OPA's own default would leave a deny rule silent here."""
    strict = changed(
        "twokeys/overlay.rego",
        '\ndeny contains {"code": "bad", "message": "bad"} if regex.match("[[", input.step.id)\n',
    )
    engine = Embedded()
    try:
        with pytest.raises(PolicyFault) as refused:
            engine.load(strict)
        assert refused.value.code == "evaluation_failed"
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        ("twokeys/base.rego", "\nx if {", "base.rego"),
        ("twokeys/base.rego", "\ny := z\n", "unsafe"),
        ("twokeys/overlay.rego", '\ndeny := "x"\n', "overlay.rego"),
    ],
)
def test_a_bundle_that_does_not_compile_is_refused_with_its_place(
    engine: Embedded, path: str, text: str, says: str
) -> None:
    """The one before stays and goes on answering."""
    with pytest.raises(PolicyFault) as refused:
        engine.load(changed(path, text))
    assert refused.value.code == "load_failed"
    assert says in refused.value.reason
    assert engine.revision == BUNDLE.revision
    assert allowed(engine)


def test_a_bundle_whose_canary_sings_wrong_is_refused(engine: Embedded) -> None:
    """A guard that lets the kill switch pass never becomes ready."""
    source = bundle.read_source(bundle.shipped_directory())
    guard = source.modules["twokeys/guard.rego"].replace("running if input.kill_switch == false", "running if true")
    with pytest.raises(PolicyFault) as refused:
        engine.load(bundle.build({**source.modules, "twokeys/guard.rego": guard}, source.data, {}))
    assert refused.value.code == "canary_failed"
    assert allowed(engine)


def test_a_new_bundle_answers_and_the_old_revision_is_no_longer_accepted(engine: Embedded) -> None:
    """Loading changes the child and the revision in every answer."""
    before = engine.pid
    newer = bundle.shipped({"acme": {}})
    engine.load(newer)
    assert engine.revision == newer.revision != BUNDLE.revision
    assert is_gone(before)
    assert_fault(ruled(engine, BUNDLE.revision), "revision_mismatch", retryable=True)
    assert ruled(engine, newer.revision).verdict.effect == "allow"


def test_several_questions_go_in_one_line(engine: Embedded) -> None:
    """Each has its own findings, in order, or its own fault."""
    asked = [plain_question(step__id=f"s{n}", request__id=f"0000000{n}-0000-4000-8000-000000000000") for n in range(3)]
    answers = engine.evaluate_many([one.input_bytes for one in asked])
    for one, answer in zip(asked, answers, strict=True):
        assert isinstance(answer, Answer)
        assert one.request_id.encode() in answer.findings
    mixed = engine.evaluate_many([asked[0].input_bytes, b"{}"])
    assert isinstance(mixed[0], Answer)
    assert isinstance(mixed[1], PolicyFault)
    assert mixed[1].code == "undefined"


@pytest.mark.parametrize("inputs", [[], [b"{}"] * 65, [b"{}\n{}"], ["{}"], [b"x" * 65_537]])
def test_what_cannot_be_one_line_is_refused_before_it_is_sent(engine: Embedded, inputs: list[Any]) -> None:
    """The protocol's own frame cannot be broken by a question."""
    with pytest.raises(PolicyFault):
        engine.evaluate_many(inputs)
    assert allowed(engine)


def test_threads_share_one_child_and_get_their_own_answers(engine: Embedded) -> None:
    """One line in flight; nobody gets anybody else's findings."""
    verdicts: list[str] = []

    def work(n: int) -> None:
        for m in range(25):
            one = plain_question(step__id=f"s{n}-{m}", request__id=f"0000{n:04}-0000-4000-8000-{m:012}")
            verdicts.append(ruled(engine, BUNDLE.revision, one).verdict.effect)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == ["allow"] * 200


def test_a_child_is_replaced_after_its_share_of_evaluations(engine: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two requests, without a fault."""
    before = engine.pid
    monkeypatch.setattr(embedded, "evaluations_max", 20)
    assert all(allowed(engine) for _ in range(40))
    assert engine.pid != before
    assert is_gone(before)


def test_a_child_that_holds_too_much_memory_is_replaced(engine: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resident memory is read from the system, not from the child."""
    before = engine.pid
    assert embedded.resident_bytes(before) > 1_000_000
    monkeypatch.setattr(embedded, "_resident_every", 10)
    monkeypatch.setattr(embedded, "resident_bytes_max", 1_000_000)
    assert all(allowed(engine) for _ in range(40))
    assert is_gone(before)


def test_a_worker_with_many_open_files_can_still_ask(engine: Embedded) -> None:
    """A pipe above descriptor 1023 is a pipe like any other."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2_048:
        pytest.skip(f"this machine allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_048), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    try:
        engine.load(BUNDLE)
        assert engine._child is not None
        assert engine._child.stdout > 1_023
        assert allowed(engine)
    finally:
        for one in opened:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_memory_is_flat(engine: Embedded) -> None:
    """A thousand evaluations leave the child below 80 MB."""
    data = plain_question().input_bytes
    for _ in range(1_000):
        engine.evaluate(data)
    assert embedded.resident_bytes(engine.pid) < 80_000_000


def test_the_child_has_an_empty_environment_limits_and_no_network(
    engine: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of ours reaches it, and a secret in our environment least of all."""
    monkeypatch.setenv("TWOKEYS_SECRET", "x")
    engine.load(BUNDLE)
    here = Path(f"/proc/{engine.pid}")
    variables = (here / "environ").read_bytes().split(b"\0")
    assert sorted(variables) == [b"", b"GOGC=400", b"GOMAXPROCS=1", b"GOMEMLIMIT=128MiB"]
    limits = (here / "limits").read_text()
    assert f"Max address space         {2 * 1024**3}" in limits
    interfaces = [line.split(":")[0].strip() for line in (here / "net/dev").read_text().splitlines()[2:]]
    if os.geteuid() == 0:
        assert interfaces == ["lo"]


def test_the_child_leaves_when_its_input_ends(engine: Embedded) -> None:
    """A parent that is gone for whatever reason leaves no process behind."""
    child = engine._child
    assert child is not None
    assert child.process.stdin is not None
    child.process.stdin.close()
    assert child.process.wait(timeout=5) == 0


def test_without_a_bundle_and_after_closing_everything_is_refused() -> None:
    """Not ready is a fault, not a wait and not an answer; closing leaves no process."""
    engine = Embedded()
    assert_fault(ruled(engine, BUNDLE.revision), "engine_not_ready", retryable=True)
    engine.load(BUNDLE)
    pid = engine.pid
    engine.close()
    assert is_gone(pid)
    assert_fault(ruled(engine, BUNDLE.revision), "engine_not_ready", retryable=True)


@pytest.mark.parametrize(
    "command",
    [
        ("/nonexistent",),
        (sys.executable, "-I", "-c", "pass"),
        (sys.executable, "-I", "-c", "print('hello')"),
        (sys.executable, "-I", "-c", 'input(); print(\'{"id":1,"fault":[]}\')'),
        (sys.executable, "-I", "-c", 'input(); print(\'{"id":1,"fault":[],"version":"1"}\'); input(); print(\'{}\')'),
    ],
)
def test_something_else_in_the_childs_place_never_becomes_ready(command: tuple[str, ...]) -> None:
    """It is ended and the load is refused."""
    with pytest.raises(PolicyFault):
        Embedded(command=command).load(BUNDLE)
