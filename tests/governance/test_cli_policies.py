"""`twokeys policy`: from a new draft to what it would have changed, as an administrator types it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from governance.policy.bundle import shipped_directory
from governance.policy.house import BUILTINS
from governance.policy.tenant_data import TENANT_SCHEMA
from tests.governance.policy.kit import opa_binary
from tests.governance.test_cli import Cli, cli, shell
from tests.governance.test_cli_journal import finished
from tests.kit.world import World, parts, slack_sink, world

__all__ = ["cli", "parts", "slack_sink", "world"]

BLOCK = """
deny contains {"code": "no_closing", "message": "incidents are closed by hand for now"} if {
	input.action.operation == "close"
}
"""


def change(directory: Path, **data: Any) -> None:
    file = directory / "tenant.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **data}), encoding="utf-8")


def add(directory: Path, text: str, path: str = "twokeys/overlay.rego") -> None:
    with (directory / path).open("a", encoding="utf-8") as file:
        file.write(text)


@pytest.fixture
def draft(world: World, cli: Cli, tmp_path: Path) -> Path:
    """A draft of this world's tenant."""
    directory = tmp_path / "draft"
    done = cli("policy", "new", "limits", "--to", str(directory), "-o", "json", **shell(world, "rita"))
    assert done.code == 0, done.err
    assert done.data["draft"] == "limits"
    return directory


def test_the_shipped_policies_are_checked_and_tested_without_settings(cli: Cli) -> None:
    """What an administrator reads first passes what it teaches."""
    assert cli("policy", "check", str(shipped_directory())).code == 0
    done = cli("policy", "test", str(shipped_directory()))
    assert (done.code, done.out) == (0, ""), done.out + done.err
    assert "0 failed" in done.err


def test_the_library_and_opa_test_say_the_same(cli: Cli) -> None:
    """Each test on both."""
    done = cli("policy", "test", str(shipped_directory()), "--opa", str(opa_binary()))
    assert done.code == 0, done.out + done.err


def test_a_new_draft_says_what_is_in_force(world: World, cli: Cli, draft: Path) -> None:
    """It is checked, tested, and differs in nothing."""
    assert cli("policy", "check", str(draft)).code == 0
    assert cli("policy", "test", str(draft)).code == 0
    done = cli("policy", "diff", str(draft), **shell(world, "rita"))
    assert (done.code, done.out) == (0, ""), done.out
    assert "nothing changes" in done.err
    (row,) = cli("policy", "list", "-o", "json", **shell(world, "rita")).data
    assert (row["draft"], row["state"], row["edit"], row["authors"]) == ("limits", "open", 1, [world.who["rita"]])


def test_faults_are_shown_with_their_line_and_a_mark(world: World, cli: Cli, draft: Path) -> None:
    """All at once, rules and data, and nothing else happens."""
    add(draft, '\ndeny contains {"code": "x", "message": "y"} if input.acton.kind == "read"\n')
    change(draft, caps={"max_writes_per_run": -1, "max_amount_minor": 0}, conectors=[])
    done = cli("policy", "check", str(draft))
    assert done.code == 1
    line = (draft / "twokeys" / "overlay.rego").read_text().rstrip().count("\n") + 1
    assert f"twokeys/overlay.rego:{line}:48: input has no field 'acton'" in done.out
    assert "\n  | " + " " * 47 + "^\n" in done.out
    assert "did you mean 'action'" in done.out
    caps = (draft / "tenant.json").read_text().index('"max_writes_per_run"')
    assert done.out.startswith("tenant.json:1:")
    assert f"tenant.json:1:{caps + 1}: caps.max_writes_per_run" in done.out
    assert "caps.max_writes_per_run is a whole number" in done.out
    assert "did you mean 'connectors'" in done.out
    assert cli("policy", "replay", str(draft), **shell(world, "rita")).code == 1
    (row,) = cli("policy", "list", "-o", "json", **shell(world, "rita")).data
    assert row["edit"] == 1


