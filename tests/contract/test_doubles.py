"""One suite of outgoing calls, made by our own client, against our desk and two Slacks that somebody else wrote."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from governance.local import desk as desk_room
from governance.slack.api import Sent, call, client
from governance.slack.cards import render
from governance.slack.modals import Modals
from governance.slack.outbox import Sender, card_job, instead
from tests.governance.slack.kit import mac, record
from tests.kit import doubles
from tests.kit.desk import BOT_TOKEN, PEOPLE, SIGNING_SECRET, Desk
from tests.kit.doubles import Double

KNOWN = tomllib.loads((Path(__file__).parent / "known_differences.toml").read_text("utf-8"))
HOME = {"type": "home", "blocks": [{"type": "divider", "block_id": "tk_l0"}]}
MODAL = {"type": "modal", "title": {"type": "plain_text", "text": "t"}, "blocks": HOME["blocks"]}

# What Slack answers to each: the outcome as our client judges it, and Slack's own word.
SLACK = {
    "who we are": "ok",
    "a card": "ok",
    "its update": "ok",
    "an update of a card that is gone": "rejected message_not_found",
    "a reply in its thread": "ok",
    "a note for one person": "ok",
    "a direct message by member id": "ok",
    "a card to a channel that is not there": "rejected channel_not_found",
    "a card with too many blocks": "rejected invalid_blocks",
    "a card with a block nobody knows": "rejected invalid_blocks",
    "a Home tab": "ok",
    "a window without a trigger": "rejected invalid_trigger_id",
    "a token that nobody gave": "rejected invalid_auth",
    "deleting a message": "ok",
    "a method that nobody has": "rejected unknown_method",
    "the permissions in the header": "said",
}


@pytest.fixture(scope="module", params=["desk", "local-slack", "emulate"])
def double(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Double]:
    directory = tmp_path_factory.mktemp("double")
    if request.param == "local-slack":
        with doubles.local_slack(directory, {"U0ALICE": "Alice", "U0BOB": "Bob"}) as found:
            yield found
    elif request.param == "emulate":
        with doubles.emulate(directory) as found:
            yield found
    else:
        workspace = desk_room.Workspace("http://127.0.0.1:1/slack/events", SIGNING_SECRET, BOT_TOKEN, PEOPLE)
        desk = Desk(request.getfixturevalue("children"), directory, workspace)
        yield Double("desk", desk.base_url, BOT_TOKEN, "C0APPROVALS", "U0ALICE")
        desk.stop()


def answers(double: Double) -> dict[str, str]:
    """Every case of SLACK, in an order that lets one follow from another."""
    sender = Sender(double.api_base, lambda _: double.token, allow_local=True)
    plain = client(double.api_base, double.token, 5)
    shown = render(record(), "prod-1", mac)
    posted = sender.send(card_job("acme", double.channel, shown))
    settled = render(record(phase="done", outcome="closed"), "prod-1", mac)
    note = {"tenant": "acme", "channel": double.channel, "user": double.member, "text": "<b> & done"}
    many = [{"type": "divider"}] * 51
    reply = sender.send({**note, "kind": "reply", "thread_ts": posted.ts})
    header = plain.api_call("auth.test", json={}).headers
    return {
        "who we are": said(call(plain, "auth.test", {})),
        "a card": said(posted),
        "its update": said(sender.send(card_job("acme", double.channel, settled, ts=posted.ts))),
        "an update of a card that is gone": said(sender.send(card_job("acme", double.channel, settled, ts="1.000001"))),
        "a reply in its thread": said(reply),
        "a note for one person": said(sender.send({**note, "kind": "ephemeral"})),
        "a direct message by member id": said(sender.send({**note, "kind": "dm"})),
        "a card to a channel that is not there": said(sender.send(card_job("acme", "C0NOWHERE", shown))),
        "a card with too many blocks": said(call(plain, "chat.postMessage", {"channel": double.channel, "text": "x", "blocks": many})),
        "a card with a block nobody knows": said(
            call(plain, "chat.postMessage", {"channel": double.channel, "text": "x", "blocks": [{"type": "nonsense"}]})
        ),
        "a Home tab": said(sender.send({"kind": "home", "tenant": "acme", "user": double.member, "view": HOME})),
        "a window without a trigger": said(
            Modals(double.api_base, lambda _: double.token, allow_local=True).open("acme", "1.2.nobody", MODAL)
        ),
        "a token that nobody gave": said(call(client(double.api_base, "xoxb-nobody", 5), "auth.test", {})),
        "deleting a message": said(call(plain, "chat.delete", {"channel": double.channel, "ts": reply.ts})),
        "a method that nobody has": said(_unknown(double)),
        "the permissions in the header": "said" if {name.lower() for name in header} & {"x-oauth-scopes"} else "not said",
    }  # fmt: skip


def said(sent: Sent) -> str:
    return f"{sent.kind} {sent.error}".strip()


def _unknown(double: Double) -> Sent:
    """What our client makes of the answer to a method that is not one of Slack's."""
    web = client(double.api_base, double.token, 5)
    ask = web.api_call
    web.api_call = lambda method, **arguments: ask("chat.dance", **arguments)  # type: ignore[method-assign]
    return call(web, "auth.test", {})


def test_each_answers_as_slack_does_but_for_the_differences_that_are_known(double: Double) -> None:
    found = answers(double)
    assert set(found) == set(SLACK)
    differing = {case: answer for case, answer in found.items() if answer != SLACK[case]}
    assert differing == KNOWN[double.name], f"review tests/contract/known_differences.toml: {differing}"


def test_only_known_stand_ins_and_cases_are_in_the_table() -> None:
    assert set(KNOWN) == {"desk", "local-slack", "emulate"}
    assert all(case in SLACK for known in KNOWN.values() for case in known)
    assert KNOWN["desk"] == {}, "our own stand-in has no excuse"


def test_a_refused_card_of_a_channel_that_is_gone_is_posted_where_cards_go_now(double: Double) -> None:
    """The whole road of slack.md case 26, against whoever answers."""
    sender = Sender(double.api_base, lambda _: double.token, allow_local=True)
    gone = card_job("acme", double.channel, render(record(), "prod-1", mac), ts="1.000001")
    sent = sender.send(gone)
    other = instead(gone, sent, double.channel)
    if sent.kind == "ok":
        assert KNOWN[double.name]["an update of a card that is gone"] == "ok"
        return
    assert other is not None
    again = sender.send(other)
    assert (again.kind, bool(again.ts)) == ("ok", True)


def test_cards_windows_and_home_are_what_slacks_own_types_say(tmp_path: Path) -> None:
    """`@slack/types` under tsc: unknown keys, wrong text objects and bad styles do not compile."""
    doubles.wanted(doubles.TSC)
    from tests.contract.typed import source

    file = tmp_path / "cards.ts"
    file.write_text(source(), "utf-8")
    (tmp_path / "node_modules").symlink_to(doubles.HERE)
    command = [
        "node",
        str(doubles.TSC),
        "--noEmit",
        "--strict",
        "--skipLibCheck",
        "--moduleResolution",
        "node",
        str(file),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[:3_000]
    file.write_text(source().replace('"type": "plain_text"', '"type": "plain_texts"', 1), "utf-8")
    broken = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert broken.returncode != 0, "the check itself must be able to fail"
