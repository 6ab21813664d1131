"""Every house rule bites: a small tree that keeps them all is broken in one way at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house import rules

SOUND = {
    "engine/__init__.py": '"""Decides."""\n',
    "engine/errors.py": '"""The errors."""\n',
    "engine/limits.py": '"""The bounds."""\nimport re\n',
    "engine/kernel.py": '"""The two verbs."""\nfrom engine import errors, limits\nfrom engine.gate.verdict import judge\n',
    "engine/gate/__init__.py": '"""May this happen."""\n',
    "engine/gate/verdict.py": (
        '"""Fail closed."""\n\n\ndef judge(ask):\n    try:\n        return ask()\n    except Exception:\n        return None\n'
    ),
    "engine/journal/__init__.py": '"""What a run did."""\n',
    "engine/journal/events.py": '"""The events."""\n',
    "engine/program/__init__.py": '"""What is next."""\n',
    "engine/program/expression.py": '"""The only user of CEL."""\nimport cel_expr_python\n',
    "governance/__init__.py": '"""Touches the world."""\n',
    "governance/clock.py": '"""Time and chance."""\nimport secrets\nimport time\n\nnow = time.time\n',
    "governance/settings.py": '"""The environment."""\nimport os\n\nhome = os.environ.get("HOME")\n',
    "governance/store/__init__.py": '"""All SQL."""\n',
    "governance/store/unit.py": '"""One transaction."""\nimport sqlalchemy\n\nfrom engine.journal import events\n',
    "governance/stages/__init__.py": '"""The machine."""\n',
    "governance/stages/judge.py": '"""Judges."""\nfrom engine import kernel\nfrom governance.store import unit\n',
    "governance/stages/seal.py": '"""Seals."""\nfrom governance.store import unit\n',
    "governance/commands/__init__.py": '"""People."""\n',
    "governance/commands/decide.py": '"""Decides for people."""\n',
    "governance/connectors/__init__.py": '"""Hands."""\n',
    "governance/connectors/registry.py": '"""Loads."""\nimport importlib\n\nload = importlib.import_module\n',
    "governance/slack/__init__.py": '"""Slack."""\n',
    "governance/slack/clicks.py": '"""Press to vote."""\nimport slack_bolt\n\nfrom governance.commands import decide\n',
    "governance/wiring.py": (
        '"""Everything meets."""\nfrom engine.program import expression\nfrom governance import clock, settings\n'
        "from governance.connectors import registry\nfrom governance.slack import clicks\n"
        "from governance.stages import judge, seal\n"
    ),
    "governance/cli.py": (
        '"""The command line."""\n\n\ndef main():\n    from governance import wiring\n    print(wiring)\n'
    ),
    "migrations/__init__.py": '"""The schema."""\n',
    "migrations/env.py": '"""Alembic\'s environment."""\nimport alembic\nimport sqlalchemy\n',
}  # fmt: skip

for entry in rules.ENTRIES.keys() - {"governance.cli"}:
    *above, _ = entry.split(".")
    SOUND |= {"/".join(above[:depth]) + "/__init__.py": '"""A room."""\n' for depth in range(2, len(above) + 1)}
    SOUND[entry.replace(".", "/") + ".py"] = '"""Its own process."""\n'

LONG_FUNCTION = "def long():\n" + "    x = 1\n" * rules.FUNCTION_LINES_MAX
LONG_MODULE = "# one more line\n" * rules.MODULE_LINES_MAX