def test_what_is_no_draft_is_a_sentence(cli: Cli, draft: Path, tmp_path: Path) -> None:
    """No directory, no data, half a file, five megabytes, a note of something else."""
    assert cli("policy", "check", str(tmp_path / "nothing")).code == 2
    good = (draft / "tenant.json").read_text()
    for text, says in (
        ("{", "tenant.json"),
        ("[]", "is an object"),
        ('{"enabled": true, "enabled": false}', "stands twice"),
    ):
        (draft / "tenant.json").write_text(text)
        done = cli("policy", "check", str(draft))
        assert (done.code, says in done.out) == (1, True), done.out
    (draft / "tenant.json").write_text("{}")
    assert ".approver_groups is missing" not in cli("policy", "check", str(draft)).out
    assert "approver_groups is missing" in cli("policy", "check", str(draft)).out
    tiers = {tier: ["ops"] for tier in ("low", "med", "high")}
    (draft / "tenant.json").write_text(json.dumps({**json.loads(good), "approver_groups": tiers}))
    assert "rules name the group 'oncall'" in cli("policy", "check", str(draft)).out
    (draft / "tenant.json").write_text(good)
    (draft / "twokeys" / "base.rego").write_bytes(b"\xff")
    assert "is not UTF-8" in cli("policy", "check", str(draft)).out
    (draft / "twokeys" / "base.rego").write_text("# x\n" * 1_300_000)
    assert "5200000 bytes" in cli("policy", "check", str(draft)).out
    (draft / "twokeys" / "base.rego").unlink()
    done = cli("policy", "check", str(draft))
    assert "twokeys/base.rego:1:1: this file is missing" in done.out
    (draft / "draft.json").write_text("[]")
    assert cli("policy", "check", str(draft)).code == 2


def test_a_test_that_fails_is_gone_or_reaches_nothing_is_named(cli: Cli, draft: Path) -> None:
    """Failing, forgotten, too little covered: each ends in 1 and says which."""
    add(draft, BLOCK)
    add(
        draft,
        '\ntest_closing_is_denied if denied({"action": {"operation": "close"}}) == {"no_closing"}\n',
        "tests/overlay_test.rego",
    )
    done = cli("policy", "test", str(draft))
    assert done.code == 1
    assert "table: demo: closing needs two keys: effect is deny, expected needs_approval" in done.out
    assert "test_closing_is_denied" not in done.out
    tests = (draft / "tests" / "guard_test.rego").read_text()
    (draft / "tests" / "guard_test.rego").write_text(tests.replace("test_the_kill_switch_stops_everything", "check_it"))
    done = cli("policy", "test", str(draft))
    assert "twokeys.guard_test.test_the_kill_switch_stops_everything: is gone" in done.out
    for file in ("guard_test", "main_test"):
        (draft / "tests" / f"{file}.rego").unlink()
    done = cli("policy", "test", str(draft))
    assert "twokeys/guard.rego: no test reaches lines" in done.out


def test_what_only_tightens_is_told_from_what_may_loosen(world: World, cli: Cli, draft: Path) -> None:
    """The number of people that publishing will take."""
    add(draft, BLOCK)
    change(draft, caps={"max_writes_per_run": 3, "max_amount_minor": 0})
    done = cli("policy", "diff", str(draft), **shell(world, "rita"))
    assert "+deny contains" in done.out
    assert '-    "max_writes_per_run": 50' in done.out
    assert "MAY LOOSEN" not in done.out
    assert "one person" in done.err
    change(draft, caps={"max_writes_per_run": 60, "max_amount_minor": 0})
    done = cli("policy", "diff", str(draft), **shell(world, "rita"))
    assert "MAY LOOSEN data.caps: max_writes_per_run: 50 -> 60" in done.out
    assert "two people" in done.err


def test_a_replay_shows_what_people_had_decided(world: World, cli: Cli, draft: Path) -> None:
    """The matrix, the flips, keys; the edit is stored with its author, and the same content is no further edit."""
    run = finished(world)
    add(draft, BLOCK)
    done = cli("policy", "replay", str(draft), "-o", "json", **shell(world, "rita"))
    assert done.code == 0, done.err
    recorded = world.rows("select effect, purpose from verdict where tenant = :tenant")
    assert sum(done.data["matrix"].values()) == len(recorded)
    assert done.data["weighed"]["looser"] == 0
    denied = [flip for flip in done.data["flips"] if flip["new_codes"] == ["no_closing"]]
    assert {(flip["run"], flip["old"], flip["new"]) for flip in denied} == {(run, "needs_approval", "deny")}
    assert "approved" in {flip["decided"] for flip in denied}
    assert (done.data["keys"], done.data["people"]) == (-2, 1)
    assert cli("policy", "replay", str(draft), **shell(world, "rita")).code == 0
    (row,) = cli("policy", "list", "-o", "json", **shell(world, "rita")).data
    assert row["edit"] == 2
    table = cli("policy", "replay", str(draft), **shell(world, "rita"))
    assert "keys -2" in table.out
    assert "would" not in table.out  # nothing became looser
    types = [row["type"] for row in world.rows(
        "select convert_from(body, 'UTF8')::json ->> 'type' as type from entry_pending where tenant = :tenant and chain = 'policy/limits'"
    )]  # fmt: skip
    assert types == ["policy.drafted", "policy.drafted"]


