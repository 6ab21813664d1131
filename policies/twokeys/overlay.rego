# The tenant's own additions. They can only tighten: this file has denials and holds, never a grant.
package twokeys.overlay

tenant := data.tenants[input.tenant.id]

deny contains {"code": "overlay_blocked_target", "message": "this target is blocked for automation"} if {
	input.action.target.id in tenant.blocked_targets
}

hold contains {
	"code": "after_hours",
	"message": "outside business hours somebody on call decides",
	"tier": "med",
	"two_person": false,
	"groups": ["oncall"],
	"expires_in_s": 900,
} if {
	tenant.after_hours_hold == true
	input.action.kind in {"write", "delete", "payment"}
	input.time.bucket in {"after_hours", "weekend"}
}
