"""/metrics: closed to whoever has no token, honest when the database is away, and it tells nothing about any one tenant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from engine.errors import OperatorError
from engine.ledger.entries import Fact
from governance import metrics
from governance.store import entries
from governance.store.dispatch import Dispatch
from governance.web.scrape import Scrape, alone
from tests.kit.world import World, parts, slack_sink, world

__all__ = ["parts", "slack_sink", "world"]

TOKEN = "a-token-of-some-length"


def visitor(token: str, *, open_: bool, levels: Mapping[str, float] | None = None) -> TestClient:
    return TestClient(alone(Scrape(lambda: levels or {}, token=token, open_=open_)))


@pytest.mark.parametrize("open_", [True, False])
def test_with_a_token_only_its_holder_reads(open_: bool) -> None:
    asked = visitor(TOKEN, open_=open_)
    for given in ({}, {"authorization": "Bearer wrong"}, {"authorization": TOKEN}, {"authorization": "Bearer "}):
        answer = asked.get("/metrics", headers=given)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert "twokeys_" not in answer.text
    answer = asked.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200
    assert "twokeys_database_up 1.0" in answer.text


def test_without_a_token_it_is_closed_and_says_what_to_set() -> None:
    answer = visitor("", open_=False).get("/metrics")
    assert answer.status_code == 403
    assert "TWOKEYS_METRICS_TOKEN" in answer.text
    assert visitor("", open_=True).get("/metrics").status_code == 200


def test_a_database_that_is_away_is_zero_and_the_counters_are_told_all_the_same() -> None:
    def gone() -> Mapping[str, float]:
        raise OperatorError("the database does not answer", code="database")

    metrics.count("lease_lost")
    answer = TestClient(alone(Scrape(gone, token="", open_=True))).get("/metrics")
    assert answer.status_code == 200
    assert "twokeys_database_up 0.0" in answer.text
    assert 'twokeys_events_total{name="lease_lost"}' in answer.text


def test_what_waits_is_measured_over_all_tenants_and_names_none(world: World) -> None:
    before = Dispatch(world.parts.database).levels()
    world.start()
    with world.parts.database.unit(world.tenant) as unit:
        unit.run("update work set eligible_at = clock_timestamp() - interval '90 seconds' where tenant = :tenant")
    after = world.parts.dispatch.levels()
    assert after["work_ready"] == before["work_ready"] + 1
    assert after["work_ready_seconds"] >= 90
    world.expire_leases()
    text = TestClient(alone(world.parts.scrape())).get("/metrics").text
    assert world.tenant not in text
    assert re.search(r"^twokeys_work_ready [0-9.]+$", text, flags=re.MULTILINE)


def test_every_measure_is_asked_of_the_database_or_set_by_a_worker(world: World) -> None:
    exports = {"export_behind", "export_behind_seconds", "export_failing", "export_stopped"}
    set_elsewhere = {"database_up", "log_caught_up_timestamp_seconds", *exports}
    assert set(world.parts.dispatch.levels()) | set_elsewhere == set(metrics.LEVELS)


def test_an_operator_can_look_up_every_measure() -> None:
    paper = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    assert [name for name in metrics.LEVELS if f"`twokeys_{name}`" not in paper] == []


def counted(kind: str) -> float:
    found = re.search(rf'^twokeys_entries_total{{type="{kind}"}} (.+)$', metrics.text().decode(), flags=re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_an_entry_is_counted_once_it_is_committed_and_not_before(world: World) -> None:
    before = counted("run.queued"), counted("verdict.given")
    retries = counted("run.retried")
    run = world.start()
    world.until(run, "waiting_approval")
    verdicts = world.entries(run).count("verdict.given")
    assert (counted("run.queued"), counted("verdict.given")) == (before[0] + 1, before[1] + verdicts)
    retried = Fact("run.retried", {"type": "system", "id": "twokeys"}, {"person": "", "count": 0})
    with suppress(ZeroDivisionError), world.parts.database.unit(world.tenant) as unit:
        entries.note_run(unit, run, [retried])
        raise ZeroDivisionError
    assert "run.retried" not in world.entries(run)
    assert counted("run.retried") == retries
