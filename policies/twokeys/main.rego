package twokeys.main

import data.twokeys.base
import data.twokeys.guard
import data.twokeys.overlay

findings := {
	"schema": "twokeys.policy.findings/v1",
	"echo": {"request_id": input.request.id, "action_sha256": input.action.sha256},
	"policy": {"package": "twokeys.main", "revision": data.twokeys.meta.revision},
	"denials": denials,
	"holds": holds,
	"grants": grants,
	"obligations": obligations,
}

# What the product does to its own rules is the guard's alone: a policy that denies everything, or that breaks, can still be mended.
denials contains d if some d in guard.deny

denials contains d if {
	guard.outside
	some d in base.deny
}

denials contains d if {
	guard.outside
	some d in overlay.deny
}

holds contains h if some h in guard.hold

holds contains h if {
	guard.outside
	some h in base.hold
}

holds contains h if {
	guard.outside
	some h in overlay.hold
}

grants contains g if some g in guard.grant

grants contains g if {
	guard.outside
	some g in base.grant
}

obligations contains o if some o in guard.obligations

obligations contains o if {
	guard.outside
	some o in base.obligations
}
