"""Stage 14: gate."""

from __future__ import annotations

from rollbook.audit.detector import Detector


class GateDetector(Detector):
    """To be written."""

    stage, name = 14, "gate"
    absent = "no permission was asked for"
