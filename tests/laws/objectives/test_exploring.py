"""A bonus for entropy stands beside an objective, changes nothing of it, and has one coefficient."""

from __future__ import annotations

import pytest
import torch

from rollbook.objectives import ActionTokens, ControlledEntropy, Corrected, Dapo, Grpo, WithEntropy, all_reads, total_loss
from rollbook.objectives.errors import ObjectiveError


def test_the_bonus_is_a_term_of_its_own_beside_the_objective() -> None:
    objective = WithEntropy(objective=Dapo(), coefficient=0.5, entropy_aggregate="token_mean")
    assert all_reads(objective) == all_reads(Dapo()) | {"entropy_T"} and objective.reads == Dapo().reads
    logp_T, entropy_T = torch.tensor([-1.0, -2.0], requires_grad=True), torch.tensor([0.5, 1.5], requires_grad=True)
    tokens = ActionTokens(logp_T=logp_T, anchor_T=logp_T.detach(), advantage_T=torch.tensor([1.0, -1.0]), entropy_T=entropy_T,
                          seq_T=torch.tensor([0, 1]), length_S=torch.tensor([1, 1]))
    (bonus,) = objective.extra_terms
    total_loss([bonus.term(tokens)], [torch.tensor([0.25, 0.75])]).backward()
    assert entropy_T.grad is not None
    assert entropy_T.grad.tolist() == [-0.125, -0.375] and logp_T.grad is None
    assert torch.equal(objective(tokens).loss_T, Dapo()(tokens).loss_T)


def test_a_bonus_keeps_the_terms_that_the_objective_has() -> None:
    held = Grpo(low=0.2, high=0.3)
    named = [term.name for term in WithEntropy(objective=held, coefficient=0.1, entropy_aggregate="token_mean").extra_terms]
    assert named == [*(term.name for term in held.extra_terms), "entropy"] == ["kl", "entropy"]


def test_one_bonus_has_one_coefficient_and_no_correction_weighs_it() -> None:
    once = WithEntropy(objective=Dapo(), coefficient=0.1, entropy_aggregate="token_mean")
    with pytest.raises(ObjectiveError, match="without an entropy bonus"):
        WithEntropy(objective=once, coefficient=0.1, entropy_aggregate="token_mean")
    with pytest.raises(ObjectiveError, match="a correction goes inside"):
        Corrected(objective=once, rule="token_tis", cap=2.0)
    inside = WithEntropy(objective=Corrected(objective=Dapo(), rule="token_tis", cap=2.0), coefficient=0.1,
                         entropy_aggregate="token_mean")
    assert [term.name for term in inside.extra_terms] == ["entropy"]


def controlled(**other: float) -> ControlledEntropy:
    return ControlledEntropy(**{"objective": Dapo(), "start": 0.1, "step": 0.05, "maximum": 0.2,  # type: ignore[arg-type]
                                "entropy_aggregate": "token_mean"} | other)


def test_a_controlled_bonus_has_the_coefficient_of_its_step_and_its_gradient_is_that_of_a_bonus_of_this_size() -> None:
    objective = controlled()
    assert objective.target == 0.2 and [term.coefficient for term in objective.extra_terms] == [0.0]
    assert all_reads(objective) == all_reads(objective.at(0.3)) == all_reads(Dapo()) | {"entropy_T"}
    for coefficient, due in ((0.3, [-0.075, -0.225]), (0.0, [0.0, 0.0])):
        logp_T, entropy_T = torch.tensor([-1.0, -2.0]), torch.tensor([0.5, 1.5], requires_grad=True)
        tokens = ActionTokens(logp_T=logp_T, anchor_T=logp_T, advantage_T=torch.tensor([1.0, -1.0]), entropy_T=entropy_T,
                              seq_T=torch.tensor([0, 1]), length_S=torch.tensor([1, 1]))
        (bonus,) = objective.at(coefficient).extra_terms
        total_loss([bonus.term(tokens)], [torch.tensor([0.25, 0.75])]).backward()
        assert entropy_T.grad is not None and entropy_T.grad.tolist() == pytest.approx(due)
        assert torch.equal(objective.at(coefficient)(tokens).loss_T, Dapo()(tokens).loss_T)


def test_a_controller_begins_within_its_bounds_and_holds_no_other_bonus() -> None:
    with pytest.raises(ObjectiveError, match="within its bounds"):
        controlled(start=0.3)
    with pytest.raises(ObjectiveError, match="without an entropy bonus"):
        WithEntropy(objective=controlled(), coefficient=0.1, entropy_aggregate="token_mean")
    with pytest.raises(ObjectiveError, match="a correction goes inside"):
        Corrected(objective=controlled(), rule="token_tis", cap=2.0)


@pytest.mark.parametrize("coefficient", [0.0, -0.1, float("nan")])
def test_a_bonus_that_rewards_nothing_is_refused(coefficient: float) -> None:
    with pytest.raises(ObjectiveError, match="coefficient"):
        WithEntropy(objective=Dapo(), coefficient=coefficient, entropy_aggregate="token_mean")
