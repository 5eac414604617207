"""The one function a trainer calls: from a credit rule and what was measured to an advantage per action token.

Suffixes: T action tokens of the optimizer step, S its sequences, K environment steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

import torch
from torch import Tensor

from rollbook.objectives.checks import (
    check_flags,
    check_ids,
    check_index,
    check_packed,
    check_record,
    check_same_shape,
    check_scored,
    check_vector,
)
from rollbook.objectives.core import Unstated, number_ids
from rollbook.objectives.credit import rules
from rollbook.objectives.credit.batch import batch_normalized, minibatch_standardized, moments
from rollbook.objectives.credit.gae import Advantages, discounted_sum, gae, length_adaptive_lambda, token_rewards
from rollbook.objectives.credit.groups import (
    check_groups,
    group_centered,
    group_normalized,
    group_statistics,
    has_signal,
    leave_one_out,
)
from rollbook.objectives.credit.steps import implicit_process_code, implicit_process_paper, step_groups, step_returns
from rollbook.objectives.errors import ObjectiveError


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What credit is computed from, for one batch of sequences; a rule reads only what it needs.

    `reward_S` terminal reward, `group_S` group ids, `seq_T` packed action tokens, `keep_S` sequences that count (None: all),
    `minibatch_S` minibatch of each sequence, `kl_T` k1 to the reference at sampling parameters, `value_T` critic,
    `bootstrap_S` value after the last token, `length_S` what an adaptive lambda counts, `log_ratio_T` PRIME's
    logp_prm - reference; per environment step: `step_reward_K`, `step_state_K`, `step_seq_K` and each token's step `step_T`,
    one of its own sequence.

    Ids and shapes must line up for all sequences; values are looked at where a rule reads them, and never those of a dropped one.

    Example: Measured(reward_S=tensor([1., 0.]), group_S=tensor([7, 7]), seq_T=tensor([0, 0, 1]))
    """

    reward_S: Tensor
    group_S: Tensor
    seq_T: Tensor
    keep_S: Tensor | None = None
    minibatch_S: Tensor | None = None
    kl_T: Tensor | None = None
    value_T: Tensor | None = None
    bootstrap_S: Tensor | None = None
    length_S: Tensor | None = None
    log_ratio_T: Tensor | None = None
    step_reward_K: Tensor | None = None
    step_state_K: Tensor | None = None
    step_seq_K: Tensor | None = None
    step_T: Tensor | None = None

    def __post_init__(self) -> None:
        check_packed(self.seq_T)
        check_vector("Measured", reward_S=self.reward_S, group_S=self.group_S)
        check_same_shape("Measured", **self._given("reward_S", "group_S", "keep_S", "minibatch_S", "bootstrap_S", "length_S"))
        if self.keep_S is not None:
            check_flags("Measured", "keep_S", self.keep_S, self.group_S)
        check_same_shape("Measured", **self._given("seq_T", "kl_T", "value_T", "log_ratio_T", "step_T"))
        check_same_shape("Measured", **self._given("step_reward_K", "step_state_K", "step_seq_K"))
        check_ids("Measured", **self._given("group_S", "minibatch_S", "step_state_K", "step_seq_K", "step_T"))
        check_index("Measured", "seq_T", self.seq_T, self.reward_S.shape[0])
        if self.step_seq_K is not None:
            check_index("Measured", "step_seq_K", self.step_seq_K, self.reward_S.shape[0])
            if self.step_T is not None:
                check_index("Measured", "step_T", self.step_T, self.step_seq_K.shape[0])
                _check_steps(self.step_T, self.step_seq_K, self.seq_T)
        for name, value in self._given("seq_T", "step_seq_K", "step_T").items():
            object.__setattr__(self, name, value.long())  # scatter takes no int32

    def _given(self, *names: str) -> dict[str, Tensor]:
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def need(self, rule: object, name: str) -> Tensor:
        value: Tensor | None = getattr(self, name)
        if value is None:
            raise ObjectiveError(
                f"{type(rule).__name__} needs {name}",
                got="None",
                why="its equation reads it",
                fix=f"pass Measured({name}=...), or choose another objective.credit",
            )
        return value

    def kept_S(self) -> Tensor:
        """Which sequences count."""
        if self.keep_S is None:
            return torch.ones_like(self.group_S, dtype=torch.bool)
        return self.keep_S

    def measured(self, rule: object, name: str) -> Tensor:
        """A per-token column that the rule reads; refuses an entry of a kept sequence that is not finite."""
        value_T = self.need(rule, name)
        check_scored(type(rule).__name__, name, value_T, self.kept_S()[self.seq_T])
        return value_T

    def scored(self) -> Measured:
        """The same with 0 for what dropped sequences hold, on which nothing may depend; refuses kept rewards that are not finite.

        Their values stay: a dropped sequence's critic target is its own value.
        """
        check_groups(self.reward_S, self.group_S, self.keep_S)
        if self.keep_S is None:
            return self
        held: dict[str, Tensor] = {}
        for name, keep in (
            *((name, self.keep_S) for name in ("reward_S", "bootstrap_S", "length_S")),
            *((name, self.keep_S[self.seq_T]) for name in ("kl_T", "log_ratio_T")),
            *(() if self.step_seq_K is None else (("step_reward_K", self.keep_S[self.step_seq_K]),)),
        ):
            value: Tensor | None = getattr(self, name)
            if value is not None:
                held[name] = torch.where(keep, value, torch.zeros_like(value))
        return replace(self, **held)


