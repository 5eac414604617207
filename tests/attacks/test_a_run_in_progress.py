"""A run that is stopped, killed or still going is judged by what it has recorded: an open step is no failure."""

import copy

import pytest
from light import attack, clean_run

from rollbook.audit.detector import Detector
from rollbook.audit.detectors.admission import AdmissionDetector
from rollbook.audit.detectors.credit import CreditDetector
from rollbook.audit.detectors.publication import PublicationDetector
from rollbook.audit.detectors.update import UpdateDetector
from rollbook.audit.passage import audit_run, read
from rollbook.ledger import Ledger
from rollbook.records import Diverged
from rollbook.training import policy as training

OURS = (AdmissionDetector, CreditDetector, UpdateDetector, PublicationDetector)


class Witness(Detector):
    """Remembers the index that the passage fills."""

    def record(self, run, identity, record):
        self.run = run


def test_a_run_that_stops_after_any_event_raises_nothing(warm):
    witness, ours, seen = Witness(), [cls() for cls in OURS], []

    def told(seq):
        seen.append(seq)
        for one in ours:
            now = copy.deepcopy(one)
            now.finish(witness.run)
            assert not now.failures, f"after event {seq}: {now.failures[0]}"
    read(Ledger.open(clean_run(warm), write=False), [witness, *ours], told)
    assert len(seen) > 60 and all(one.examined for one in ours)


def test_a_step_that_diverged_leaves_its_batch_and_no_failure(monkeypatch, warm, tmp_path):
    honest = training.evaluate

    def overflow(*given):
        terms, clipped = honest(*given)
        terms[0].loss_T.data.fill_(float("nan"))
        return terms, clipped
    with pytest.raises(Diverged):
        attack(monkeypatch, warm, tmp_path / "run", (training, "evaluate", overflow))
    found = {row.stage: row for row in audit_run(tmp_path / "run").rows}
    assert [found[stage].result for stage in (9, 10, 11, 12)] == ["pass", "not_applicable", "not_applicable", "pass"]
