package twokeys.guard_test

import data.tests.world
import data.twokeys.guard

denied(patch) := codes if {
	found := guard.deny with input as world.asked(patch) with data.tenants as world.tenants
	codes := world.codes(found)
}

denied_without(path) := codes if {
	document := json.remove(world.question, [path])
	found := guard.deny with input as document with data.tenants as world.tenants
	codes := world.codes(found)
}

denied_with_tenant(patch) := codes if {
	tenants := object.union(world.tenants, {"t": patch})
	found := guard.deny with input as world.question with data.tenants as tenants
	codes := world.codes(found)
}

held(patch) := found if {
	found := guard.hold with input as world.asked(patch) with data.tenants as world.tenants
}

test_a_plain_write_is_not_denied if denied({}) == set()

test_an_unknown_tenant_is_denied if "tenant_unknown" in denied({"tenant": {"id": "nobody"}})

test_a_tenant_that_is_switched_off_is_denied if denied_with_tenant({"enabled": false}) == {"tenant_unknown"}

test_a_tenant_without_approvers_is_denied if {
	denied_with_tenant({"approver_groups": {"med": []}}) == {"tenant_unknown"}
}

test_a_tenant_whose_expiry_is_no_number_is_denied if {
	denied_with_tenant({"approval_ttl_s": {"high": "1800"}}) == {"tenant_unknown"}
}

test_a_connector_that_is_not_listed_is_denied if {
	denied({"action": {"connector": "jira"}}) == {"connector_disabled"}
}

test_the_kill_switch_stops_everything if {
	denied({"kill_switch": true}) == {"kill_switch"}
	denied({"kill_switch": true, "action": {"kind": "read"}}) == {"kill_switch"}
}

test_a_kill_switch_that_is_missing_or_odd_stops_everything if {
	denied_without("kill_switch") == {"kill_switch", "input_invalid"}
	denied({"kill_switch": 0}) == {"kill_switch", "input_invalid"}
	denied({"kill_switch": "false"}) == {"kill_switch", "input_invalid"}
}

test_a_freeze_stops_what_changes_something if {
	denied({"freeze": {"active": true}}) == {"freeze"}
	denied({"freeze": {"active": true}, "action": {"kind": "payment"}}) == {"freeze"}
	denied({"freeze": {"active": true}, "action": {"kind": "read"}}) == set()
	denied({"freeze": {"active": true}, "action": {"kind": "message"}}) == set()
	denied_without("freeze/active") == {"freeze", "input_invalid"}
}

test_the_write_cap_has_an_edge if {
	denied({"usage": {"writes_this_run": 4}}) == set()
	denied({"usage": {"writes_this_run": 5}}) == {"cap_writes_per_run"}
	denied({"usage": {"writes_this_run": 5}, "action": {"kind": "read"}}) == set()
}

test_usage_that_is_no_number_is_above_every_cap if {
	denied({"usage": {"writes_this_run": "0"}}) == {"cap_writes_per_run", "input_invalid"}
	denied_without("usage/writes_this_run") == {"cap_writes_per_run", "input_invalid"}
}

test_a_cap_that_is_no_number_denies if {
	denied_with_tenant({"caps": {"max_writes_per_run": "5"}}) == {"cap_writes_per_run"}
}

test_the_amount_cap_has_an_edge if {
	pay := {"kind": "payment", "connector": "bank", "operation": "pay"}
	denied({"action": object.union(pay, {"amount_minor": 50000})}) == set()
	denied({"action": object.union(pay, {"amount_minor": 50001})}) == {"cap_amount"}
	denied({"action": object.union(pay, {"amount_minor": "1"})}) == {"cap_amount", "input_invalid"}
}

