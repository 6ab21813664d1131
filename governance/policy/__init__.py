"""Asks the policy engine one question at a time, with a deadline."""
