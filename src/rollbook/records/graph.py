"""The graph of a recipe's stages: what each stage reads of others, and the one order in which stages run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import assert_never

from rollbook.records.errors import RecipeError
from rollbook.records.recipe import (
    Comparisons,
    ComposedReward,
    Conversations,
    Distill,
    Evaluate,
    Feedback,
    Lessons,
    Merge,
    NamedReward,
    PassRate,
    PolicyGradient,
    Preference,
    Prune,
    RejectionSampling,
    Revise,
    Reward,
    RewardModel,
    Sft,
    Stage,
)

START = "start"
TRAIN = "train"
FAMILY = "family:"      # family:NAME are the training tasks of one family
CURATED = "curated"     # as data of a stage that imitates: the traces of the run's curated set
POLICIES = ("policy", "base", "reference", "merging.base", "labeler.policy")        # fields that name whose policy is meant


def inputs(stage: Stage) -> dict[str, str]:
    """The fields of a stage that name other stages, with the names; `start` and `train` name none."""
    named: dict[str, str | None]
    match stage:
        case Evaluate():
            named = {"policy": stage.policy, "compare_to": stage.compare_to, "scorer": stage.scorer}
        case PolicyGradient():
            start = stage.critic.start if stage.critic is not None else None
            teachers = {f"teachers.{family}": name for family, name in stage.teachers.items()}
            named = {"policy": stage.policy, "tasks": stage.tasks, "reference": stage.reference, "critic.start": start,
                     **teachers}
            if stage.pretraining is not None:
                named |= _each("pretraining.data", _stages(stage.pretraining.data))
        case Distill():
            teachers = {f"teachers.{family}": name for family, name in stage.teachers.items()}
            named = {"policy": stage.policy, "tasks": stage.tasks, **teachers}
            if stage.hard is not None:
                named |= _each("hard.data", _stages(stage.hard.data))
        case PassRate():
            named = {"policy": stage.policy, "tasks": stage.tasks}
        case Sft():
            named = {"policy": stage.policy, "tasks": stage.tasks, **_each("data", _stages(stage.data))}
        case RewardModel():
            named = {"policy": stage.policy, **_each("data", stage.data)}
        case Comparisons():
            named = {"policy": stage.policy, "tasks": stage.tasks}
            if isinstance(stage.labeler, Feedback):
                named["labeler.policy"] = stage.labeler.policy
        case Revise() | Lessons():
            named = {"policy": stage.policy, "tasks": stage.tasks}
        case RejectionSampling():
            named = {"policy": stage.policy, "tasks": stage.tasks, "scorer": stage.scorer}
        case Preference():
            base = stage.merging.base if stage.merging is not None else None
            named = {"policy": stage.policy, **_each("data", stage.data), "reference": stage.reference, "merging.base": base}
        case Prune() | Conversations():
            named = {"policy": stage.policy}
        case Merge():
            named = {**_each("policies", stage.policies), "base": stage.base}
        case _:
            assert_never(stage)
    return {field: name for field, name in named.items() if name is not None and not _no_stage(field, name)}


def _no_stage(field: str, name: str) -> bool:
    """Whether a field names what is there before any stage: the initial policy, the training tasks or a family of them."""
    return name == own(field) or (field == "tasks" and family_of(name) is not None)


def family_of(source: str) -> str | None:
    """The family whose training tasks a source of tasks names; None for all of them and for a stage's selection.

    Example: family_of("family:three_terms") == "three_terms"
    """
    return source.removeprefix(FAMILY) if source.startswith(FAMILY) else None


def _each(field: str, names: Iterable[str]) -> dict[str, str | None]:
    """One input for every name under a field."""
    return {f"{field}.{name}": name for name in names}


def _stages(data: Iterable[str]) -> list[str]:
    """The sources of demonstrations that are stages."""
    return [name for name in data if name != CURATED]


def learns_curated(stage: Stage) -> bool:
    """Whether a stage imitates the traces of the run's curated set."""
    match stage:
        case Sft():
            return CURATED in stage.data
        case PolicyGradient():
            return stage.pretraining is not None and CURATED in stage.pretraining.data
        case Distill():
            return stage.hard is not None and CURATED in stage.hard.data
        case _:
            return False


