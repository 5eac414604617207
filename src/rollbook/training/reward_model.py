"""Reward models: a scalar head learns the order that a labeller gave to the answers of one prompt.

All answers to a prompt are one element (InstructGPT): the prompt is computed once, and no answer is visited once per pair.

Legend: S answers of a micro-batch, K answers to one prompt, B pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import torch
from torch import Tensor

from rollbook.models.layout import Tree, pack
from rollbook.models.scalar import ScalarModel
from rollbook.objectives.preference import listwise, margin, ranked, soft_label
from rollbook.records import Ranking, RecordError
from rollbook.records.recipe import RewardModel
from rollbook.training.family import FamilyStep, check_finite, cut
from rollbook.training.optimizer import Optimizer


def reward_model_update(model: ScalarModel, optimizer: Optimizer, batch: Sequence[Ranking], stage: RewardModel, *,
                        dtype: torch.dtype, where: str) -> FamilyStep:
    """One optimizer step: the mean over prompts of each prompt's loss, however they are cut into micro-batches.

    Stored: `score`, one per answer in the batch's order as the model gave it before the step.
    """
    optimizer.zero()
    total, tokens = 0.0, 0
    scores: dict[int, Tensor] = {}
    for places in cut(batch, _size, stage.max_batch_tokens):
        part = [batch[at] for at in places]
        score_S = score_answers(model, part, dtype)
        by_prompt = score_S.split([len(one.candidates) for one in part])
        loss = torch.stack([ranking_loss(one, score_K, stage) for one, score_K in zip(part, by_prompt, strict=True)]).sum()
        loss = loss / len(batch)
        check_finite(loss, where)
        loss.backward()
        total += float(loss.detach())
        scores |= {at: score_K.detach() for at, score_K in zip(places, by_prompt, strict=True)}
        tokens += sum(len(c.token_ids) for one in part for c in one.candidates)
    return FamilyStep(loss={stage.loss: total}, tokens=tokens, stepped=optimizer.step(where),
                      tensors={"score": torch.cat([scores[at] for at in range(len(batch))])})


def score_answers(model: ScalarModel, rankings: Sequence[Ranking], dtype: torch.dtype) -> Tensor:
    """The model's number for every answer of some rankings, end to end, [S]."""
    trees = [Tree(prompt=one.prompt_ids, continuations=tuple(c.token_ids for c in one.candidates),
                  actions=tuple((True,) * len(c.token_ids) for c in one.candidates)) for one in rankings]
    return model.answers(pack(trees, window=model.body.architecture.window), dtype)


def ranking_loss(ranking: Ranking, score_K: Tensor, stage: RewardModel) -> Tensor:
    """The loss of one prompt under the stage's rule."""
    given_K = torch.tensor(ranking.scores, dtype=torch.float64)
    match stage.loss:
        case "ranked":
            return ranked(score_K, _ranks(given_K))
        case "margin":
            first, second = _pairs(given_K)
            gap_B = given_K[first] - given_K[second]
            return margin(score_K[first], score_K[second], _margins(gap_B, stage.margins).to(score_K.dtype)).mean()
        case "listwise":
            return listwise(score_K, _positive(ranking))
        case "soft_label":
            first, second = _pairs(given_K)
            label_B = torch.sigmoid(given_K[first] - given_K[second]).to(score_K.dtype)
            return soft_label(score_K[first], score_K[second], label_B).mean()
        case _:
            assert_never(stage.loss)


def usable(ranking: Ranking, loss: str) -> bool:
    """Whether a ranking holds anything that the loss can learn from."""
    if loss == "listwise":
        known = [one.correct for one in ranking.candidates]
        return None not in known and any(known) and not all(known)
    return max(ranking.scores) > min(ranking.scores)


def _size(ranking: Ranking) -> int:
    return len(ranking.prompt_ids) + sum(len(one.token_ids) for one in ranking.candidates)


def _ranks(score_K: Tensor) -> Tensor:
    """0 for the best, equal for equal scores."""
    return torch.unique(-score_K, sorted=True, return_inverse=True)[1]


def _pairs(score_K: Tensor) -> tuple[Tensor, Tensor]:
    """Places of every pair with the better answer first."""
    first, second = (score_K[:, None] > score_K[None, :]).nonzero(as_tuple=True)
    return first, second


def _margins(gap_B: Tensor, margins: Sequence[float]) -> Tensor:
    """The margin of every pair: the gap, as a share of 1, falls into as many equal steps as there are margins, widest first."""
    place_B = ((1.0 - gap_B.clamp(0.0, 1.0)) * len(margins)).long().clamp(max=len(margins) - 1)
    return torch.tensor(margins, dtype=torch.float64)[place_B]


def _positive(ranking: Ranking) -> Tensor:
    known = [one.correct for one in ranking.candidates]
    if None in known:
        raise RecordError("a listwise loss needs to know which answers are correct", got=f"ranking of {ranking.task}",
                          why="it learns correct against wrong", fix="drop the prompt, or use the loss `ranked`")
    return torch.tensor(known)
