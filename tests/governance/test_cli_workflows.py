"""Workflows and schedules from the shell: drawn, compared, rehearsed, given a life, and started by the clock."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from governance.cli import frame
from tests.governance.test_cli import Cli, cli, shell
from tests.kit.world import World, parts, slack_sink, world

__all__ = ["cli", "parts", "slack_sink", "world"]

REFUND = Path(__file__).parents[2] / "docs" / "examples" / "refund.yaml"
FLOW = """
name: nightly
version: "{version}"
trigger: {{kind: scheduled}}
effects: []
steps: [{{id: hold, kind: wait, seconds: {seconds}}}]
"""


def test_a_definition_is_drawn_compared_and_rehearsed_without_settings(cli: Cli, tmp_path: Path) -> None:
    assert ElementTree.fromstring(cli("workflow", "graph", str(REFUND)).out).tag.endswith("svg")
    other = tmp_path / "other.yaml"
    other.write_text(REFUND.read_text(encoding="utf-8").replace("500000", "400000"))
    assert cli("workflow", "diff", str(REFUND), str(REFUND)).code == frame.OK
    differs = cli("workflow", "diff", str(REFUND), str(other), "-o", "json")
    assert differs.code == frame.FAILED
    assert [row["place"] for row in differs.data] == ["steps[too-much].when"]
    given = '{"sys_id": "%s", "customer": "Kim", "cents": 20000, "reason": "broken"}' % ("a" * 32)
    rows = cli("workflow", "dry-run", str(REFUND), "--input", given, "-o", "json").data
    assert rows[0]["verdict"].startswith("needs_approval (1 key(s) of oncall)")
    unknown = cli("workflow", "dry-run", str(REFUND), "--input", given, "--answer", "tel={}")
    assert "did you mean 'tell'?" in unknown.err


def test_a_version_and_its_schedule_live_from_the_shell(cli: Cli, world: World, tmp_path: Path) -> None:
    file, rita = tmp_path / "nightly.yaml", shell(world, "rita")
    file.write_text(FLOW.format(version="1", seconds=1))
    assert cli("workflow", "apply", str(file), "--draft", "-o", "json", **rita).data["state"] == "draft"
    early = cli("schedule", "add", "nightly", "--cron", "30 2 * * *", **rita)
    assert (early.code, "has no active version" in early.err) == (frame.FAILED, True)
    assert cli("workflow", "activate", "nightly", "1", **rita).code == frame.OK
    done = cli("schedule", "add", "nightly", "--cron", "30 2 * * *", "--zone", "Europe/Berlin", "-o", "json", **rita)
    assert len(done.data["next"]) == 10
    shown = cli("schedule", "show", done.data["schedule"], "-o", "json", **rita).data
    assert (shown["zone"], shown["next"]) == ("Europe/Berlin", done.data["next"])
    wrong = cli("schedule", "add", "nightly", "--cron", "99 2 * * *", **rita)
    assert "cron" in wrong.err
    assert cli("workflow", "pause", "nightly", "1", **rita).code == frame.OK
    assert len(cli("schedule", "list", "-o", "json", **rita).data) == 1
    assert cli("workflow", "archive", "nightly", "1", **rita).code == frame.OK
    assert cli("schedule", "list", "-o", "json", **rita).data == []
    (version,) = cli("workflow", "versions", "nightly", "-o", "json", **rita).data
    assert version["state"] == "archived"
    assert cli("workflow", "activate", "nightly", "1", **rita).code == frame.FAILED
