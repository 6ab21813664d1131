"""The parts that a demo or a test runs on this machine instead of real services."""
