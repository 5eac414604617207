"""A small experiment as text, and outcomes for it."""

from __future__ import annotations

from collections.abc import Sequence

from rollbook.experiments.definition import QUANTITIES, Definition, read
from rollbook.experiments.runs import Outcome

TEXT = """\
schema: rollbook.experiment/1
name: small
claim: mistral.magistral.minibatch_limit
hypothesis: Two steps a batch end lower than one
recipe: magistral-small
scale: tiny
factor: minibatches
levels:
  one: {set: {stages.rl.minibatches: 1}}
  two: {set: {stages.rl.minibatches: 2}}
  more: {needs: a larger batch}
baseline: one
treatment: two
metric: final_eval
decision: {expects: lower, margin: 0.1}
matched: {quantity: attempts, tolerance: 0.1}
seeds: [1, 2, 3, 4, 5]
minutes_per_run: 1
"""


def definition(old: str = "", new: str = "") -> Definition:
    """The small experiment with a piece of its text replaced."""
    assert old in TEXT
    return read(TEXT.replace(old, new) if old else TEXT, "small.yaml")


def outcome(level: str, seed: int, scores: Sequence[float], *, attempts: float = 100.0, diverged: bool = False) -> Outcome:
    held = {} if diverged else {f"Task:{index}": score for index, score in enumerate(scores)}
    return Outcome(level=level, seed=seed, status="diverged" if diverged else "completed", recipe="r", run=f"{level}{seed}",
                   score=sum(held.values()) / len(held) if held else None, outcomes=held,
                   spent=dict.fromkeys(QUANTITIES, attempts))


def outcomes(one: Sequence[Sequence[float]], two: Sequence[Sequence[float]], **more: float) -> list[Outcome]:
    """An outcome of each seed at both levels."""
    return [outcome("one", seed, scores) for seed, scores in enumerate(one, 1)] + \
           [outcome("two", seed, scores, **more) for seed, scores in enumerate(two, 1)]
