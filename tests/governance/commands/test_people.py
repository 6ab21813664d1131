"""Setting a tenant up: people, identities, groups and connections; what is wrong is refused by its field and nothing is half done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine.errors import CallerError, Refused, TwokeysError
from governance.commands.authority import Actor, token_ref
from tests.governance.commands.kit import staff, stored, unique
from tests.kit.world import INPUT, TEAM, World


def refusal(how: Callable[[], Any]) -> TwokeysError:
    with pytest.raises(TwokeysError) as caught:
        how()
    return caught.value


def test_a_tenant_is_made_once_with_its_keys_its_policy_and_its_log(company: World) -> None:
    tenant = unique("t")
    company.parts.admit.tenant(tenant, "Another one", "staging")
    error = refusal(lambda: company.parts.admit.tenant(tenant, "Again", "prod"))
    assert (error.code, error.field) == ("taken", "tenant")
    with company.parts.database.unit(tenant, write=False) as unit:
        assert unit.one("select name, environment, kill_switch from tenant") == ("Another one", "staging", False)
        keys = unit.all("select purpose, state from signing_key order by 1")
        assert len({row[0] for row in keys}) == len(keys) >= 4
        assert {row[1] for row in keys} == {"active"}
        assert unit.run("select count(*) from policy where state = 'active'").scalar_one() == 1
        assert unit.run("select count(*) from audit_head").scalar_one() == 1


@pytest.mark.parametrize(
    ("tenant", "environment", "field"),
    [
        ("", "prod", "tenant"),
        ("A", "prod", "tenant"),
        ("../x", "prod", "tenant"),
        ("ok-1", "production", "environment"),
    ],
)
def test_a_tenant_that_is_named_wrongly_is_refused(company: World, tenant: str, environment: str, field: str) -> None:
    assert refusal(lambda: company.parts.admit.tenant(tenant, "x", environment)).field == field


def test_two_tenants_of_one_name_at_once_are_one(company: World) -> None:
    tenant, barrier = unique("t"), threading.Barrier(4)

    def go(n: int) -> str:
        barrier.wait()
        try:
            company.parts.admit.tenant(tenant, f"Number {n}", "prod")
        except CallerError as error:
            return error.code
        return "made"

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(go, range(4))) == ["made", "taken", "taken", "taken"]


@pytest.mark.parametrize(
    ("how", "field"),
    [
        ({"name": "", "level": 4}, "name"),
        ({"name": "   ", "level": 4}, "name"),
        ({"name": "x" * 101, "level": 4}, "name"),
        ({"name": "Nina", "level": 0}, "level"),
        ({"name": "Nina", "level": 7}, "level"),
    ],
)
def test_a_person_that_cannot_be_is_refused_by_the_field(company: World, how: dict[str, Any], field: str) -> None:
    before = stored(company)
    assert refusal(lambda: company.parts.admit.person(company.tenant, None, **how)).field == field
    assert stored(company) == before


def test_evidence_names_a_pseudonym_and_never_the_name(company: World) -> None:
    person = company.parts.admit.person(company.tenant, company.actor("rita"), name="Nina Nimble", level=4)
    token = company.parts.admit.token(company.tenant, company.actor("rita"), person, "Nina's laptop")
    company.parts.admit.link_slack(company.tenant, company.actor("rita"), person, TEAM, "U0NINA")
    bodies = company.rows(
        "select convert_from(body, 'UTF8') as body from entry_pending where tenant = :tenant and chain = :chain",
        chain=f"person/{person}",
    )
    assert len(bodies) == 3
    text = " ".join(row["body"] for row in bodies)
    for secret in ("Nina", "U0NINA", token, token_ref(token)):
        assert secret not in text


def test_a_token_is_kept_as_its_hash_only(company: World) -> None:
    person = staff(company, unique("n"), 4)
    token = company.parts.admit.token(company.tenant, None, person, "laptop")
    refs = company.rows("select ref, label from identity where tenant = :tenant and person = :person", person=person)
    assert {"ref": token_ref(token), "label": "laptop"} in refs
    assert token not in str(refs)
    assert company.parts.dispatch.route("token", token_ref(token)) == company.tenant
    begun = company.parts.start.by_hand(
        company.tenant, Actor("token", token_ref(token)), "incident-triage", INPUT, unique()
    )
    assert begun.new


def test_a_token_that_is_known_already_changes_nothing(company: World) -> None:
    before = stored(company)
    company.parts.admit.token_known(company.tenant, company.who["rita"], company.token("rita"), "again")
    assert stored(company) == before


def test_an_identity_belongs_to_one_person_for_ever(company: World) -> None:
    before = stored(company)
    error = refusal(lambda: company.parts.admit.link_slack(company.tenant, None, company.who["olga"], TEAM, "UANA"))
    assert (error.code, error.field) == ("taken", "identity")
    assert stored(company) == before


@pytest.mark.parametrize(("team", "user"), [("", "U1"), ("T 1", "U1"), ("T1", ""), ("T1", "U1\n"), ("T1", "x" * 129)])
def test_a_slack_id_that_is_none_is_refused(company: World, team: str, user: str) -> None:
    error = refusal(lambda: company.parts.admit.link_slack(company.tenant, None, company.who["olga"], team, user))
    assert error.field in ("team", "user")


def test_a_person_of_another_tenant_is_nobody_here(company: World, rival: World) -> None:
    """By id, by name that exists there only, and as the one who gives the order."""
    stranger = staff(rival, unique("only-there-"), 6)
    name = next(name for name, person in rival.who.items() if person == stranger)
    before = stored(company), stored(rival)
    admit, tenant = company.parts.admit, company.tenant
    for who in (stranger, name):
        for how in (
            lambda who=who: admit.join(tenant, None, "oncall", who),
            lambda who=who: admit.deactivate(tenant, None, who),
            lambda who=who: admit.token(tenant, None, who, "laptop"),
            lambda who=who: admit.link_slack(tenant, None, who, "T9", "U9"),
            lambda who=who: admit.source(
                tenant, "s", kind="k", secret="x" * 16, workflow="w", person=who, owner=company.who["rita"]
            ),
        ):
            error = refusal(how)
            assert error.field == "person"
            assert "nobody here" in str(error)
    assert refusal(lambda: admit.person(tenant, rival.actor("rita"), name="x", level=4)).code == "unknown_person"
    run = rival.start(ref=unique())
    for how in (
        lambda: company.parts.cancel.cancel(tenant, company.actor("rita"), run, "x"),
        lambda: company.parts.resolve.resolve(tenant, company.actor("rita"), run, "0", "happened", "x"),
    ):
        assert refusal(how).code == "unknown_run"
    after = stored(rival)
    assert stored(company) == before[0]
    assert after["states"] != before[1]["states"], "the rival's own start is there"


def test_a_name_that_two_people_have_is_asked_back(company: World) -> None:
    name = unique("twin")
    for _ in range(2):
        company.parts.admit.person(company.tenant, None, name=name, level=3)
    error = refusal(lambda: company.parts.admit.deactivate(company.tenant, None, name))
    assert "is the name of 2 people" in str(error)


def test_deactivating_ends_every_identity_at_once_and_happens_once(company: World) -> None:
    name = unique("d")
    person = staff(company, name, 6)
    company.parts.admit.link_slack(company.tenant, None, person, TEAM, unique("U"))
    company.parts.admit.deactivate(company.tenant, company.actor("rita"), person)
    with pytest.raises(Refused, match="deactivated"):
        company.start(by=name)
    assert refusal(lambda: company.parts.admit.deactivate(company.tenant, None, person)).code == "inactive"
    assert company.entries(f"person/{person}").count("person.deactivated") == 1


def test_an_owner_may_not_be_needed_to_order_at_the_operators_shell(company: World) -> None:
    person = company.parts.admit.person(company.tenant, None, name=unique(), level=3)
    (row,) = company.rows(
        "select convert_from(body, 'UTF8')::json -> 'actor' ->> 'id' as by from entry_pending where tenant = :tenant and chain = :chain",
        chain=f"person/{person}",
    )
    assert row["by"] == "operator"


def test_groups_are_made_once_joined_and_left(company: World) -> None:
    group, person = unique("g"), staff(company, unique("m"), 4, groups=())
    admit, tenant = company.parts.admit, company.tenant
    admit.group(tenant, company.actor("rita"), group, "Those who know")
    assert refusal(lambda: admit.group(tenant, None, group, "again")).code == "taken"
    assert refusal(lambda: admit.group(tenant, None, "No Name", "x")).field == "group"
    assert refusal(lambda: admit.join(tenant, None, "nobodys", person)).code == "unknown_group"
    for _ in range(2):
        admit.join(tenant, None, group, person)
    members = "select person from membership where tenant = :tenant and grp = :grp"
    assert company.rows(members, grp=group) == [{"person": person}]
    admit.join(tenant, None, group, person, leave=True)
    assert company.rows(members, grp=group) == []


@pytest.mark.parametrize(
    ("how", "field"),
    [
        ({"connector": "Service Now"}, "connector"),
        ({"instance": "dev 1"}, "instance"),
        ({"base_url": "ftp://dev1.example"}, "base_url"),
        ({"base_url": ""}, "base_url"),
    ],
)
def test_a_connection_that_leads_nowhere_is_refused(company: World, how: dict[str, str], field: str) -> None:
    known = {
        "connector": "servicenow",
        "instance": "dev1",
        "base_url": "https://dev1.example",
        "user": "u",
        "secret": "s",
    }
    before = stored(company)
    assert refusal(lambda: company.parts.admit.connection(company.tenant, **{**known, **how})).field == field
    assert stored(company) == before


def test_secrets_at_rest_are_sealed_for_their_tenant_and_purpose(company: World, rival: World) -> None:
    company.parts.admit.connection(company.tenant, "jira", "j1", "https://jira.example/", "bot", "s3cret-word")
    (row,) = company.rows(
        "select base_url, secret_sealed from connection where tenant = :tenant and connector = 'jira'"
    )
    assert row["base_url"] == "https://jira.example"
    sealed = bytes(row["secret_sealed"])
    assert b"s3cret-word" not in sealed
    assert company.parts.reach.connection(company.tenant, "jira").secret == "s3cret-word"
    for tenant, purpose in ((rival.tenant, "connection/jira"), (company.tenant, "connection/servicenow")):
        with pytest.raises(TwokeysError):
            company.parts.secrets.unseal(tenant, purpose, sealed)


def test_a_signing_secret_that_is_too_short_is_refused(company: World) -> None:
    error = refusal(
        lambda: company.parts.admit.source(
            company.tenant, "s", kind="k", secret="short", workflow="w", person="rita", owner="rita"
        )
    )
    assert error.field == "secret"
    assert "short" not in str(error)
