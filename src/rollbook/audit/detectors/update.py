"""Stage 11: update."""

from __future__ import annotations

from rollbook.audit.detector import Detector


class UpdateDetector(Detector):
    """To be written."""

    stage, name = 11, "update"
    absent = "no policy update was made"
