"""Stage 7: events."""

from __future__ import annotations

from rollbook.audit.detector import Detector


class EventsDetector(Detector):
    """To be written."""

    stage, name = 7, "events"
    absent = "the run holds no trajectory"
