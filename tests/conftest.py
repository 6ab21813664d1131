"""What every test starts from: no proxy, no credentials of this machine, and the servers of tests/kit."""

from __future__ import annotations

import os

pytest_plugins = ["tests.kit.servers"]

FOREIGN = ("SLACK_", "AWS_", "TWOKEYS_")
OURS = "TWOKEYS_TEST_"

for _name in list(os.environ):
    # slack_sdk sends even loopback calls through a proxy it finds here, and Bolt reads secrets from SLACK_*.
    if _name.lower().endswith("_proxy") or (_name.startswith(FOREIGN) and not _name.startswith(OURS)):
        del os.environ[_name]
