"""A smaller policy: the layers that the recipe keeps, and of each feed-forward the neurons that weigh most."""

from __future__ import annotations

from rollbook.models.decoder import Decoder
from rollbook.models.shape import load_shaped
from rollbook.orchestration.session import Session
from rollbook.records import Merged, RecipeError
from rollbook.records.recipe import Prune
from rollbook.training.pruning import pruned_weights

METHOD = "pruned"


def run(session: Session, name: str, stage: Prune) -> None:
    """Prunes the weights that the named stage ended with, and publishes the result as its child."""
    started = session.take(stage.policy)
    decoder = session.policy.decoder
    if type(decoder) is not Decoder:
        raise RecipeError(f"stages.{name} prunes a model that has no fast path", got=session.policy.slow or "another decoder",
                          why="its layers are not ours to leave out", fix="use a model that the fast path computes")
    load_shaped(decoder, pruned_weights(session.weights(started), layers=stage.layers, intermediate=stage.intermediate))
    how = session.ledger.append(Merged(stage=name, weights=session.publisher.rehash(), method=METHOD, parts={started.id: 1.0},
                                       base=None, decay=None))
    ended = session.publisher.publish(name, started, (how,), optimizer=None)
    a = decoder.architecture
    session.progress.note(f"{name}: {a.layers} layers of {a.intermediate} neurons, "
                          f"{sum(p.numel() for p in decoder.parameters()):,} parameters")
    session.progress.step(1, {})
    session.finish(name, "Prune", started, ended)
