"""A look at the learning signal before a run: a few groups sampled and judged, nothing trained, nothing kept."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from rollbook.ledger import Ledger
from rollbook.models.runtime import prepare
from rollbook.orchestration import run as parts
from rollbook.orchestration.judges import judging, measured_by
from rollbook.orchestration.readiness import check_begins
from rollbook.orchestration.session import Progress, TaskStream
from rollbook.orchestration.supported import check_supported
from rollbook.records import RecipeError, ResolvedRecipe
from rollbook.records.graph import START
from rollbook.records.recipe import ComposedReward, NamedReward, PolicyGradient, Pretrained
from rollbook.rewards.signal import Signal, signal, told


def preflight(recipe: ResolvedRecipe, *, stage: str | None, groups: int, model: str | None, progress: Progress) -> Signal:
    """The signal in `groups` groups of a policy-gradient stage, sampled from the initial model or from `model`.

    RecipeError where the recipe has no such stage, or its reward needs a model that a stage has yet to train.
    """
    name, chosen = _stage(recipe, stage)
    check_supported(recipe.settings)
    if model is not None:
        settings = replace(recipe.settings, model=Pretrained(path=model, context=recipe.settings.model.context))
        recipe = replace(recipe, settings=settings)
    _check_models(recipe, name, chosen)
    dtype = prepare(recipe.settings.run)
    policy = parts._loaded(recipe.settings, progress)
    _, sides = parts._tasks(recipe.settings)
    parts._check_context(recipe.settings, policy, sides)
    check_begins(recipe.settings, sides.train[0])
    with tempfile.TemporaryDirectory() as folder, \
            Ledger.create(Path(folder) / "preflight", parts._manifest(recipe, policy, dtype)) as ledger, \
            parts._session(recipe, ledger, (policy, sides), progress, dtype) as session:
        ledger.append(recipe)
        session.versions[START] = session.publisher.publish(START, None, (), optimizer=None)
        judge = judging(session, chosen.reward).judge
        rollouts = session.rollouts(chosen.sampling)
        envelope = rollouts.envelope(session.versions[START].weights)
        stream = TaskStream(sides.train, seed=recipe.settings.run.seed, cursor=0, weights=sides.weights)
        tasks = [next(stream) for _ in range(groups)]
        began = time.monotonic()
        traces = rollouts.solve(tasks, chosen.per_task, scope="preflight", envelope=envelope)
        verdicts = judge.judge(traces, session.tasks)
        seconds = time.monotonic() - began
        again = judge.judge(traces[::-1], session.tasks)[::-1]
        return signal(traces, verdicts, seconds=seconds, again=again)


def _stage(recipe: ResolvedRecipe, name: str | None) -> tuple[str, PolicyGradient]:
    found = {key: stage for key, stage in recipe.settings.stages.items() if isinstance(stage, PolicyGradient)}
    if name is None and len(found) == 1:
        return next(iter(found.items()))
    if name is None or name not in found:
        raise RecipeError("no such policy-gradient stage" if name else "the recipe has none or several policy-gradient stages",
                          got=name or ", ".join(found) or "none", fix=f"--stage {' or '.join(found) or '...'}")
    return name, found[name]


def _check_models(recipe: ResolvedRecipe, name: str, stage: PolicyGradient) -> None:
    reward = recipe.settings.rewards.get(stage.reward or "")
    models = measured_by(reward) if isinstance(reward, (ComposedReward, NamedReward)) else []
    if models:
        raise RecipeError(f"the reward of stages.{name} is scored by a model that is not trained yet", got=", ".join(models),
                          why="a preflight trains nothing", fix="run up to that stage and look at its report instead")


__all__ = ["preflight", "told"]
