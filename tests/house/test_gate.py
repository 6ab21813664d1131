"""The gate runs everything, to the end, and is red when anything is."""

from __future__ import annotations

import time

import pytest

from tests.house import gate


def test_every_folder_with_tests_is_a_layer() -> None:
    """Tests in a folder that the gate does not know would never run."""
    folders = {file.relative_to(gate.ROOT / "tests").parts[0] for file in (gate.ROOT / "tests").rglob("test_*.py")}
    assert folders <= gate.LAYERS.keys()


def test_a_red_layer_makes_the_gate_red_and_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The layer after a red one still runs, and the summary names the red one."""
    commands = {"bad": ["python", "-c", "raise SystemExit(3)"], "good": ["python", "-c", "print('it ran')"]}
    monkeypatch.setattr(gate, "plan", lambda names, *, deep: commands)
    assert gate.main([]) == 1
    out = capfd.readouterr().out
    assert "RED: exit 3" in out
    assert "it ran" in out
    assert out.endswith("RED: bad\n")


def test_green_layers_make_the_gate_green(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero is reserved for all layers having passed."""
    monkeypatch.setattr(gate, "plan", lambda names, *, deep: {"good": ["python", "-c", ""]})
    assert gate.main([]) == 0


def test_nothing_to_run_is_not_green(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate that found no layer has proved nothing."""
    monkeypatch.setattr(gate, "plan", lambda names, *, deep: {})
    assert gate.main([]) == 1


def test_a_layer_that_hangs_is_ended_with_everything_it_started() -> None:
    """The wait ends at the limit, and a grandchild does not hold the pipe open."""
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    began = time.monotonic()
    assert gate.run(["python", "-c", script], 0.5) == "still running after 0.5 s"
    assert time.monotonic() - began < 60, "it was waited for"


def test_a_misspelt_layer_is_refused() -> None:
    """`make test LAYERS=flows` must not pass by running nothing."""
    with pytest.raises(SystemExit, match="no such layer: flows"):
        gate.plan(["flows"], deep=False)
