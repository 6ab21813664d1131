"""How soon Slack gets its answers: fifty clicks at once, a card after its verdict, and Home over a thousand open requests.

The clicks are signed requests to the web process' own application on this machine, through guard, Bolt, the choke point and
a durable PostgreSQL; each is by one of nine people on one request that takes two keys, so that all of them want the
same row. Prints one JSON object with the gates of issue 6; a loaded machine makes every number worse, so say which it was.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

sys.path.insert(0, str(Path(__file__).parents[1]))

import uvicorn

from governance import log
from governance.local import postgres
from governance.local.children import Children
from governance.slack import buttons
from governance.store import migrate
from governance.wiring import Parts
from tests.governance.slack.kit import click
from tests.kit.crowd import copy_run
from tests.kit.servicenow import ServiceNow
from tests.kit.slack import SlackSink
from tests.kit.world import CREW, TEAM, World, settings_for, settle

CLICKS, ROUNDS, CARDS, OPEN = 50, 6, 20, 1_000
GATES = {"click_p99_ms": 300.0, "card_p50_ms": 200.0, "home_ms": 500.0}


def asked(world: World, ref: str) -> str:
    while world.parts.log.step():
        pass  # a log that lags behind stops effects, here as anywhere
    run = world.start(ref=ref)
    world.until(run, "waiting_approval")
    return run


def clicks(world: World, port: int) -> list[float]:
    """Seconds from a signed press to its 200, fifty at once on one request that takes two keys, several times over."""
    secret = world.parts.settings.slack_signing_secret.encode()
    names = [name for name in CREW if name != "robot"]
    taken: list[float] = []
    for number in range(ROUNDS):
        run = asked(world, f"click-{number}")
        world.approve(run, "cleo")
        world.until(run, "waiting_approval")
        card = world.parts.records.approval(world.tenant, world.waiting(run).asked.id)
        value = buttons.value_of(card, buttons.APPROVE, "test", world.parts.button_mac)
        together = threading.Barrier(CLICKS)

        def press(n: int, value: str = value, number: int = number, together: threading.Barrier = together) -> float:
            user = f"U{names[n % len(names)].upper()}"
            payload = click(
                buttons.APPROVE, value, team={"id": TEAM}, api_app_id="A0DESK", user={"id": user, "team_id": TEAM},
                trigger_id=f"{number}.{n}.bench",
            )  # fmt: skip
            body = urlencode({"payload": json.dumps(payload)}).encode()
            moment = str(int(time.time()))
            signed = hmac.new(secret, f"v0:{moment}:".encode() + body, hashlib.sha256).hexdigest()
            headers = {
                "Content-Type": "application/x-www-form-urlencoded", "X-Slack-Request-Timestamp": moment,
                "X-Slack-Signature": f"v0={signed}",
            }  # fmt: skip
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.connect()
            together.wait()
            begun = time.perf_counter()
            connection.request("POST", "/slack/events", body, headers)
            status = connection.getresponse().status
            spent = time.perf_counter() - begun
            connection.close()
            assert status == 200, status
            return spent

        with ThreadPoolExecutor(CLICKS) as pool:
            taken += pool.map(press, range(CLICKS))
        keys = world.rows("select person from vote where tenant = :tenant and approval = :a", a=card.approval)
        assert len(keys) == 2, f"{len(keys)} keys"
    return taken


def cards(world: World) -> list[float]:
    """Seconds from the commit that asks to the post that Slack has taken."""
    taken = []
    for number in range(CARDS):
        asked(world, f"card-{number}")
        with world.parts.database.unit(world.tenant) as unit:
            unit.run("update pace set free_at = clock_timestamp() - interval '1 minute' where tenant = :tenant")
        seen, begun = len(world.slack.calls), time.perf_counter()
        while len(world.slack.calls) == seen:
            world.parts.delivery.step()
        taken.append(time.perf_counter() - begun)
        world.post()
    return taken


def home(world: World, server: postgres.Postgres, database: postgres.Database) -> float:
    """Seconds to read and render one person's Home over a thousand open requests; the middle of five."""
    copy_run(server, database, world.tenant, asked(world, "home"), OPEN, alive=True)
    ref = world.slack_ref("ana")
    taken = []
    for _ in range(5):
        begun = time.perf_counter()
        found = world.parts.looks.desk(world.tenant, ref)
        world.parts.records.render_home(world.tenant, ref, found)
        taken.append(time.perf_counter() - begun)
        assert found is not None
        assert found[1].yours_count > OPEN
    return statistics.median(taken)


def main() -> int:
    log.configure("error", "bench")
    with tempfile.TemporaryDirectory(prefix="tk-") as name, SlackSink() as slack:
        state = Path(name)
        state.chmod(0o711)
        with Children(state / "logs") as children:
            server = postgres.start(children, state, durable=True)
            database = server.create_application("bench")
            migrate.upgrade(database.owner_url, postgres.APP_ROLE)
            parts = Parts(settings_for(database, slack.api_base), "bench", state / "parts")
            parts.worker._seals = lambda: 0  # type: ignore[method-assign]
            world = settle(parts, slack, ServiceNow(children, state), tenant="bench")
            config = uvicorn.Config(
                parts.web_app(), host="127.0.0.1", port=0, log_config=None, access_log=False, lifespan="off"
            )
            web = uvicorn.Server(config)
            thread = threading.Thread(target=web.run)
            thread.start()
            while not web.started:
                time.sleep(0.01)
            found: dict[str, Any] = {}
            pressed = sorted(clicks(world, web.servers[0].sockets[0].getsockname()[1]))
            found["click_p50_ms"] = round(statistics.median(pressed) * 1000, 1)
            found["click_p99_ms"] = round(pressed[int(len(pressed) * 0.99) - 1] * 1000, 1)
            found["card_p50_ms"] = round(statistics.median(cards(world)) * 1000, 1)
            found["home_ms"] = round(home(world, server, database) * 1000, 1)
            web.should_exit = True
            thread.join()
            parts.close()
    found["gates"] = {name: {"most": most, "met": found[name] <= most} for name, most in GATES.items()}
    print(json.dumps(found, indent=1))
    return 0 if all(gate["met"] for gate in found["gates"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
