"""Stage 3: splits."""

from __future__ import annotations

from rollbook.audit.detector import Detector


class SplitsDetector(Detector):
    """To be written."""

    stage, name = 3, "splits"
    absent = "the run holds no split"
