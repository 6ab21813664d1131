"""What we post, as TypeScript that Slack's own types judge."""

from __future__ import annotations

import datetime
import json

from engine.gate.card import PHASES
from governance.slack import copies, home, views
from governance.slack.buttons import Opened, Pressed
from governance.slack.cards import render
from governance.store.home import Decided, Desk, Item, Under
from tests.governance.slack.kit import ALICE, APPROVAL, mac, record

AT = datetime.datetime(2027, 1, 15, 9, tzinfo=datetime.UTC)


def source() -> str:
    """Every phase of a card, its copy, the windows and the Home tab."""
    opened = Opened(Pressed("prod-1", APPROVAL, 1, "ab" * 8, "cd" * 8), ALICE, "C0OPS", "", "")
    long = record(changes=(("note", "", "words " * 3_000),))
    item = Item(APPROVAL, "Close", "INC1", "low", 0, 1, AT, 1, "ab" * 8)
    desk = Desk(
        (item,),
        1,
        (item,),
        1,
        (Under("9f" * 16, "triage", "running", AT),),
        (Decided(APPROVAL, "key", AT, "Close", "approved"),),
    )
    blocks = [
        render(
            record(phase=phase, outcome="over", given=(("Ana", "2027-01-15T08:00:00Z", "ok"),)), "prod-1", mac
        ).blocks
        for phase in PHASES
    ]
    blocks += [render(long, "prod-1", mac).blocks, copies.render(record(), "prod-1", mac).blocks]
    windows = [
        views.review(record(), opened, mac),
        views.reject(record(), opened, mac),
        views.answered("AP-1", "Done."),
        views.review(long, opened, mac),
    ]
    tab = home.view("Ana", desk, tenant="acme", base="https://twokeys.example.com", deployment="prod-1", mac=mac)
    lines = ['import type { HomeView, KnownBlock, ModalView } from "@slack/types";']
    lines += [f"export const blocks{n}: KnownBlock[] = {json.dumps(each)};" for n, each in enumerate(blocks)]
    lines += [f"export const view{n}: ModalView = {json.dumps(each)};" for n, each in enumerate(windows)]
    lines += [f"export const tab: HomeView = {json.dumps(tab)};"]
    return "\n".join(lines) + "\n"
