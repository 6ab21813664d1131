"""A local opa that we start: the right version, our bundle, gone with us, back after it died."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.gate.verdict import PolicyFault
from governance import clock
from governance.policy import bundle
from governance.policy.managed import Managed, binary_version
from tests.governance.policy.kit import assert_fault, opa_binary, ruled

BUNDLE = bundle.shipped({})


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Managed]:
    one = Managed(opa_binary(), tmp_path / "opa")
    one.load(BUNDLE)
    yield one
    one.close()


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_it_answers_under_our_revision_and_says_what_it_is(engine: Managed) -> None:
    """Engine, version and revision are in the verdict."""
    verdict = ruled(engine, BUNDLE.revision).verdict
    assert (verdict.effect, verdict.engine, verdict.engine_version) == ("allow", "opa-managed", engine.version)
    assert verdict.policy_revision == BUNDLE.revision


def test_it_has_an_empty_environment_and_listens_on_loopback_only(engine: Managed) -> None:
    """No other machine reaches it and no secret of ours is in it."""
    here = Path(f"/proc/{engine.pid}")
    assert (here / "environ").read_bytes() == b""
    assert b"--addr=127.0.0.1:" in (here / "cmdline").read_bytes()


def test_a_killed_opa_is_started_again_by_the_next_question(engine: Managed) -> None:
    """Nobody has to restart a worker."""
    before = engine.pid
    os.kill(before, signal.SIGKILL)
    clock.sleep(0.1)
    assert ruled(engine, BUNDLE.revision).verdict.effect == "allow"
    assert engine.pid != before


def test_a_hung_opa_is_a_denial(engine: Managed) -> None:
    """Stopped, it neither answers nor refuses; the deadline does."""
    hung = engine.pid
    os.kill(hung, signal.SIGSTOP)
    begun = clock.monotonic()
    assert_fault(ruled(engine, BUNDLE.revision), "timeout", retryable=True)
    assert clock.monotonic() - begun < 4
    # It would hang for ever; the next question gets another.
    assert ruled(engine, BUNDLE.revision).verdict.effect == "allow"
    assert engine.pid != hung
    assert is_gone(hung)


def test_a_new_bundle_is_served_by_a_new_child(engine: Managed, tmp_path: Path) -> None:
    """And only its file is left."""
    before = engine.pid
    newer = bundle.shipped({"acme": {}})
    engine.load(newer)
    assert is_gone(before)
    assert ruled(engine, newer.revision).verdict.effect == "allow"
    assert_fault(ruled(engine, BUNDLE.revision), "revision_mismatch")
    assert [file.name for file in (tmp_path / "opa").glob("*.tar.gz")] == [f"{newer.revision}.tar.gz"]


def test_a_bundle_that_opa_refuses_leaves_the_old_one_serving(engine: Managed) -> None:
    """The new child ended while it started."""
    source = bundle.read_source(bundle.shipped_directory())
    broken = {**source.modules, "twokeys/base.rego": source.modules["twokeys/base.rego"] + "\nx := y\n"}
    with pytest.raises(PolicyFault) as refused:
        engine.load(bundle.build(broken, source.data, {}))
    assert refused.value.code == "engine_exit"
    assert ruled(engine, BUNDLE.revision).verdict.effect == "allow"


def test_an_opa_left_by_a_killed_worker_is_ended(engine: Managed, tmp_path: Path) -> None:
    """The next worker with this directory finds it by its pid and its command line."""
    left = engine.pid
    heir = Managed(opa_binary(), tmp_path / "opa")
    heir.load(BUNDLE)
    try:
        os.waitpid(left, 0)
        assert is_gone(left)
        assert ruled(heir, BUNDLE.revision).verdict.effect == "allow"
    finally:
        heir.close()


def test_closing_leaves_no_process_and_no_answer(engine: Managed) -> None:
    """A question after that is refused."""
    pid = engine.pid
    engine.close()
    assert is_gone(pid)
    assert_fault(ruled(engine, BUNDLE.revision), "engine_not_ready", retryable=True)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("echo Version: 1.9.0", "engine_too_old"),
        ("echo nothing", "engine_not_ready"),
        ("exit 3", "engine_not_ready"),
    ],
)
def test_a_binary_that_is_too_old_or_no_opa_is_refused(tmp_path: Path, text: str, code: str) -> None:
    """Before anything is served from it."""
    with pytest.raises(PolicyFault) as refused:
        binary_version(script(tmp_path / "opa", text))
    assert refused.value.code == code
    with pytest.raises(PolicyFault):
        binary_version(tmp_path / "nothing")


def test_a_binary_that_ends_at_once_is_a_fault_and_not_a_wait(tmp_path: Path) -> None:
    """It says the right version and serves nothing."""
    fake = script(tmp_path / "opa", 'test "$1" = version && echo Version: 1.20.0')
    begun = clock.monotonic()
    with pytest.raises(PolicyFault) as refused:
        Managed(fake, tmp_path / "state").load(BUNDLE)
    assert refused.value.code == "engine_exit"
    assert clock.monotonic() - begun < 20
