"""Everything that Slack sees or sends."""
