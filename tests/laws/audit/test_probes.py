"""How far engine and trainer may be apart on a probe, by the precision they compute in."""

import dataclasses
from types import SimpleNamespace

import pytest

from rollbook.audit.detectors.publication import PublicationDetector
from rollbook.records import Acknowledgement, PolicyVersion, Probe


def version(index, consumer, trainer, dtype="bfloat16"):
    return PolicyVersion(index=index, stage="rl", weights=f"w{index}", published=f"p{index}", parent=None, updates=0,
                         optimizer=None, window=(), healthy=True,
                         acknowledged=(Acknowledgement(consumer="engine", weights=f"p{index}"),),
                         probe=Probe(token_ids=(1, 2, 3), given=1, consumer=consumer, trainer=trainer, dtype=dtype))


def found(*versions, recipe=None):
    detector = PublicationDetector()
    for one in versions:
        detector._probed(SimpleNamespace(recipe=recipe), f"PolicyVersion:{one.index}", one)
    return [failure.evidence for failure in detector.failures]


@pytest.mark.parametrize(("dtype", "off", "agrees"), [
    ("float32", 5e-4, True), ("float32", 5e-3, False), ("bfloat16", 4e-2, True), ("bfloat16", 2e-1, False)])
def test_a_probe_agrees_to_the_precision_it_was_made_in(dtype, off, agrees):
    assert (found(version(0, (-1.0, -2.0), (-1.0 - off, -2.0 - off), dtype)) == []) is agrees


def test_unlikely_tokens_may_differ_by_five_percent_in_half_precision():
    assert found(version(0, (-16.0, -20.0), (-16.7, -20.9))) == []
    assert "differ by" in found(version(0, (-16.0, -20.0), (-17.0, -21.1)))[0]


def test_one_unlikely_token_among_likely_ones_may_round_as_it_was_measured_on_a_135m_model():
    trainer = (-2.16, -0.78, -10.88, -1e-3, -0.07, -1e-3, -1e-3, -1e-3)
    consumer = (-2.202, -0.83, -11.184, -1e-3, -0.054, -1e-3, -1e-3, -1e-3)
    probe = Probe(token_ids=tuple(range(9)), given=1, consumer=consumer, trainer=trainer, dtype="bfloat16")
    assert found(dataclasses.replace(version(0, (), ()), probe=probe)) == []
    hotter = dataclasses.replace(probe, consumer=tuple(x / 0.7 for x in trainer))
    assert "differ by" in found(dataclasses.replace(version(0, (), ()), probe=hotter))[0]


def test_a_consumer_that_stands_still_while_the_trainer_moves_is_stale_within_any_tolerance():
    stale = found(version(0, (-1.0, -2.0), (-1.0, -2.0)), version(1, (-1.0, -2.0), (-1.001, -2.0)))
    assert "holds the old weights" in stale[0]
    assert found(version(0, (-1.0, -2.0), (-1.0, -2.0)), version(1, (-1.001, -2.0), (-1.001, -2.0))) == []


def test_a_probe_is_of_eight_tokens_where_the_prompt_has_them_and_in_the_precision_of_the_recipe():
    def due(dtype):
        return SimpleNamespace(settings=SimpleNamespace(run=SimpleNamespace(dtype=dtype)))
    one = Probe(token_ids=tuple(range(20)), given=19, consumer=(-1.0,), trainer=(-1.0,), dtype="bfloat16")
    few = dataclasses.replace(version(0, (), ()), probe=one)
    assert "of 1 token," in found(few, recipe=due("auto"))[0]
    assert found(version(0, (-1.0, -2.0), (-1.0, -2.0)), recipe=due("auto")) == []          # all that three tokens have
    assert "the recipe computes in float32" in found(version(0, (-1.0, -2.0), (-1.0, -2.0)), recipe=due("float32"))[0]
