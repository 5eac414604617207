"""The conversations of a file as demonstrations or rankings of the run."""

from __future__ import annotations

from pathlib import Path

from rollbook.orchestration.session import Session
from rollbook.records import Collected, digest
from rollbook.records.recipe import Conversations
from rollbook.rollouts.given import given


def run(session: Session, name: str, stage: Conversations) -> None:
    """Writes what the file gives; its bytes were stored, and what becomes of its rows was told, when the run began."""
    policy = session.take(stage.policy)
    data = session.ledger.get(str(stage.sha256))
    suffix = Path(stage.path).suffix
    made = given(data, suffix, stage, session.policy.tokenizer, digest(data))
    if made.demonstrations:
        session.ledger.write_table(f"{name}/demonstrations", made.demonstrations)
    if made.rankings:
        session.ledger.write_table(f"{name}/rankings", made.rankings)
    session.ledger.append(Collected(stage=name, policy=policy.id, sha256=session.ledger.put(data), suffix=suffix, rows=made.rows,
                                    kept=len(made.demonstrations) + len(made.rankings), left=made.left))
    session.progress.step(1, {})
    session.finish(name, "Conversations", policy, policy)
