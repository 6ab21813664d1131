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
	input.action.kind in {"write", "delete", "payment"}
}
