"""A policy made of others: averages, moving averages over stages, task vectors."""

from __future__ import annotations

from rollbook.models.weights import load_into
from rollbook.orchestration.session import Session
from rollbook.records import Merged
from rollbook.records.recipe import Merge
from rollbook.training.merging import merged_weights


def run(session: Session, name: str, stage: Merge) -> None:
    """Merges the weights that the named stages ended with, and publishes the result as the child of the base, or of the first."""
    parts = {source: session.versions[source] for source in sorted(stage.policies)}     # a recorded mapping has no order
    base = session.versions[stage.base] if stage.base is not None else None
    started = base or next(iter(parts.values()))
    held = [(session.weights(version), stage.policies[source]) for source, version in parts.items()]
    merged = merged_weights(stage, held, None if base is None else session.weights(base))
    session.take(stage.base or next(iter(parts)))
    load_into(session.policy.decoder, merged)
    how = session.ledger.append(Merged(
        stage=name, weights=session.publisher.rehash(), method=stage.method, base=None if base is None else base.id,
        parts={version.id: stage.policies[source] for source, version in parts.items()}, decay=stage.decay))
    ended = session.publisher.publish(name, started, (how,), optimizer=None)
    session.progress.step(1, {})
    session.finish(name, "Merge", started, ended)
