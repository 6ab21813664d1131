package twokeys.base_test

import data.tests.world
import data.twokeys.base

denied(patch) := codes if {
	found := base.deny with input as world.asked(patch) with data.tenants as world.tenants
	codes := world.codes(found)
}

held(patch) := found if {
	found := base.hold with input as world.asked(patch) with data.tenants as world.tenants
}

granted(patch) := codes if {
	found := base.grant with input as world.asked(patch) with data.tenants as world.tenants
	codes := world.codes(found)
}

owed(patch) := found if {
	found := base.obligations with input as world.asked(patch) with data.tenants as world.tenants
}

card := {"fields": [{"name": "card", "op": "set", "classification": "sensitive", "value_sha256": ""}]}

test_nothing_is_deleted_in_production if {
	denied({"action": {"kind": "delete"}}) == {"prod_delete"}
	denied({"action": {"kind": "delete"}, "environment": "staging"}) == set()
	denied({}) == set()
}

test_high_risk_waits_for_two if {
	some hold in held({"action": {"risk_tier": "high"}})
	[hold.code, hold.tier, hold.two_person, hold.expires_in_s] == ["tier_high", "high", true, 1800]
	hold.groups == ["incident-managers", "oncall"]
}

test_medium_risk_waits_for_one if {
	some hold in held({"action": {"risk_tier": "med"}})
	[hold.code, hold.tier, hold.two_person, hold.expires_in_s] == ["tier_med", "med", false, 3600]
	hold.groups == ["oncall"]
}

test_medium_risk_waits_in_every_environment if {
	every environment in ["prod", "staging", "dev"] {
		world.codes(held({"action": {"risk_tier": "med"}, "environment": environment})) == {"tier_med"}
	}
}

test_low_risk_does_not_wait if held({}) == set()

test_sensitive_data_waits_for_one_and_is_redacted if {
	world.codes(held({"action": card})) == {"sensitive_field"}
	{"type": "redact", "field": "card"} in owed({"action": card})
}

test_reads_are_granted if {
	granted({"action": {"kind": "read", "operation": "anything"}}) == {"read_ok"}
}

test_writes_are_granted_by_the_list_of_their_connector if {
	granted({}) == {"listed_write"}
	granted({"action": {"operation": "wipe"}}) == set()
	granted({"action": {"connector": "slack"}}) == set()
	granted({"action": {"connector": "slack", "operation": "post", "kind": "message"}}) == {"listed_write"}
}

test_what_changes_something_leaves_a_receipt if {
	owed({}) == {{"type": "receipt", "level": "full"}}
	owed({"action": {"kind": "read"}}) == set()
}
