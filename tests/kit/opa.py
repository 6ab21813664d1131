"""A real OPA server of the tests' own, with any configuration; ended, stopped and started again by its process id."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

from governance.local.s3 import Account


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class OpaServer:
    """`opa run --server` with a configuration file; `account` is what it reads the shelf with."""

    def __init__(self, opa: Path, config: dict[str, Any], directory: Path, account: Account | None = None) -> None:
        self._opa, self._file, self.port = opa, directory / "opa.json", free_port()
        self._file.write_text(json.dumps(config), encoding="utf-8")
        self._environment = {} if account is None else {
            "AWS_ACCESS_KEY_ID": account.access_key, "AWS_SECRET_ACCESS_KEY": account.secret_key, "AWS_REGION": account.region,
        }  # fmt: skip
        self.process = self._start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _start(self) -> subprocess.Popen[bytes]:
        command = [str(self._opa), "run", "--server", f"--addr=127.0.0.1:{self.port}", "--log-level=error",
                   "--skip-version-check", f"--config-file={self._file}"]  # fmt: skip
        return subprocess.Popen(
            command, env=self._environment, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def stop(self) -> None:
        """Shut it; the port stays ours."""
        self.process.kill()
        self.process.wait()

    def start_again(self) -> None:
        self.process = self._start()

    def hang(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)
