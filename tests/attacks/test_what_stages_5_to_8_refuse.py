"""Single records that stages 5 to 8 must refuse, changed on the way to the detector: one case for each of their findings.

The faults of a producer stand in the files of the stages; these cases see to it that no branch of a detector is dead.
"""

import dataclasses

import pytest
from faulty import clean_run, reread

from rollbook.audit.detectors.cold_start import ColdStartDetector
from rollbook.audit.detectors.events import EventsDetector
from rollbook.audit.detectors.request import RequestDetector
from rollbook.audit.detectors.reward import RewardDetector
from rollbook.ledger import Ledger
from rollbook.records import (
    Composition,
    Demonstration,
    EvalReport,
    NotExposed,
    ProtocolBundle,
    SamplingEnvelope,
    Scored,
    Selection,
    SftReport,
    TokenizerFile,
    Unscored,
    Update,
    content_id,
)


@pytest.fixture(scope="module")
def clean(warm, tmp_path_factory):
    return clean_run(warm, tmp_path_factory)


def changed(kind, **values):
    """A change of every record of a kind; a value may be a function of run and record."""
    def change(run, one):
        if not isinstance(one, kind):
            return one
        return dataclasses.replace(one, **{name: v(run, one) if callable(v) else v for name, v in values.items()})
    return change


def without(kind):
    return lambda run, one: None if isinstance(one, kind) else one


def held_out(run, _):
    return next(task for task, side in run.sides.items() if side == "heldout")


@pytest.mark.parametrize(("change", "words"), [
    (changed(Demonstration, author=" "), "states no author"),
    (changed(Demonstration, validation=""), "states no validation"),
    (changed(Demonstration, task=held_out), "which is held out"),
    (changed(Demonstration, template="00"), "rendered with template 00"),
    (changed(Demonstration, tokenizer="00"), "rendered with tokenizer 00"),
    (without(TokenizerFile), "kept no tokenizer"),
    (without(SftReport), "0 supervised steps are on record, the recipe asks for 2"),
    (changed(SftReport, tokens=lambda _, one: one.tokens + 1), "trained tokens, the policy's turns have"),
    (changed(SftReport, demonstrations=lambda _, one: one.demonstrations[:-1]), "sequences were trained"),
])
def test_stage_5_refuses(clean, change, words):
    row = reread(clean, ColdStartDetector(), record=change)
    assert row.result == "fail" and words in row.evidence, row


def test_stage_5_refuses_tokens_of_another_demonstration_of_equal_length(clean):
    lengths = {content_id(one): len(one.token_ids) for one in Ledger.open(clean, write=False).records(Demonstration)}

    def swapped(_, one):
        names = one.demonstrations
        twins = ((a, b) for a in names for b in lengths if a != b and lengths[a] == lengths[b])
        first, other = next(twins)
        return tuple(other if name == first else name for name in names)

    row = reread(clean, ColdStartDetector(), record=changed(SftReport, demonstrations=swapped))
    assert row.result == "fail" and "are not those of" in row.evidence, row


def test_stage_5_refuses_a_step_that_stored_something_else(clean):
    other = next(iter(Ledger.open(clean, write=False).records(Update))).tensors
    row = reread(clean, ColdStartDetector(), record=changed(SftReport, tensors=other))
    assert row.result == "fail" and "lack token_ids, length or weight" in row.evidence, row


@pytest.mark.parametrize(("change", "words"), [
    (without(SamplingEnvelope), "which is not on record"),
    (changed(SamplingEnvelope, template="00"), "template 00 was asked for"),
    (changed(SamplingEnvelope, seed=99), "with seed 99, the recipe says"),
    (changed(EvalReport, stage="elsewhere"), "stands without its trajectories"),
    (without(ProtocolBundle), "stands without its protocol"),
    (changed(ProtocolBundle, top_p=0.5), "the protocol says 0.5"),
    (changed(ProtocolBundle, tasks="00"), "are not the protocol's"),
    (changed(EvalReport, weights="00"), "the report is about 00"),
])
def test_stage_6_refuses(clean, change, words):
    row = reread(clean, RequestDetector(), record=change)
    assert row.result == "fail" and words in row.evidence, row


