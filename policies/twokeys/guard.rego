# The product's own rules. No other file can loosen them: denials and holds only add up.
#
# Every `not` stands before a bare rule that names the good case, so that a missing fact is a denial.
package twokeys.guard

tenant := data.tenants[input.tenant.id]

deny contains {"code": "input_invalid", "message": "the question is not a complete policy input"} if {
	not valid_input
}

valid_input if {
	input.schema == "twokeys.policy.input/v1"
	input.environment in {"prod", "staging", "dev"}
	is_boolean(input.kill_switch)
	is_boolean(input.freeze.active)
	is_string(input.tenant.id)
	is_string(input.action.connector)
	is_string(input.action.operation)
	is_string(input.action.target.id)
	input.action.kind in {"read", "write", "delete", "message", "payment"}
	input.action.risk_tier in {"low", "med", "high"}
	is_boolean(input.action.reversible)
	is_array(input.action.fields)
	is_number(input.action.amount_minor)
	is_number(input.usage.writes_this_run)
	input.time.bucket in {"business", "after_hours", "weekend"}
	is_number(input.time.now_ms)
	is_number(input.time.weekday)
	is_number(input.time.minute_of_day)
}

deny contains {"code": "tenant_unknown", "message": "this tenant is unknown to policy or switched off"} if {
	not known_tenant
}

# A tenant without approvers at a tier would lose the hold at that tier, so it is not a known tenant.
known_tenant if {
	tenant.enabled == true
	count(tenant.approver_groups.low) > 0
	count(tenant.approver_groups.med) > 0
	count(tenant.approver_groups.high) > 0
	is_number(tenant.approval_ttl_s.low)
	is_number(tenant.approval_ttl_s.med)
	is_number(tenant.approval_ttl_s.high)
	is_boolean(tenant.after_hours_hold)
	is_array(tenant.blocked_targets)
}

deny contains {"code": "connector_disabled", "message": connector_message} if {
	not connector_enabled
}

connector_enabled if input.action.connector in tenant.connectors

# A message names what would be allowed where it can. Each has a default, because a denial whose message has no value
# would be no denial.
default connector_message := "this connector is not on the tenant's list"

connector_message := message if {
	message := concat("", ["this connector is not on the tenant's list; allowed: ", concat(", ", tenant.connectors)])
	count(message) <= 500
}

# Anything but exactly false stops everything, reads too.
deny contains {"code": "kill_switch", "message": "the kill switch is on: nothing runs"} if {
	not running
}

running if input.kill_switch == false

deny contains {"code": "freeze", "message": "a freeze is active: nothing is changed"} if {
	is_write
	not thawed
}

thawed if input.freeze.active == false

deny contains {"code": "cap_writes_per_run", "message": write_cap_message} if {
	is_write
	not under_write_cap
}

default write_cap_message := "write cap for this run reached"

write_cap_message := concat("", [
	"write cap for this run reached; allowed: ",
	format_int(tenant.caps.max_writes_per_run, 10),
	" writes in one run",
]) if {
	is_number(tenant.caps.max_writes_per_run)
}

under_write_cap if {
	is_number(input.usage.writes_this_run)
	is_number(tenant.caps.max_writes_per_run)
	input.usage.writes_this_run < tenant.caps.max_writes_per_run
}

deny contains {"code": "cap_amount", "message": amount_cap_message} if {
	input.action.kind == "payment"
	not under_amount_cap
}

default amount_cap_message := "the amount is above the tenant's cap"

amount_cap_message := concat("", [
	"the amount is above the tenant's cap; allowed: at most ",
	format_int(tenant.caps.max_amount_minor, 10),
	" in the currency's smallest unit",
]) if {
	is_number(tenant.caps.max_amount_minor)
}

under_amount_cap if {
	is_number(input.action.amount_minor)
	is_number(tenant.caps.max_amount_minor)
	input.action.amount_minor <= tenant.caps.max_amount_minor
}

hold contains {
	"code": "irreversible",
	"message": "this cannot be undone: two people decide",
	"tier": "high",
	"two_person": true,
	"groups": tenant.approver_groups.high,
	"expires_in_s": tenant.approval_ttl_s.high,
} if {
	is_write
	input.action.reversible == false
}

is_write if input.action.kind in {"write", "delete", "payment"}