def _check_steps(step_T: Tensor, step_seq_K: Tensor, seq_T: Tensor) -> None:
    """Refuse a token whose step another sequence took."""
    strange_T = step_seq_K[step_T.long()] != seq_T
    if bool(strange_T.any()):
        token = strange_T.nonzero().flatten().tolist()[0]
        step = step_T.tolist()[token]
        raise ObjectiveError(
            "Measured.step_T must give each token a step of its own sequence",
            got=f"token {token} of sequence {seq_T.tolist()[token]} at step {step} of sequence {step_seq_K.tolist()[step]}",
            why="it would be credited with what another trajectory reached",
            fix="number the steps of all sequences end to end, as step_seq_K does, and point step_T at those",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Credited:
    """Advantage per action token; per sequence where the rule gives one; critic targets where there is a critic.

    `signal_S`: whether the sequence's advantage can differ from 0. Where it is False for a whole batch, nothing was learned.
    """

    advantage_T: Tensor
    advantage_S: Tensor | None
    return_T: Tensor | None
    signal_S: Tensor


def assign_credit(rule: rules.Credit | Unstated, batch: Measured) -> Credited:
    """Advantages of one batch under `rule`; refuses an `Unstated` one, and a kept reward that is not finite.

    Example: assign_credit(GroupCentered(), Measured(reward_S=tensor([1., 0.]), group_S=tensor([7, 7]), seq_T=tensor([0, 0, 1])))
        .advantage_T -> [0.5, 0.5, -0.5]
    """
    check_record("assign_credit", "batch", batch, Measured)
    check_record("assign_credit", "rule", rule, (Unstated, *rules.RULES.values()))
    if not isinstance(rule, rules.FromTeacher):  # which reads no reward
        batch = batch.scored()
    match rule:
        case Unstated():
            raise rule.refuse("assign_credit")
        case rules.GroupCentered() | rules.GroupNormalized() | rules.LeaveOneOut() | rules.MinibatchStandardized():
            return _per_sequence(rule, batch)
        case rules.BatchNormalized():
            return _batch_normalized(rule, batch)
        case rules.Gae() | rules.LengthAdaptiveGae():
            return _with_critic(rule, batch)
        case rules.StepGroups():
            return _step_groups(rule, batch)
        case rules.ImplicitProcess() | rules.ImplicitProcessCode():
            return _implicit_process(rule, batch)
        case rules.FromTeacher():
            zero_T = torch.zeros_like(batch.seq_T, dtype=batch.reward_S.dtype)
            return Credited(advantage_T=zero_T, advantage_S=None, return_T=None, signal_S=batch.kept_S())
        case _:
            assert_never(rule)


SequenceRule = rules.GroupCentered | rules.GroupNormalized | rules.LeaveOneOut | rules.MinibatchStandardized


def _sequence_advantage(rule: SequenceRule, batch: Measured) -> Tensor:
    reward_S, group_S, keep_S = batch.reward_S, batch.group_S, batch.keep_S
    match rule:
        case rules.GroupCentered():
            return group_centered(reward_S, group_S, keep_S=keep_S)
        case rules.GroupNormalized():
            return group_normalized(reward_S, group_S, eps=rule.eps, ddof=rule.ddof, keep_S=keep_S)
        case rules.LeaveOneOut():
            return leave_one_out(reward_S, group_S, keep_S=keep_S)
        case rules.MinibatchStandardized():
            return _standardized(rule, batch)
        case _:
            assert_never(rule)


def _reward_with_kl(beta: float, kl_T: Tensor, batch: Measured) -> Tensor:
    """R - beta * sum_t k1."""
    return batch.reward_S - beta * torch.zeros_like(batch.reward_S).index_add(0, batch.seq_T, kl_T.to(batch.reward_S.dtype))


def _standardized(rule: rules.MinibatchStandardized, batch: Measured) -> Tensor:
    """Centre per group first, then standardise each minibatch without its signal-free groups."""
    centered_S = group_centered(batch.reward_S, batch.group_S, keep_S=batch.keep_S)
    signal_S = has_signal(batch.reward_S, batch.group_S, batch.keep_S)
    part_S = torch.zeros_like(batch.group_S) if batch.minibatch_S is None else batch.minibatch_S
    advantage_S = torch.zeros_like(centered_S)
    noise_S = group_statistics(batch.reward_S, batch.group_S, batch.keep_S).noise_S
    number_S, parts = number_ids(part_S)
    for part in range(parts):
        chosen_S = (number_S == part) & signal_S
        advantage_S = advantage_S + minibatch_standardized(
            centered_S, eps=rule.eps, ddof=rule.ddof, keep_S=chosen_S, noise_S=noise_S
        )
    return advantage_S


def _per_sequence(rule: SequenceRule, batch: Measured) -> Credited:
    if isinstance(rule, rules.LeaveOneOut) and rule.kl_beta is not None:
        batch = replace(batch, reward_S=_reward_with_kl(rule.kl_beta, batch.measured(rule, "kl_T"), batch))
    advantage_S = _sequence_advantage(rule, batch)
    signal_S = has_signal(batch.reward_S, batch.group_S, batch.keep_S)
    if isinstance(rule, rules.MinibatchStandardized):
        signal_S = signal_S & _moved(advantage_S, batch.minibatch_S)
    return Credited(advantage_T=advantage_S[batch.seq_T], advantage_S=advantage_S, return_T=None, signal_S=signal_S)


def _moved(advantage_S: Tensor, minibatch_S: Tensor | None) -> Tensor:
    """Sequences whose minibatch holds an advantage other than 0: a group cut between minibatches can leave one without."""
    part_S, parts = number_ids(torch.zeros_like(advantage_S, dtype=torch.int64) if minibatch_S is None else minibatch_S)
    moved_S = (advantage_S != 0).to(torch.int64)
    return torch.zeros(parts, dtype=torch.int64, device=part_S.device).index_add(0, part_S, moved_S)[part_S] > 0


TokenRule = rules.Gae | rules.LengthAdaptiveGae | rules.BatchNormalized


def _token_rewards(rule: TokenRule, reward_S: Tensor, batch: Measured) -> Tensor:
    kl_T = None if rule.kl_beta is None else batch.measured(rule, "kl_T").to(reward_S.dtype)
    return token_rewards(reward_S, kl_T, batch.seq_T, beta=rule.kl_beta)


def _batch_normalized(rule: rules.BatchNormalized, batch: Measured) -> Credited:
    reward_S = batch.reward_S
    if rule.baseline == "group_mean":
        reward_S = group_centered(reward_S, batch.group_S, keep_S=batch.keep_S)
    return_T = discounted_sum(_token_rewards(rule, reward_S, batch), batch.seq_T, gamma=rule.gamma)
    kept_S = batch.kept_S()
    if rule.weighting == "token":
        advantage_T = batch_normalized(return_T, eps=rule.eps, ddof=rule.ddof, keep=kept_S[batch.seq_T])
    else:
        advantage_T = _sequence_weighted(return_T, kept_S, rule, batch)
    signal_S = _nonzero(advantage_T, batch)
    return Credited(advantage_T=advantage_T, advantage_S=None, return_T=None, signal_S=signal_S)


def _nonzero(advantage_T: Tensor, batch: Measured) -> Tensor:
    """Sequences with an advantage other than 0 on some token."""
    moved_T = (advantage_T != 0).to(torch.int64)
    return torch.zeros_like(batch.group_S, dtype=torch.int64).index_add(0, batch.seq_T, moved_T) > 0


def _sequence_weighted(return_T: Tensor, kept_S: Tensor, rule: rules.BatchNormalized, batch: Measured) -> Tensor:
    """Mean and std over sequences' mean returns: a long sequence counts once."""
    count_S = torch.bincount(batch.seq_T, minlength=kept_S.shape[0])
    zero_S = torch.zeros_like(batch.reward_S)
    base_S = zero_S.scatter_reduce(0, batch.seq_T, return_T, "amin", include_self=False)
    above_S = zero_S.index_add(0, batch.seq_T, return_T - base_S[batch.seq_T])
    mean_S = base_S + above_S / count_S.clamp(min=1)  # exactly the return where it is constant: no rounding to blow up
    stats = moments(mean_S, kept_S & (count_S > 0))
    scaled_T = (return_T - stats.mean) / (stats.std(ddof=rule.ddof) + rule.eps)
    return torch.where(kept_S[batch.seq_T] & ~stats.constant, scaled_T, torch.zeros_like(scaled_T))


def _with_critic(rule: rules.Gae | rules.LengthAdaptiveGae, batch: Measured) -> Credited:
    """Actor and critic each with their own lambda; the targets come from unwhitened advantages.

    A dropped sequence gets advantage 0 and, as target, its own value, or 0 where that is not finite: nothing to learn from.
    """
    value_T = batch.measured(rule, "value_T").detach()
    kept_S = batch.kept_S()
    kept_T = kept_S[batch.seq_T]
    value_T = torch.where(kept_T | value_T.isfinite(), value_T, torch.zeros_like(value_T))
    reward_T = _token_rewards(rule, batch.reward_S.to(value_T.dtype), batch)

    def estimate(lam: float | Tensor) -> Advantages:
        return gae(reward_T, value_T, batch.seq_T, gamma=rule.gamma, lam=lam, bootstrap_S=batch.bootstrap_S)

    lam: float | Tensor
    if isinstance(rule, rules.Gae):
        lam = rule.lam_policy
    else:
        lam = length_adaptive_lambda(batch.need(rule, "length_S"), alpha=rule.alpha, floor=rule.floor)
    advantage_T = torch.where(kept_T, estimate(lam).advantage_T, torch.zeros_like(value_T))
    return_T = torch.where(kept_T, estimate(rule.lam_critic).return_T, value_T)
    return Credited(advantage_T=advantage_T, advantage_S=None, return_T=return_T, signal_S=kept_S)


def _step_groups(rule: rules.StepGroups, batch: Measured) -> Credited:
    seq_K, state_K = batch.need(rule, "step_seq_K"), batch.need(rule, "step_state_K")
    return_K = step_returns(batch.need(rule, "step_reward_K"), seq_K, gamma=rule.gamma)
    group_K = batch.group_S[seq_K]
    step_K = step_groups(
        return_K,
        state_K,
        group_K,
        normalizer=rule.normalizer,
        eps=rule.eps,
        ddof=rule.ddof,
        keep_K=batch.kept_S()[seq_K],
    )
    if rule.normalizer == "one" or rule.eps is None or rule.ddof is None:
        episode_S = group_centered(batch.reward_S, batch.group_S, keep_S=batch.keep_S)
    else:
        episode_S = group_normalized(batch.reward_S, batch.group_S, eps=rule.eps, ddof=rule.ddof, keep_S=batch.keep_S)
    advantage_T = episode_S[batch.seq_T] + rule.omega * step_K[batch.need(rule, "step_T")].to(episode_S.dtype)
    signal_S = _nonzero(advantage_T, batch)
    return Credited(advantage_T=advantage_T, advantage_S=None, return_T=None, signal_S=signal_S)


def _implicit_process(rule: rules.ImplicitProcess | rules.ImplicitProcessCode, batch: Measured) -> Credited:
    log_ratio_T = batch.measured(rule, "log_ratio_T").to(batch.reward_S.dtype)
    arguments = (log_ratio_T, batch.reward_S, batch.seq_T, batch.group_S)
    if isinstance(rule, rules.ImplicitProcess):
        advantage_T = implicit_process_paper(*arguments, beta=rule.beta, gamma=rule.gamma, keep_S=batch.keep_S)
    else:
        advantage_T = implicit_process_code(*arguments, rule=rule, keep_S=batch.keep_S)
    return Credited(advantage_T=advantage_T, advantage_S=None, return_T=None, signal_S=batch.kept_S())
