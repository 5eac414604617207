"""The fourteen detectors, one for each stage of the chain."""

from __future__ import annotations

from rollbook.audit.detector import Detector
from rollbook.audit.detectors.acquisition import AcquisitionDetector
from rollbook.audit.detectors.admission import AdmissionDetector
from rollbook.audit.detectors.cold_start import ColdStartDetector
from rollbook.audit.detectors.credit import CreditDetector
from rollbook.audit.detectors.environment import EnvironmentDetector
from rollbook.audit.detectors.evaluation import EvaluationDetector
from rollbook.audit.detectors.events import EventsDetector
from rollbook.audit.detectors.gate import GateDetector
from rollbook.audit.detectors.normalisation import NormalisationDetector
from rollbook.audit.detectors.publication import PublicationDetector
from rollbook.audit.detectors.request import RequestDetector
from rollbook.audit.detectors.reward import RewardDetector
from rollbook.audit.detectors.splits import SplitsDetector
from rollbook.audit.detectors.update import UpdateDetector

DETECTORS: tuple[type[Detector], ...] = (
    AcquisitionDetector, NormalisationDetector, SplitsDetector, EnvironmentDetector, ColdStartDetector, RequestDetector,
    EventsDetector, RewardDetector, AdmissionDetector, CreditDetector, UpdateDetector, PublicationDetector, EvaluationDetector,
    GateDetector)


def all_detectors() -> list[Detector]:
    """A fresh detector for each stage, in the order of the chain."""
    return [cls() for cls in DETECTORS]
