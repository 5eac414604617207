"""Stage 10: credit."""

from __future__ import annotations

from rollbook.audit.detector import Detector


class CreditDetector(Detector):
    """To be written."""

    stage, name = 10, "credit"
    absent = "no step gave credit"
