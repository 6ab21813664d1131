"""How far a tenant's log may be behind what happens before no new effect begins: a log that nobody sequences stops the work."""

from __future__ import annotations

from governance import clock, metrics
from governance.store import published
from governance.store.published import Lag
from governance.store.unit import Database

place_seconds_max = 30.0
published_seconds_max = 300.0
witnessed_seconds_max = 1800.0
look_seconds = 2.0  # how long one answer holds


def excess(lag: Lag) -> str:
    """What is over its budget, in words; empty when nothing is."""
    if lag.place > place_seconds_max:
        return f"the oldest entry has waited {lag.place:.0f} s for its place in the log; {place_seconds_max:.0f} s are the most"
    if lag.published > published_seconds_max:
        return f"the log was last published {lag.published:.0f} s ago; {published_seconds_max:.0f} s are the most"
    if lag.witnessed > witnessed_seconds_max:
        return f"no witness has seen the log for {lag.witnessed:.0f} s; {witnessed_seconds_max:.0f} s are the most"
    return ""


class Budget:
    """Asked before every intent; the database is asked every two seconds at most."""

    def __init__(self, database: Database, *, witnessed: bool) -> None:
        """`witnessed` says whether there is any witness to be behind of."""
        self._database = database
        self._witnessed = witnessed
        self._known: dict[str, tuple[float, str]] = {}

    def excess(self, tenant: str) -> str:
        """Why no new effect may begin for this tenant now; empty when it may."""
        at, why = self._known.get(tenant, (-look_seconds, ""))
        if clock.monotonic() - at >= look_seconds:
            with self._database.unit(tenant, write=False) as unit:
                why = excess(published.lag(unit, witnessed=self._witnessed))
            self._known[tenant] = clock.monotonic(), why
        if why:
            metrics.count("log_lag")
        return why
