# A complete question and one tenant for the tests, so that `opa test policies/twokeys policies/tests` needs nothing else.
package tests.world

tenants := {
	"t": {
		"enabled": true,
		"connectors": [
			"bank",
			"servicenow",
			"slack",
		],
		"allowed_operations": {
			"bank": [
				"pay",
			],
			"servicenow": [
				"close",
				"delete",
				"lookup",
				"update",
			],
			"slack": [
				"post",
			],
		},
		"caps": {
			"max_writes_per_run": 5,
			"max_amount_minor": 50000,
			"max_amount_today_minor": 200000,
		},
		"approver_groups": {
			"low": [
				"oncall",
			],
			"med": [
				"oncall",
			],
			"high": [
				"incident-managers",
				"oncall",
			],
		},
		"approval_ttl_s": {
			"low": 3600,
			"med": 3600,
			"high": 1800,
		},
		"blocked_targets": [
			"INC0000666",
		],
		"after_hours_hold": true,
		"payment_holds": {
			"one_key_above_minor": 10000,
			"two_keys_above_minor": 30000,
		},
		"quorums": [
			{
				"code": "refund_quorum",
				"connector": "bank",
				"operations": [
					"refund",
				],
				"counts": {
					"finance": 1,
					"security": 1,
				},
				"expires_in_s": 1200,
			},
		],
		"freeze_windows": [
			{
				"code": "year_end",
				"from_ms": 1798588800000,
				"until_ms": 1798934400000,
			},
		],
		"weekly_freezes": [
			{
				"code": "friday_evening",
				"weekdays": [
					4,
				],
				"from_minute": 1020,
				"until_minute": 1440,
			},
		],
	},
}

question := {
	"action": {
		"amount_minor": 0,
		"connector": "servicenow",
		"currency": "",
		"fields": [
			{
				"classification": "internal",
				"name": "work_notes",
				"op": "append",
				"value_sha256": "72b3ba23dc08e720a16642fbcb40709361da4872ffa9bc6083be44c831a1dea3",
			},
		],
		"idempotency_key": "d34f70514a6711f83b83f4044f862f22ba7fb2e88ff97c4cb10f11ceb79fcd5a",
		"kind": "write",
		"operation": "update",
		"payload_bytes": 12,
		"reversal": {
			"kind": "inverse",
			"operation": "",
		},
		"reversible": true,
		"risk_tier": "low",
		"sha256": "d176bbfc95bef45295ba435176d651bc016f054feb0498befc9330eb4e5b4bae",
		"target": {
			"id": "INC0010001",
			"instance": "dev1",
			"system": "servicenow",
			"type": "incident",
		},
	},
	"actor": {
		"groups": [],
		"id": "triage",
		"on_behalf_of": "",
		"type": "workflow",
	},
	"approval": {
		"action_sha256": "",
		"distinct_approvers": 0,
		"expires_ms": 0,
		"id": "",
		"policy_revision": "",
		"present": false,
		"tier": "",
		"two_person_met": false,
	},
	"environment": "prod",
	"freeze": {
		"active": false,
		"id": "",
	},
	"kill_switch": false,
	"request": {
		"id": "30303030-3030-4030-b030-303030303030",
	},
	"run": {
		"attempt": 1,
		"id": "0123456789abcdef0123456789abcdef",
		"trigger_type": "webhook",
	},
	"schema": "twokeys.policy.input/v1",
	"step": {
		"attempt": 1,
		"id": "update",
		"index": 2,
		"tool_name": "servicenow.update",
	},
	"tenant": {
		"id": "t",
		"workspace_id": "main",
	},
	"time": {
		"bucket": "business",
		"minute_of_day": 720,
		"now_ms": 1795003200000,
		"tz": "UTC",
		"weekday": 2,
	},
	"usage": {
		"amount_today_minor": 0,
		"concurrent_runs": 0,
		"runs_this_min": 0,
		"writes_this_hour": 0,
		"writes_this_run": 0,
	},
	"workflow": {
		"id": "triage",
		"risk_ceiling": "high",
		"version_id": "1",
	},
}

asked(patch) := object.union(question, patch)

codes(found) := {f.code | some f in found}
