"""Preference optimisation and reward-model losses, one loss per pair or group.

Suffixes: B pairs, T packed response tokens of one side, K candidates of a prompt. Reference log-probabilities are detached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from rollbook.objectives.checks import (
    check_at_least,
    check_choice,
    check_flags,
    check_float,
    check_ids,
    check_no_infinity,
    check_not_negative,
    check_packed,
    check_positive,
    check_reaches,
    check_real,
    check_record,
    check_same_floats,
    check_same_shape,
    check_scored,
    check_share,
    check_tensor,
)
from rollbook.objectives.errors import ObjectiveError

# significantly better, better, slightly better, negligibly better or unsure
LLAMA2_MARGINS_SMALL: Final = (1.0, 2 / 3, 1 / 3, 0.0)
LLAMA2_MARGINS_LARGE: Final = (3.0, 2.0, 1.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Responses:
    """One side of B pairs, packed: `pair_T` says which pair a token belongs to; `format_T` marks header and termination tokens.

    Example: Responses(logp_T=tensor([-1., -2., -1.]), reference_T=tensor([-1., -2., -2.]), pair_T=tensor([0, 0, 1]),
        format_T=tensor([False, True, True]), pairs=2)
    """

    logp_T: Tensor
    reference_T: Tensor
    pair_T: Tensor
    format_T: Tensor
    pairs: int

    def __post_init__(self) -> None:
        for name in ("logp_T", "reference_T", "pair_T", "format_T"):
            check_tensor("Responses", name, getattr(self, name))
        check_float("Responses", logp_T=self.logp_T, reference_T=self.reference_T)
        check_ids("Responses", pair_T=self.pair_T)
        shapes = {self.logp_T.shape, self.reference_T.shape, self.pair_T.shape, self.format_T.shape}
        if len(shapes) != 1 or self.logp_T.dim() != 1 or self.format_T.dtype != torch.bool:
            raise ObjectiveError(
                "Responses needs four vectors of one length, format_T boolean",
                got=f"shapes {sorted(map(tuple, shapes))}, format_T {self.format_T.dtype}",
                why="each describes the same response tokens",
                fix="build them from the same packing",
            )
        if type(self.pairs) is not int or self.pairs < 0:
            raise ObjectiveError("Responses.pairs must be a count", got=repr(self.pairs), why="it sizes the loss", fix="count")
        if self.pair_T.numel() and not 0 <= int(self.pair_T.min()) <= int(self.pair_T.max()) < self.pairs:
            raise ObjectiveError(
                f"Responses.pair_T must lie in 0 .. {self.pairs - 1}",
                got=f"{int(self.pair_T.min())} .. {int(self.pair_T.max())}",
                why="it says which pair a token belongs to",
                fix="number the pairs from 0, and pass how many there are",
            )
        present = torch.unique(self.pair_T)  # in order: the first gap is where position and id part
        if present.numel() != self.pairs:
            gap = (present != torch.arange(present.numel(), device=present.device)).nonzero().flatten().tolist()
            raise ObjectiveError(
                "Responses needs a token in every pair",
                got=f"none in pair {gap[0] if gap else present.numel()}",
                why="an absent response would count as one of probability 1",
                fix="leave the pair out on both sides, and renumber",
            )

    def total_B(self, value_T: Tensor) -> Tensor:
        """Sum per pair."""
        return value_T.new_zeros(self.pairs).index_add(0, self.pair_T, value_T)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dpo:
    """DPO (2305.18290): beta 0.1 is printed."""

    beta: float = 0.1

    def __post_init__(self) -> None:
        check_positive("Dpo", beta=self.beta)

    def __call__(self, chosen: Responses, rejected: Responses) -> Tensor:
        _check_sides("Dpo", chosen, rejected)
        return dpo(
            chosen.total_B(chosen.logp_T),
            rejected.total_B(rejected.logp_T),
            chosen.total_B(chosen.reference_T),
            rejected.total_B(rejected.reference_T),
            beta=self.beta,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Dpo:
    """Llama 3's DPO (2407.21783 section 4.1.4): formatting tokens masked in *both* responses, plus 0.2 NLL of the chosen one.

    Not printed: whether the NLL is summed or averaged over the response, and whether it excludes formatting tokens.
    """

    beta: float = 0.1
    nll_coefficient: float = 0.2
    nll_reduction: Literal["sum", "mean"]
    nll_on: Literal["all", "unmasked"]

    def __post_init__(self) -> None:
        check_positive("Llama3Dpo", beta=self.beta)
        check_not_negative("Llama3Dpo", nll_coefficient=self.nll_coefficient)
        check_choice("Llama3Dpo", "nll_reduction", self.nll_reduction, ("sum", "mean"))
        check_choice("Llama3Dpo", "nll_on", self.nll_on, ("all", "unmasked"))

    def __call__(self, chosen: Responses, rejected: Responses) -> Tensor:
        return llama3_dpo(chosen, rejected, self)


def dpo(
    chosen_B: Tensor, rejected_B: Tensor, reference_chosen_B: Tensor, reference_rejected_B: Tensor, *, beta: float
) -> Tensor:
    """-log sigmoid(h), h = beta [(chosen - its reference) - (rejected - its reference)], log-probabilities summed over responses.

    Gradient -beta sigmoid(-h) on each chosen token, +beta sigmoid(-h) on each rejected one; at the reference log 2 and beta/2.
    A chosen response that the policy cannot produce has an infinite loss, a rejected one none; both at once are refused, as is an
    infinite reference.
    """
    check_positive("dpo", beta=beta)
    references = {"reference_chosen_B": reference_chosen_B, "reference_rejected_B": reference_rejected_B}
    check_same_floats("dpo", chosen_B=chosen_B, rejected_B=rejected_B, **references)
    check_no_infinity("dpo", **references)
    _check_opposed("dpo", chosen_B, rejected_B)
    gap_B = (chosen_B - reference_chosen_B.detach()) - (rejected_B - reference_rejected_B.detach())
    return -logsigmoid(beta * gap_B)


def llama3_dpo(chosen: Responses, rejected: Responses, settings: Llama3Dpo) -> Tensor:
    """DPO over unmasked tokens of both sides, plus nll_coefficient * NLL(chosen)."""
    _check_sides("llama3_dpo", chosen, rejected)
    check_record("llama3_dpo", "settings", settings, Llama3Dpo)
    kept_T, other_T = ~chosen.format_T, ~rejected.format_T
    preference_B = dpo(
        chosen.total_B(torch.where(kept_T, chosen.logp_T, 0.0)),
        rejected.total_B(torch.where(other_T, rejected.logp_T, 0.0)),
        chosen.total_B(torch.where(kept_T, chosen.reference_T, 0.0)),
        rejected.total_B(torch.where(other_T, rejected.reference_T, 0.0)),
        beta=settings.beta,
    )
    scored_T = kept_T if settings.nll_on == "unmasked" else torch.ones_like(kept_T)
    nll_B = -chosen.total_B(torch.where(scored_T, chosen.logp_T, 0.0))
    if settings.nll_reduction == "mean":
        nll_B = nll_B / chosen.total_B(scored_T.to(nll_B.dtype)).clamp(min=1)
    return preference_B + settings.nll_coefficient * nll_B


def _check_sides(who: str, chosen: Responses, rejected: Responses) -> None:
    """Refuse what is not the two sides of the same pairs."""
    for name, value in {"chosen": chosen, "rejected": rejected}.items():
        check_record(who, name, value, Responses)
    if chosen.pairs != rejected.pairs:
        raise ObjectiveError(
            f"{who} needs both sides of the same pairs",
            got=f"{chosen.pairs} chosen and {rejected.pairs} rejected responses",
            why="each chosen response is compared with the rejected one of its own pair",
            fix="build both sides from the same pairs",
        )


def pairwise(chosen_B: Tensor, rejected_B: Tensor) -> Tensor:
    """-log sigmoid(s_chosen - s_rejected). Gradient -/+ sigmoid(-(gap))."""
    check_same_floats("pairwise", chosen_B=chosen_B, rejected_B=rejected_B)
    _check_opposed("pairwise", chosen_B, rejected_B)
    return _log_loss(chosen_B, rejected_B)


def _log_loss(better: Tensor, worse: Tensor) -> Tensor:
    return -logsigmoid(better - worse)


def ranked(score_K: Tensor, rank_K: Tensor) -> Tensor:
    """InstructGPT (2203.02155): mean of `pairwise` over all pairs of one prompt with different rank (0 is best), as one element.

    Without ties the divisor is K(K-1)/2. Treating the pairs as separate examples would visit each answer K-1 times.
    """
    check_same_shape("ranked", score_K=score_K, rank_K=rank_K)
    check_real("ranked", rank_K=rank_K)
    _check_one_prompt("ranked", score_K)
    check_scored("ranked", "rank_K", rank_K)
    better_KK = rank_K[:, None] < rank_K[None, :]
    if not bool(better_KK.any()):
        raise ObjectiveError(
            "ranked needs two candidates of different rank",
            got=f"ranks {rank_K.tolist()}",
            why="there is no pair to learn from",
            fix="drop the prompt before the loss",
        )
    loss_KK = _log_loss(score_K[:, None], score_K[None, :])
    return torch.where(better_KK, loss_KK, 0.0).sum() / better_KK.sum()


def margin(chosen_B: Tensor, rejected_B: Tensor, margin_B: Tensor) -> Tensor:
    """Llama 2 (2307.09288): -log sigmoid(gap - m), the margin subtracted inside. Gradient -/+ sigmoid(-(gap - m))."""
    check_same_floats("margin", chosen_B=chosen_B, rejected_B=rejected_B, margin_B=margin_B)
    check_no_infinity("margin", margin_B=margin_B)
    _check_opposed("margin", chosen_B, rejected_B)
    return -logsigmoid(chosen_B - rejected_B - margin_B)


def listwise(score_K: Tensor, positive_K: Tensor) -> Tensor:
    """Qwen2.5-Math (2409.12122 section 3.2): -(1/(k (K-k))) sum over positive-negative pairs of log sigmoid(s_p - s_n).

    The mean of `pairwise` over those pairs; shift-invariant, gradients sum to 0. Refused when all or none are positive.
    """
    check_tensor("listwise", "score_K", score_K)
    check_flags("listwise", "positive_K", positive_K, score_K)
    _check_one_prompt("listwise", score_K)
    positives = int(positive_K.sum())
    if positives in (0, positive_K.numel()):
        raise ObjectiveError(
            "listwise needs both positive and negative candidates",
            got=f"{positives} positives of {positive_K.numel()}",
            why="the loss averages over positive-negative pairs; there are none",
            fix="drop the prompt before the loss (select.mixed)",
        )
    return _log_loss(score_K[positive_K][:, None], score_K[~positive_K][None, :]).mean()


def _check_opposed(who: str, first_B: Tensor, second_B: Tensor) -> None:
    """Refuse two equal infinities: their difference is NaN, on no side of anything."""
    bad_B = first_B.isinf() & (first_B == second_B)
    if bool(bad_B.any()):
        raise ObjectiveError(
            f"{who} needs a finite score or log-probability on one side at least",
            got=f"{first_B.detach()[bad_B].tolist()[0]} on both, at {', '.join(map(str, bad_B.nonzero().tolist()[0]))}",
            why="the difference of two infinities is not defined",
            fix="leave the pair out",
        )


def _check_one_prompt(who: str, score_K: Tensor) -> None:
    check_float(who, score_K=score_K)
    if score_K.dim() != 1:
        raise ObjectiveError(
            f"{who}: score_K must be the vector of one prompt's candidates",
            got=f"shape {tuple(score_K.shape)}",
            why="pairs of candidates of different prompts have no order",
            fix="call it once per prompt",
        )
    check_scored(who, "score_K", score_K.detach())  # one NaN would reach the gradient of every candidate


def soft_label(first_B: Tensor, second_B: Tensor, label_B: Tensor) -> Tensor:
    """-(q log sigmoid(gap) + (1-q) log sigmoid(-gap)), gap = first - second, q the probability that `first` is preferred.

    Gradient wrt the gap: sigmoid(gap) - q.
    """
    check_same_shape("soft_label", first_B=first_B, second_B=second_B, label_B=label_B)
    _check_labels("soft_label", label_B)
    check_float("soft_label", first_B=first_B, second_B=second_B)
    check_no_infinity("soft_label", first_B=first_B, second_B=second_B)
    gap_B = first_B - second_B
    label_B = label_B.detach()
    return -(label_B * logsigmoid(gap_B) + (1 - label_B) * logsigmoid(-gap_B))


def _check_labels(who: str, label_B: Tensor) -> None:
    check_tensor(who, "label_B", label_B)
    if label_B.dtype == torch.bool or label_B.is_complex() or not bool(((label_B >= 0) & (label_B <= 1)).all()):
        raise ObjectiveError(
            f"{who} needs labels in 0 .. 1",
            got=f"{label_B.dtype}, {label_B.tolist()}",
            why="q is a probability, as a number",
            fix="rescale or convert q",
        )


def implicit_outcome(logp_T: Tensor, reference_T: Tensor, seq_T: Tensor, outcome_S: Tensor, *, beta: float) -> Tensor:
    """PRIME's reward model (2502.01456): cross-entropy of sigmoid(beta sum_t (logp - reference)) with the outcome, per sequence.

    Gradient -beta (outcome - sigmoid) on each of its tokens. The model is updated before it scores (`credit.ImplicitProcess`).
    A token of probability 0 under either model is refused, as is an outcome of a sequence that has no token here.
    """
    check_positive("implicit_outcome", beta=beta)
    check_same_shape("implicit_outcome", logp_T=logp_T, reference_T=reference_T, seq_T=seq_T)
    check_packed(seq_T)
    check_reaches("implicit_outcome", "outcome_S", outcome_S, int(seq_T.max()) + 1 if seq_T.numel() else 0)
    check_float("implicit_outcome", logp_T=logp_T, reference_T=reference_T)
    check_real("implicit_outcome", outcome_S=outcome_S)
    check_no_infinity("implicit_outcome", logp_T=logp_T, reference_T=reference_T)
    _check_present("implicit_outcome", seq_T, outcome_S)
    zero_S = torch.zeros_like(outcome_S, dtype=torch.promote_types(logp_T.dtype, reference_T.dtype))
    logit_S = zero_S.index_add(0, seq_T, beta * (logp_T - reference_T.detach()))
    return soft_label(logit_S, zero_S, outcome_S.to(zero_S.dtype))


def _check_present(who: str, seq_T: Tensor, outcome_S: Tensor) -> None:
    """Refuse an outcome whose sequence has no token: its logit would be 0, and its loss log 2 whatever the model does."""
    absent_S = torch.bincount(seq_T, minlength=outcome_S.shape[0]) == 0
    if bool(absent_S.any()):
        raise ObjectiveError(
            f"{who} needs a token of every sequence that has an outcome",
            got=f"none of sequence {absent_S.nonzero().flatten().tolist()[0]}",
            why="an absent response would count as one that both models find equally likely",
            fix="leave the outcome out, and number the sequences that are there",
        )


def option_label(logp_first_B: Tensor, logp_second_B: Tensor) -> Tensor:
    """A feedback model's label q: its log-probabilities of the two option tokens, normalised over those *two* only."""
    check_same_floats("option_label", logp_first_B=logp_first_B, logp_second_B=logp_second_B)
    _check_opposed("option_label", logp_first_B, logp_second_B)
    return torch.sigmoid(logp_first_B - logp_second_B).detach()


def clamp_reasoned_label(label_B: Tensor, *, low: float, high: float) -> Tensor:
    """Constitutional AI clamps labels given after chain-of-thought (to 0.4 .. 0.6), and only those."""
    check_share("clamp_reasoned_label", low=low, high=high)
    check_at_least("clamp_reasoned_label", low, high=high)
    _check_labels("clamp_reasoned_label", label_B)
    return label_B.clamp(low, high)
