"""The command `twokeys`: reads what was typed, gives the order through the parts of wiring, and prints the answer."""

from __future__ import annotations

import sys

import click

from governance.cli import (
    actions,
    approvals,
    exports,
    frame,
    journal,
    keys,
    people,
    policies,
    processes,
    proofs,
    publishing,
    runs,
    schedules,
    servers,
    slack,
    standstills,
    tasks,
    tenants,
    upkeep,
    witness,
    workflows,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="twokeys", prog_name="twokeys")
def twokeys() -> None:
    """Human-in-the-loop governance in Slack: no effect without a permit, no permit without a verdict.

    `twokeys demo` shows everything on this machine. Elsewhere the settings come from TWOKEYS_* variables or from the
    TOML file that TWOKEYS_CONFIG names. Exit codes: 0 done, 1 a check failed or the answer is no, 2 wrong usage,
    3 a setting, a service or a file is at fault.
    """


for _command in (
    *processes.COMMANDS,
    workflows.group,
    schedules.group,
    runs.runs,
    approvals.group,
    actions.group,
    tasks.group,
    journal.group,
    proofs.group,
    policies.group,
    *standstills.COMMANDS,
):
    twokeys.add_command(_command)
policies.group.add_command(servers.server_config)
proofs.group.add_command(exports.export)
proofs.group.add_command(exports.exports)
tenants.group.add_command(exports.configure)
for _command in (tenants.group, keys.group, people.people, people.groups, slack.group, *upkeep.COMMANDS, witness.run):
    twokeys.add_command(_command)


for _command in publishing.COMMANDS:
    policies.group.add_command(_command)


def main() -> None:
    """The entry point: an exit code, and never a traceback."""
    sys.exit(frame.run(twokeys, sys.argv[1:]))
