"""The critic's share of a policy step: its own optimizer steps on every minibatch, recorded like any module's."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rollbook.experience.batches import Packed
from rollbook.ledger import Ledger
from rollbook.models.weights import weight_hash
from rollbook.orchestration.recording import blob
from rollbook.records import ModuleUpdate
from rollbook.training.value import CriticLearner, explained_variance

MODULE, FAMILY = "critic", "value"


def warming(critic: CriticLearner | None, number: int) -> bool:
    """Whether step `number` trains the critic alone."""
    return critic is not None and number <= critic.settings.warmup


def critic_steps(ledger: Ledger, critic: CriticLearner, packed: Packed, batch: str, stage: str) -> list[float]:
    """All the critic's optimizer steps on one minibatch, on the record; the loss of each."""
    losses = []
    for _ in range(critic.settings.updates):
        before = weight_hash(critic.model.named_parameters())
        number = critic.optimizer.steps + 1
        done = critic.update(packed, f"{stage} critic step {number}")
        ledger.append(ModuleUpdate(
            stage=stage, module=MODULE, family=FAMILY, step=number, elements=(batch,), tensors=ledger.put(blob(done.tensors)),
            loss=done.loss, tokens=done.tokens, grad_norm=done.stepped.grad_norm, grad_clipped=done.stepped.clipped,
            learning_rate=done.stepped.learning_rate, weights_before=before,
            weights_after=weight_hash(critic.model.named_parameters())))
        losses += done.loss.values()
    return losses


def critic_metrics(scored: Sequence[Packed], losses: Sequence[float]) -> dict[str, float]:
    """The critic's losses, and how much of the returns its values explained before the step; nothing without a critic."""
    if not scored or scored[0].value_T is None or scored[0].return_T is None:
        return {}
    values = torch.cat([one.value_T for one in scored if one.value_T is not None])
    returns = torch.cat([one.return_T for one in scored if one.return_T is not None])
    share = explained_variance(values, returns)
    found = {"value/loss": sum(losses) / len(losses)} if losses else {}
    return found if share is None else {**found, "value/explained_variance": share}
