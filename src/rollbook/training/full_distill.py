"""Full-vocabulary on-policy distillation: the exact KL to the teacher at every token that the student sampled.

Legend: T action tokens of an optimizer step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rollbook.models.decoder import Decoder
from rollbook.models.fallback import Fallback
from rollbook.models.fullvocab import Head, Teacher, full_vocabulary_kl
from rollbook.models.layout import Layout, Tree, pack
from rollbook.records import ModelError, Trace
from rollbook.records.recipe import Distill
from rollbook.training.family import FamilyStep, check_finite, cut
from rollbook.training.optimizer import Optimizer
from rollbook.training.policy import Teachers


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillLearner:
    """The student in training and its frozen teachers; `vocabulary` is the digest of the tokenizer that all of them share."""

    policy: Decoder
    teachers: Teachers
    optimizer: Optimizer
    vocabulary: str
    dtype: torch.dtype


def distill_update(learner: DistillLearner, batch: Sequence[Trace], stage: Distill, *, where: str) -> FamilyStep:
    """One optimizer step: the mean KL (nats) over all the batch's sampled tokens, however it is cut into micro-batches.

    Stored: `kl`, per action token in the batch's order, before the step.
    """
    if isinstance(learner.policy, Fallback):
        raise ModelError("full-vocabulary distillation needs a model on the fast path", got=str(learner.policy.architecture.kind))
    learner.optimizer.zero()
    sizes = [trace.action_count for trace in batch]
    total, count = 0.0, sum(sizes)
    held: dict[int, Tensor] = {}
    names = [learner.teachers.name_for(trace.task) for trace in batch]
    for name in dict.fromkeys(names):
        mine = [at for at, other in enumerate(names) if other == name]
        for part in cut([batch[at] for at in mine], _size, stage.max_batch_tokens):
            places = [mine[at] for at in part]
            layout = _layout(learner.policy, [batch[at] for at in places])
            kl_T = _kl(learner, name, layout, stage)
            loss = kl_T.sum() / count
            check_finite(loss, where)
            loss.backward()
            total += float(loss.detach())
            held |= dict(zip(places, torch.split(kl_T.detach(), [sizes[at] for at in places]), strict=True))
    return FamilyStep(loss={f"{stage.direction}_kl": total}, tokens=count, stepped=learner.optimizer.step(where),
                      tensors={"kl": torch.cat([held[at] for at in range(len(batch))])})


def _kl(learner: DistillLearner, name: str, layout: Layout, stage: Distill) -> Tensor:
    teacher = learner.teachers.models[name]
    with torch.no_grad():
        taught_TH = teacher(layout, learner.dtype)[layout.predictor_T]
    own_TH = learner.policy(layout, learner.dtype)[layout.predictor_T]
    heads = [Head(weight_RH=model.head, real_vocab=model.architecture.vocab, vocabulary=learner.vocabulary)
             for model in (learner.policy, teacher)]
    return full_vocabulary_kl(own_TH, heads[0], Teacher(hidden_TH=taught_TH, head=heads[1]), direction=stage.direction,
                              temperature=stage.sampling.temperature)


def _layout(policy: Decoder, traces: Sequence[Trace]) -> Layout:
    trees = []
    for trace in traces:
        rest = trace.segments[1:]
        own = tuple(token for segment in rest for token in segment.token_ids)
        acts = tuple(segment.owner == "policy" for segment in rest for _ in segment.token_ids)
        trees.append(Tree(prompt=trace.prompt_ids, continuations=(own,), actions=(acts,)))
    return pack(trees, window=policy.architecture.window)


def _size(trace: Trace) -> int:
    return sum(len(segment.token_ids) for segment in trace.segments)
