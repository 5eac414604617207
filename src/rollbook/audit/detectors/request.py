"""Stage 6: request."""

from __future__ import annotations

from rollbook.audit.detector import Detector


class RequestDetector(Detector):
    """To be written."""

    stage, name = 6, "request"
    absent = "nothing was sampled"
