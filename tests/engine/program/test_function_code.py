"""The code of Python workflows: what is refused, at which line, and what the digest covers."""

from __future__ import annotations

import ast

import pytest

from engine.errors import AuthorError, CallerError
from engine.program.faults import DefinitionInvalid
from engine.program.function_code import (
    CodeChanged,
    Component,
    check_pinned,
    component_from,
    component_of,
    with_order_guard,
)
from engine.program.function_guard import Forbidden, ordered

HEAD = "from twokeys import workflow\n"
BODY = "@workflow\nasync def main(ctx, input):\n    return 1\n"


def of(**files: str) -> Component:
    return component_of({f"{name.replace('0', '/')}.py": text.encode() for name, text in files.items()})


def faults_of(text: str) -> list[str]:
    with pytest.raises(DefinitionInvalid) as caught:
        of(flow=f"{HEAD}{text}\n{BODY}")
    return [str(fault) for fault in caught.value.faults]


REFUSED = [
    ("import time", "ctx.now()"),
    ("from time import sleep", "ctx.now()"),
    ("import random as r", "ctx.random()"),
    ("import os.path", "workflow's input"),
    ("from os import environ", "workflow's input"),
    ("import socket", "ctx.invoke"),
    ("import threading", "ctx.join_set"),
    ("import asyncio", "ctx.join_set"),
    ("import numpy", "only what is pure"),
    ("from engine import canonical", "only what is pure"),
    ("from . import nothing", "only what is pure"),
    ("from json import *", "name what is meant"),
    ("import datetime as d\nat = d.datetime.now()", "ctx.now()"),
    ("from datetime import datetime as D\nat = D.utcnow()", "ctx.now()"),
    ("from datetime import date\nat = date.today()", "ctx.now()"),
    ("import uuid\nx = uuid.uuid4()", "ctx.random()"),
    ("from uuid import uuid1", "ctx.random()"),
    ("x = open('a')", "ctx.invoke"),
    ("x = id(1)", "addresses"),
    ("x = hash('a')", "hashlib"),
    ("x = map(hash, ['a'])", "hashlib"),
    ("x = eval('1')", "published"),
    ("x = __import__('os')", "import statement"),
    ("for x in {1, 2}: pass", "sorted"),
    ("s = set('ab') | {'c'}\nx = [y for y in s]", "sorted"),
    ("s = {'a'}\nx = ','.join(s)", "sorted"),
    ("s = {'a'}\nx = list(s)", "sorted"),
    ("s = {'a'}\nx = f'{s}'", "sorted"),
    ("s = {'a'}\nx, = s", "sorted"),
    ("s = {'a'}\nx = [*s]", "sorted"),
    ("s = {'a'}\nx = s.pop()", "sorted"),
    ("x = ().__class__.__bases__", "reaches around"),
    ("import json\njson.dumps = None", "belongs to everybody"),
    ("class A:\n    def __del__(self): pass", "another moment"),
    ("try:\n    pass\nexcept:\n    pass", "narrower"),
    ("try:\n    pass\nexcept (ValueError, BaseException):\n    pass", "narrower"),
    ("import contextlib\nwith contextlib.suppress(BaseException): pass", "narrower"),
    ("async def f(ctx):\n    ctx.sleep(1)", "until it is awaited"),
]


@pytest.mark.parametrize(("text", "said"), REFUSED)
def test_what_would_differ_at_a_replay_is_refused_with_its_line(text: str, said: str) -> None:
    """Each source of difference has its place in the file and what to use instead."""
    found = faults_of(text)
    assert any(said in fault for fault in found), found
    lines = {int(fault.split(":")[1]) for fault in found}
    assert lines <= set(range(2, 3 + text.count("\n")))


