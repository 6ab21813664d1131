"""What every test starts from: no proxy, no credentials of this machine, and the servers of tests/kit."""

from __future__ import annotations

import os

pytest_plugins = ["tests.kit.servers"]

FOREIGN = ("SLACK_", "AWS_", "TWOKEYS_")
OURS = "TWOKEYS_TEST_"

# The one setting of the product that a developer names for the tests: where opa is.
if os.environ.get("TWOKEYS_OPA_BINARY"):
    os.environ.setdefault("TWOKEYS_TEST_OPA_BINARY", os.environ["TWOKEYS_OPA_BINARY"])

for _name in list(os.environ):
    # slack_sdk sends even loopback calls through a proxy it finds here, and Bolt reads secrets from SLACK_*.
    if _name.lower().endswith("_proxy") or (_name.startswith(FOREIGN) and not _name.startswith(OURS)):
        del os.environ[_name]
