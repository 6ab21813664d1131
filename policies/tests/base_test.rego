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

test_a_planned_freeze_begins_and_ends_to_the_millisecond if {
	denied({"time": {"now_ms": 1798588799999}}) == set()
	denied({"time": {"now_ms": 1798588800000}}) == {"year_end"}
	denied({"time": {"now_ms": 1798934399999}}) == {"year_end"}
	denied({"time": {"now_ms": 1798934400000}}) == set()
	denied({"time": {"now_ms": 1798588800000}, "action": {"kind": "read"}}) == set()
	denied({"time": {"now_ms": 1798588800000}, "action": {"kind": "message"}}) == set()
}

test_a_weekly_freeze_has_its_day_and_its_minutes if {
	denied({"time": {"weekday": 4, "minute_of_day": 1019}}) == set()
	denied({"time": {"weekday": 4, "minute_of_day": 1020}}) == {"friday_evening"}
	denied({"time": {"weekday": 4, "minute_of_day": 1439}}) == {"friday_evening"}
	denied({"time": {"weekday": 3, "minute_of_day": 1200}}) == set()
	denied({"time": {"weekday": 4, "minute_of_day": 1200}, "action": {"kind": "read"}}) == set()
}

paying(amount) := {"action": {"kind": "payment", "connector": "bank", "operation": "pay", "amount_minor": amount}}

test_payments_wait_by_their_amount if {
	held(paying(10000)) == set()
	world.codes(held(paying(10001))) == {"payment_one_key"}
	world.codes(held(paying(30000))) == {"payment_one_key"}
	world.codes(held(paying(30001))) == {"payment_one_key", "payment_two_keys"}
}

test_a_payment_that_waits_says_what_would_not if {
	some hold in held(paying(10001))
	hold.message == "a payment of this size: one person decides; without a key: at most 10000"
	[hold.tier, hold.two_person, hold.groups, hold.expires_in_s] == ["med", false, ["oncall"], 3600]
}

test_a_large_payment_waits_for_two if {
	some hold in held(paying(30001))
	hold.code == "payment_two_keys"
	hold.message == "a payment of this size: two people decide; with one key: at most 30000"
	[hold.tier, hold.two_person, hold.expires_in_s] == ["high", true, 1800]
}

test_a_quorum_takes_one_of_each_group if {
	some hold in held({"action": {"connector": "bank", "operation": "refund"}})
	hold.code == "refund_quorum"
	hold.message == "a quorum decides: 1 of finance and 1 of security"
	[hold.groups, hold.counts] == [["finance", "security"], {"finance": 1, "security": 1}]
	[hold.tier, hold.expires_in_s] == ["high", 1200]
}

test_a_quorum_is_for_its_operations_only if {
	held({"action": {"connector": "bank", "operation": "pay"}}) == set()
	held({"action": {"connector": "slack", "operation": "refund"}}) == set()
}

test_a_quorum_of_many_groups_still_has_a_message if {
	names := ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"]
	tail := "-0123456789012345678901234567890123456789"
	counts := {concat("", [name, tail]): 1 | some name in names}
	base.quorum_message(counts) == "a quorum decides"
}

test_data_of_before_has_none_of_these if {
	old := {"t": json.remove(world.tenants.t, ["payment_holds", "quorums", "freeze_windows", "weekly_freezes"])}
	pay := {"action": {"kind": "payment", "connector": "bank", "operation": "pay", "amount_minor": 50000}}
	found := base.hold with input as world.asked(pay) with data.tenants as old
	found == set()
	denials := base.deny with input as world.asked({"time": {"now_ms": 1798588800000}}) with data.tenants as old
	denials == set()
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
