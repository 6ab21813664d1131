"""What cards, windows and the shell show: an approval, a task or a doubt as people see it at this moment, read by its reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.errors import CallerError
from engine.gate.card import CardRecord
from governance.slack import copies, home
from governance.slack.blocks import Block
from governance.slack.cards import Card, render
from governance.slack.doubts import card as doubt_card
from governance.slack.tasks import card as task_card
from governance.store import approvals, doubts, people, tasks
from governance.store.doubts import DoubtRecord
from governance.store.home import Desk
from governance.store.tasks import TaskRecord
from governance.store.unit import Database

Record = CardRecord | TaskRecord | DoubtRecord


@dataclass(frozen=True, slots=True)
class Records:
    """Every question that people are asked, whatever kind it is of; `base` is where browsers reach the console."""

    database: Database
    base: str
    deployment: str
    button_mac: Callable[[bytes], bytes]

    def console_url(self, approval: str) -> str:
        """The page that shows the whole of an approval."""
        return f"{self.base}/approvals/{approval}"

    def approval(self, tenant: str, approval: str) -> CardRecord:
        """An approval now."""
        with self.database.unit(tenant, write=False) as unit:
            found = approvals.load(unit, approval)
            environment = people.tenant(unit).environment
            known = people.profiles(unit)
        return approvals.card_record(found, known, console_url=self.console_url(approval), environment=environment)

    def task(self, tenant: str, task: str) -> TaskRecord:
        """A task now."""
        with self.database.unit(tenant, write=False) as unit:
            found = tasks.load(unit, task)
        return replace(found, console_url=f"{self.base}/tasks/{task}")

    def doubt(self, tenant: str, doubt: str) -> DoubtRecord:
        """A doubt now."""
        with self.database.unit(tenant, write=False) as unit:
            found = doubts.record(unit, doubt)
        return replace(found, console_url=f"{self.base}/runs/{found.run}")

    def of(self, tenant: str, ref: str) -> Record:
        """Whatever this reference names."""
        if ref.startswith("un_"):
            return self.doubt(tenant, ref)
        return self.task(tenant, ref) if ref.startswith("ta_") else self.approval(tenant, ref)

    def known_approval(self, tenant: str, approval: str) -> CardRecord | None:
        """None when there is no such approval here."""
        try:
            return self.approval(tenant, approval)
        except CallerError:
            return None

    def known_task(self, tenant: str, task: str) -> TaskRecord | None:
        """None when there is no such task here."""
        try:
            return self.task(tenant, task)
        except CallerError:
            return None

    def known_doubt(self, tenant: str, doubt: str) -> DoubtRecord | None:
        """None when there is no such doubt here."""
        try:
            return self.doubt(tenant, doubt)
        except CallerError:
            return None

    def render_copy(self, record: CardRecord) -> Card:
        """The question as it goes to one person when its channel cannot be reached."""
        return copies.render(record, self.deployment, self.button_mac)

    def render_home(self, tenant: str, ref: str, found: tuple[str, Desk] | None) -> Block:
        """The Home tab of one person, or what somebody sees who is nobody here."""
        if found is None:
            return home.stranger(ref)
        return home.view(*found, tenant=tenant, base=self.base, deployment=self.deployment, mac=self.button_mac)

    def render(self, record: Record) -> Card:
        """The Slack card of a record."""
        if isinstance(record, DoubtRecord):
            return doubt_card(record, self.deployment, self.button_mac)
        if isinstance(record, TaskRecord):
            return task_card(record, self.deployment, self.button_mac)
        return render(record, self.deployment, self.button_mac)
