package twokeys.main_test

import data.tests.world
import data.twokeys.main

answer(patch) := found if {
	found := main.findings with input as world.asked(patch)
		with data.tenants as world.tenants
		with data.twokeys.meta as {"revision": "r1"}
}

test_the_answer_names_its_request_its_action_and_its_revision if {
	found := answer({})
	found.echo == {"request_id": world.question.request.id, "action_sha256": world.question.action.sha256}
	found.policy == {"package": "twokeys.main", "revision": "r1"}
	found.schema == "twokeys.policy.findings/v1"
}

test_a_listed_write_is_granted_and_nothing_else if {
	found := answer({})
	world.codes(found.grants) == {"listed_write"}
	found.denials == set()
	found.holds == set()
}

test_every_file_adds_its_denials_and_holds if {
	found := answer({
		"freeze": {"active": true},
		"action": {"kind": "delete", "risk_tier": "high", "reversible": false, "target": {"id": "INC0000666"}},
		"time": {"bucket": "weekend"},
	})
	world.codes(found.denials) == {"freeze", "prod_delete", "overlay_blocked_target"}
	world.codes(found.holds) == {"irreversible", "tier_high", "after_hours"}
}

test_obligations_are_those_of_the_base if {
	found := answer({"action": {"fields": [{
		"name": "card",
		"op": "set",
		"classification": "sensitive",
		"value_sha256": "",
	}]}})
	found.obligations == {{"type": "receipt", "level": "full"}, {"type": "redact", "field": "card"}}
}

test_what_the_product_does_to_its_own_rules_is_the_guards_alone if {
	found := answer({
		"action": {
			"connector": "twokeys",
			"operation": "policy_publish",
			"risk_tier": "high",
			"target": {"id": "INC0000666"},
			"fields": [{"name": "card", "op": "set", "classification": "sensitive", "value_sha256": ""}],
		},
		"time": {"bucket": "weekend"},
	})
	found.denials == set()
	world.codes(found.holds) == {"policy_loosens"}
	world.codes(found.grants) == {"own_operation"}
	found.obligations == {{"type": "receipt", "level": "full"}}
}

test_an_empty_input_has_no_answer if {
	no_answer with input as {} with data.tenants as world.tenants with data.twokeys.meta as {"revision": "r1"}
}

no_answer if not has_answer

has_answer if main.findings
