"""The breaker: an engine that fails again and again is left alone for a while and then tried with a question whose answer is no."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from engine.gate.verdict import Answer, Policy, PolicyFault
from governance.policy import canary

in_a_row_max = 5
window = 20
open_seconds = 10.0


class Breaker:
    """A Policy around another: open, it is a fault at once, never a wait and never an answer from somebody else."""

    def __init__(self, policy: Policy, *, revision: Callable[[], str], monotonic: Callable[[], float]) -> None:
        """`revision` says which one the probe must answer under."""
        self._policy = policy
        self._revision = revision
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._last: deque[bool] = deque(maxlen=window)
        self._faults_in_a_row = 0
        self._open_until: float | None = None
        self._probing = False

    @property
    def is_open(self) -> bool:
        """Whether questions are refused at the moment."""
        return self._open_until is not None

    def evaluate(self, input_bytes: bytes) -> Answer:
        """The findings, if the engine is trusted; after the pause one thread probes it first."""
        if self._must_probe():
            self._probe()
        good = False
        try:
            answer = self._policy.evaluate(input_bytes)
            good = True
        finally:
            self._note(good)
        return answer

    def _must_probe(self) -> bool:
        with self._lock:
            if self._open_until is None:
                return False
            if self._probing or self._monotonic() < self._open_until:
                raise PolicyFault("breaker_open", "the policy engine failed repeatedly and is tried again in a moment")
            self._probing = True
            return True

    def _probe(self) -> None:
        good = False
        try:
            canary.probe(self._policy, self._revision())
            good = True
        finally:
            with self._lock:
                self._probing = False
                if good:
                    self._open_until = None
                    self._faults_in_a_row = 0
                    self._last.clear()
                else:
                    self._open_until = self._monotonic() + open_seconds

    def _note(self, good: bool) -> None:
        with self._lock:
            self._last.append(good)
            self._faults_in_a_row = 0 if good else self._faults_in_a_row + 1
            half_bad = len(self._last) == window and self._last.count(False) * 2 >= window
            if self._open_until is None and (self._faults_in_a_row >= in_a_row_max or half_bad):
                self._open_until = self._monotonic() + open_seconds