# What is added to which module, and the rule that must say so.
BREAKS = {
    "the engine imports the world": ("engine/kernel.py", "from governance import clock", "order"),
    "neighbours": ("engine/gate/verdict.py", "from engine.journal import events", "order"),
    "neighbours among the small": ("engine/errors.py", "import engine.limits", "order"),
    "a hand imports another hand": ("governance/connectors/registry.py", "import governance.commands.decide", "order"),
    "a connector imports Slack": ("governance/connectors/registry.py", "from governance.slack import clicks", "order"),
    "a stage imports a command": ("governance/stages/judge.py", "from governance.commands import decide", "order"),
    "an earlier room imports a later one": ("governance/store/unit.py", "from governance import wiring", "order"),
    "hidden in a function": ("engine/kernel.py", "def f():\n    from governance.store import unit", "order"),
    "hidden under TYPE_CHECKING": ("engine/kernel.py", "if TYPE_CHECKING:\n    import governance.store.unit", "order"),
    "hidden in a string": ("governance/connectors/registry.py", 'importlib.import_module("governance.slack.clicks")', "order"),
    "the whole house": ("governance/wiring.py", "import governance", "order"),
    "the tests": ("governance/wiring.py", "from tests.kit import pg", "order"),
    "a room that does something when imported": ("engine/__init__.py", "from engine import kernel", "order"),
    "a surface drives a stage": ("governance/slack/clicks.py", "from governance.stages import judge", "surface"),
    "a stage calls the next": ("governance/stages/judge.py", "from governance.stages import seal", "stage"),
    "a stage calls the next through the room": ("governance/stages/__init__.py", "import governance.stages.seal", "stage"),
    "relative": ("governance/stages/judge.py", "from . import nothing", "relative"),
    "SQL outside the store": ("governance/commands/decide.py", "import sqlalchemy.orm", "home"),
    "a third party in the engine": ("engine/kernel.py", "import pydantic", "home"),
    "a third party in the gate": ("engine/gate/verdict.py", "import cryptography.hazmat", "home"),
    "CEL beside its wrapper": ("engine/program/__init__.py", "import cel_expr_python", "home"),
    "a package without a home": ("governance/wiring.py", "import requests", "home"),
    "hidden third party": ("engine/journal/events.py", "def f():\n    from yaml import load", "home"),
    "a socket in the engine": ("engine/kernel.py", "import socket", "pure"),
    "a file in the engine": ("engine/journal/events.py", 'open("x")', "pure"),
    "the clock": ("engine/kernel.py", "import time", "chance"),
    "the clock by another name": ("governance/wiring.py", "import datetime as d\nd.datetime.now()", "chance"),
    "the clock renamed": ("governance/wiring.py", "from datetime import datetime as dt\ndt.now()", "chance"),
    "a random identity": ("governance/wiring.py", "import uuid as u\nu.uuid4()", "chance"),
    "today": ("governance/wiring.py", "from datetime import date\ndate.today()", "chance"),
    "dice": ("governance/wiring.py", "from random import choice", "chance"),
    "random bytes": ("governance/wiring.py", "import os\nos.urandom(8)", "chance"),
    "a key from elsewhere": ("governance/wiring.py", "Ed25519PrivateKey.generate()", "chance"),
    "environ": ("governance/wiring.py", 'import os\nos.environ["A"]', "environment"),
    "getenv": ("governance/wiring.py", "from os import getenv", "environment"),
    "print": ("governance/wiring.py", 'print("here")', "print"),
    "importlib": ("governance/wiring.py", "import importlib", "dynamic"),
    "import_module": ("governance/wiring.py", "from importlib import import_module", "dynamic"),
    "eval": ("governance/wiring.py", 'eval("1")', "dynamic"),
    "exec": ("governance/wiring.py", 'exec("1")', "dynamic"),
    "broad": ("governance/wiring.py", "try:\n    pass\nexcept Exception:\n    pass", "broad"),
    "bare": ("governance/wiring.py", "try:\n    pass\nexcept:\n    pass", "broad"),
    "broad in a tuple": ("governance/wiring.py", "try:\n    pass\nexcept (KeyError, BaseException):\n    pass", "broad"),
    "suppressed": ("governance/wiring.py", "from contextlib import suppress\nwith suppress(Exception):\n    pass", "broad"),
    "long function": ("governance/wiring.py", LONG_FUNCTION, "function-lines"),
    "long module": ("governance/wiring.py", LONG_MODULE, "module-lines"),
    "long migration": ("migrations/env.py", LONG_MODULE, "module-lines"),
    "orphan": ("governance/commands/orphan.py", '"""Nobody calls this."""', "dead"),
    "unplanned room": ("governance/helpers.py", '"""Everything else."""', "room"),
    "no docstring": ("governance/commands/silent.py", "x = 1", "duty"),
    "a heading is no sentence": ("governance/commands/vague.py", '"""Commands"""', "duty"),
    "a speech is no duty": ("governance/commands/speech.py", f'"""It {"very " * 50}much does."""', "duty"),
}  # fmt: skip


def build(root: Path, files: dict[str, str]) -> Path:
    for path, source in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(source, encoding="utf-8")
    return root


def test_a_sound_tree_has_no_fault(tmp_path: Path) -> None:
    """The starting point of every break below is clean, so what is found there is the break."""
    assert rules.check(build(tmp_path, SOUND)) == []


@pytest.mark.parametrize(("path", "addition", "rule"), BREAKS.values(), ids=BREAKS.keys())
def test_a_break_is_caught(tmp_path: Path, path: str, addition: str, rule: str) -> None:
    """The fault names the broken rule, in the module that was broken."""
    files = {**SOUND, path: SOUND.get(path, "") + addition + "\n"}
    faults = rules.check(build(tmp_path, files))
    assert (path, rule) in {(fault.path, fault.rule) for fault in faults}, list(map(str, faults))


def test_a_missing_entry_is_said_once(tmp_path: Path) -> None:
    """Without the command line everything would look dead: one fault, not one per module."""
    files = {path: source for path, source in SOUND.items() if path != "governance/cli.py"}
    faults = rules.check(build(tmp_path, files))
    assert [(fault.path, fault.rule) for fault in faults] == [("governance/cli.py", "dead")]


def test_every_rule_is_broken_at_least_once() -> None:
    """A rule without a break above might not bite at all."""
    assert {rule for _, _, rule in BREAKS.values()} == set(rules.RULES)


@pytest.mark.parametrize(
    ("path", "addition"),
    [
        ("governance/wiring.py", "import importlib.resources\nfrom importlib import metadata"),
        ("governance/wiring.py", "import re\nre.compile('x')"),
        ("governance/wiring.py", "try:\n    pass\nexcept (KeyError, OSError):\n    pass"),
        ("migrations/env.py", LONG_FUNCTION),
        ("engine/kernel.py", "import uuid\nuuid.UUID(bytes=b'0123456789abcdef', version=4)"),
        ("governance/wiring.py", "from datetime import datetime\ndatetime.fromisoformat('2026-01-01')"),
    ],
)
def test_what_is_allowed_stays_allowed(tmp_path: Path, path: str, addition: str) -> None:
    """The rules do not cry wolf at what only looks like a break."""
    assert rules.check(build(tmp_path, {**SOUND, path: SOUND[path] + addition + "\n"})) == []
