"""`twokeys tenant caps`: shown, set, taken away, refused with the name of the setting; and what a run that waits says of itself."""

from __future__ import annotations

import pytest

from governance.cli import frame
from tests.governance.test_cli import Cli, cli, operator
from tests.kit.world import World, parts, slack_sink, world

__all__ = ["cli", "parts", "slack_sink", "world"]


def test_caps_are_shown_set_and_taken_away(world: World, cli: Cli) -> None:
    shell, words = operator(world), ("tenant", "caps", "--tenant", world.tenant, "-o", "json")
    before = cli(*words, **shell)
    assert [row["scope"] for row in before.data] == ["workflow"], "the sample tightens its own"
    done = cli(*words, "--max-concurrency", "5", "--max-runs-per-min", "60", "--weight", "3", **shell)
    assert done.code == frame.OK
    assert done.data[0] == {
        "scope": "tenant", "of": world.tenant, "weight": 3, "max_concurrency": 5, "max_concurrent_runs": None, "max_runs_per_min": 60,
        "max_writes_per_run": None,
    }  # fmt: skip
    inner = cli(*words, "--workspace", "main", "--max-concurrency", "2", **shell)
    assert [(row["scope"], row["max_concurrency"]) for row in inner.data[:2]] == [("tenant", 5), ("workspace", 2)]
    gone = cli(*words, "--max-concurrency", "none", **shell)
    assert gone.data[0]["max_concurrency"] is None
    assert gone.data[0]["max_runs_per_min"] == 60


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--max-concurrency", "0"), "max_concurrency: is 1 to 1000000, not 0"),
        (("--max-runs-per-min", "-3"), "max_runs_per_min: is 1 to 1000000, not -3"),
        (("--max-writes-per-run", "lots"), "max_writes_per_run: is a whole number or `none`"),
        (("--weight", "0"), "weight: is a whole number from 1 to 1000"),
        (("--weight", "none"), "weight: is a whole number"),
        (("--workspace", "nowhere", "--max-concurrency", "1"), "workspace: workspace nowhere is unknown"),
    ],
)
def test_what_is_no_cap_is_refused_by_name(world: World, cli: Cli, words: tuple[str, ...], said: str) -> None:
    done = cli("tenant", "caps", "--tenant", world.tenant, *words, **operator(world))
    assert done.code != frame.OK
    assert said in done.err


def test_a_run_that_waits_for_a_place_says_for_which(world: World, cli: Cli) -> None:
    """In `run show`, as JSON and for people; it begins by itself once there is one."""
    shell = operator(world)
    cli("tenant", "caps", "--tenant", world.tenant, "--max-concurrent-runs", "1", **shell)
    first, second = world.start(ref="1"), world.start(ref="2")
    world.drain()
    shown = cli("run", "show", second, "--tenant", world.tenant, "-o", "json", **shell)
    assert shown.data["state"] == "queued"
    assert shown.data["waits_for"] == f"a free place: max_concurrent_runs 1 of tenant {world.tenant}"
    assert "a free place: max_concurrent_runs 1" in cli("run", "show", second, "--tenant", world.tenant, **shell).out
    world.parts.cancel.cancel(world.tenant, world.actor("rita"), first, "")
    world.drain()
    after = cli("run", "show", second, "--tenant", world.tenant, "-o", "json", **shell)
    assert (after.data["state"], after.data["waits_for"]) == ("waiting_approval", "")
