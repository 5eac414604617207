"""Advantages with a critic: skipped observations, telescoping, adaptive lambda, rewards on the right token."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_cases import F64
from torch import Tensor

from rollbook.objectives import ObjectiveError, credit
from rollbook.objectives.credit import BatchNormalized, Gae, LengthAdaptiveGae, Measured, assign_credit

FEW = settings(max_examples=40, deadline=None)


@st.composite
def rollouts(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    """Rewards, values and ids of packed sequences."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31 - 1)))
    total = sum(sizes)
    seq_T = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return torch.randn(total, generator=generator, dtype=F64), torch.randn(total, generator=generator, dtype=F64), seq_T, sizes


def by_hand(reward: list[float], value: list[float], gamma: float, lam: float, bootstrap: float = 0.0) -> list[float]:
    advantage, following, result = 0.0, bootstrap, []
    for r, v in zip(reversed(reward), reversed(value), strict=True):
        advantage = r + gamma * following - v + gamma * lam * advantage
        following = v
        result.append(advantage)
    return result[::-1]


@given(batch=rollouts(), gamma=st.floats(0, 1), lam=st.floats(0, 1), truncated=st.booleans())
@FEW
def test_gae_is_the_recursion_within_each_sequence(batch, gamma: float, lam: float, truncated: bool) -> None:
    reward_T, value_T, seq_T, sizes = batch
    bootstrap_S = torch.linspace(-1, 1, len(sizes), dtype=F64) if truncated else None
    found = credit.gae(reward_T, value_T, seq_T, gamma=gamma, lam=lam, bootstrap_S=bootstrap_S)
    for s in range(len(sizes)):
        own_T = seq_T == s
        end = float(bootstrap_S[s]) if truncated else 0.0
        assert found.advantage_T[own_T].tolist() == pytest.approx(
            by_hand(reward_T[own_T].tolist(), value_T[own_T].tolist(), gamma, lam, end), abs=1e-9
        )
    torch.testing.assert_close(found.return_T, found.advantage_T + value_T)


@given(batch=rollouts())
@FEW
def test_with_gamma_and_lambda_one_returns_telescope_to_the_sum_of_rewards(batch) -> None:
    reward_T, value_T, seq_T, _ = batch
    found = credit.gae(reward_T, value_T, seq_T, gamma=1.0, lam=1.0)
    torch.testing.assert_close(found.return_T, credit.discounted_sum(reward_T, seq_T, gamma=1.0), atol=1e-9, rtol=1e-9)
    moved = credit.gae(reward_T, value_T + 3.0, seq_T, gamma=1.0, lam=1.0)
    torch.testing.assert_close(moved.advantage_T, found.advantage_T - 3.0, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(moved.return_T, found.return_T, atol=1e-9, rtol=1e-9)


@given(data=st.data(), gamma=st.floats(0.1, 1), lam=st.floats(0.1, 1))
@FEW
def test_skip_observation_gae_equals_plain_gae_on_the_compacted_sequence(data: st.DataObject, gamma: float, lam: float) -> None:
    """SAO's recursion over the full sequence, the next value being the next action token's, against the packed tokens."""
    acts = data.draw(st.lists(st.booleans(), min_size=1, max_size=10).filter(any))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31 - 1)))
    reward = torch.randn(len(acts), generator=generator, dtype=F64).tolist()
    value = torch.randn(len(acts), generator=generator, dtype=F64).tolist()
    actions = [t for t, act in enumerate(acts) if act]
    advantage = dict.fromkeys(range(len(acts)), 0.0)
    for position in range(len(actions) - 1, -1, -1):
        t = actions[position]
        following = actions[position + 1] if position + 1 < len(actions) else None
        next_value = value[following] if following is not None else 0.0
        next_advantage = advantage[following] if following is not None else 0.0
        advantage[t] = reward[t] + gamma * next_value - value[t] + gamma * lam * next_advantage
    kept = torch.tensor(actions)
    packed = credit.gae(
        torch.tensor(reward, dtype=F64)[kept],
        torch.tensor(value, dtype=F64)[kept],
        torch.zeros(len(actions), dtype=torch.int64),
        gamma=gamma,
        lam=lam,
    )
    assert packed.advantage_T.tolist() == pytest.approx([advantage[t] for t in actions], abs=1e-9)