def test_a_replay_says_what_would_be_allowed_that_people_rejected(world: World, cli: Cli, draft: Path) -> None:
    """The first thing that somebody who agrees to a looser policy has to see."""
    run = world.start()
    world.until(run, "waiting_approval")
    assert world.press(world.waiting(run), "ana", kind="reject", reason="not tonight").ok
    base = draft / "twokeys" / "base.rego"
    text = base.read_text()
    base.write_text(text.replace('input.action.risk_tier == "med"', 'input.action.target.id == "nothing"'))
    assert text != base.read_text()
    done = cli("policy", "replay", str(draft), **shell(world, "rita"))
    assert "would allow 1 that were rejected" in done.out
    assert f"looser: run {run}" in done.out
    assert "keys -1" in done.out
    assert "two people" in done.err
    diff = cli("policy", "diff", str(draft), **shell(world, "rita"))
    assert "MAY LOOSEN twokeys/base.rego: a rule of `hold` is changed or gone" in diff.out


def test_explain_names_the_rule_behind_each_reason(world: World, cli: Cli, draft: Path) -> None:
    """Code, sentence, file and line; and what the draft would say."""
    run = finished(world)
    add(draft, BLOCK)
    done = cli("policy", "explain", run, "--draft", str(draft), "-o", "json", **shell(world, "aud"))
    assert done.code == 0, done.err
    high = [row for row in done.data if row["code"] == "tier_high"]
    assert high[0]["rule"].startswith("twokeys/base.rego:")
    assert any(row["draft"].startswith("deny: no_closing") for row in done.data)


def test_who_may_not_write_policies_is_told_so(world: World, cli: Cli, tmp_path: Path) -> None:
    """Level 5, and never an auditor."""
    for name in ("ana", "aud"):
        done = cli("policy", "new", "mine", "--to", str(tmp_path / name), **shell(world, name))
        assert done.code == 1
        assert not (tmp_path / name).exists()
    assert cli("policy", "new", "Bad Name", "--to", str(tmp_path / "x"), **shell(world, "rita")).code == 2


def test_a_draft_is_withdrawn_once(world: World, cli: Cli, draft: Path) -> None:
    """Afterwards nobody edits it."""
    assert cli("policy", "withdraw", "limits", **shell(world, "rita")).code == 0
    add(draft, BLOCK)
    done = cli("policy", "replay", str(draft), **shell(world, "rita"))
    assert done.code == 2
    assert "is withdrawn" in done.err
    assert cli("policy", "withdraw", "limits", **shell(world, "rita")).code == 2


GUIDE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")


def block(language: str, n: int) -> str:
    """The nth block of this language in the guide."""
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL)[n]


def test_the_guide_leads_from_a_limit_to_its_impact(
    world: World, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/policies.md as somebody types it who never wrote Rego: its commands, its JSON, its rule, what it says comes out."""
    monkeypatch.chdir(tmp_path)
    finished(world)
    commands = re.findall(r"^twokeys (policy (?:new|check|test|diff|replay) \S+)$", GUIDE, flags=re.MULTILINE)
    assert [command.split()[1] for command in commands] == ["new", "check", "test", "diff", "replay"]
    assert cli(*commands[0].split(), **shell(world, "rita")).code == 0
    draft = tmp_path / "more-writes"
    change(draft, **json.loads("{" + block("json", 0).strip().rstrip(",") + "}"))
    table = json.loads((draft / "tests" / "table.json").read_text())
    table["cases"] += json.loads("[" + block("json", 1).replace("demo", world.tenant).strip().rstrip(",") + "]")
    (draft / "tests" / "table.json").write_text(json.dumps(table))
    for command in commands[1:3]:
        done = cli(*command.split())
        assert done.code == 0, done.out + done.err
    difference = cli(*commands[3].split(), **shell(world, "rita"))
    assert "MAY LOOSEN data.caps: max_writes_per_run: 50 -> 80" in difference.out
    assert "two people besides the authors" in difference.err
    replayed = cli(*commands[4].split(), **shell(world, "rita"))
    assert "looser 0" in replayed.out
    add(draft, "\n" + block("rego", 0))
    assert cli("policy", "check", "more-writes").code == 0
    assert "no test reaches" in cli("policy", "test", "more-writes").out


def test_the_guide_names_every_part_of_the_data() -> None:
    """And every function that rules may call."""
    for name in TENANT_SCHEMA["properties"]:
        assert f"`{name}" in GUIDE, name
    for name in sorted(BUILTINS):
        if (
            name.islower()
            and "internal" not in name
            and name not in ("eq", "assign", "equal", "neq", "lt", "lte", "gt", "gte")
        ):
            assert f"`{name}`" in GUIDE or name.startswith("is_"), name
