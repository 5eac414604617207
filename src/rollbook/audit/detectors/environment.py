"""Stage 4: environment."""

from __future__ import annotations

from rollbook.audit.detector import Detector


class EnvironmentDetector(Detector):
    """To be written."""

    stage, name = 4, "environment"
    absent = "the run names no environment"
