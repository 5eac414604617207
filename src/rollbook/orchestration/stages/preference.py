"""Preference optimisation of the policy on pairs of answers."""

from __future__ import annotations

from rollbook.orchestration.session import Session
from rollbook.orchestration.stages.elements import Work, batches, order, train
from rollbook.orchestration.state import POLICY, StepState, Trained, drop_state
from rollbook.records import Ranking
from rollbook.records.recipe import Preference
from rollbook.training.optimizer import Optimizer
from rollbook.training.preference import Pair, PreferenceLearner, optimizer_of, pair_of, preference_update

FAMILY = "preference"


def run(session: Session, name: str, stage: Preference, state: StepState | None) -> None:
    """Trains on the pairs of the rankings that are not kept apart, then publishes the policy."""
    started = session.versions[stage.policy] if state is not None else session.take(stage.policy)
    decoder, seed = session.policy.decoder, session.settings.run.seed
    optimizer = preference_optimizer(session, stage)
    learner = PreferenceLearner(policy=decoder, reference=session.frozen(stage.reference or stage.policy), optimizer=optimizer,
                                format_ids=frozenset(session.policy.tokenizer.stop_ids), dtype=session.dtype)
    pools = {source: pairs(session, source, stage.by) for source in stage.data}
    shown = order(pools, stage.data, stage.steps * stage.batch, seed)
    window = train(session, Work(
        stage=name, module=POLICY, family=FAMILY, shown=batches(shown, stage.batch), name_of=lambda pair: pair.ranking,
        take=lambda batch, where: preference_update(learner, batch, stage, where=where),
        trained={POLICY: Trained(module=decoder, optimizer=optimizer)}, version=started), state)
    optimizer.check_standing(decoder)
    ended = session.publisher.publish(name, started, window, optimizer=optimizer.digest())
    session.finish(name, "Preference", started, ended)
    drop_state(session.root)


def pairs(session: Session, source: str, by: str) -> list[Pair]:
    """The pairs of a stage's rankings, in their order."""
    found = (pair_of(one, by) for one in session.table(f"{source}/rankings", Ranking) if not one.heldout)
    return [pair for pair in found if pair is not None]


def preference_optimizer(session: Session, stage: Preference) -> Optimizer:
    """The stage's optimizer on the policy, merging where the stage asks for it."""
    base = None if stage.merging is None else session.weights(session.versions[stage.merging.base])
    return optimizer_of(session.policy.decoder, stage, session.weights(session.versions[stage.policy]), base)
