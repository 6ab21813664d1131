"""One engine per policy revision in force, behind a breaker; a revision is loaded from its stored archive when it is first asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from engine.errors import TwokeysError
from engine.gate.verdict import Answer, Policy, PolicyFault
from governance import clock
from governance.policy.breaker import Breaker
from governance.policy.bundle import Bundle
from governance.policy.embedded import Embedded
from governance.policy.engine import Engine
from governance.policy.managed import Managed

engines_max = 8  # a child has some 40 MB; the least recently asked revision goes first


class Pool:
    """Policies by revision. `bundle_of` reads a stored revision; `make` starts an engine of the configured kind for a tenant."""

    def __init__(self, make: Callable[[str], Engine], bundle_of: Callable[[str, str], Bundle]) -> None:
        self._make = make
        self._bundle_of = bundle_of
        self._lock = threading.Lock()
        self._engines: dict[str, tuple[Engine, Breaker]] = {}

    def of(self, tenant: str, revision: str) -> Policy:
        """The policy that answers under this revision; whatever is wrong shows when it is asked, as a fault."""
        return _Ask(self, tenant, revision)

    def breaker(self, tenant: str, revision: str) -> Breaker:
        """The running engine of this revision."""
        with self._lock:
            found = self._engines.pop(revision, None)
            if found is None:
                engine = self._make(tenant)
                loaded = False
                try:
                    engine.load(self._bundle_of(tenant, revision))
                    loaded = True
                finally:
                    if not loaded:
                        engine.close()
                found = (engine, Breaker(engine, revision=lambda: revision, monotonic=clock.monotonic))
            self._engines[revision] = found
            while len(self._engines) > engines_max:
                oldest = next(iter(self._engines))
                self._engines.pop(oldest)[0].close()
            return found[1]

    def close(self) -> None:
        """End every engine."""
        with self._lock:
            for engine, _ in self._engines.values():
                engine.close()
            self._engines.clear()


class _Ask:
    def __init__(self, pool: Pool, tenant: str, revision: str) -> None:
        self._pool, self._tenant, self._revision = pool, tenant, revision

    def evaluate(self, input_bytes: bytes) -> Answer:
        """Ask the engine of this revision."""
        if not self._revision:
            raise PolicyFault("no_policy", "no policy is in force for this tenant")
        try:
            breaker = self._pool.breaker(self._tenant, self._revision)
        except PolicyFault:
            raise
        except TwokeysError as error:
            raise PolicyFault("engine_not_ready", f"the policy cannot be loaded: {error.reason}") from error
        return breaker.evaluate(input_bytes)


def embedded(_tenant: str = "") -> Engine:
    """The OPA library in a child process."""
    return Embedded()


def managed(binary: Path, directory: Path) -> Callable[[str], Engine]:
    """A local `opa` that we start and supervise, one directory per engine."""
    counter = iter(range(1_000_000))

    def make(_tenant: str) -> Engine:
        home = directory / f"opa-{next(counter)}"
        home.mkdir(mode=0o700, parents=True)
        return Managed(binary, home)

    return make
