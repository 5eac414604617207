"""Faults of the producer in stage 10: advantages that do not follow from the verdicts, or stand on the wrong tokens."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from attacked import assert_caught
from light import attack, clean_rows

from rollbook.experience import batches
from rollbook.experience.admission import AdmittedGroup
from rollbook.objectives.credit import GroupCentered
from rollbook.orchestration import step as stepping

CREDITED, PACK, ASSIGN, CUT = batches.credited, stepping.pack, batches.assign_credit, stepping.minibatches


def longest(packed):
    """Marks the tokens of the longest sequence."""
    return packed.seq_T == int(packed.length_S.argmax())


def repacked(change):
    """`pack` with something changed in what it gives."""
    def pack(*given, **settings):
        packed = PACK(*given, **settings)
        return dataclasses.replace(packed, **change(packed))
    return pack


def test_a_clean_run_gives_the_credit_its_rule_gives(warm):
    row = clean_rows(warm)[10]
    assert row.result == "pass" and int(row.evidence.split()[0]) >= 8


@pytest.mark.fault(stage=10, injection="the advantage of the longest sequence changes sign in the batch")
def test_an_advantage_whose_sign_is_flipped_for_a_long_sequence(monkeypatch, warm, tmp_path):
    flip = repacked(lambda p: {"advantage_T": torch.where(longest(p), -p.advantage_T, p.advantage_T)})
    run = attack(monkeypatch, warm, tmp_path / "run", (stepping, "pack", flip))
    assert_caught(run, 10, record="Batch", evidence="carry another advantage than their sequence")


@pytest.mark.fault(stage=10, injection="credit is discounted towards the start of a sequence")
def test_an_advantage_that_decays_over_a_sequence(monkeypatch, warm, tmp_path):
    def decayed(p):
        back_T = p.length_S.cumsum(0)[p.seq_T] - 1 - torch.arange(p.seq_T.numel())
        return {"advantage_T": p.advantage_T * 0.95 ** back_T}
    run = attack(monkeypatch, warm, tmp_path / "run", (stepping, "pack", repacked(decayed)))
    assert_caught(run, 10, record="Batch", evidence="carry another advantage than their sequence")


@pytest.mark.fault(stage=10, injection="baselines are taken over neighbours in the batch instead of groups")
def test_a_baseline_by_position_instead_of_group(monkeypatch, warm, tmp_path):
    def by_position(rule, measured):
        return ASSIGN(rule, dataclasses.replace(measured, group_S=measured.group_S.roll(1)))
    run = attack(monkeypatch, warm, tmp_path / "run", (batches, "assign_credit", by_position))
    assert_caught(run, 10, record="Credit", evidence="do not follow from the verdicts")


@pytest.mark.fault(stage=10, injection="advantages are normalised over the step, the rule says minibatch")
def test_normalisation_over_the_step_under_the_name_of_the_minibatch(monkeypatch, warm, tmp_path):
    def over_all(rule, measured):
        return ASSIGN(rule, dataclasses.replace(measured, minibatch_S=None))
    run = attack(monkeypatch, warm, tmp_path / "run", (batches, "assign_credit", over_all))
    assert_caught(run, 10, record="Credit", evidence="do not follow from the verdicts")


@pytest.mark.fault(stage=10, injection="a bonus for short answers is slipped into the rewards that credit is made of")
def test_a_reward_that_no_verdict_gave(monkeypatch, warm, tmp_path):
    def bonus(one):
        vector = one.verdict.vector
        paid = dataclasses.replace(vector, total=vector.total + 1.0 / one.trace.action_count)
        return dataclasses.replace(one, verdict=dataclasses.replace(one.verdict, vector=paid))

    def credited(parts, objective, scope, **more):
        return CREDITED([[AdmittedGroup(id=one.id, members=tuple(map(bonus, one.members))) for one in part] for part in parts],
                        objective, scope, **more)
    run = attack(monkeypatch, warm, tmp_path / "run", (stepping, "credited", credited))
    assert_caught(run, 10, record="Credit", evidence="was credited with reward")


@pytest.mark.fault(stage=10, injection="two tasks share a baseline; credit and batch name them as one group")
def test_groups_that_are_merged(monkeypatch, warm, tmp_path):
    def merged(groups, _):
        together = tuple(member for one in groups for member in one.members)
        return ((AdmittedGroup(id=groups[0].id, members=together),),) if groups else ()
    run = attack(monkeypatch, warm, tmp_path / "run", (stepping, "minibatches", merged),
                 overrides=("stages.rl.minibatches=1",))
    assert_caught(run, 10, record="Credit", evidence="was credited in group")


@pytest.mark.fault(stage=10, injection="another credit rule is used and recorded than the recipe names")
def test_another_rule_than_the_recipe_names(monkeypatch, warm, tmp_path):
    other = SimpleNamespace(credit=GroupCentered())
    run = attack(monkeypatch, warm, tmp_path / "run",
                 (stepping, "credited", lambda parts, _, scope, **more: CREDITED(parts, other, scope, **more)))
    assert_caught(run, 10, record="Credit", evidence="credit was given by GroupCentered")


@pytest.mark.fault(stage=10, injection="the batch is labelled with tokens one position late")
def test_tokens_that_are_shifted_by_one(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", (stepping, "pack", repacked(lambda p: {"token_T": p.token_T.roll(1)})))
    assert_caught(run, 10, record="Batch", evidence="are not the trajectories' action tokens")
