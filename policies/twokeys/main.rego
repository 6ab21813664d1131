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
	"obligations": base.obligations,
}

denials contains d if some d in guard.deny
denials contains d if some d in base.deny
denials contains d if some d in overlay.deny
holds contains h if some h in guard.hold
holds contains h if some h in base.hold
holds contains h if some h in overlay.hold
grants contains g if some g in base.grant
