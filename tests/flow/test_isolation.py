"""P10, P12: what is broken stops itself and says so: one run, one log, one bucket, one tenant stops no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from engine.errors import CallerError, OperatorError
from governance import clock
from governance.connectors.servicenow import ServiceNow
from governance.evidence.vault import Vault
from governance.local import postgres
from governance.stages import advance
from governance.stages.tick import Tick
from governance.store import people, views
from governance.store.entries import Sequencer
from governance.store.unit import Unit
from governance.web import story
from tests.kit.seams import begin, notes, work
from tests.kit.servicenow import ServiceNow as StandIn
from tests.kit.slack import SlackSink
from tests.kit.world import World, settle


@pytest.fixture(autouse=True)
def said() -> Iterator[list[Any]]:
    with capture_logs() as lines:
        yield lines


@pytest.fixture
def rival(world: World, slack_sink: SlackSink, servicenow: StandIn) -> Iterator[World]:
    """Another tenant of the same installation."""
    made = settle(world.parts, slack_sink, servicenow)
    yield made
    made.forget()


def spoil(world: World, run: str) -> None:
    """A record that cannot be trusted: whoever reads this run refuses to go on."""
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update run set events = events + 1 where tenant = :tenant and run = :run", run=run)


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.inconsistent(reason="a run's own row says another number of events")
def test_a_clock_of_a_broken_run_holds_back_no_other(world: World, said: list[Any]) -> None:
    runs = [world.start(ref=ref) for ref in ("broken", "sound")]
    for run in runs:
        world.until(run, "waiting_approval")
    broken, sound = (world.waiting(run).asked.id for run in runs)
    spoil(world, runs[0])
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update approval set expires_at = clock_timestamp() - interval '1 second' where tenant = :tenant")
        unit.run("update due set at = clock_timestamp() - interval '1 second' where tenant = :tenant")
        unit.run("update due set at = at - interval '1 hour' where tenant = :tenant and ref = :ref", ref=broken)
    Tick(world.parts.database).step()
    found = world.rows("select approval, status from approval where tenant = :tenant")
    assert {row["approval"]: row["status"] for row in found} == {broken: "requested", sound: "expired"}
    assert [line["ref"] for line in said if line["event"] == "clock stuck"] == [broken]
    later = world.row(
        "select at > clock_timestamp() as later from due where tenant = :tenant and ref = :ref", ref=broken
    )
    assert later == {"later": True}, "it comes back, and not at once"


@pytest.mark.parametrize("where", ["before the first step", "in the connector"])
def test_a_poisoned_run_is_parked_after_ten_faults_says_why_and_stops_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    sound = begin(world, notes("sound", "sound"), "sound")
    run = world.start("sound", value={"sys_id": "9" * 32}, ref="poisoned")
    step, observe, faults = advance.step, ServiceNow.observe, []

    def poisoned(case: Any, definition: Any) -> Any:
        if case.origin.run == run and where == "before the first step":
            faults.append(1)
            raise ZeroDivisionError
        return step(case, definition)

    def blind(connector: ServiceNow, action: Any) -> Any:
        if action.run == run and where == "in the connector":
            faults.append(1)
            raise ZeroDivisionError
        return observe(connector, action)

    with monkeypatch.context() as patch:
        patch.setattr(advance, "step", poisoned)
        patch.setattr(ServiceNow, "observe", blind)
        for _ in range(14):
            world.drain()
            world.hurry()
    assert world.case(sound).state == "succeeded"
    assert len(faults) == 10
    (item,) = work(world, run)
    assert (item["state"], item["faults"], item["owner"]) == ("parked", 10, "")
    shown = world.row("select error from run where tenant = :tenant and run = :run", run=run)
    assert shown == {"error": "internal error"}
    with world.parts.database.unit(world.tenant, write=False) as unit:
        why = story.why(views.run(unit, run), views.steps(unit, run), [], unit.now())
    assert why.text == "Is parked and waits for the operator: internal error"
    assert world.writes("work_notes") == ["sound"]
    # It is not lost: a person can still end it.
    assert world.parts.cancel.cancel(world.tenant, world.actor("ana"), run, "it is broken") == "canceled"


def test_what_fails_while_a_step_waits_is_shown_at_the_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run = world.start()
    world.until(run, "waiting_approval")
    found = world.approve(run, "ana")

    def bug(connector: ServiceNow, action: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(ServiceNow, "observe", bug)
    for _ in range(11):
        world.drain()
        world.hurry()
    assert world.case(run).promises[found.asked.promise].last_error == "internal error"
    assert [(row["item"], row["state"]) for row in work(world, run)] == [(found.asked.promise, "parked")]
    assert world.writes("impact") == []


# --- the log ----------------------------------------------------------------------------------------------------------


def stopped(said: list[Any], *worlds: World) -> list[str]:
    """Whose logs were said to have stopped, of these tenants."""
    mine = {each.tenant for each in worlds}
    found = [line for line in said if line["event"] == "log stopped" and line["tenant"] in mine]
    assert {line["log_level"] for line in found} <= {"error"}
    return [line["tenant"] for line in found]


def test_a_broken_log_stops_itself_and_no_other(world: World, rival: World, said: list[Any]) -> None:
    """Whichever comes first in the order of tenants."""
    first, second = sorted((world, rival), key=lambda each: each.tenant)
    world.parts.log.step()
    first.start()
    second.start()
    with first.parts.database.unit(first.tenant) as unit:
        unit.run(
            "insert into entry_pending (tenant, chain, chain_seq, body, leaf) select tenant, 'forged', 7, body, leaf from entry "
            "where tenant = :tenant limit 1"
        )
    world.parts.log.step()
    left = "select count(*)::int as n from entry_pending where tenant = :tenant"
    assert second.row(left) == {"n": 0}
    assert first.row(left) != {"n": 0}, "nothing that does not follow is papered over"
    assert stopped(said, first, second) == [first.tenant]


def test_signing_reads_what_is_new_and_not_the_whole_log(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    fetch = Unit.all

    def counted(unit: Unit, sql: str, **values: Any) -> Any:
        rows = fetch(unit, sql, **values)
        if "from entry " in sql and unit.tenant == world.tenant:
            read.append(len(rows))
        return rows

    world.parts.log.step()
    monkeypatch.setattr(Unit, "all", counted)
    sizes, costs = [], []
    for n in range(4):
        for one in range(5):
            world.start(ref=f"{n}-{one}")
        read.clear()
        moved = world.parts.log.step()
        head = world.row("select size::int as size from audit_head where tenant = :tenant")
        assert head is not None
        sizes.append(head["size"])
        costs.append((sum(read), moved))
    assert sizes == sorted(set(sizes))
    assert costs == [(5, 5)] * 4, "as much as was new, however long the log has become"


@pytest.mark.inconsistent(reason="a superuser has rewritten an entry")
def test_a_stored_entry_that_was_changed_is_never_signed(
    world: World, rival: World, database: postgres.Database, postgres_server: postgres.Postgres, said: list[Any]
) -> None:
    """Somebody with the superuser's rights rewrites an entry between its place and its signature."""
    world.parts.log.step()
    world.start()
    rival.start()
    assert Sequencer(world.parts.database).step(world.tenant, 100) > 0
    with psycopg.connect(postgres_server.url(postgres.SUPERUSER, database.name)) as connection:
        connection.execute("set session_replication_role = replica")
        changed = connection.execute(
            "update entry set body = (select body from entry where tenant = %s order by position limit 1) where tenant = %s "
            "and position = (select max(position) from entry where tenant = %s)",
            [world.tenant] * 3,
        ).rowcount
        assert changed == 1
    world.parts.log.step()
    signed = "select count(*)::int as n from checkpoint where tenant = :tenant and note is null"
    assert world.row(signed) == {"n": 1}
    assert rival.row(signed) == {"n": 0}
    assert stopped(said, world, rival) == [world.tenant]


