"""What a Python workflow may not touch, because it would answer differently the next time: names, modules, the clock of `datetime`.

The tables serve both lines of defence: the check of the source when it is published, and the host process that runs it.
"""

from __future__ import annotations

import datetime
from typing import Any, NoReturn

SDK = "twokeys"  # the name under which authors import what the host gives them

# What is pure in the standard library: the same arguments give the same result in every process.
ALLOWED = frozenset(
    "__future__ abc base64 binascii bisect cmath collections collections.abc contextlib copy dataclasses datetime decimal"
    " enum fractions functools hashlib heapq hmac html itertools json math numbers operator re string struct textwrap"
    " twokeys typing unicodedata urllib urllib.parse uuid zlib".split()
)
_clock = "the clock is different at every replay: use `await ctx.now()` and `await ctx.sleep(seconds)`"
_chance = "chance is different at every replay: use `await ctx.random()` or `await ctx.uuid()`"
_machine = "a workflow may run on any machine: take it from the workflow's input"
_outside = "a workflow changes nothing outside by itself: use `await ctx.invoke(operation, params)`"
_threads = "threads and event loops run in another order at every replay: use `await ctx.join_set()`"
ADVICE = {
    **dict.fromkeys(("time", "sched", "calendar", "zoneinfo", "locale"), _clock),
    **dict.fromkeys(("random", "secrets", "statistics"), _chance),
    **dict.fromkeys(("os", "sys", "platform", "getpass", "site", "sysconfig", "pathlib", "glob", "tempfile"), _machine),
    **dict.fromkeys(
        ("socket", "ssl", "http", "subprocess", "shutil", "io", "smtplib", "ftplib", "requests", "httpx"), _outside
    ),
    **dict.fromkeys(("threading", "_thread", "asyncio", "concurrent", "multiprocessing", "queue", "signal"), _threads),
}
NAMES = {
    "open": _outside,
    "input": _machine,
    "print": "a workflow has no output but its result",
    "breakpoint": "a workflow runs where nobody can look in",
    "id": "addresses are different in every process",
    "hash": "the hash of a text is different in every process; use hashlib",
    "eval": "code is what was published, nothing else",
    "exec": "code is what was published, nothing else",
    "compile": "code is what was published, nothing else",
    "__import__": "write an import statement",
    "globals": "name what is meant",
    "vars": "name what is meant",
    "locals": "name what is meant",
}
# Names that an allowed module has and a workflow has not.
MEMBERS = {
    ("datetime", "datetime", "now"): _clock,
    ("datetime", "datetime", "utcnow"): _clock,
    ("datetime", "datetime", "today"): _clock,
    ("datetime", "date", "today"): _clock,
    ("uuid", "uuid1"): _chance,
    ("uuid", "uuid4"): _chance,
    ("uuid", "getnode"): _machine,
    ("decimal", "DefaultContext"): "it would change other workflows; use decimal.localcontext()",
    ("decimal", "BasicContext"): "it would change other workflows; use decimal.localcontext()",
    ("decimal", "ExtendedContext"): "it would change other workflows; use decimal.localcontext()",
}
# Ways around everything above.
REACHES = frozenset(
    "__bases__ __base__ __builtins__ __closure__ __code__ __dict__ __globals__ __loader__ __mro__ __spec__ __subclasses__"
    " __self__ __func__ __wrapped__ cr_frame f_back f_builtins f_globals f_locals gi_frame tb_frame".split()
)
unordered = "the order of a set is different in every process: go through `sorted(...)`"


class Forbidden(BaseException):
    """The author must act: the workflow reached for something that differs at every replay."""


def advice(module: str) -> str:
    """Why a module is not there, and what is there instead."""
    top = module.partition(".")[0]
    return ADVICE.get(top, "only what is pure in the standard library and the workflow's own files can be imported")


def ordered(value: Any) -> Any:
    """The value, unless it is a set that is about to be gone through."""
    if type(value) is set or type(value) is frozenset:
        forbid("going through a set", unordered)
    return value


def forbid(what: str, why: str) -> NoReturn:
    """Refuse it, for whoever reads the message."""
    raise Forbidden(f"{what}: {why}")


class _Like(type):
    """Values of the real class count as values of its guarded form."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.__mro__[1])


class Date(datetime.date, metaclass=_Like):
    """`datetime.date` without today."""

    @classmethod
    def today(cls) -> NoReturn:
        """Not the same tomorrow."""
        forbid("date.today()", _clock)


class Datetime(datetime.datetime, metaclass=_Like):
    """`datetime.datetime` without the clock and without the machine's time zone."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> NoReturn:
        """Not the same at the next replay."""
        forbid("datetime.now()", _clock)

    @classmethod
    def utcnow(cls) -> NoReturn:
        """Not the same at the next replay."""
        forbid("datetime.utcnow()", _clock)

    @classmethod
    def today(cls) -> NoReturn:
        """Not the same tomorrow."""
        forbid("datetime.today()", _clock)

    @classmethod
    def fromtimestamp(cls, timestamp: float, tz: datetime.tzinfo | None = None) -> Any:
        """Only in a named time zone."""
        if tz is None:
            forbid("datetime.fromtimestamp() without tz", "the machine's time zone may be another one; give tz")
        return super().fromtimestamp(timestamp, tz)

    def astimezone(self, tz: datetime.tzinfo | None = None) -> Any:
        """Only to a named time zone."""
        if tz is None:
            forbid("datetime.astimezone() without tz", "the machine's time zone may be another one; give tz")
        return super().astimezone(tz)


for _name, _kind in (("date", Date), ("datetime", Datetime)):
    _kind.__name__ = _kind.__qualname__ = _name
    _kind.__module__ = "datetime"

EPOCH = Datetime(1970, 1, 1, tzinfo=datetime.UTC)
