"""The command `twokeys witness`, also alone as `twokeys-witness`: it needs none of the product's settings and no database."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import click

from governance.cli import frame


@click.command("witness", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="DIR",
    help="Where its key and memory are.",
)
@click.option("--name", required=True, help="What it is called in trust policies, for example acme.example/witness.")
@click.option(
    "--trust", "trusts", multiple=True, metavar="FILE", help="A trust policy: its `log` lines name the logs to cosign."
)
@click.option("--log", "vkeys", multiple=True, metavar="VKEY", help="One more log to cosign.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8900, show_default=True)
def run(state: Path, name: str, trusts: tuple[str, ...], vkeys: tuple[str, ...], host: str, port: int) -> None:
    """Cosign checkpoints of these logs, and only ever one that continues the last one that was cosigned.

    Prints its own key first: the `witness` line for trust policies. TERM stops it. Give its state to nobody, and keep it:
    a witness that has forgotten what it saw proves nothing.
    """
    from engine.errors import OperatorError
    from governance import log
    from governance.witness import Witness, logs_from, server

    log.configure("info", "witness")
    named = [*vkeys, *(line.split()[1] for file in trusts for line in _lines(file) if line.split()[:1] == ["log"])]
    logs = logs_from(named)
    if not logs:
        raise OperatorError(
            "no log is named",
            code="bad_setting",
            field="--trust",
            next_step="give the file of `twokeys evidence trust`",
        )
    witness = Witness(state, name)
    try:
        opened = server(witness, logs, host, port)
    except OSError as error:
        raise OperatorError(f"cannot be listened on: {error.strerror}", code="bad_setting", field="--port") from None
    click.echo(f"witness {name} {witness.vkey}")
    frame.say(f"cosigning {len(logs)} logs at http://{host}:{opened.server_address[1]}/add-checkpoint")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=opened.shutdown, name="stop").start())
    sys.stdout.flush()
    with opened:
        opened.serve_forever(poll_interval=0.2)
    frame.say("stopped")


def _lines(file: str) -> list[str]:
    return frame.read_file(file).decode("utf-8", "replace").splitlines()


def main() -> None:
    """The entry point: an exit code, and never a traceback."""
    sys.exit(frame.run(run, sys.argv[1:]))
