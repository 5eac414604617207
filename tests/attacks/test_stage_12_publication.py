"""Faults of the producer in stage 12: who samples holds other weights than the record says, or weights nobody explains."""

import dataclasses

import pytest
import torch
from attacked import assert_caught
from light import attack, clean_rows

from rollbook.models.weights import weight_hash
from rollbook.models.working_copy import WorkingCopy
from rollbook.orchestration import publish
from rollbook.orchestration import step as stepping
from rollbook.orchestration.publish import Publisher
from rollbook.rollouts.engines.embedded import EmbeddedEngine

LOAD, SAMPLE, PUBLISH, STEP_PUBLISH = EmbeddedEngine.load, EmbeddedEngine.sample, Publisher.publish, stepping._publish
PROBE = Publisher._probe


def test_a_clean_run_samples_from_what_it_published(warm):
    row = clean_rows(warm)[12]
    assert row.result == "pass" and "segments" in row.evidence


@pytest.mark.fault(stage=12, injection="the engine keeps its old weights and reports the hash of the new ones")
def test_an_engine_with_stale_weights_and_the_right_hash(monkeypatch, warm, tmp_path):
    def load(self, decoder, version):
        if version < 2:
            return LOAD(self, decoder, version)
        self.version = version
        return weight_hash(WorkingCopy(decoder, self.dtype).named())
    run = attack(monkeypatch, warm, tmp_path / "run", (EmbeddedEngine, "load", load))
    assert_caught(run, 12, record="PolicyVersion", evidence="it holds the old weights")


@pytest.mark.fault(stage=12, injection="the engine is probed with the new weights and samples with the old ones")
def test_an_engine_that_is_fresh_for_the_probe_only(monkeypatch, warm, tmp_path):
    old = []

    def load(self, decoder, version):
        old.append(self.weights)
        return LOAD(self, decoder, version)

    def sample(self, requests):
        fresh = self.weights
        self.weights = old[-1] if self.version >= 2 else fresh
        try:
            return SAMPLE(self, requests)
        finally:
            self.weights = fresh
    run = attack(monkeypatch, warm, tmp_path / "run", (EmbeddedEngine, "load", load), (EmbeddedEngine, "sample", sample),
                 overrides=("run.dtype=float32",))
    assert_caught(run, 12, record="Batch", evidence="differ from the trainer's at the same weights")


@pytest.mark.fault(stage=12, injection="tokens are stamped with the version after the one that sampled them")
def test_versions_that_are_one_too_high(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", (EmbeddedEngine, "load", lambda self, d,
                                                       version: LOAD(self, d, version + 1)))
    assert_caught(run, 12, record="Trace", evidence="was not published")


@pytest.mark.fault(stage=12, injection="the engine keeps its old weights and the probe repeats its log-probs as the trainer's")
def test_a_stale_engine_behind_a_forged_probe(monkeypatch, warm, tmp_path):
    def load(self, decoder, version):
        if version == 2:
            self.version = version
            return weight_hash(WorkingCopy(decoder, self.dtype).named())
        return LOAD(self, decoder, version)
    run = attack(monkeypatch, warm, tmp_path / "run", (EmbeddedEngine, "load", load),
                 (Publisher, "_probe", lambda self: dataclasses.replace(PROBE(self), trainer=PROBE(self).consumer)),
                 overrides=("run.dtype=float32",))
    assert_caught(run, 12, record="Batch", evidence="differ from the trainer's at the same weights")

@pytest.mark.fault(stage=12, injection="the publication after a step is skipped")
def test_updates_that_are_not_published(monkeypatch, warm, tmp_path):
    def skips(run, policy, updated):
        return policy if policy.index == 1 else STEP_PUBLISH(run, policy, updated)
    run = attack(monkeypatch, warm, tmp_path / "run", (stepping, "_publish", skips))
    assert_caught(run, 12, record="StepReport", evidence="were not published")


@pytest.mark.fault(stage=12, injection="an acknowledgement of another hash is accepted")
def test_an_acknowledgement_of_other_weights(monkeypatch, warm, tmp_path):
    def load(self, index):
        self.engine.load(self.decoder, index)
        self.expected = publish.published_hash(self.decoder, self.engine.dtype)
        self._taken = {self.engine.name: "0" * 64 if index == 2 else self.expected}
        return self.expected
    run = attack(monkeypatch, warm, tmp_path / "run", (Publisher, "load", load))
    assert_caught(run, 12, record="PolicyVersion", evidence="acknowledged 000000000000")


@pytest.mark.fault(stage=12, injection="the window leaves out a batch")
def test_a_window_that_leaves_out_a_batch(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run",
                 (stepping, "_publish", lambda run, policy, updated: STEP_PUBLISH(run, policy, updated[1:])))
    assert_caught(run, 12, record="PolicyVersion", evidence="1 left out")


@pytest.mark.fault(stage=12, injection="the weights are averaged with older ones right before publication")
def test_published_weights_that_no_update_made(monkeypatch, warm, tmp_path):
    def averaged(self, stage, parent, window, *, optimizer):
        if stage == "rl":
            with torch.no_grad():
                for parameter in self.decoder.parameters():
                    parameter.mul_(0.999)
            self.rehash()
        return PUBLISH(self, stage, parent, window, optimizer=optimizer)
    run = attack(monkeypatch, warm, tmp_path / "run", (Publisher, "publish", averaged))
    assert_caught(run, 12, record="PolicyVersion", evidence="its last update ended with")


@pytest.mark.fault(stage=12, injection="a version names an older parent than the policy it was trained from")
def test_a_version_with_the_wrong_parent(monkeypatch, warm, tmp_path):
    first = []

    def orphan(self, stage, parent, window, *, optimizer):
        made = PUBLISH(self, stage, first[0] if stage == "rl" else parent, window, optimizer=optimizer)
        first.append(made)
        return made
    run = attack(monkeypatch, warm, tmp_path / "run", (Publisher, "publish", orphan))
    assert_caught(run, 12, record="PolicyVersion", evidence="names parent")
