"""A bonus for entropy stands beside an objective, changes nothing of it, and has one coefficient."""

from __future__ import annotations

import pytest
import torch

from rollbook.objectives import ActionTokens, Corrected, Dapo, Grpo, WithEntropy, all_reads, total_loss
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


@pytest.mark.parametrize("coefficient", [0.0, -0.1, float("nan")])
def test_a_bonus_that_rewards_nothing_is_refused(coefficient: float) -> None:
    with pytest.raises(ObjectiveError, match="coefficient"):
        WithEntropy(objective=Dapo(), coefficient=coefficient, entropy_aggregate="token_mean")
