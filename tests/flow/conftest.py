"""The world that flow tests act in, and the check that every commit replays."""

from tests.kit.replaying import replayed_commits
from tests.kit.world import parts, sealing_parts, sealing_world, slack_sink, world

__all__ = ["parts", "replayed_commits", "sealing_parts", "sealing_world", "slack_sink", "world"]