ACCEPTED = [
    "import json, re, datetime, dataclasses, collections.abc\nfrom collections import abc",
    "import datetime\nat = datetime.datetime.fromisoformat('2026-01-01')",
    "x = sorted({'b', 'a'})\ny = 'a' in {'a'}\nz = len({1})",
    "x = sorted(y for y in {'b', 'a'})\nz = {y for y in {1, 2}}",
    "def f(id, hash):\n    return id",
    "try:\n    pass\nexcept Exception:\n    pass",
    "import uuid\nx = uuid.UUID(int=1)",
    "async def f(ctx):\n    await ctx.sleep(1)",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_what_is_the_same_at_every_replay_is_accepted(text: str) -> None:
    """The check does not stand in the way of ordinary code."""
    assert of(flow=f"{HEAD}{text}\n{BODY}").function == "main"


def test_every_fault_of_every_file_is_shown_at_once() -> None:
    """The author corrects once, not once for each fault."""
    with pytest.raises(DefinitionInvalid) as caught:
        of(flow=f"{HEAD}import time\nimport help\nimport os\n{BODY}", help="x = 1\nimport random\n")
    assert [(fault.file, fault.line) for fault in caught.value.faults] == [
        ("flow.py", 2),
        ("flow.py", 4),
        ("help.py", 2),
    ]


def test_the_digest_covers_what_the_workflow_imports_however_far_away() -> None:
    """A change anywhere in the closure is another digest; what nobody imports is no part of it."""
    flow = f"{HEAD}from pack.near import x\n{BODY}"
    files = {"flow": flow, "pack0__init__": "", "pack0near": "from . import far\nx = far.y\n", "pack0far": "y = 1\n"}
    base = of(**files)
    assert [path for path, _ in base.files] == ["flow.py", "pack/__init__.py", "pack/far.py", "pack/near.py"]
    assert of(**files, other="import this_is_never_read\n").digest == base.digest
    for name in files:
        assert of(**{**files, name: files[name] + "# changed\n"}).digest != base.digest
    assert component_from(base.body) == base


def test_a_run_never_continues_on_other_code() -> None:
    """Pinned means pinned: the message names both digests and the way out."""
    one, other = of(flow=HEAD + BODY), of(flow=HEAD + BODY + "# other\n")
    check_pinned(one.named, one)
    with pytest.raises(CodeChanged, match="run migrate") as caught:
        check_pinned(one.named, other)
    assert one.named in str(caught.value)
    assert other.named in str(caught.value)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"flow.py": b"\xff"},
        {"../flow.py": b""},
        {"a b.py": b""},
        {"json.py": b""},
        {"twokeys.py": b""},
        {"flow.py": b"def ("},
        {"flow.py": b"x = 1"},
        {"flow.py": (HEAD + BODY + BODY.replace("main", "other")).encode()},
        {"flow.py": (HEAD + BODY.replace("async ", "")).encode()},
        {"flow.py": (HEAD + BODY.replace("ctx, input", "ctx")).encode()},
        {"flow.py": (HEAD + BODY.replace("ctx, input", "*ctx")).encode()},
        {f"f{n}.py": b"" for n in range(101)},
        {"flow.py": b"#" * 300_000},
        {"flow.py": b"\x00"},
    ],
)
def test_files_that_are_no_workflow_are_refused(files: dict[str, bytes]) -> None:
    """Every file that cannot take part says so before anything is stored."""
    with pytest.raises(AuthorError):
        component_of(files)


def test_a_stored_component_is_read_strictly() -> None:
    """Stored bytes that are not exactly a component are refused."""
    for body in (b"", b"\xa0", of(flow=HEAD + BODY).body + b"\x00"):
        with pytest.raises(CallerError):
            component_from(body)


def test_the_guard_wraps_what_is_gone_through_and_changes_nothing_else() -> None:
    """At run time a set is refused where its order would show, whatever name it came under."""
    tree = with_order_guard(
        "def f(s):\n    return [x for x in s] + list(s)\ndef g(s):\n    return sorted(x for x in s)\n", "f"
    )
    space = {"__ordered__": ordered}
    exec(compile(tree, "f", "exec"), space)
    f, g = space["f"], space["g"]
    assert f([1, 2]) == [1, 2, 1, 2]
    assert g({2, 1}) == [1, 2]
    with pytest.raises(Forbidden, match="sorted"):
        f({1, 2})
    assert isinstance(tree, ast.Module)
