"""The world that flow tests act in."""

from tests.kit.world import parts, sealing_parts, sealing_world, slack_sink, world

__all__ = ["parts", "sealing_parts", "sealing_world", "slack_sink", "world"]
