"""A worker process that dies at the n-th seam: before or after a commit or an outside call. Run as `python -m tests.kit.dying JSON`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from governance.drive import Drive
from governance.settings import Settings
from governance.stages.child import Children
from governance.stages.execute import Execute
from governance.wiring import Parts
from governance.worker import Worker
from tests.kit.replaying import ReplayedCommits


class Seams:
    """Counts the moments at which a process may die, and dies at one of them."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.names: list[str] = []

    def here(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def surrounded(*args: Any, **kwargs: Any) -> Any:
            self.here(f"before {name}")
            result = call(*args, **kwargs)
            self.here(f"after {name}")
            return result

        return surrounded


def main() -> None:
    order = json.loads(sys.argv[1])
    seams = Seams(order["at"])
    Drive.commit = seams.around("commit", Drive.commit)  # type: ignore[method-assign]
    Children.cancel = seams.around("cancel", Children.cancel)  # type: ignore[method-assign]
    Execute.perform = seams.around("effect", Execute.perform)  # type: ignore[method-assign]
    Worker._seals = lambda _: 0  # type: ignore[method-assign,assignment]  # there is no bucket here: nothing is sealed
    parts = Parts(Settings(**order["settings"]), "dying", Path(order["directory"]), ReplayedCommits())
    parts.worker.drain()
    parts.close()
    sys.stdout.write("\n" + json.dumps(seams.names))  # the last line: what the worker says stands above


if __name__ == "__main__":
    main()
