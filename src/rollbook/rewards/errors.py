"""Refusals of the reward package."""

from __future__ import annotations

from rollbook.records import RollbookError


class RewardError(RollbookError):
    """A reward that cannot be set up or computed as asked; a failed verification is an `Unscored`, not this."""
