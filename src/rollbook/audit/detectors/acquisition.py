"""Stage 1: acquisition."""

from __future__ import annotations

from rollbook.audit.detector import Detector


class AcquisitionDetector(Detector):
    """To be written."""

    stage, name = 1, "acquisition"
    absent = "no training task was compared with an evaluation protocol"
