"""Training a reward model on rankings, and how it ranks those that it never saw."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch

from rollbook.models.scalar import ScalarModel, on_body
from rollbook.orchestration.session import Session
from rollbook.orchestration.stages.elements import Work, batches, order, train
from rollbook.orchestration.stages.modules import publish_module
from rollbook.orchestration.state import POLICY, StepState, Trained, drop_state
from rollbook.records import Agreement, Ranking
from rollbook.records.recipe import RewardModel
from rollbook.training.optimizer import Optimizer
from rollbook.training.reward_model import reward_model_update, score_answers, usable

MODULE = "reward_model"
TOGETHER = 16       # rankings that are scored in one pass


def run(session: Session, name: str, stage: RewardModel, state: StepState | None) -> None:
    """Trains on what is not kept apart; publishes the module, then measures it on the rest."""
    policy = session.take(stage.policy)
    seed = session.settings.run.seed
    model = on_body(session.policy.decoder, session.weights(policy), layers=stage.head_layers, seed=seed)
    optimizer = Optimizer.of(model, stage.optimizer, stage.steps)
    pools = {source: session.table(f"{source}/rankings", Ranking) for source in stage.data}
    learnt = {source: [one for one in held if not one.heldout and usable(one, stage.loss)] for source, held in pools.items()}
    shown = order(learnt, stage.data, stage.steps * stage.batch, seed)
    trained = {POLICY: Trained(module=session.policy.decoder, optimizer=None), MODULE: Trained(module=model, optimizer=optimizer)}
    window = train(session, Work(
        stage=name, module=MODULE, family=MODULE, shown=batches(shown, stage.batch), name_of=lambda one: one.id, version=policy,
        take=lambda batch, where: reward_model_update(model, optimizer, batch, stage, dtype=session.dtype, where=where),
        trained=trained), state)
    version = publish_module(session, name, MODULE, trained[MODULE], (policy, window))
    apart = [one for held in pools.values() for one in held if one.heldout]
    agreement = agreement_of(name, version.id, apart, scored(model, apart, session.dtype))
    session.ledger.append(agreement)
    if agreement.pairs:
        share = agreement.with_labels / agreement.pairs
        session.progress.note(f"{name}: ranks {share:.1%} of {agreement.pairs} pairs kept apart as their labels do")
    session.finish(name, "RewardModel", policy, policy)
    drop_state(session.root)


def scored(model: ScalarModel, rankings: Sequence[Ranking], dtype: torch.dtype) -> list[list[float]]:
    """The model's score of every answer, ranking by ranking."""
    found: list[list[float]] = []
    with torch.no_grad():
        for part in batches(rankings, TOGETHER):
            sizes = [len(one.candidates) for one in part]
            found += [score_K.tolist() for score_K in score_answers(model, part, dtype).split(sizes)]
    return found


def agreement_of(stage: str, module: str, rankings: Sequence[Ranking], scores: Sequence[Sequence[float]]) -> Agreement:
    """How many pairs of different score the model orders as the labels do, and as the truth does; half for a tie."""
    labels = truths = 0.0
    pairs = known = 0
    for ranking, own in zip(rankings, scores, strict=True):
        held = ranking.candidates
        for i, j in combinations(range(len(held)), 2):
            if held[i].score != held[j].score:
                pairs += 1
                labels += _agrees(own[i] - own[j], held[i].score - held[j].score)
            first, second = held[i].truth, held[j].truth
            if first is not None and second is not None and first != second:
                known += 1
                truths += _agrees(own[i] - own[j], first - second)
    return Agreement(stage=stage, module=module, rankings=len(rankings), pairs=pairs, with_labels=labels, known=known,
                     with_truth=truths)


def _agrees(own: float, given: float) -> float:
    return 0.5 if own == 0 else float((own > 0) == (given > 0))
