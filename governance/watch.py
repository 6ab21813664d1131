"""One thread that does, for whoever is still busy when a bound has passed, what may not wait for them any longer."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from itertools import count
from typing import TypeVar

from governance import clock

T = TypeVar("T")


class Watch:
    """`within(seconds, call, late)` is `call()`; when it takes longer, `late()` is done meanwhile, once and in this thread.

    The other way round, with `call` handed to another thread each time, nearly every call would pay for what few need.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, _Bound]] = []
        self._numbers = count()
        self._thread: threading.Thread | None = None

    def within(self, seconds: float, call: Callable[[], T], late: Callable[[], None]) -> tuple[T, bool]:
        """What `call` returns, and whether `late` was done; what either raises, that of `call` first."""
        bound, at = _Bound(late), clock.monotonic() + seconds
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
                self._thread.start()
            heapq.heappush(self._due, (at, next(self._numbers), bound))
            if self._due[0][2] is bound:
                self._changed.notify()
        try:
            result = call()
        finally:
            with bound.lock:  # a `late` that has begun is waited for
                bound.over = True
        if bound.error is not None:
            raise bound.error
        return result, bound.was_late

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > clock.monotonic():
                    while self._due and self._due[0][2].over:
                        heapq.heappop(self._due)
                    self._changed.wait(max(0.0, self._due[0][0] - clock.monotonic()) if self._due else None)
                bound = heapq.heappop(self._due)[2]
            # Nobody else's bound waits for what one does now: each gets a thread, and few are ever late.
            if not bound.over:
                threading.Thread(target=bound.pass_, name="late", daemon=True).start()


class _Bound:
    def __init__(self, late: Callable[[], None]) -> None:
        self.lock = threading.Lock()
        self.over = self.was_late = False
        self.error: BaseException | None = None
        self._late = late

    def pass_(self) -> None:
        with self.lock:
            if self.over:
                return
            self.was_late = True
            try:
                self._late()
            except BaseException as error:  # raised where the call is
                self.error = error