def test_the_terminal_reward_stands_on_the_last_action_token() -> None:
    """Three tokens, score 1, gamma 0.9: returns 0.81, 0.9, 1.0; the other answer's penalty stays on its own last token."""
    seq_T = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
    reward_T = credit.token_rewards(torch.tensor([1.0, -1.0], dtype=F64), None, seq_T, beta=None)
    assert reward_T.tolist() == [0, 0, 1, 0, 0, 0, 0, -1]
    found = credit.gae(reward_T, torch.zeros(8, dtype=F64), seq_T, gamma=0.9, lam=1.0)
    assert found.return_T[:3].tolist() == pytest.approx([0.81, 0.9, 1.0])


def test_the_kl_reward_is_k1_and_may_be_positive() -> None:
    kl_T = torch.tensor([0.5, -0.25, 0.1], dtype=F64)
    reward_T = credit.token_rewards(torch.tensor([1.0], dtype=F64), kl_T, torch.zeros(3, dtype=torch.int64), beta=0.02)
    assert reward_T.tolist() == pytest.approx([-0.01, 0.005, 0.998])


@given(length=st.integers(1, 4000), alpha=st.sampled_from([0.05, 1.5]))
@FEW
def test_adaptive_lambdas_geometric_sum_is_alpha_times_length(length: int, alpha: float) -> None:
    lam = float(credit.length_adaptive_lambda(torch.tensor([length]), alpha=alpha, floor=None))
    if 0 < lam < 1:
        assert 1 / (1 - lam) == pytest.approx(alpha * length)
    assert float(credit.length_adaptive_lambda(torch.tensor([length]), alpha=alpha, floor=0.0)) == max(lam, 0.0)


def test_vapos_lambda_below_twenty_tokens_is_the_printed_negative_or_the_chosen_floor() -> None:
    length_S = torch.tensor([5, 19, 0])
    assert credit.length_adaptive_lambda(length_S, alpha=0.05, floor=None)[0] == -3
    assert credit.length_adaptive_lambda(length_S, alpha=0.05, floor=0.0).tolist() == [0, 0, 0]
    assert bool((credit.length_adaptive_lambda(torch.tensor([1]), alpha=1.5, floor=None) > 0.3).all())


def measured(sizes: list[int]) -> Measured:
    generator = torch.Generator().manual_seed(4)
    seq_T = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return Measured(
        reward_S=torch.randn(len(sizes), generator=generator, dtype=F64),
        group_S=torch.arange(len(sizes)),
        seq_T=seq_T,
        value_T=torch.randn(sum(sizes), generator=generator, dtype=F64),
        kl_T=torch.randn(sum(sizes), generator=generator, dtype=F64),
        length_S=torch.tensor(sizes),
    )


def test_the_adaptive_lambda_is_per_sequence_and_never_reaches_critic_targets() -> None:
    batch = measured([2, 30, 60])
    rule = LengthAdaptiveGae(gamma=1.0, alpha=0.05, floor=0.0, counts="action_tokens", lam_critic=1.0)
    found = assign_credit(rule, batch)
    reward_T = credit.token_rewards(batch.reward_S, None, batch.seq_T, beta=None)
    torch.testing.assert_close(found.return_T, credit.discounted_sum(reward_T, batch.seq_T, gamma=1.0), atol=1e-9, rtol=1e-9)
    for s, lam in enumerate([0.0, 1 / 3, 2 / 3]):
        own_T = batch.seq_T == s
        expected = by_hand(reward_T[own_T].tolist(), batch.value_T[own_T].tolist(), 1.0, lam)
        assert found.advantage_T[own_T].tolist() == pytest.approx(expected, abs=1e-9)


def test_decoupled_gae_uses_one_lambda_for_the_actor_and_another_for_the_targets() -> None:
    batch = measured([4, 3])
    found = assign_credit(Gae(gamma=0.9, lam_policy=0.5, lam_critic=1.0, kl_beta=0.02), batch)
    reward_T = credit.token_rewards(batch.reward_S, batch.kl_T, batch.seq_T, beta=0.02)
    actor = credit.gae(reward_T, batch.value_T, batch.seq_T, gamma=0.9, lam=0.5)
    critic = credit.gae(reward_T, batch.value_T, batch.seq_T, gamma=0.9, lam=1.0)
    assert torch.equal(found.advantage_T, actor.advantage_T) and torch.equal(found.return_T, critic.return_T)


