"""A reward from its description: who measures each part, what shaping makes of it, and the judge that puts them together."""

from rollbook.rewards.composed.judge import ComposedJudge

__all__ = ["ComposedJudge"]
