"""Stage 9: admission."""

from __future__ import annotations

from rollbook.audit.detector import Detector


class AdmissionDetector(Detector):
    """To be written."""

    stage, name = 9, "admission"
    absent = "no attempt was issued"
