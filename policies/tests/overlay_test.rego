package twokeys.overlay_test

import data.tests.world
import data.twokeys.overlay

denied(patch) := codes if {
	found := overlay.deny with input as world.asked(patch) with data.tenants as world.tenants
	codes := world.codes(found)
}

held(patch) := found if {
	found := overlay.hold with input as world.asked(patch) with data.tenants as world.tenants
}

test_a_blocked_target_is_denied if {
	denied({"action": {"target": {"id": "INC0000666"}}}) == {"overlay_blocked_target"}
	denied({}) == set()
}

test_outside_business_hours_somebody_on_call_decides if {
	every bucket in ["after_hours", "weekend"] {
		some hold in held({"time": {"bucket": bucket}})
		[hold.code, hold.tier, hold.two_person] == ["after_hours", "med", false]
		[hold.groups, hold.expires_in_s] == [["oncall"], 900]
	}
}

test_business_hours_reads_and_messages_do_not_wait if {
	held({}) == set()
	held({"time": {"bucket": "weekend"}, "action": {"kind": "read"}}) == set()
	held({"time": {"bucket": "weekend"}, "action": {"kind": "message"}}) == set()
}

test_a_tenant_switches_the_rule_on if {
	tenants := object.union(world.tenants, {"t": {"after_hours_hold": false}})
	found := overlay.hold with input as world.asked({"time": {"bucket": "weekend"}}) with data.tenants as tenants
	found == set()
}
