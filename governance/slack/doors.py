"""The ways that Slack comes in: what a click, a command and an event reach, over HTTP or the socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from governance import clock, metrics
from governance.commands.answer import Answers
from governance.commands.decide import Decide
from governance.commands.resolve import Resolve
from governance.settings import Settings
from governance.slack.buttons import Mac
from governance.slack.clicks import Clicks, Seams
from governance.slack.endpoint import slack_routes
from governance.slack.looks import Looks
from governance.slack.modals import Modals
from governance.slack.records import Records
from governance.slack.slash import Order, Slash
from governance.slack.socket import Socket
from governance.store import outbox, templates
from governance.store.unit import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """Everything that arrives from Slack, over the same commands as every other entry."""

    settings: Settings
    database: Database
    tenant_of: Callable[[str], str | None]
    token_of: Callable[[str], str]
    mac: Mac
    records: Records
    looks: Looks
    decide: Decide
    answers: Answers
    resolve: Resolve
    orders: Mapping[str, tuple[str, str, Order]] = field(default_factory=dict)  # more verbs of the slash command

    def routes(self) -> list[Any]:
        """What Slack calls when it can reach us."""
        s = self.settings
        signing = [secret for secret in (s.slack_signing_secret, s.slack_signing_secret_old) if secret]
        return slack_routes(Clicks(self.seams()), signing, clock.epoch_seconds, metrics.count)

    def socket(self) -> Socket | None:
        """The connection that clicks arrive on where Slack cannot reach us; None where it can."""
        s = self.settings
        if not s.slack_app_token:
            return None
        return Socket(
            Clicks(self.seams()), s.slack_app_token, s.slack_signing_secret, metrics.count, base_url=s.slack_api_base,
            allow_local=s.local,
        )  # fmt: skip

    def seams(self) -> Seams:
        """What clicks reach."""
        s = self.settings
        return Seams(
            app_id=s.slack_app_id, deployment=s.deployment, mac=self.mac, tenant_of=self.tenant_of,
            decide=self.decide.decide, record_of=self.records.known_approval,
            answer=self.answers.answer, task_of=self.records.known_task, say=self.resolve.say, doubt_of=self.records.known_doubt,
            command=Slash(self.looks, s.deployment, self.mac, self.orders).answer, home=self._home, tell=self._tell, gone=self._gone,
            modals=Modals(s.slack_api_base, self.token_of, allow_local=s.local), count=metrics.count,
        )  # fmt: skip

    def _home(self, tenant: str, slack_ref: str) -> None:
        with self.database.unit(tenant) as unit:
            outbox.put_home(unit, slack_ref)

    def _tell(self, tenant: str, reply: Mapping[str, str], sentence: str) -> None:
        if reply.get("user"):
            with self.database.unit(tenant) as unit:
                outbox.put(unit, "ephemeral", "", {**reply, "text": sentence})

    def _gone(self, tenant: str, event: str) -> None:
        with self.database.unit(tenant) as unit:
            templates.installation_gone(unit, event)
