"""What is kept of sampling for the learner: exactly what the stage asks for, and possible."""

from array import array
from dataclasses import replace

import pytest

from rollbook.audit.keeping import kept_otherwise
from rollbook.recipes import load, resolve
from rollbook.records import Kept, Segment, Trace

STAGE = resolve(load("magistral-small"), "tiny").settings.stages["rl"]
MASKED, ROUTED = replace(STAGE, sampling_mask=True), replace(STAGE, routing="sampled")
TRACE = Trace(attempt="a", task="t", group="g", envelope=None, stop_reason="end_of_turn", text="", segments=(
    Segment(owner="user", token_ids=(1, 5)), Segment(owner="policy", token_ids=(7, 2, 9), logps=(-0.5, -0.25, 0.0), version=0)))
SUPPORT = Kept.of(ids=array("i", [3, 7, 2, 4, 8, 9]), counts=(2, 3, 1))
ROUTES = Kept.of(ids=None, routes=array("h", [0, 1] * 2 * 4))


def test_numbers_come_back_as_they_were_written():
    assert list(SUPPORT.ids) == [3, 7, 2, 4, 8, 9] and list(ROUTES.experts) == [0, 1] * 8 and Kept() == Kept.of(ids=None)


@pytest.mark.parametrize(("stage", "kept"), [(STAGE, None), (MASKED, SUPPORT), (ROUTED, ROUTES),
                                             (replace(MASKED, routing="sampled"), replace(SUPPORT, routes=ROUTES.routes))])
def test_what_was_asked_for_and_can_be_so_passes(stage, kept):
    assert kept_otherwise(replace(TRACE, kept=kept), stage, None) == ""


@pytest.mark.parametrize(("stage", "kept", "words"), [
    (STAGE, SUPPORT, "sampling_mask is False"), (STAGE, ROUTES, "routing is free"), (MASKED, None, "not kept"),
    (ROUTED, None, "not kept"), (MASKED, replace(SUPPORT, counts=()), "without the number"),
    (MASKED, Kept(counts=(2, 3, 1)), "without the ids"), (STAGE, replace(SUPPORT, counts=()), "without the number"),
    (MASKED, replace(SUPPORT, counts=(2, 4)), "in 2 supports"),
    (MASKED, replace(SUPPORT, counts=(2, 3, 2)), "of 7 for 3"), (MASKED, replace(SUPPORT, counts=(5, 0, 1)), "in 3 supports"),
    (MASKED, Kept.of(ids=array("i", [3, 6, 2, 4, 8, 9]), counts=(2, 3, 1)), "none of the 2 ids"),
    (MASKED, Kept.of(ids=array("i", [7, 3, 2, 4, 8, 9]), counts=(2, 3, 1)), "ascending"),
    (MASKED, Kept.of(ids=array("i", [7, 2, 4, 8, 9]), counts=(1, 3, 1)), "one id alone"),
    (MASKED, replace(SUPPORT, support="AAA"), "base64"), (MASKED, replace(SUPPORT, support="?"), "base64"),
    (ROUTED, Kept.of(ids=None, routes=array("h", [0, 1, 0])), "3 experts for 4 positions"),
    (ROUTED, Kept.of(ids=None, routes=array("h", [0, -1] * 8)), "experts for 4 positions"),
    (MASKED, replace(SUPPORT, counts=(2, 3, 2**70)), "too large"),
    (MASKED, replace(SUPPORT, counts=(2**63 - 1, 2**63 - 1, 8)), "of 18446744073709551622 for 3")])
def test_what_was_not_asked_for_or_cannot_be_so_is_named(stage, kept, words):
    assert words in kept_otherwise(replace(TRACE, kept=kept), stage, None)


def test_experts_of_a_trajectory_that_read_no_position_are_named():
    own = Segment(owner="policy", token_ids=(7,), logps=(0.0,), version=0)
    alone = replace(TRACE, segments=(replace(TRACE.segments[0], token_ids=()), own))
    assert "for 0 positions" in kept_otherwise(replace(alone, kept=ROUTES), ROUTED, None)


def test_more_ids_than_top_k_allows_are_named():
    from rollbook.records import SamplingEnvelope
    envelope = SamplingEnvelope(policy=None, temperature=1.0, top_p=1.0, top_k=2, min_p=0.0, seed=1, max_tokens=8, max_turns=1,
                                max_seconds=None, stop=(), template="", scaffold="")
    assert "3 ids under top_k 2" in kept_otherwise(replace(TRACE, kept=SUPPORT), MASKED, envelope)
    assert kept_otherwise(replace(TRACE, kept=SUPPORT), MASKED, replace(envelope, top_k=3)) == ""
