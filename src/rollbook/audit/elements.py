"""What recipe and seed decide of stages that learn from recorded elements: which come in which order; and of merges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rollbook.audit.index import RunIndex
from rollbook.records import Merged, Ranking
from rollbook.records.graph import START
from rollbook.records.recipe import Merge, PolicyGradient, Preference, Prune, RewardModel
from rollbook.tasks.splits import apportion

AVERAGED = "average_in_training"        # what a policy stage with `ema` ends with
PRUNED = "pruned"                       # what a stage ends with that leaves out layers and neurons
Held = Mapping[str, Sequence[tuple[str, Ranking]]]      # source -> its rankings with their ids, in the order of their table


def due_elements(stage: RewardModel | Preference, held: Held, seed: int) -> list[str]:
    """The ids of the rankings that the stage shows, step after step; a source without a usable one gives none."""
    usable = {source: [name for name, one in rankings if not one.heldout and _usable(stage, one)]
              for source, rankings in held.items()}
    return due_order(usable, stage.data, stage.steps * stage.batch, seed)


def due_order(pools: Mapping[str, Sequence[str]], data: Mapping[str, float], count: int, seed: int) -> list[str]:
    """`count` names of the pools by weight: each pool in a permutation of its own at every pass, then all shuffled."""
    chosen: list[str] = []
    for place, (source, share) in enumerate(sorted(apportion(count, dict(data)).items())):
        pool, passed = pools.get(source, []), 0
        while pool and share > 0:
            drawn = np.random.default_rng([seed, place, passed]).permutation(len(pool))[:share]
            chosen += [pool[at] for at in drawn.tolist()]
            share, passed = share - len(drawn), passed + 1
    return [chosen[at] for at in np.random.default_rng([seed, len(data)]).permutation(len(chosen)).tolist()]


def _usable(stage: RewardModel | Preference, one: Ranking) -> bool:
    """Whether the stage's loss can learn from a ranking."""
    known = {answer.correct for answer in one.candidates}
    if isinstance(stage, RewardModel) and stage.loss == "listwise":
        return known == {True, False}
    if isinstance(stage, Preference) and stage.by == "correct":
        return {True, False} <= known
    return max(one.scores) > min(one.scores)


def merge_fault(run: RunIndex, merged: Merged, ended: Mapping[str, str]) -> str:
    """How a merge differs from its recipe; `ended` maps a stage to the version it ended with. Empty when it does not."""
    if run.recipe is None:
        return ""
    stage = run.recipe.settings.stages.get(merged.stage)
    names = {index: name for name, index in run.version_ids.items()}
    if isinstance(stage, PolicyGradient) and stage.ema is not None:
        wanted = {"parts": {names.get(max(names, default=0)): 1.0}, "method": AVERAGED, "base": None, "decay": stage.ema}
    elif isinstance(stage, Prune):
        wanted = {"parts": {{**ended, START: names.get(0)}.get(stage.policy): 1.0}, "method": PRUNED, "base": None, "decay": None}
    elif isinstance(stage, Merge):
        versions = {**ended, START: names.get(0)}
        wanted = {"parts": {versions.get(source): weight for source, weight in stage.policies.items()}, "method": stage.method,
                  "base": None if stage.base is None else versions.get(stage.base), "decay": stage.decay}
    else:
        return f"{merged.stage} merges nothing in the recipe"
    stated = {"parts": dict(merged.parts), "method": merged.method, "base": merged.base, "decay": merged.decay}
    unlike = [f"{name} {str(stated[name])[:80]} for {str(wanted[name])[:80]}" for name in wanted if stated[name] != wanted[name]]
    return f"{merged.stage} was merged otherwise than the recipe says: {'; '.join(unlike)}" if unlike else ""
