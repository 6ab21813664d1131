"""The world that flow tests act in; every commit of it is replayed (tests/kit/replaying.py), and fsck has the last word."""

from tests.kit.consistent import consistent
from tests.kit.mortal import place
from tests.kit.proxy import through
from tests.kit.warm import sealing_warm, warm
from tests.kit.world import parts, sealing_parts, sealing_world, slack_sink, world

__all__ = [
    "consistent",
    "parts",
    "place",
    "sealing_parts",
    "sealing_warm",
    "sealing_world",
    "slack_sink",
    "through",
    "warm",
    "world",
]