test_the_payments_of_a_day_have_an_edge if {
	pay := {"kind": "payment", "connector": "bank", "operation": "pay", "amount_minor": 100}
	denied({"action": pay, "usage": {"amount_today_minor": 200000}}) == set()
	denied({"action": pay, "usage": {"amount_today_minor": 200001}}) == {"cap_amount_today"}
	denied({"action": pay, "usage": {"amount_today_minor": "1"}}) == {"cap_amount_today"}
	denied({"usage": {"amount_today_minor": 200001}}) == set()
}

test_a_tenant_may_have_no_cap_on_a_day if {
	pay := {"kind": "payment", "connector": "bank", "operation": "pay", "amount_minor": 100}
	asked := world.asked({"action": pay, "usage": {"amount_today_minor": 900000}})
	tenants := json.remove(world.tenants, ["t/caps/max_amount_today_minor"])
	found := guard.deny with input as asked with data.tenants as tenants
	found == set()
	odd := object.union(world.tenants, {"t": {"caps": {"max_amount_today_minor": "9"}}})
	refused := guard.deny with input as asked with data.tenants as odd
	world.codes(refused) == {"cap_amount_today"}
}

test_the_day_says_what_it_comes_to if {
	pay := {"kind": "payment", "connector": "bank", "operation": "pay", "amount_minor": 100}
	asked := world.asked({"action": pay, "usage": {"amount_today_minor": 200001}})
	some d in guard.deny with input as asked with data.tenants as world.tenants
	concat("", [
		"with this payment the payments of today come to 200001; ",
		"allowed: at most 200000 a day in the currency's smallest unit",
	]) == d.message
}

test_a_question_that_lacks_a_fact_is_denied if {
	every path in [
		"schema",
		"environment",
		"tenant/id",
		"action/connector",
		"action/operation",
		"action/kind",
		"action/risk_tier",
		"action/reversible",
		"action/fields",
		"action/amount_minor",
		"action/target/id",
		"time/bucket",
		"time/now_ms",
		"time/weekday",
		"time/minute_of_day",
	] {
		"input_invalid" in denied_without(path)
	}
}

test_a_question_with_an_unknown_word_is_denied if {
	denied({"action": {"kind": "poke"}}) == {"input_invalid"}
	denied({"action": {"risk_tier": "medium"}}) == {"input_invalid"}
	denied({"environment": "production"}) == {"input_invalid"}
}

test_an_irreversible_write_waits_for_two if {
	some hold in held({"action": {"reversible": false}})
	hold.tier == "high"
	hold.two_person == true
	hold.groups == ["incident-managers", "oncall"]
	hold.expires_in_s == 1800
}

test_only_irreversible_changes_are_held_here if {
	held({}) == set()
	held({"action": {"reversible": false, "kind": "read"}}) == set()
	held({"action": {"reversible": false, "kind": "message"}}) == set()
}

messages(patch) := {d.message | some d in denials(patch)}

denials(patch) := found if {
	found := guard.deny with input as world.asked(patch) with data.tenants as world.tenants
}

test_a_denial_names_what_would_be_allowed if {
	messages({"action": {"connector": "jira"}}) == {
		"this connector is not on the tenant's list; allowed: bank, servicenow, slack",
	}
	messages({"usage": {"writes_this_run": 5}}) == {"write cap for this run reached; allowed: 5 writes in one run"}
	pay := {"kind": "payment", "connector": "bank", "operation": "pay", "amount_minor": 50001}
	messages({"action": pay}) == {
		"the amount is above the tenant's cap; allowed: at most 50000 in the currency's smallest unit",
	}
}

test_a_denial_without_data_to_name_still_denies if {
	messages({"tenant": {"id": "nobody"}, "action": {"kind": "payment", "amount_minor": 1}}) == {
		"this tenant is unknown to policy or switched off",
		"this connector is not on the tenant's list",
		"write cap for this run reached",
		"the amount is above the tenant's cap",
	}
}

