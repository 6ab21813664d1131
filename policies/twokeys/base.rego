# The rules that an administrator may change: what is granted, what waits for a person, what is never done.
#
# `grant` says what is allowed at all, `hold` says who must turn a key first, `deny` wins over both.
# Groups, times and lists are data: policies/data.json has the defaults and each tenant's own.
package twokeys.base

tenant := data.tenants[input.tenant.id]

# --- what is never done

deny contains {"code": "prod_delete", "message": "nothing is deleted in production"} if {
	input.environment == "prod"
	input.action.kind == "delete"
}

# A planned freeze, such as the end of the year: nothing is changed from one moment until before another.
# `from_ms` and `until_ms` are milliseconds since 1970.
deny contains {"code": window.code, "message": "a planned freeze: nothing is changed now"} if {
	is_change
	some window in tenant.freeze_windows
	input.time.now_ms >= window.from_ms
	input.time.now_ms < window.until_ms
}

# A freeze of every week, such as Friday afternoon. Weekdays count from Monday, 0; minutes from midnight.
deny contains {"code": window.code, "message": "a weekly freeze: nothing is changed at this time"} if {
	is_change
	some window in tenant.weekly_freezes
	input.time.weekday in window.weekdays
	input.time.minute_of_day >= window.from_minute
	input.time.minute_of_day < window.until_minute
}

is_change if input.action.kind in {"write", "delete", "payment"}

# --- what waits for a person

hold contains {
	"code": "tier_high",
	"message": "high risk: two people decide",
	"tier": "high",
	"two_person": true,
	"groups": tenant.approver_groups.high,
	"expires_in_s": tenant.approval_ttl_s.high,
} if {
	input.action.risk_tier == "high"
}

hold contains {
	"code": "tier_med",
	"message": "medium risk: one person decides",
	"tier": "med",
	"two_person": false,
	"groups": tenant.approver_groups.med,
	"expires_in_s": tenant.approval_ttl_s.med,
} if {
	input.action.risk_tier == "med"
}

hold contains {
	"code": "sensitive_field",
	"message": "sensitive data is involved: one person decides",
	"tier": "med",
	"two_person": false,
	"groups": tenant.approver_groups.med,
	"expires_in_s": tenant.approval_ttl_s.med,
} if {
	some field in input.action.fields
	field.classification == "sensitive"
}

# Payments by their amount, in the currency's smallest unit; above the tenant's cap none is made (guard.rego).
hold contains {
	"code": "payment_one_key",
	"message": concat("", [
		"a payment of this size: one person decides; without a key: at most ",
		format_int(tenant.payment_holds.one_key_above_minor, 10),
	]),
	"tier": "med",
	"two_person": false,
	"groups": tenant.approver_groups.med,
	"expires_in_s": tenant.approval_ttl_s.med,
} if {
	input.action.kind == "payment"
	input.action.amount_minor > tenant.payment_holds.one_key_above_minor
}

hold contains {
	"code": "payment_two_keys",
	"message": concat("", [
		"a payment of this size: two people decide; with one key: at most ",
		format_int(tenant.payment_holds.two_keys_above_minor, 10),
	]),
	"tier": "high",
	"two_person": true,
	"groups": tenant.approver_groups.high,
	"expires_in_s": tenant.approval_ttl_s.high,
} if {
	input.action.kind == "payment"
	input.action.amount_minor > tenant.payment_holds.two_keys_above_minor
}

# A quorum for some operations of a connector, such as one of finance and one of security: `{"finance": 1, "security": 1}`.
hold contains {
	"code": quorum.code,
	"message": quorum_message(quorum.counts),
	"tier": "high",
	"two_person": false,
	"groups": [group | some group, _ in quorum.counts],
	"counts": quorum.counts,
	"expires_in_s": quorum.expires_in_s,
} if {
	some quorum in tenant.quorums
	input.action.connector == quorum.connector
	input.action.operation in quorum.operations
}

quorum_message(counts) := message if {
	parts := [concat(" of ", [format_int(needed, 10), group]) | some group, needed in counts]
	message := concat("", ["a quorum decides: ", concat(" and ", parts)])
	count(message) <= 500
} else := "a quorum decides"

# --- what is allowed at all

grant contains {"code": "read_ok", "message": "reads are allowed"} if {
	input.action.kind == "read"
}

grant contains {"code": "listed_write", "message": "the operation is on the tenant's list"} if {
	input.action.operation in tenant.allowed_operations[input.action.connector]
}

# --- what must be done along with it

obligations contains {"type": "redact", "field": field.name} if {
	some field in input.action.fields
	field.classification == "sensitive"
}

obligations contains {"type": "receipt", "level": "full"} if {
	is_change
}
