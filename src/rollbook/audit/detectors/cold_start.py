"""Stage 5: cold start."""

from __future__ import annotations

from rollbook.audit.detector import Detector


class ColdStartDetector(Detector):
    """To be written."""

    stage, name = 5, "cold start"
    absent = "no stage imitates demonstrations"
