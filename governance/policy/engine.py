"""What every policy engine offers: load a bundle, answer with findings or a fault, and end."""

from __future__ import annotations

from typing import Protocol

from engine.gate.verdict import Answer
from governance.policy.bundle import Bundle


class Engine(Protocol):
    """A real OPA behind one interface. It raises PolicyFault for every doubt and never falls back to another engine."""

    def load(self, bundle: Bundle) -> None:
        """Make this bundle the one that answers, after its canaries; on PolicyFault the one before stays."""

    def evaluate(self, input_bytes: bytes) -> Answer:
        """The findings about one input document."""

    @property
    def version(self) -> str:
        """The version of OPA that answers."""

    def close(self) -> None:
        """End what this engine started."""
