"""Somebody else's run, recorded with the same chain as far as its host shows it: plain loops here, TRL in `adapters.trl`."""

from rollbook.adapters.recorder import Recorder
from rollbook.adapters.rollouts import Rollouts
from rollbook.adapters.samples import RewardParts, Sampled

__all__ = ["Recorder", "RewardParts", "Rollouts", "Sampled"]