def test_stage_6_refuses_an_attempt_that_left_no_trajectory_or_two(clean):
    lost = reread(clean, RequestDetector(), row=lambda one: None if "/3/Task:" in one.trace.attempt else one)
    assert "issued attempts left no trajectory" in lost.evidence

    def doubled(one):
        attempt = one.trace.attempt.removesuffix("/1") + "/0" if one.trace.attempt.endswith("/1") else one.trace.attempt
        return dataclasses.replace(one, trace=dataclasses.replace(one.trace, attempt=attempt))

    assert "the same attempt has a trajectory already" in reread(clean, RequestDetector(), row=doubled).evidence


def test_stage_6_refuses_an_envelope_that_names_nothing_in_a_run_of_its_own(clean):
    def nameless(one):
        return dataclasses.replace(one, trace=dataclasses.replace(one.trace, envelope=None))

    assert "None, which is not on record" in reread(clean, RequestDetector(), row=nameless).evidence


@pytest.mark.parametrize(("row", "step", "words"), [
    (lambda one: None if one.trace.attempt.startswith("rl/") else one, lambda one: one, "trajectories that are not on record"),
    (lambda one: one, lambda one: dataclasses.replace(one, given={"length": one.given["length"]}), "its tensors lack token_ids"),
    (lambda one: dataclasses.replace(one, trace=dataclasses.replace(one.trace, sampled=one.trace.sampled * 2)), lambda one: one,
     "2 hashes for 1 turns"),
    (lambda one: dataclasses.replace(one, trace=dataclasses.replace(one.trace, segments=(
        one.trace.segments[0], *(dataclasses.replace(s, logps=NotExposed()) for s in one.trace.segments[1:])))), lambda one: one,
     "hides the log-probs"),
])
def test_stage_7_refuses(clean, row, step, words):
    found = reread(clean, EventsDetector(), row=row, step=step)
    assert found.result == "fail" and words in found.evidence, found


def verdict(change):
    return lambda one: dataclasses.replace(one, verdict=change(one))


def unstamped(one):
    parts = tuple(dataclasses.replace(part, verifier=dataclasses.replace(part.verifier, version=""))
                  for part in one.verdict.vector.components)
    return dataclasses.replace(one.verdict, vector=dataclasses.replace(one.verdict.vector, components=parts))


def unscored(one):
    return Unscored(trace=one.id, verifier=one.verdict.vector.components[0].verifier, code="crash", detail="")


@pytest.mark.parametrize(("row", "words"), [
    (verdict(unstamped), "without name, version or digest"),
    (verdict(lambda one: None), "accepted without a verdict"),
    (verdict(unscored), "accepted although it has no verdict (crash)"),
])
def test_stage_8_refuses_verdicts(clean, row, words):
    found = reread(clean, RewardDetector(), row=row)
    assert found.result == "fail" and words in found.evidence, found


@pytest.mark.parametrize(("change", "words"), [
    (without(Composition), "which is not on record"),
    (changed(EvalReport, unscored=3), "reports 3 unscored attempts, 0 lack verdicts"),
    (changed(EvalReport, outcomes=lambda _, one: dict.fromkeys(one.outcomes, 0.5)), "its verdicts give"),
    (changed(ProtocolBundle, verifier="00"), "names the judge 00"),
    (changed(Selection, pass_counts={}), "counts None passes of"),
])
def test_stage_8_refuses_what_rests_on_verdicts(clean, change, words):
    row = reread(clean, RewardDetector(), record=change)
    assert row.result == "fail" and words in row.evidence, row


def test_a_run_of_another_judge_is_not_judged_again_and_says_so(clean):
    def elsewhere(one):
        if isinstance(one.verdict, Scored):
            vector = dataclasses.replace(one.verdict.vector, composition_digest="11")
            one = dataclasses.replace(one, verdict=dataclasses.replace(one.verdict, vector=vector))
        return one

    row = reread(clean, RewardDetector(), row=elsewhere,
                 record=lambda run, one: dataclasses.replace(one, digest="11") if isinstance(one, Composition) else
                 changed(ProtocolBundle, verifier="11")(run, one))
    assert row.result == "pass" and "could not be judged again" in row.evidence, row
