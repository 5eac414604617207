"""The graph of a recipe's stages: what each stage reads of others, and the one order in which stages run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from rollbook.records.recipe import Evaluate, PassRate, PolicyGradient, Sft, Stage

START = "start"
TRAIN = "train"


def inputs(stage: Stage) -> dict[str, str]:
    """The fields of a stage that name other stages, with the names; `start` and `train` name none."""
    match stage:
        case Evaluate():
            named = {"policy": stage.policy, "compare_to": stage.compare_to}
        case PolicyGradient():
            named = {"policy": stage.policy, "tasks": stage.tasks}
        case Sft() | PassRate():
            named = {"policy": stage.policy}
        case _:
            assert_never(stage)
    own = {"policy": START, "tasks": TRAIN}
    return {field: name for field, name in named.items() if name is not None and name != own.get(field)}


def order(stages: Mapping[str, Stage]) -> tuple[str, ...]:
    """Stage names, inputs first; among those ready, evaluations first, then by name. A cycle's stages are left out.

    The order depends on the graph alone, not on how the document is sorted.
    """
    waiting = {name: set(inputs(stage).values()) & set(stages) for name, stage in stages.items()}
    done: list[str] = []
    while ready := [name for name, needs in waiting.items() if needs <= set(done)]:
        chosen = min(ready, key=lambda name: (not isinstance(stages[name], Evaluate), name))
        done.append(chosen)
        del waiting[chosen]
    return tuple(done)


def cycle(stages: Mapping[str, Stage]) -> tuple[str, ...]:
    """The stages of one cycle in order, first repeated at the end; empty when there is none."""
    left = [name for name in stages if name not in order(stages)]
    if not left:
        return ()
    path = [left[0]]
    while True:
        following = next(name for name in inputs(stages[path[-1]]).values() if name in left)
        if following in path:
            return (*path[path.index(following):], following)
        path.append(following)
