"""Orders of whoever runs an installation: hold everything stored against everything else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from governance.cli import frame


@click.command("fsck")
@click.option("--tenant", default="", metavar="TENANT", help="Only this tenant; every tenant when not given.")
@frame.output
def fsck(tenant: str, form: str) -> int:
    """Check every invariant of the live database and list what does not agree; reads only, 1 when anything was found.

    Journals, what pages show of them, proposals, verdicts, keys, intents, receipts and their signatures, the chains of
    entries, the log's tree and its checkpoints. Work goes on meanwhile.
    """
    from governance.store import people

    parts = frame.open_parts()
    if tenant:
        with parts.database.unit(tenant, write=False) as unit:
            people.tenant(unit)
    tenants = [tenant] if tenant else list(parts.dispatch.tenants())
    with _progress(sum(parts.fsck.size(name) for name in tenants)) as stepped:
        found = [one for name in tenants for one in parts.fsck.check(name, stepped)]
    rows = [{"tenant": one.tenant, "place": one.place, "rule": one.rule, "what": one.what} for one in found]
    if rows or form != "table":
        frame.show(form, rows)
    frame.say(f"{len(tenants)} tenants, {len(found)} findings")
    return frame.FAILED if found else frame.OK


@contextmanager
def _progress(steps: int) -> Iterator[Callable[[], None]]:
    """A bar where somebody looks, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("checking", total=steps)
        yield lambda: bar.advance(task)


COMMANDS = (fsck,)