# --- the bucket -------------------------------------------------------------------------------------------------------


def test_a_bucket_that_is_down_holds_back_no_run_and_is_waited_for(
    sealing_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long: evidence that gave up would be evidence that is missing."""
    world = sealing_world
    ended = [world.start(ref=str(n)) for n in range(3)]
    for run in ended:
        world.parts.cancel.cancel(world.tenant, world.actor("ana"), run, "never mind")
    while world.parts.log.step():
        pass
    world.parts.publisher.step()
    tried: list[str] = []

    def down(vault: Vault, key: str, data: bytes, retain_until: Any) -> str:
        tried.append(key)
        raise OperatorError("the bucket does not answer", code="vault")

    with monkeypatch.context() as patch:
        patch.setattr(Vault, "put", down)
        seals = world.parts.worker._seals
        patch.setattr(world.parts.worker, "_seals", lambda: 0)
        run = begin(world, notes("meanwhile", "meanwhile"))
        world.drain()
        assert world.case(run).state == "succeeded", "drives take no seal at all"
        assert tried == []
        for _ in range(12):
            world.hurry()
            while seals():
                pass
    assert len(set(tried)) == 3
    found = world.rows("select run, error from run where tenant = :tenant and run = any(:runs)", runs=ended)
    assert {row["error"] for row in found} == {"the bucket does not answer"}
    for run in ended:
        assert world.seal(run)["state"] == "sealed"


# --- tenants ----------------------------------------------------------------------------------------------------------


def test_what_leads_to_one_tenant_cannot_be_taken_by_another(world: World, rival: World) -> None:
    """A Slack team and a token are one tenant's; for another they are refused and nothing of it is stored."""
    team = world.row("select team from installation where tenant = :tenant")
    assert team is not None
    orders: list[Callable[[], object]] = [
        lambda: rival.parts.admit.slack(
            rival.tenant, team=team["team"], app_id="A0DESK", bot_user="U0BOT", token="xoxb-theirs", channel="C0DESK"
        ),
        lambda: rival.parts.admit.token_known(rival.tenant, rival.who["ana"], world.token("ana"), "theirs"),
    ]
    kept = (
        "select (select count(*) from identity where tenant = :tenant)::int as identities, "
        "(select count(*) from installation where tenant = :tenant)::int as installations"
    )
    before = rival.row(kept)
    for order in orders:
        with pytest.raises(CallerError) as caught:
            order()
        assert caught.value.code == "taken"
    assert rival.row(kept) == before
    assert world.parts.dispatch.route("slack", team["team"]) == world.tenant
    # The same one twice is no change.
    world.parts.admit.slack(
        world.tenant, team=team["team"], app_id="A0DESK", bot_user="U0BOT", token="xoxb-new", channel="C0DESK"
    )
    assert world.parts.dispatch.route("slack", team["team"]) == world.tenant


def test_a_source_is_one_tenants(world: World, rival: World) -> None:
    """The route of a source carries its tenant, so the same name is two sources; another's route is refused."""
    for each in (world, rival):
        each.parts.admit.source(
            each.tenant, "servicenow", kind="servicenow", secret="s" * 16, workflow="incident-triage", person="robot", owner="rita"
        )  # fmt: skip
        assert each.parts.dispatch.route("source", f"{each.tenant}/servicenow") == each.tenant
    with world.parts.database.unit(world.tenant) as unit:
        with pytest.raises(CallerError, match="another tenant"):
            people.route(unit, "source", f"{rival.tenant}/servicenow")


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a\x00b", "\ud800"], ids=["NUL", "half a character"])
def test_what_cannot_be_stored_is_the_callers_error(world: World, text: str) -> None:
    """Not the operator's, and not a crash: nothing of it is there afterwards."""
    run = world.start()
    world.until(run, "waiting_approval")
    found, admit = world.waiting(run), world.parts.admit
    before = world.entries(run)
    orders: list[Callable[[], object]] = [
        lambda: world.start(ref=text),
        lambda: world.press(found, "ana", reason=text),
        lambda: world.press(found, "ana", kind="reject", reason=text),
        lambda: admit.person(world.tenant, None, name=text, level=4),
        lambda: admit.group(world.tenant, None, "group", text),
        lambda: world.parts.resolve.resolve(world.tenant, world.actor("bo"), text, "0", "happened", "I know"),
    ]
    for n, order in enumerate(orders):
        with pytest.raises(CallerError):
            raise AssertionError(f"order {n} was taken: {order()}")
    assert world.entries(run) == before
    assert world.case(run).state == "waiting_approval"


def test_what_is_too_long_is_the_callers_error(world: World) -> None:
    """An index that cannot hold it is not a database that does not answer."""
    long = clock.random_hex(5000)
    orders: list[Callable[[], object]] = [
        lambda: world.start(ref=long),
        lambda: world.parts.admit.person(world.tenant, None, name=long, level=4),
        lambda: world.parts.admit.link_slack(world.tenant, None, world.who["bo"], "T0DESK", long),
    ]
    for n, order in enumerate(orders):
        with pytest.raises(CallerError):
            raise AssertionError(f"order {n} was taken: {order()}")
    assert world.rows("select 1 from run where tenant = :tenant") == []
