"""Stage 2: normalisation."""

from __future__ import annotations

from rollbook.audit.detector import Detector


class NormalisationDetector(Detector):
    """To be written."""

    stage, name = 2, "normalisation"
    absent = "the run holds no task"
