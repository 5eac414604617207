"""Preference optimisation: the policy itself learns which of two answers was preferred (DPO and its relatives).

Legend: B pairs, S responses (the chosen one of each pair, then the rejected one), T their tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor

from rollbook.models.decoder import Decoder
from rollbook.models.layout import Tree, pack
from rollbook.models.logprobs import action_logprobs
from rollbook.objectives import preference as losses
from rollbook.objectives.preference import Responses
from rollbook.records import Candidate, Ranking
from rollbook.records.recipe import Dpo, Llama3Dpo, Merging, Preference
from rollbook.training.family import FamilyStep, check_finite, cut
from rollbook.training.online_merging import MergeRule, OnDare, OnTies, reference_delta
from rollbook.training.optimizer import Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A prompt with the answer that was preferred and one that was not."""

    ranking: str
    prompt_ids: tuple[int, ...]
    chosen: Candidate
    rejected: Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceLearner:
    """The policy in training, its frozen reference, and the tokens that Llama 3's variant masks in both responses."""

    policy: Decoder
    reference: Decoder
    optimizer: Optimizer
    format_ids: frozenset[int]
    dtype: torch.dtype


def pair_of(ranking: Ranking, by: str) -> Pair | None:
    """Best and worst by the labeller's score, or the best correct and the best wrong answer; None where there is no such pair.

    Ties go to the earlier answer.
    """
    best = max(ranking.candidates, key=lambda one: one.score)
    if by == "correct":
        right = [one for one in ranking.candidates if one.correct]
        wrong = [one for one in ranking.candidates if one.correct is False]
        if not right or not wrong:
            return None
        best, worst = (max(side, key=lambda one: one.score) for side in (right, wrong))
    else:
        worst = min(ranking.candidates, key=lambda one: one.score)
        if not best.score > worst.score:
            return None
    return Pair(ranking=ranking.id, prompt_ids=ranking.prompt_ids, chosen=best, rejected=worst)


def preference_update(learner: PreferenceLearner, batch: Sequence[Pair], stage: Preference, *, where: str) -> FamilyStep:
    """One optimizer step: the mean over pairs.

    Stored: `logp`, `reference` (nats) and `gradient`, d loss / d logp, per token: each pair's chosen answer, then its rejected.
    """
    policy, dtype, optimizer = learner.policy, learner.dtype, learner.optimizer
    optimizer.zero()
    total, size = 0.0, [len(p.chosen.token_ids) + len(p.rejected.token_ids) for p in batch]
    held: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
    for places in cut(batch, lambda p: len(p.prompt_ids) + len(p.chosen.token_ids) + len(p.rejected.token_ids),
                      stage.max_batch_tokens):
        part = [batch[at] for at in places]
        layout = pack([Tree(prompt=p.prompt_ids, continuations=(p.chosen.token_ids, p.rejected.token_ids),
                            actions=tuple((True,) * len(c.token_ids) for c in (p.chosen, p.rejected))) for p in part],
                      window=policy.architecture.window)
        with torch.no_grad():
            reference_T = action_logprobs(learner.reference, layout, temperature=1.0, dtype=dtype).logp_T
        logp_T = action_logprobs(policy, layout, temperature=1.0, dtype=dtype).logp_T
        logp_T.retain_grad()
        sides = _sides(part, logp_T, reference_T, learner.format_ids)
        loss = pair_loss(*sides, stage.loss).sum() / len(batch)
        check_finite(loss, where)
        loss.backward()
        total += float(loss.detach())
        assert logp_T.grad is not None
        columns = [value.detach().split([size[at] for at in places]) for value in (logp_T, reference_T, logp_T.grad)]
        held |= {at: (a, b, c) for at, a, b, c in zip(places, *columns, strict=True)}
    named = zip(("logp", "reference", "gradient"), zip(*(held[at] for at in range(len(batch))), strict=True), strict=True)
    return FamilyStep(loss={type(stage.loss).__name__: total}, tokens=sum(size), stepped=optimizer.step(where),
                      tensors={name: torch.cat(values) for name, values in named})


def pair_loss(chosen: Responses, rejected: Responses, loss: Dpo | Llama3Dpo) -> Tensor:
    """One loss per pair, [B]."""
    match loss:
        case Dpo():
            if not loss.normalize:
                return losses.Dpo(beta=loss.beta)(chosen, rejected)
            return losses.dpo(*(side.total_B(value_T) / _length_B(side) for value_T, side in (
                (chosen.logp_T, chosen), (rejected.logp_T, rejected), (chosen.reference_T, chosen),
                (rejected.reference_T, rejected))), beta=loss.beta)
        case Llama3Dpo():
            return losses.Llama3Dpo(beta=loss.beta, nll_coefficient=loss.nll_coefficient, nll_reduction=loss.nll_reduction,
                                    nll_on=loss.nll_on)(chosen, rejected)
        case _:
            assert_never(loss)


def optimizer_of(policy: Decoder, stage: Preference, sft: Mapping[str, Tensor], base: Mapping[str, Tensor] | None) -> Optimizer:
    """The stage's optimizer on the policy. `sft` are the weights it starts from, `base` those that online merging counts from."""
    optimizer = Optimizer.of(policy, stage.optimizer, stage.steps)
    if stage.merging is not None and base is not None:
        named = {key: p for key, p in policy.named_parameters() if p.requires_grad}
        learnt = reference_delta(dict(sft), dict(base))
        optimizer.merge(named, {key: learnt[key] for key in named}, merge_rule(stage.merging))
    return optimizer


def merge_rule(merging: Merging) -> MergeRule:
    """The rule as the optimizer knows it."""
    if merging.rule == "dare":
        return OnDare(alpha=merging.alpha, keep=merging.keep, seed=merging.seed)
    assert merging.consensus is not None
    return OnTies(alpha=merging.alpha, keep=merging.keep, consensus=merging.consensus)


def _length_B(side: Responses) -> Tensor:
    return torch.bincount(side.pair_T, minlength=side.pairs).to(side.logp_T.dtype)


def _sides(part: Sequence[Pair], logp_T: Tensor, reference_T: Tensor, format_ids: frozenset[int]) -> list[Responses]:
    """The chosen and the rejected responses, each packed pair after pair."""
    length = [len(c.token_ids) for p in part for c in (p.chosen, p.rejected)]
    own, other = logp_T.split(length), reference_T.split(length)
    sides = []
    for first in (0, 1):
        ids = [(p.chosen, p.rejected)[first].token_ids for p in part]
        sides.append(Responses(
            logp_T=torch.cat(own[first::2]), reference_T=torch.cat(other[first::2]), pairs=len(part),
            pair_T=torch.repeat_interleave(torch.arange(len(part)), torch.tensor([len(one) for one in ids])),
            format_T=torch.tensor([token in format_ids for one in ids for token in one])))
    return sides