@pytest.mark.parametrize("weighting", ["token", "sequence"])
def test_reinforce_plus_plus_normalises_returns_over_the_global_batch(weighting: str) -> None:
    batch = measured([1, 5, 2])
    rule = BatchNormalized(kl_beta=0.01, baseline="none", weighting=weighting, gamma=1.0, eps=0.0, ddof=0)
    advantage_T = assign_credit(rule, batch).advantage_T
    if weighting == "token":
        pooled = advantage_T
    else:
        pooled = torch.stack([advantage_T[batch.seq_T == s].mean() for s in range(3)])
    assert float(pooled.mean()) == pytest.approx(0, abs=1e-9)
    assert float(pooled.std(correction=0)) == pytest.approx(1, abs=1e-9)
    reward_T = credit.token_rewards(batch.reward_S, batch.kl_T, batch.seq_T, beta=0.01)
    return_T = credit.discounted_sum(reward_T, batch.seq_T, gamma=1.0)
    correlation = torch.corrcoef(torch.stack([return_T, advantage_T]))[0, 1]
    assert float(correlation) == pytest.approx(1, abs=1e-9)


def test_the_baseline_variant_centres_per_group_first() -> None:
    batch = Measured(
        reward_S=torch.tensor([1.0, 0, 9, 8], dtype=F64), group_S=torch.tensor([0, 0, 1, 1]), seq_T=torch.arange(4)
    )
    rule = BatchNormalized(kl_beta=None, baseline="group_mean", weighting="token", gamma=1.0, eps=0.0, ddof=0)
    assert assign_credit(rule, batch).advantage_T.tolist() == pytest.approx([1, -1, 1, -1])


def test_compaction_discounts_by_the_tokens_of_later_segments() -> None:
    """Segments of 2 and 3 tokens of one trajectory, and one lone segment."""
    seq_T = torch.tensor([0, 0, 1, 1, 1, 2])
    segments = (seq_T, torch.tensor([2, 3, 1]), torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0]))
    found_T = credit.segment_discount(torch.ones(6, dtype=F64), *segments, gamma=0.9, lam=0.5)
    assert found_T.tolist() == pytest.approx([0.45**3] * 2 + [1.0] * 4)
    same_T = credit.segment_discount(torch.ones(6, dtype=F64), *segments, gamma=1.0, lam=1.0)
    assert same_T.tolist() == [1.0] * 6


def test_gae_of_nothing_is_nothing() -> None:
    empty_T = torch.zeros(0, dtype=F64)
    assert credit.gae(empty_T, empty_T, empty_T.long(), gamma=1.0, lam=0.9).advantage_T.shape == (0,)


@pytest.mark.parametrize(
    "call",
    [
        lambda: credit.gae(torch.ones(2), torch.ones(3), torch.zeros(3).long(), gamma=1.0, lam=1.0),
        lambda: credit.gae(torch.ones(3), torch.ones(3), torch.tensor([0, 1, 0]), gamma=1.0, lam=1.0),
        lambda: credit.token_rewards(torch.ones(1), torch.ones(2), torch.zeros(2).long(), beta=None),
        lambda: credit.token_rewards(torch.ones(1), None, torch.zeros(2).long(), beta=0.1),
        lambda: credit.length_adaptive_lambda(torch.tensor([3]), alpha=0.0, floor=None),
        lambda: LengthAdaptiveGae(gamma=1.0, alpha=0.05, floor=None, counts="everything", lam_critic=1.0),
        lambda: assign_credit(
            Gae(gamma=1.0, lam_policy=1.0, lam_critic=1.0),
            Measured(reward_S=torch.ones(1), group_S=torch.zeros(1).long(), seq_T=torch.zeros(2).long()),
        ),
    ],
)
def test_critic_credit_without_its_inputs_is_refused(call) -> None:
    with pytest.raises(ObjectiveError):
        call()