def own(field: str) -> str | None:
    """What a field may name that is no stage: the initial policy, or the training tasks."""
    if field == "tasks":
        return TRAIN
    return START if field in POLICIES or field.startswith(("policies.", "teachers.")) else None


def begins(stage: Stage) -> str:
    """The stage (or `start`) whose policy a stage begins with."""
    if isinstance(stage, Merge):
        return stage.base if stage.base is not None else min(stage.policies)
    return stage.policy


def shape(stages: Mapping[str, Stage], name: str) -> str | None:
    """The stage that gave the policy of `name` its shape; None where it has that of the initial model, or waits for itself."""
    seen: set[str] = set()
    while name in stages and name not in seen:
        seen.add(name)
        if isinstance(stages[name], Prune):
            return name
        name = begins(stages[name])
    return None


def outline(stages: Mapping[str, Stage], name: str, whole: tuple[int, int]) -> tuple[int, int]:
    """Layers and neurons of a feed-forward that the policy of `name` has, where the initial model has `whole`."""
    cut = shape(stages, name)
    if cut is None:
        return whole
    stage = stages[cut]
    assert isinstance(stage, Prune)
    before = outline({other: one for other, one in stages.items() if other != cut}, stage.policy, whole)
    return len(stage.layers), before[1] if stage.intermediate is None else stage.intermediate


def pruned_beyond(stages: Mapping[str, Stage], whole: tuple[int, int]) -> list[RecipeError]:
    """Every stage that would keep layers or neurons which the policy it begins with does not have."""
    found = []
    for name, stage in stages.items():
        if not isinstance(stage, Prune):
            continue
        layers, neurons = outline({other: one for other, one in stages.items() if other != name}, stage.policy, whole)
        if beyond := [layer for layer in stage.layers if layer >= layers]:
            found.append(RecipeError(f"stages.{name}.layers names layers that {stage.policy} does not have", fix="leave them out",
                                     got=", ".join(map(str, beyond)), why=f"it has layers 0 to {layers - 1}"))
        if stage.intermediate is not None and stage.intermediate > neurons:
            found.append(RecipeError(f"stages.{name}.intermediate is more neurons than {stage.policy} has",
                                     got=str(stage.intermediate), why=f"a feed-forward of it has {neurons}",
                                     fix=f"set stages.{name}.intermediate to {neurons} or less, or to null"))
    return found


def scored_by(stage: Stage, rewards: Mapping[str, Reward]) -> frozenset[str]:
    """The stages whose reward models measure the reward that a stage chose by name."""
    reward = rewards.get(getattr(stage, "reward", None) or "")
    match reward:
        case ComposedReward():
            measures = [part.measure for part in reward.parts.values()]
        case NamedReward():
            measures = list(reward.measures.values())
        case _:
            measures = []
    return frozenset(measure.removeprefix("model:") for measure in measures if measure.startswith("model:"))


def order(stages: Mapping[str, Stage], rewards: Mapping[str, Reward] = MappingProxyType({})) -> tuple[str, ...]:
    """Stage names, inputs first; among those ready, evaluations first, then by name. A cycle's stages are left out.

    The order depends on the graph alone, not on how the document is sorted. `rewards` are the recipe's: models stand behind them.
    """
    waiting = {name: (set(inputs(stage).values()) | scored_by(stage, rewards)) & set(stages) for name, stage in stages.items()}
    done: list[str] = []
    while ready := [name for name, needs in waiting.items() if needs <= set(done)]:
        chosen = min(ready, key=lambda name: (not isinstance(stages[name], Evaluate), name))
        done.append(chosen)
        del waiting[chosen]
    return tuple(done)


def cycles(stages: Mapping[str, Stage]) -> tuple[tuple[str, ...], ...]:
    """Cycles that share no stage, each in order with its first stage repeated at the end; empty when there is none."""
    done = set(order(stages))
    left = [name for name in stages if name not in done]
    found: list[tuple[str, ...]] = []
    while left:
        path = [left[0]]
        while following := next((name for name in inputs(stages[path[-1]]).values() if name in left), None):
            if following in path:
                found.append((*path[path.index(following):], following))
                break
            path.append(following)
        left = [name for name in left if name not in path]
    return tuple(found)
