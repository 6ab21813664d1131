"""Doctor: asks every part of an installation whether it could do its duty now, and says what to mend; it changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from engine.errors import TwokeysError
from governance import clock
from governance.connectors.registry import Answering
from governance.slack.api import answers
from governance.store import templates
from governance.wiring import Parts

OK, WARN, FAIL = "ok", "warn", "fail"
skew_seconds_warn, skew_seconds_fail = 5, 150  # Slack's signatures hold for 300 s by our own clock
waiting_seconds_warn = 60
_durable = ("fsync", "synchronous_commit", "full_page_writes")


@dataclass(frozen=True, slots=True)
class Finding:
    """One question and its answer."""

    check: str
    state: str
    what: str
    next_step: str = ""


def examine(parts: Parts, tenant: str = "") -> Iterator[Finding]:
    """Every finding, as it is found, about one tenant or all; what cannot be asked because something before it fails is left out."""
    database = _asked("database", partial(_database, parts))
    yield database
    yield _asked("bucket", partial(_bucket, parts))
    if database.state == FAIL:
        return
    yield _asked("durability", partial(_durability, parts))
    yield _asked("clock", partial(_clock, parts))
    yield from _queue(parts)
    for one in [tenant] if tenant else parts.dispatch.tenants():
        for name, check in (("keys", _keys), ("policy", _policy), ("slack", _slack), ("servicenow", _servicenow)):
            yield _asked(f"{one}/{name}", partial(check, parts, one))


def _asked(name: str, check: Callable[[], tuple[str, str, str]]) -> Finding:
    try:
        return Finding(name, *check())
    except TwokeysError as error:
        field = f"{error.field}: " if error.field else ""
        return Finding(name, FAIL, f"{field}{error.reason}", error.next_step)


def _database(parts: Parts) -> tuple[str, str, str]:
    parts.database.self_test()
    version = parts.database.told(("server_version",))["server_version"]
    return OK, f"PostgreSQL {version}, the schema and the role are right", ""


def _durability(parts: Parts) -> tuple[str, str, str]:
    told = parts.database.told(_durable)
    loose = [f"{name}={told[name]}" for name in _durable if told[name] != "on"]
    if loose:
        return FAIL, f"{', '.join(loose)}: what was answered may be lost in a crash", "set it to on in postgresql.conf"
    return OK, "what was answered survives a crash", ""


def _bucket(parts: Parts) -> tuple[str, str, str]:
    parts.vault.check()
    return OK, f"{parts.vault.bucket} answers and has Object Lock, {parts.vault.mode}", ""


def _clock(parts: Parts) -> tuple[str, str, str]:
    skew = abs(parts.database.ping() - clock.epoch_seconds())
    text = f"this machine's clock and the database's differ by {skew:.0f} s"
    if skew > skew_seconds_warn:
        return FAIL if skew > skew_seconds_fail else WARN, text, "let both follow the same time service"
    return OK, text, ""


def _queue(parts: Parts) -> Iterator[Finding]:
    try:
        levels = parts.dispatch.levels()
    except TwokeysError as error:
        yield Finding("queue", FAIL, error.reason, error.next_step)
        return
    late = max(levels[name] for name in ("work_ready_seconds", "due_overdue_seconds", "outbox_ready_seconds"))
    table = (
        ("queue", late > waiting_seconds_warn, f"{levels['work_ready']:.0f} items are ready, the longest wait is {late:.0f} s",
         "see that a `twokeys worker` runs, or start more of them"),
        ("taken over", levels["work_expired"] > 0, f"{levels['work_expired']:.0f} items were left by a worker that is gone",
         "a running worker takes them over; see that one runs"),
        ("parked", levels["work_parked"] > 0, f"{levels['work_parked']:.0f} items wait for a person",
         "`twokeys run list` shows whose, `twokeys run show` why"),
        ("evidence", levels["seal_failing"] > 0, f"{levels['seal_failing']:.0f} ended runs could not be sealed yet",
         "see the bucket above and the worker's log; they are tried again by themselves"),
    )  # fmt: skip
    for name, wrong, text, step in table:
        yield Finding(name, WARN if wrong else OK, text, step if wrong else "")


def _keys(parts: Parts, tenant: str) -> tuple[str, str, str]:
    for purpose in ("log", "bundle", "receipt"):
        parts.secrets.signer(tenant, purpose)
    parts.hash_key(tenant)
    return OK, "the master key opens them", ""


def _policy(parts: Parts, tenant: str) -> tuple[str, str, str]:
    with parts.database.unit(tenant, write=False) as unit:
        revision = templates.active_revision(unit)
    if not revision:
        return FAIL, "no policy is in force, so everything is denied", "publish one"
    parts.policies.breaker(tenant, revision)
    return (
        OK,
        f"revision {revision[:12]} is loaded by the {parts.settings.policy_engine} engine and passes its canaries",
        "",
    )


def _slack(parts: Parts, tenant: str) -> tuple[str, str, str]:
    with parts.database.unit(tenant, write=False) as unit:
        found = templates.installation(unit)
    if found is None:
        return (
            WARN,
            "no workspace is installed: cards go nowhere, people decide in the console",
            "`twokeys tenant slack`",
        )
    fault = answers(parts.settings.slack_api_base, parts.reach.slack_token(tenant), allow_local=parts.settings.local)
    if fault:
        return (
            FAIL,
            f"workspace {found.team} answers {fault}",
            "install the app again and give its token to `twokeys tenant slack`",
        )
    return OK, f"workspace {found.team} answers; cards go to {found.channel}", ""


def _servicenow(parts: Parts, tenant: str) -> tuple[str, str, str]:
    with parts.database.unit(tenant, write=False) as unit:
        if templates.connection(unit, "servicenow") is None:
            return OK, "not connected", ""
    connector = parts.registry.of("servicenow")
    fault = connector.answers(tenant) if isinstance(connector, Answering) else None
    if fault is not None:
        return (
            FAIL,
            f"{fault.error_class}: {fault.message}",
            "check the address and the account, then `twokeys tenant connect servicenow`",
        )
    return OK, f"{parts.reach.instance(tenant, 'servicenow')} answers our account", ""
