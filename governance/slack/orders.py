"""What people order by the slash command: that everything stands still, and that they are out of office."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence

from engine.errors import CallerError
from governance import clock
from governance.commands.absent import Absent
from governance.commands.authority import Actor
from governance.commands.freeze import Freezes
from governance.slack import phases
from governance.slack.slash import Order
from governance.store import people
from governance.store.standstills import CONNECTOR, TENANT, WORKSPACE
from governance.store.unit import Database

_member = re.compile(r"<@([UW][A-Z0-9]{2,20})(\|[^>]{0,80})?>")
_days = re.compile(r"([0-9]{1,3})d")
_day = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class Orders:
    """The orders of the slash command, by the commands of every other entry."""

    def __init__(self, database: Database, freezes: Freezes, absent: Absent) -> None:
        self._database = database
        self._freezes = freezes
        self._absent = absent

    def verbs(self) -> Mapping[str, tuple[str, str, Order]]:
        """Each verb with what follows it and what it does."""
        return {
            "freeze": ("[connector NAME | workspace NAME] REASON", "nothing is changed from now on; to thaw takes two people", self.freeze),
            "ooo": ("until 2026-11-20 [@PERSON] | 3d [@PERSON] | back", "you are out of office, and who stands in for you", self.away),
        }  # fmt: skip

    def freeze(self, tenant: str, ref: str, words: Sequence[str]) -> str:
        """Stop everything, or one connector or workspace."""
        scope, name, rest = TENANT, "", list(words)
        if rest[:1] and rest[0].lower() in ("connector", "workspace") and len(rest) > 2:
            scope, name, rest = CONNECTOR if rest[0].lower() == "connector" else WORKSPACE, rest[1], rest[2:]
        self._freezes.freeze(tenant, Actor("slack", ref), " ".join(rest), scope=scope, name=name)
        what = f"{scope} {name}" if name else "everything"
        return f"Nothing of {what} is changed from now on, on every worker. To go on takes two people: `twokeys thaw`."

    def away(self, tenant: str, ref: str, words: Sequence[str]) -> str:
        """Out of office until a day, with or without somebody who stands in; or back."""
        actor = Actor("slack", ref)
        with self._database.unit(tenant, write=False) as unit:
            me = people.by_identity(unit, "slack", ref)
        if me is None:
            raise CallerError("your Slack account is linked to nobody here", next_step="ask an owner to link it")
        rest = [word for word in words if word.lower() != "until"]
        if rest and rest[0].lower() == "back":
            self._absent.back(tenant, actor, me.person)
            return "Welcome back: nobody stands in for you any more."
        if not 1 <= len(rest) <= 2:
            raise CallerError(
                "say until when: `/twokeys ooo until 2026-11-20 @PERSON`, `/twokeys ooo 3d`, `/twokeys ooo back`"
            )
        delegate = self._person(tenant, ref, rest[1]) if len(rest) == 2 else ""
        absence = self._absent.away(tenant, actor, me.person, _until(rest[0]), delegate=delegate)
        end = phases.clock_time(absence.until_at.astimezone(datetime.UTC).isoformat())
        return f"You are out of office until {end}" + (
            f"; {rest[1]} may turn keys in your place, and both names are shown." if delegate else "."
        )

    def _person(self, tenant: str, ref: str, word: str) -> str:
        """The person behind `<@U123>`, as Slack writes a mention, or behind a name."""
        found = _member.fullmatch(word)
        with self._database.unit(tenant, write=False) as unit:
            if not found:
                return people.find(unit, word.removeprefix("@")).person
            person = people.by_identity(unit, "slack", f"{ref.partition(':')[0]}:{found[1]}")
        if person is None:
            raise CallerError(f"{found[1]} is linked to nobody here", next_step="ask an owner to link that account")
        return person.person


def _until(word: str) -> datetime.datetime:
    """The end of a day, or of so many days from now."""
    days = _days.fullmatch(word.lower())
    if days:
        return clock.now_utc() + datetime.timedelta(days=int(days[1]))
    if not _day.fullmatch(word):
        raise CallerError(f"{word[:20]!r} is no day", field="until", next_step="write 2026-11-20, or 3d for three days")
    try:
        day = datetime.date.fromisoformat(word)
    except ValueError:
        raise CallerError(f"{word} is no day", field="until", next_step="write 2026-11-20") from None
    return datetime.datetime.combine(day, datetime.time(23, 59), datetime.UTC)
