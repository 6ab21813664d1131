"""The world that flow tests act in; every commit of it is replayed (tests/kit/replaying.py)."""

from tests.kit.world import parts, sealing_parts, sealing_world, slack_sink, world

__all__ = ["parts", "sealing_parts", "sealing_world", "slack_sink", "world"]
