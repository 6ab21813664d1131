"""The command line: what goes to stdout and what to stderr, exit codes, who may order what, and errors that say what to do."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from governance import log, settings
from governance.cli import frame, twokeys
from governance.local import children, postgres
from tests.flow.test_tasks import begin, result
from tests.kit.wait import until
from tests.kit.world import INPUT, World, parts, sealing_parts, sealing_world, slack_sink, world

__all__ = ["parts", "sealing_parts", "sealing_world", "slack_sink", "world"]

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "docs" / "examples" / "incident-triage.yaml"
BROKEN = """name: broken
version: "1"
trigger: {kind: manual}
connectors: [servicenow]
effects: [servicenow.explode]
steps:
  - {id: one, kind: action, connector: servicenow, operation: explode, target: x}
  - {id: one, kind: dance}
"""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Done]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Type a command in this process; named values are variables of the shell."""
    monkeypatch.setattr(log, "configure", lambda *_: None)

    def run(*words: str, **variables: str) -> Done:
        with monkeypatch.context() as shell:
            for name, value in variables.items():
                shell.setenv(name, value)
            capsys.readouterr()
            code = frame.run(twokeys, words)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Done(code, said.out, said.err)

    return run


def operator(made: World) -> dict[str, str]:
    """The shell of somebody who runs this world's installation."""
    values = {name: value for name, value in made.parts.settings.model_dump().items() if value != ""}
    return settings.exported(values)


def shell(made: World, name: str) -> dict[str, str]:
    """The same with somebody's token in it."""
    return {**operator(made), "TWOKEYS_TOKEN": made.token(name)}


# --- shape ------------------------------------------------------------------------------------------------------------


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    """The fast path stays fast: a person who asks for help does not wait for a database driver."""
    code = (
        "import sys\nfrom governance.cli import frame, twokeys\nassert frame.run(twokeys, ['--help']) == 0\n"
        "heavy = {'sqlalchemy', 'pydantic', 'rich', 'boto3', 'slack_bolt', 'uvicorn', 'structlog', 'yaml', 'jinja2'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for command in (
        "approval", "demo", "evidence", "group", "journal", "migrate", "person", "run", "serve", "task", "tenant", "worker",
        "workflow",
    ):  # fmt: skip
        assert re.search(rf"^  {command} ", done.stdout, flags=re.MULTILINE), command


def test_wrong_usage_is_two_and_says_where_help_is(cli: Cli) -> None:
    """Exit 2: whoever typed it must act."""
    for words in (["nonsense"], ["run"], ["run", "show"], ["run", "list", "-o", "xml"]):
        done = cli(*words)
        assert done.code == frame.USAGE, words
        assert "--help" in done.err or "Usage" in done.err


