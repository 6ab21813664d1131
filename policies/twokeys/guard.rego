# The product's own rules. No other file can loosen them: denials and holds only add up.
#
# Every `not` stands before a bare rule that names the good case, so that a missing fact is a denial.
package twokeys.guard

tenant := data.tenants[input.tenant.id]

# --- what the product does to its own rules

# A policy is published, a freeze is lifted, by actions of the connector `twokeys`, which touches nothing outside. Their
# rules stand in this file and nowhere else: main.rego asks base and overlay only about what goes outside. So whatever an
# administrator writes, there is a way back, and it always takes the keys of others.
own if input.action.connector == "twokeys"

outside if input.action.connector != "twokeys"

own_operations := {"policy_publish", "policy_rollback", "policy_loosen", "thaw"}

# What ends a standstill or mends the policy behind it works during one. Loosening in a hurry does not.
mends if {
	own
	input.action.operation in {"policy_publish", "policy_rollback", "thaw"}
}

grant contains {"code": "own_operation", "message": "a change of the rules, which others must agree to"} if {
	own
	input.action.operation in own_operations
}

# Of medium risk is a change of policy that provably only tightens, and nothing else; the product has proved it and
# looks again before it is done.
tightens if {
	input.action.operation in {"policy_publish", "policy_rollback"}
	input.action.risk_tier == "med"
}

hold contains {
	"code": "policy_tightens",
	"message": "a change that provably only tightens: one person besides its authors decides",
	"tier": "med",
	"two_person": false,
	"groups": policy_owners,
	"expires_in_s": 86400,
} if {
	own
	tightens
}

hold contains {
	"code": "policy_loosens",
	"message": "a change that may loosen: two people besides its authors decide",
	"tier": "high",
	"two_person": true,
	"groups": policy_owners,
	"expires_in_s": own_seconds,
} if {
	own
	not tightens
}

default own_seconds := 3600

own_seconds := 86400 if input.action.operation in {"policy_publish", "policy_rollback"}

policy_owners := object.get(tenant, "policy_owners", tenant.approver_groups.high)

obligations contains {"type": "receipt", "level": "full"} if own

# --- what nobody may do

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
	has_approvers
}

# A tenant that switched itself off can be switched on again.
known_tenant if {
	own
	has_approvers
}

has_approvers if {
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

connector_enabled if own

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

running if {
	is_boolean(input.kill_switch)
	mends
}

deny contains {"code": "freeze", "message": "a freeze is active: nothing is changed"} if {
	is_write
	not thawed
}

thawed if input.freeze.active == false

thawed if {
	is_boolean(input.freeze.active)
	mends
}

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

under_write_cap if own

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

deny contains {"code": "cap_amount_today", "message": day_cap_message} if {
	input.action.kind == "payment"
	not under_day_cap
}

default day_cap_message := "with this payment the payments of today would be above the tenant's cap for a day"

day_cap_message := concat("", [
	"with this payment the payments of today come to ",
	format_int(input.usage.amount_today_minor, 10),
	"; allowed: at most ",
	format_int(tenant.caps.max_amount_today_minor, 10),
	" a day in the currency's smallest unit",
]) if {
	is_number(input.usage.amount_today_minor)
	is_number(tenant.caps.max_amount_today_minor)
}

# `amount_today_minor` has this payment in it, besides all that were begun today (UTC) and did not certainly fail.
under_day_cap if {
	is_number(input.usage.amount_today_minor)
	is_number(tenant.caps.max_amount_today_minor)
	input.usage.amount_today_minor <= tenant.caps.max_amount_today_minor
}

# A tenant whose data says nothing of a day has no cap on it.
under_day_cap if not has_day_cap

has_day_cap if {
	some name, _ in tenant.caps
	name == "max_amount_today_minor"
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
