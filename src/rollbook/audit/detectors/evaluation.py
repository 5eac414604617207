"""Stage 13: evaluation."""

from __future__ import annotations

from rollbook.audit.detector import Detector


class EvaluationDetector(Detector):
    """To be written."""

    stage, name = 13, "evaluation"
    absent = "nothing was evaluated"
