"""Stage 12: publication."""

from __future__ import annotations

from rollbook.audit.detector import Detector


class PublicationDetector(Detector):
    """To be written."""

    stage, name = 12, "publication"
    absent = "no policy was published"