test_a_list_too_long_for_a_message_still_denies if {
	long := "a-name-of-a-connector-that-is-as-long-as-names-of-connectors-hardly-ever-are-in-practice"
	connectors := [concat("", [long, name]) | some name in ["1", "2", "3", "4", "5", "6", "7"]]
	tenants := object.union(world.tenants, {"t": {"connectors": connectors}})
	found := guard.deny with input as world.question with data.tenants as tenants
	found == {{"code": "connector_disabled", "message": "this connector is not on the tenant's list"}}
}

# --- what the product does to its own rules

publish := {"action": {"connector": "twokeys", "operation": "policy_publish", "risk_tier": "high"}}

tighten := {"action": {"connector": "twokeys", "operation": "policy_publish", "risk_tier": "med"}}

thaw := {"action": {"connector": "twokeys", "operation": "thaw", "risk_tier": "high"}}

loosen := {"action": {"connector": "twokeys", "operation": "policy_loosen", "risk_tier": "high"}}

keys_of(patch) := found if {
	found := {h.code: h.two_person | some h in held(patch)}
}

granted(patch) := codes if {
	found := guard.grant with input as world.asked(patch) with data.tenants as world.tenants
	codes := world.codes(found)
}

test_a_change_that_may_loosen_takes_two_people if {
	keys_of(publish) == {"policy_loosens": true}
	keys_of(thaw) == {"policy_loosens": true}
	keys_of(loosen) == {"policy_loosens": true}
}

test_a_change_that_only_tightens_takes_one if keys_of(tighten) == {"policy_tightens": false}

test_medium_risk_saves_no_key_but_in_publishing if {
	keys_of({"action": {"connector": "twokeys", "operation": "thaw", "risk_tier": "med"}}) == {"policy_loosens": true}
	keys_of({"action": {"connector": "twokeys", "operation": "policy_loosen", "risk_tier": "med"}}) == {"policy_loosens": true}
	keys_of({"action": {"connector": "twokeys", "operation": "policy_publish", "risk_tier": "low"}}) == {"policy_loosens": true}
}

test_the_keys_are_the_policy_owners if {
	groups := {g | some h in held(publish); some g in h.groups}
	groups == {"incident-managers", "oncall"}
	named := object.union(world.tenants, {"t": {"policy_owners": ["policy-owners"]}})
	found := guard.hold with input as world.asked(publish) with data.tenants as named
	{g | some h in found; some g in h.groups} == {"policy-owners"}
}

test_a_review_has_a_day_and_a_hurry_an_hour if {
	{h.expires_in_s | some h in held(publish)} == {86400}
	{h.expires_in_s | some h in held(loosen)} == {3600}
	{h.expires_in_s | some h in held(thaw)} == {3600}
}

test_only_known_operations_of_our_own_are_granted if {
	granted(publish) == {"own_operation"}
	granted({"action": {"connector": "twokeys", "operation": "drop_all"}}) == set()
	granted({}) == set()
}

test_a_standstill_can_be_ended_and_the_policy_mended if {
	denied(object.union(thaw, {"kill_switch": true, "freeze": {"active": true}})) == set()
	denied(object.union(publish, {"kill_switch": true, "freeze": {"active": true}})) == set()
	denied(object.union(loosen, {"kill_switch": true})) == {"kill_switch"}
	denied(object.union(loosen, {"freeze": {"active": true}})) == {"freeze"}
	denied(object.union(thaw, {"kill_switch": "true"})) == {"kill_switch", "input_invalid"}
}

test_no_limit_of_a_tenant_locks_its_owners_out if {
	tenants := object.union(world.tenants, {"t": {
		"enabled": false,
		"connectors": [],
		"caps": {"max_writes_per_run": 0},
	}})
	found := guard.deny with input as world.asked(publish) with data.tenants as tenants
	found == set()
}

test_a_tenant_without_approvers_cannot_change_its_rules if {
	tenants := object.union(world.tenants, {"t": {"approver_groups": {"high": []}}})
	found := guard.deny with input as world.asked(publish) with data.tenants as tenants
	world.codes(found) == {"tenant_unknown"}
}