def test_a_fault_of_ours_is_a_sentence(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a traceback, and never exit 1, which would mean that a check failed."""
    monkeypatch.setattr(frame, "open_parts", lambda *_: 1 / 0)
    done = cli("run", "list", "--tenant", "acme")
    assert done.code == frame.UNAVAILABLE
    assert "ZeroDivisionError" in done.err
    assert "next:" in done.err


# --- settings ---------------------------------------------------------------------------------------------------------


def test_missing_settings_are_all_named(cli: Cli) -> None:
    """Exit 3, each variable by its full name, no secret and no value in the message."""
    done = cli("run", "list", "--tenant", "acme", TWOKEYS_MASTER_KEY="not-hex-but-secret")
    assert done.code == frame.UNAVAILABLE
    for name in ("TWOKEYS_DATABASE_URL", "TWOKEYS_S3_BUCKET", "TWOKEYS_MASTER_KEY", "TWOKEYS_SLACK_SIGNING_SECRET"):
        assert name in done.err
    assert "not-hex-but-secret" not in done.err


@pytest.mark.parametrize("command", [["serve"], ["worker"], ["migrate"], ["tenant", "add", "acme"]])
def test_unknown_and_empty_settings_stop_every_process(cli: Cli, command: list[str]) -> None:
    """A misspelt variable would be silently ignored; an empty secret would be an open door."""
    misspelt = cli(*command, TWOKEYS_DATABSE_URL="postgresql://x")
    assert misspelt.code == frame.UNAVAILABLE
    assert "TWOKEYS_DATABSE_URL" in misspelt.err
    assert "did you mean TWOKEYS_DATABASE_URL?" in misspelt.err
    empty = cli(*command, TWOKEYS_SLACK_SIGNING_SECRET="")
    assert empty.code == frame.UNAVAILABLE
    assert "TWOKEYS_SLACK_SIGNING_SECRET: is empty" in empty.err


def test_a_config_file_is_read_and_its_faults_are_named(cli: Cli, tmp_path: Path) -> None:
    """TOML for what does not change, and the same strictness in it."""
    file = tmp_path / "twokeys.toml"
    file.write_text('deployment = "acme"\nnonsense = 1\n')
    done = cli("serve", TWOKEYS_CONFIG=str(file))
    assert done.code == frame.UNAVAILABLE
    assert "nonsense in" in done.err


def test_a_database_that_does_not_answer_is_three(cli: Cli, world: World) -> None:
    """The reason and the next step, not a driver's stack."""
    nowhere = {**operator(world), "TWOKEYS_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing"}
    done = cli("run", "list", "--tenant", world.tenant, **nowhere)
    assert done.code == frame.UNAVAILABLE
    assert "the database does not answer" in done.err


# --- workflows --------------------------------------------------------------------------------------------------------


def test_the_sample_is_valid_without_any_setting(cli: Cli) -> None:
    """An author needs nothing but the file."""
    done = cli("workflow", "validate", str(SAMPLE))
    assert (done.code, done.err) == (0, "")
    assert "incident-triage 1, 7 steps" in done.out


def test_every_fault_of_a_workflow_is_shown_at_once_with_its_place(cli: Cli, tmp_path: Path) -> None:
    """file:line:column: the sentence; exit 1, because a check failed."""
    file = tmp_path / "broken.yaml"
    file.write_text(BROKEN)
    done = cli("workflow", "validate", str(SAMPLE), str(file))
    assert done.code == frame.FAILED
    found = [line for line in done.out.splitlines() if line.startswith(f"{file}:")]
    assert len(found) >= 3
    assert all(re.match(rf"{re.escape(str(file))}:\d+:\d+: ", line) for line in found)
    rows = cli("workflow", "validate", str(file), "-o", "json").data
    assert len(rows) == len(found)
    assert {"file", "line", "column", "valid", "message"} == set(rows[0])


def test_a_file_that_is_not_there_is_named(cli: Cli) -> None:
    """Exit 3: the file is at fault, not the arguments' shape."""
    done = cli("workflow", "validate", "nowhere.yaml")
    assert done.code == frame.UNAVAILABLE
    assert "nowhere.yaml" in done.err


def test_publishing_takes_an_author_and_a_valid_file(cli: Cli, world: World, tmp_path: Path) -> None:
    """Level 5, at the one choke point; an invalid file changes nothing."""
    low = cli("workflow", "apply", str(SAMPLE), **shell(world, "ana"))
    assert low.code == frame.FAILED
    assert "this takes level 5 (author); yours is 4" in low.err
    file = tmp_path / "broken.yaml"
    file.write_text(BROKEN)
    broken = cli("workflow", "apply", str(file), **shell(world, "rita"))
    assert broken.code == frame.FAILED
    assert f"{file}:" in broken.err
    again = cli("workflow", "apply", str(SAMPLE), "-o", "json", **shell(world, "rita"))
    assert again.data["state"] == "active"
    listed = cli("workflow", "list", "-o", "json", **shell(world, "aud"))
    assert [row["name"] for row in listed.data] == ["incident-triage"]


PYTHON = """from twokeys import workflow
from words import greeting


@workflow
async def ask_first(ctx, input):
    word = await ctx.wait_signal("word")
    return f"{greeting()} {word}"
"""


def test_a_workflow_in_python_from_the_shell(cli: Cli, world: World, tmp_path: Path) -> None:
    """Validate, publish with its module, start, see what it waits for, send the signal, see it end."""
    file, module = tmp_path / "ask.py", tmp_path / "words.py"
    file.write_text(PYTHON)
    module.write_text("def greeting():\n    return 'hello'\n")
    bad = tmp_path / "bad.py"
    bad.write_text(PYTHON.replace("from words import greeting", "import time"))
    broken = cli("workflow", "validate", str(bad))
    assert broken.code == frame.FAILED
    assert "bad.py:2:1: import of time" in broken.out
    unknown = cli("workflow", "apply", str(file), **shell(world, "rita"))
    assert unknown.code == frame.FAILED
    assert "ask.py:2:1" in unknown.err
    done = cli("workflow", "apply", str(file), "--module", str(module), "-o", "json", **shell(world, "rita"))
    assert (done.code, done.data["name"], done.data["state"]) == (0, "ask-first", "active"), done.err
    again = cli("workflow", "apply", str(file), "--module", str(module), "-o", "json", **shell(world, "rita"))
    assert again.data == done.data
    kinds = {row["name"]: row["kind"] for row in cli("workflow", "list", "-o", "json", **shell(world, "aud")).data}
    assert kinds == {"ask-first": "function", "incident-triage": "definition"}
    run = cli("run", "start", "ask-first", "-o", "json", **shell(world, "ana")).data["run"]
    world.drain()
    shown = cli("run", "show", run, "-o", "json", **shell(world, "aud")).data
    assert (shown["waits_for"], shown["error"]) == ("signal word", "")
    for words, code in ((("task:1", "--value", "1"), frame.FAILED), (("word", "--value", "{"), frame.FAILED)):
        assert cli("run", "signal", run, *words, **shell(world, "ana")).code in (code, frame.USAGE)
    assert cli("journal", "replay", run, **shell(world, "aud")).code == 0
    sent = cli("run", "signal", run, "word", "--value", '"you"', "-o", "json", **shell(world, "ana"))
    assert sent.data == {"run": run, "signal": "word", "delivery": 1}
    world.until(run, "succeeded")
    shown = cli("run", "show", run, "-o", "json", **shell(world, "aud")).data
    assert (shown["state"], shown["waits_for"]) == ("succeeded", "")
    assert cli("journal", "replay", run, "-o", "json", **shell(world, "aud")).data["same"] is True


def test_a_family_from_the_shell(cli: Cli, world: World, tmp_path: Path) -> None:
    """`run show` names child and parent, each by the other's page."""
    for name, line in (
        ("above", 'return await ctx.child("below", {})'),
        ("below", 'return await ctx.wait_signal("w")'),
    ):
        file = tmp_path / f"{name}.py"
        file.write_text(f"from twokeys import workflow\n\n\n@workflow\nasync def {name}(ctx, input):\n    {line}\n")
        assert cli("workflow", "apply", str(file), **shell(world, "rita")).code == 0
    run = cli("run", "start", "above", "-o", "json", **shell(world, "ana")).data["run"]
    world.drain()
    shown = cli("run", "show", run, "-o", "json", **shell(world, "aud")).data
    (step,) = shown["steps"]
    assert (shown["parent"], step["tool"]) == ("", "workflow:below")
    below = cli("run", "show", step["child"], "-o", "json", **shell(world, "aud")).data
    assert (below["parent"], below["waits_for"]) == (run, "signal w")
    assert f"{run} operation 0" in cli("run", "show", step["child"], **shell(world, "aud")).out.replace("\n", " ")


def test_a_run_is_moved_to_other_code_from_the_shell(cli: Cli, world: World, tmp_path: Path) -> None:
    """Both events side by side when the journal says otherwise, with exit code 1; the new code's digest when it is the same."""
    text = (
        "from twokeys import workflow\n\n\n@workflow\nasync def ask(ctx, input):\n"
        "    found = await ctx.uuid()\n    return [found, await ctx.wait_signal('word')]\n"
    )
    file, other, same = tmp_path / "ask.py", tmp_path / "other.py", tmp_path / "same.py"
    file.write_text(text)
    other.write_text(text.replace("ctx.uuid()", "ctx.now()"))
    same.write_text(text + "# said better\n")
    assert cli("workflow", "apply", str(file), **shell(world, "rita")).code == 0
    run = cli("run", "start", "ask", "-o", "json", **shell(world, "ana")).data["run"]
    world.drain()
    refused = cli("run", "migrate", run, "--to", str(other), "-o", "json", **shell(world, "rita"))
    assert refused.code == frame.FAILED
    assert (refused.data["event"], refused.data["migrated"]) == (1, False)
    assert '"do": "Random"' in refused.data["journal"]
    assert '"do": "Now"' in refused.data["code"]
    assert cli("run", "migrate", run, "--to", str(same), **shell(world, "ana")).code == frame.FAILED
    assert cli("run", "migrate", run, "--module", str(same), **shell(world, "rita")).code == frame.USAGE
    assert cli("run", "migrate", run, **shell(world, "rita")).code == frame.FAILED, "it is on the active version"
    done = cli("run", "migrate", run, "--to", str(same), "-o", "json", **shell(world, "rita"))
    assert (done.code, done.data["migrated"]) == (0, True), done.err
    shown = cli("run", "show", run, "-o", "json", **shell(world, "aud")).data
    assert (shown["version"], shown["code_sha256"]) == (done.data["version"], done.data["digest"])
    assert shown["definition_sha256"] != shown["code_sha256"]
    assert cli("journal", "replay", run, **shell(world, "aud")).code == 0
    nothing = cli("run", "retry", run, **shell(world, "ana"))
    assert (nothing.code, "nothing of this run is parked" in nothing.err) == (frame.FAILED, True)


# --- actions ----------------------------------------------------------------------------------------------------------


def test_an_action_is_proposed_and_followed_at_the_shell(world: World, cli: Cli, tmp_path: Path) -> None:
    text = tmp_path / "note.txt"
    text.write_text("from a file")
    words = ("action", "propose", "servicenow.update", "--target", INPUT["sys_id"], "--key", "shell-1", "-o", "json")
    done = cli(*words, "--field", f"work_notes=@{text}", **shell(world, "olga"))
    assert (done.code, done.data["state"]) == (frame.OK, "queued"), done.err
    world.drain()
    shown = cli("action", "show", done.data["action"], "--wait", "5", "-o", "json", **shell(world, "aud"))
    assert (shown.code, shown.data["state"], shown.data["result"]["number"]) == (frame.OK, "done", "INC0010001")
    assert world.writes("work_notes") == ["from a file"]
    again = cli(*words, "--field", "work_notes=else", **shell(world, "olga"))
    assert (again.code, "another action was proposed under this key" in again.err) == (frame.FAILED, True)
    for wrong in (
        ("--field", "work_notes"),
        ("--field", "nope=x"),
        ("--risk", "none"),
        ("--field", f"work_notes=@{tmp_path}/no"),
    ):
        assert cli(*words[:-4], "--key", "shell-2", *wrong, **shell(world, "olga")).code in (
            frame.USAGE,
            frame.UNAVAILABLE,
        ), wrong
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update tenant set kill_switch = true where tenant = :tenant")
    denied = cli(*words[:-3], "shell-3", "-o", "json", "--field", "work_notes=x", **shell(world, "olga"))
    world.drain()
    denied = cli("action", "show", denied.data["action"], "-o", "json", **shell(world, "olga"))
    assert (denied.code, denied.data["state"]) == (frame.FAILED, "denied")


def test_an_owner_says_who_answers_for_a_service(world: World, cli: Cli) -> None:
    robot, bo = world.who["robot"], world.who["bo"]
    assert cli("person", "own", robot, "--by", bo, **shell(world, "ana")).code == frame.FAILED
    assert cli("person", "own", robot, "--by", bo, **shell(world, "rita")).code == frame.OK
    words = ("action", "propose", "servicenow.lookup", "--target", INPUT["sys_id"], "--key", "robot-1")
    assert cli(*words, **shell(world, "robot")).code == frame.OK


# --- tasks ------------------------------------------------------------------------------------------------------------


def test_a_task_is_listed_and_answered_at_the_shell(world: World, cli: Cli) -> None:
    run = begin(world)
    [row] = cli("task", "list", "-o", "json", **shell(world, "ana")).data
    assert (row["run"], row["title"], row["groups"]) == (run, "What happened to INC0010001?", ["oncall"])
    assert row["fields"] == ["cause (text)", "count (integer)", "again (yes_no)"]
    assert cli("task", "list", "-o", "json", **shell(world, "bo")).data == []
    wrong = cli("task", "answer", row["task"], "-f", "cause=x", "-f", "count=many", "-o", "json", **shell(world, "ana"))
    assert (wrong.code, sorted(wrong.data["errors"])) == (frame.FAILED, ["again", "count"])
    told = cli("task", "answer", row["task"], "-f", "cause=x", **shell(world, "ana"))
    assert (told.code, "again: This is needed." in told.err) == (frame.FAILED, True)
    given = ("-f", "cause=a=b", "-f", "again=yes")
    assert cli("task", "answer", row["task"], *given, **shell(world, "bo")).code == frame.FAILED
    stale = cli("task", "answer", row["task"], *given, "--digest", "0" * 16, **shell(world, "ana"))
    assert (stale.code, "not the form that is asked now" in stale.out) == (frame.FAILED, True)
    assert cli("task", "answer", row["task"], "-f", "cause", **shell(world, "ana")).code == frame.USAGE
    done = cli("task", "answer", row["task"], *given, "--digest", row["digest16"], **shell(world, "ana"))
    assert (done.code, done.out) == (frame.OK, "Your answer is recorded. The run goes on.\n")
    world.until(run, "succeeded")
    assert result(world, run).value == {"said": {"cause": "a=b", "count": None, "again": True}}
    assert cli("task", "answer", "ta_0000000000000000", *given, **shell(world, "ana")).code == frame.USAGE


def test_a_form_is_asked_field_by_field_at_the_terminal(
    world: World, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin(world)
    monkeypatch.setattr(sys, "stdin", io.StringIO("a disk\n\nno\n"))
    done = cli("task", "answer", world.task(run).task, **shell(world, "ana"))
    assert done.code == frame.OK, done.err
    assert "Cause (text)" in done.err
    world.until(run, "succeeded")
    assert result(world, run).value["said"] == {"cause": "a disk", "count": None, "again": False}


# --- runs and approvals -----------------------------------------------------------------------------------------------


def start(cli: Cli, made: World, ref: str = "") -> str:
    done = cli(
        "run",
        "start",
        "incident-triage",
        "--input",
        json.dumps(INPUT),
        "--ref",
        ref,
        "-o",
        "json",
        **shell(made, "rita"),
    )
    assert done.code == 0, done.err
    return str(done.data["run"])


def test_a_run_is_governed_from_the_shell(cli: Cli, world: World, tmp_path: Path) -> None:
    """Start, look, be refused as the requester, give keys as others, twice by one person refused, to the end."""
    run = start(cli, world, "shell-1")
    assert start(cli, world, "shell-1") == run
    world.until(run, "waiting_approval")
    [asked] = cli("approval", "list", "-o", "json", **shell(world, "aud")).data
    assert (asked["run"], asked["keys"], asked["tier"]) == (run, "0 of 1", "med")

    def decide(name: str, *more: str) -> Done:
        [row] = cli("approval", "list", "-o", "json", **shell(world, name)).data
        return cli(
            "approval",
            "decide",
            row["approval"],
            "approve",
            "--digest",
            row["digest16"],
            "--yes",
            *more,
            **shell(world, name),
        )

    own = decide("rita")
    assert own.code == frame.FAILED
    assert "You asked for this" in own.out
    stale = cli(
        "approval", "decide", asked["approval"], "approve", "--digest", "0" * 16, "--yes", **shell(world, "ana")
    )
    assert (stale.code, "changed after it was shown" in stale.out) == (frame.FAILED, True)
    assert decide("ana").code == 0
    world.until(run, "waiting_approval")
    assert "1 of 2" in decide("bo").out
    twice = decide("bo", "-o", "json")
    assert (twice.code, twice.data["code"]) == (frame.FAILED, "same_person")
    assert decide("cleo").code == 0
    world.until(run, "succeeded")

    [listed] = cli("run", "list", "--state", "succeeded", "-o", "jsonl", **shell(world, "aud")).out.splitlines()
    assert json.loads(listed)["run"] == run
    shown = cli("run", "show", run, "-o", "json", **shell(world, "aud")).data
    assert [step["state"] for step in shown["steps"]] == ["succeeded"] * 5
    events = cli("journal", "show", run, "-o", "json", **shell(world, "aud")).data
    assert events[0]["event"]["type"] == "ExecutionStarted"
    assert events[-1]["event"]["type"] == "ExecutionCompleted"
    assert "ExecutionCompleted" in cli("journal", "show", run, **shell(world, "aud")).out
    assert "look-up" in cli("run", "show", run, **shell(world, "aud")).out
    exported = tmp_path / "journal.jsonl"
    exported.write_text(cli("journal", "export", run, **shell(world, "aud")).out)
    checked = cli("journal", "check", str(exported))
    assert (checked.code, checked.data["valid"], checked.data["status"]) == (0, True, "Completed")
    exported.write_text(exported.read_text().replace('"attempt":1', '"attempt":2', 1))
    changed = cli("journal", "check", str(exported))
    assert (changed.code, changed.data["valid"]) == (frame.FAILED, False)


def test_a_decision_without_having_seen_it_is_not_taken(
    cli: Cli, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--yes needs the digest of what was seen; without --yes everything is shown and asked, and no is no."""
    run = start(cli, world)
    world.until(run, "waiting_approval")
    approval = world.waiting(run).asked.id
    blind = cli("approval", "decide", approval, "approve", "--yes", **shell(world, "ana"))
    assert (blind.code, "--digest" in blind.err) == (frame.USAGE, True)
    monkeypatch.setattr("click.confirm", lambda *_, **__: frame.say("asked"))
    seen = cli("approval", "decide", approval, "reject", **shell(world, "ana"))
    assert seen.code == frame.FAILED
    for part in ("impact: 3 -> 1", "keys of oncall", "requested by rita", "asked"):
        assert part in seen.err, part
    assert "Say why you reject this" in seen.out
    gone = cli("approval", "decide", approval, "reject", "--reason", "not today", **shell(world, "ana"))
    assert (gone.code, gone.out) == (0, "Rejected. Nothing will be executed; the person who asked reads your reason.\n")


def test_orders_that_change_nothing_say_why(cli: Cli, world: World) -> None:
    """Unknown run, wrong level, bad input, an auditor, a deactivated person, a stranger's token, nobody at all."""
    env = shell(world, "ana")
    unknown = cli("run", "show", "0" * 32, **env)
    assert (unknown.code, "is unknown here" in unknown.err) == (frame.USAGE, True)
    bad = cli("run", "start", "incident-triage", "--input", '{"a":1,"a":2}', **env)
    assert (bad.code, "--input" in bad.err) == (frame.USAGE, True)
    wrong = cli("run", "start", "incident-triage", "--input", '{"number": "x"}', **env)
    assert (wrong.code, "sys_id" in wrong.err) == (frame.USAGE, True)
    low = cli("run", "start", "incident-triage", "--input", json.dumps(INPUT), **shell(world, "low"))
    assert (low.code, "this takes level 4" in low.err) == (frame.FAILED, True)
    auditor = cli("run", "start", "incident-triage", "--input", json.dumps(INPUT), **shell(world, "aud"))
    assert (auditor.code, "an auditor reads and changes nothing" in auditor.err) == (frame.FAILED, True)
    gone = cli("run", "list", **shell(world, "dan"))
    assert (gone.code, "deactivated" in gone.err) == (frame.FAILED, True)
    stranger = cli("run", "list", **{**env, "TWOKEYS_TOKEN": "tk_nobody_has_this_token"})
    assert (stranger.code, "no personal token" in stranger.err) == (frame.FAILED, True)
    elsewhere = cli("run", "list", "--tenant", "another", **env)
    assert elsewhere.code == frame.FAILED
    nobody = cli("run", "start", "incident-triage", "--tenant", world.tenant, **operator(world))
    assert (nobody.code, "TWOKEYS_TOKEN" in nobody.err) == (frame.USAGE, True)
    tenant = cli("run", "list", "--tenant", "no-such-tenant", **operator(world))
    assert (tenant.code, "tenant no-such-tenant is unknown" in tenant.err) == (frame.USAGE, True)
    state = cli("run", "list", "--state", "sleeping", **env)
    assert (state.code, "waiting_approval" in state.err) == (frame.USAGE, True)


def test_a_run_can_be_canceled_and_only_an_unknown_one_resolved(cli: Cli, world: World) -> None:
    """The other two orders about a run."""
    run = start(cli, world)
    world.until(run, "waiting_approval")
    not_unknown = cli("run", "resolve", run, "2", "happened", "--reason", "I looked", **shell(world, "ana"))
    assert (not_unknown.code, "not unknown" in not_unknown.err) == (frame.FAILED, True)
    done = cli("run", "cancel", run, "--reason", "not needed", "-o", "json", **shell(world, "ana"))
    assert done.data == {"run": run, "state": "canceled"}
    again = cli("run", "cancel", run, **shell(world, "ana"))
    assert (again.code, "already canceled" in again.err) == (frame.FAILED, True)


# --- people -----------------------------------------------------------------------------------------------------------


def test_people_and_groups_are_an_owners_or_the_operators_business(cli: Cli, world: World) -> None:
    """The same orders from the shell and from an owner; from anybody else refused."""
    tenant = ("--tenant", world.tenant)
    made = cli("person", "add", "Nora New", "--level", "4", "-o", "json", *tenant, **operator(world)).data["person"]
    refused = cli("group", "join", "oncall", made, **shell(world, "ana"))
    assert (refused.code, "this takes level 6" in refused.err) == (frame.FAILED, True)
    assert cli("group", "join", "oncall", "Nora New", **shell(world, "rita")).code == 0
    unknown = cli("group", "join", "nowhere", made, *tenant, **operator(world))
    assert (unknown.code, "group nowhere is unknown" in unknown.err) == (frame.USAGE, True)
    assert cli("person", "link", made, "--slack", "T0DESK:U0NORA", *tenant, **operator(world)).code == 0
    taken = cli("person", "link", made, "--slack", "T0DESK:U0NORA", *tenant, **operator(world))
    assert (taken.code, "linked already" in taken.err) == (frame.USAGE, True)
    token = cli("person", "token", made, *tenant, **operator(world)).out.strip()
    assert cli("run", "list", **{**operator(world), "TWOKEYS_TOKEN": token}).code == 0
    [row] = [r for r in cli("person", "list", "-o", "json", *tenant, **operator(world)).data if r["person"] == made]
    assert (row["groups"], row["active"]) == (["oncall"], True)
    assert "Nora New" in cli("group", "list", *tenant, **operator(world)).out
    assert cli("group", "leave", "oncall", made, *tenant, **operator(world)).code == 0
    assert cli("person", "deactivate", made, *tenant, **operator(world)).code == 0
    assert cli("run", "list", **{**operator(world), "TWOKEYS_TOKEN": token}).code == frame.FAILED


def test_a_name_cannot_move_the_cursor(cli: Cli, world: World) -> None:
    """What others wrote is printed without control characters."""
    cli("person", "add", "Eve\x1b[2J\nroot", "--level", "1", "--tenant", world.tenant, **operator(world))
    out = cli("person", "list", "--tenant", world.tenant, **operator(world)).out
    assert "\x1b" not in out
    assert "Eve?[2J root" in out


# --- evidence ---------------------------------------------------------------------------------------------------------


def test_evidence_is_downloaded_and_verified_and_a_flipped_byte_is_found(
    cli: Cli, sealing_world: World, tmp_path: Path
) -> None:
    """The bundle as sealed, the trust policy from the operator's side, and the verifier's own exit codes."""
    made = sealing_world
    run = start(cli, made)
    early = cli("evidence", "download", run, "--to", str(tmp_path / "early.zip"), **shell(made, "aud"))
    assert (early.code, "not sealed yet" in early.err) == (frame.FAILED, True)
    made.until(run, "waiting_approval")
    made.approve(run, "ana")
    made.until(run, "waiting_approval")
    made.approve(run, "bo", "cleo")
    made.until(run, "succeeded")
    made.seal(run)
    bundle, policy = tmp_path / "bundle.zip", tmp_path / "policy.txt"
    done = cli("evidence", "download", run, "--to", str(bundle), "-o", "json", **shell(made, "aud"))
    assert done.data["size"] == bundle.stat().st_size
    over = cli("evidence", "download", run, "--to", str(bundle), **shell(made, "aud"))
    assert (over.code, "is there already" in over.err) == (frame.USAGE, True)
    policy.write_text(cli("evidence", "trust", "--tenant", made.tenant, **operator(made)).out)
    fine = cli("evidence", "verify", str(bundle), "--trust", str(policy), "--run", run)
    assert fine.code == 0, fine.out
    assert "RESULT: valid" in fine.out
    content = bytearray(bundle.read_bytes())
    content[len(content) // 2] ^= 1
    flipped = tmp_path / "flipped.zip"
    flipped.write_bytes(bytes(content))
    broken = cli("evidence", "verify", str(flipped), "--trust", str(policy), "-o", "json")
    assert broken.code in (1, 3)
    assert broken.data["findings"][0]["reason"]
    assert "evidence.downloaded" in made.entries(run)


def test_what_is_no_bundle_is_malformed(cli: Cli, tmp_path: Path) -> None:
    """Exit 3, with the file and the reason."""
    file = tmp_path / "x.zip"
    file.write_bytes(b"not a zip")
    done = cli("evidence", "verify", str(file))
    assert (done.code, "RESULT: malformed" in done.out) == (3, True)
    assert cli("evidence", "verify", str(tmp_path / "nowhere.zip")).code == 3


# --- processes --------------------------------------------------------------------------------------------------------


def test_migrate_brings_an_empty_database_to_this_release(
    cli: Cli, world: World, empty_database: postgres.Database
) -> None:
    """The owner's URL is needed, and a second time changes nothing."""
    env = {**operator(world), "TWOKEYS_DATABASE_URL": empty_database.app_url}
    before = cli("run", "list", "--tenant", "acme", **env)
    assert (before.code, "twokeys migrate" in before.err) == (frame.UNAVAILABLE, True)
    without = cli("migrate", **env)
    assert (without.code, "TWOKEYS_MIGRATE_URL: is missing" in without.err) == (frame.UNAVAILABLE, True)
    env["TWOKEYS_MIGRATE_URL"] = empty_database.owner_url
    assert cli("migrate", **env).code == 0
    assert cli("migrate", **env).code == 0
    assert cli("tenant", "add", "acme", **env).code == 0
    taken = cli("tenant", "add", "acme", **env)
    assert (taken.code, "there already" in taken.err) == (frame.USAGE, True)


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for one in started:
        one.kill()
        one.communicate()


def test_serve_and_worker_start_from_the_environment_and_stop_gracefully(
    sealing_world: World, processes: list[subprocess.Popen[str]]
) -> None:
    """The shape of production: two commands, the same settings, TERM ends both with 0."""
    world = sealing_world
    port, counters = children.free_port(), children.free_port()
    env = {
        **operator(world),
        "TWOKEYS_WEB_PORT": str(port),
        "TWOKEYS_METRICS_PORT": str(counters),
        "PATH": os.environ["PATH"],
    }
    for command in ("serve", "worker"):
        argv = [sys.executable, "-c", "from governance.cli import main; main()", command]
        processes.append(subprocess.Popen(argv, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True))
    web, worker = processes
    until(lambda: children.answers(port, "/readyz") or web.poll() is not None, 60)
    run = world.start()
    until(lambda: world.case(run).state == "waiting_approval" or worker.poll() is not None, 60)
    assert children.answers(counters, "/metrics")
    third = subprocess.run(
        [sys.executable, "-c", "from governance.cli import main; main()", "worker"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert third.returncode == frame.UNAVAILABLE
    assert "TWOKEYS_METRICS_PORT: cannot be listened on" in third.stderr
    for one in processes:
        one.send_signal(signal.SIGTERM)
    for one in processes:
        said = one.communicate(timeout=30)[1]
        assert one.returncode == 0, said
        assert said.rstrip().endswith("stopped")
        assert "Traceback" not in said


# --- the papers -------------------------------------------------------------------------------------------------------


def readme_commands() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


def test_the_readmes_commands_run_as_written(
    cli: Cli, world: World, empty_database: postgres.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newcomer who copies them gets a tenant with a two-person gate; the make targets exist."""
    makefile = (ROOT / "Makefile").read_text()
    env = {
        **operator(world), "TWOKEYS_DATABASE_URL": empty_database.app_url, "TWOKEYS_MIGRATE_URL": empty_database.owner_url,
    }  # fmt: skip
    for name in ("slack-token", "servicenow-password", "webhook-secret"):
        (tmp_path / f"{name}.txt").write_text(f"{name}-{'x' * 32}\n")
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    commands = readme_commands()
    assert len(commands) > 15
    last = Done(0, "", "")
    for line in commands:
        words = shlex.split(line)
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, flags=re.MULTILINE), line
            continue
        name = ""
        if words[0] == "export":
            name, _, value = line.removeprefix("export ").partition("=")
            if not value.startswith("$("):
                env[name] = value
                continue
            words = shlex.split(value[2:-1])
        assert words[0] == "twokeys", line
        last = cli(*words[1:], **env)
        assert last.code == 0, f"{line}: {last.err}"
        if name:
            env[name] = last.out.strip()
    assert last.out.startswith("# Twokeys trust policy")


def test_the_readme_names_every_command_there_is() -> None:
    """What is not in the table is not found."""
    readme = (ROOT / "README.md").read_text()
    for name, command in twokeys.commands.items():
        assert f"`twokeys {name}" in readme, name
        for inner in getattr(command, "commands", {}):
            assert re.search(rf"`twokeys {name}[^|]*\b{inner}\b", readme), f"{name} {inner}"


def test_the_entry_point_is_this_command() -> None:
    """`make setup` creates .venv/bin/twokeys from this line."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"twokeys": "governance.cli:main", "twokeys-witness": "governance.cli.witness:main"}
