"""Stage 8: reward."""

from __future__ import annotations

from rollbook.audit.detector import Detector


class RewardDetector(Detector):
    """To be written."""

    stage, name = 8, "reward"
    absent = "nothing was judged"
