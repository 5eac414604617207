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
from rollbook.models.logprobs import action_logprobs
from rollbook.records import Demonstration, ModelError, Trace
from rollbook.records.recipe import Distill
from rollbook.training.family import FamilyStep, check_finite, cut
from rollbook.training.optimizer import Optimizer
from rollbook.training.policy import Teachers
from rollbook.training.trees import demonstration_tree


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillLearner:
    """The student in training and its frozen teachers; `vocabulary` is the digest of the tokenizer that all of them share."""

    policy: Decoder
    teachers: Teachers
    optimizer: Optimizer
    vocabulary: str
    dtype: torch.dtype


def hard_share(stage: Distill, step: int) -> float:
    """The share of the hard targets in the loss of an optimizer step, the first being 1."""
    if stage.hard is None:
        return 0.0
    done = (step - 1) / (stage.steps - 1) if stage.steps > 1 else 0.0
    return stage.hard.first + (stage.hard.last - stage.hard.first) * done


def distill_update(learner: DistillLearner, batch: Sequence[Trace], stage: Distill, *, where: str,
                   shown: Sequence[Demonstration] = ()) -> FamilyStep:
    """One optimizer step: the mean KL (nats) over all the batch's sampled tokens, however it is cut into micro-batches.

    With hard targets `shown` the loss is (1 - share) KL + share NLL, the NLL a mean over their trained tokens. Stored: `kl`, per
    action token in the batch's order, and `hard_logp`, per trained token of `shown`, before the step.
    """
    share = hard_share(stage, learner.optimizer.steps + 1)
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
            loss = (1 - share) * kl_T.sum() / count
            check_finite(loss, where)
            loss.backward()
            total += float(loss.detach())
            held |= dict(zip(places, torch.split(kl_T.detach(), [sizes[at] for at in places]), strict=True))
    loss_of, tensors = {f"{stage.direction}_kl": total}, {"kl": torch.cat([held[at] for at in range(len(batch))])}
    if shown:
        loss_of["hard"], tensors["hard_logp"] = _imitated(learner, shown, stage, share, where)
    return FamilyStep(loss=loss_of, tokens=count, stepped=learner.optimizer.step(where), tensors=tensors)


def _imitated(learner: DistillLearner, shown: Sequence[Demonstration], stage: Distill, share: float,
              where: str) -> tuple[float, Tensor]:
    """Adds the gradient of the hard targets; their part of the loss, and their log-probs (nats)."""
    trees = [demonstration_tree(one) for one in shown]
    sizes = [sum(tree.actions[0]) for tree in trees]
    total, held = 0.0, dict[int, Tensor]()
    for part in cut(list(shown), lambda one: len(one.token_ids), stage.max_batch_tokens):
        layout = pack([trees[at] for at in part], window=learner.policy.architecture.window)
        logp_T = action_logprobs(learner.policy, layout, temperature=1.0, dtype=learner.dtype).logp_T
        loss = -share * logp_T.sum() / sum(sizes)
        check_finite(loss, where)
        loss.backward()
        total += float(loss.detach())
        held |= dict(zip(part, torch.split(logp_T.detach(), [sizes[at] for at in part]), strict=True))
    return total, torch.cat([held[at] for at in range(len(shown))])


def _kl(learner: DistillLearner, name: str, layout: Layout, stage: Distill) -> Tensor:
    teacher = learner.teachers.models[name]
    with torch.no_grad():
        taught_TH = teacher(layout, learner.dtype)[layout.predictor_T]
    own_TH = learner.policy(layout, learner.dtype)[layout.predictor_T]
    heads = [Head(weight_RH=model.head, real_vocab=model.architecture.vocab, vocabulary=learner.vocabulary)
             for model in (learner.policy, teacher)]
    return full_vocabulary_kl(own_TH, heads[0], Teacher(hidden_TH=taught_TH, head=heads[1]), direction=stage.direction,
                              temperature=stage.sampling.temperature).cpu()


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
