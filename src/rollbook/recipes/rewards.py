"""What is wrong with the rewards of a recipe, and with the stages that choose among them."""

from __future__ import annotations

from rollbook.records.codec import nearest
from rollbook.records.composition import ComposedReward, SoftLength, misfits
from rollbook.records.errors import RecipeError
from rollbook.records.graph import order, scored_by
from rollbook.records.problems import Problems
from rollbook.records.ready_made import NamedReward, expanded, named_misfits
from rollbook.records.recipe import EnvironmentReward, Evaluate, PassRate, Reward, RewardModel, RewardSettings, Settings


def check(settings: Settings, problems: Problems) -> None:
    """Adds every problem of the default reward, the named ones, and the stages' choices."""
    composed = {"reward": _checked(settings.reward, "reward", settings.tasks.max_tokens, problems)}
    for name, reward in settings.rewards.items():
        composed[f"rewards.{name}"] = _checked(reward, f"rewards.{name}", settings.tasks.max_tokens, problems)
    default = composed["reward"]
    late = [part.measure for part in default.parts.values() if part.measure.startswith("model:")] if default else []
    if late:
        problems.add(RecipeError(f"reward is scored by {late[0]}", got=late[0],
                                 why="the default reward judges from the first stage on, when no stage has trained a model yet",
                                 fix="put it under rewards.NAME and write reward: NAME in the stages behind the model's"))
    for name, stage in settings.stages.items():
        chosen: str | None = getattr(stage, "reward", None)
        if chosen is not None and chosen not in settings.rewards:
            problems.add(RecipeError(f"stages.{name}.reward names no reward of the recipe", got=chosen,
                                     fix=f"nearest names: {nearest(chosen, list(settings.rewards))}"))
            continue
        for model in sorted(scored_by(stage, settings.rewards)):
            if not isinstance(settings.stages.get(model), RewardModel):
                models = [other for other, kind in settings.stages.items() if isinstance(kind, RewardModel)]
                problems.add(RecipeError(f"rewards.{chosen} is scored by model:{model}, which is no reward-model stage",
                                         got=model, fix=f"nearest names: {nearest(model, models)}"))
        used = composed["reward" if chosen is None else f"rewards.{chosen}"]
        if isinstance(stage, (Evaluate, PassRate)) and used is not None and used.accuracy is None:
            problems.add(RecipeError(f"stages.{name} counts right answers, and its reward has none", got=used.name,
                                     why="a preference says which answer is better, not which is right",
                                     fix=f"set stages.{name}.reward to one with `accuracy`"))

    for where, whole in composed.items():
        for part in (whole.parts.values() if whole is not None else ()):
            name = part.measure.removeprefix("judge:")
            if part.measure.startswith("judge:") and name not in settings.judges:
                problems.add(RecipeError(f"{where} is measured by judge:{name}, which the recipe does not have", got=name,
                                         fix=f"nearest names: {nearest(name, list(settings.judges))}"))
    for name, judge in settings.judges.items():
        if (judge.form == "rubric") != bool(judge.criteria):
            problems.add(RecipeError(f"judges.{name}: a rubric has criteria and a pairwise judge has none",
                                     got=f"{judge.form} with {len(judge.criteria)} criteria",
                                     fix="add criteria, or change the form"))
        if not 0 <= judge.low < judge.high <= 10 or judge.context < 1:
            problems.add(RecipeError(f"judges.{name} needs 0 <= low < high <= 10 and a context of at least 1",
                                     got=f"{judge.low}, {judge.high}, {judge.context}"))
    held = [name for name in settings.stages if name not in order(settings.stages, settings.rewards)]
    if held and len(order(settings.stages)) == len(settings.stages):
        problems.add(RecipeError("stages wait for each other's reward models", got=", ".join(held),
                                 why="none of them could start", fix="score rewards by models that are trained before"))


def _checked(reward: Reward, path: str, max_tokens: int, problems: Problems) -> ComposedReward | None:
    """The composition, if it is one that can be computed."""
    if isinstance(reward, EnvironmentReward):
        return None
    if isinstance(reward, RewardSettings):
        _check_magistral(reward, path, max_tokens, problems)
        return None
    if not reward.verify_seconds > 0 or reward.verify_workers < 1:
        problems.add(RecipeError(f"{path} needs verify_seconds above 0 and at least one of verify_workers",
                                 got=f"{reward.verify_seconds:g}, {reward.verify_workers}"))
    found = list(named_misfits(reward)) if isinstance(reward, NamedReward) else []
    composed = None if found else expanded(reward) if isinstance(reward, NamedReward) else reward
    found += list(misfits(composed)) if composed is not None else []
    for misfit in found:
        problems.add(RecipeError(f"{path}.{misfit.path} {misfit.what}", got=misfit.got, fix=misfit.fix))
    if composed is None or found:
        return None
    for name, shape in composed.shaping.items():
        if isinstance(shape, SoftLength):
            _check_length(shape, f"{path}.{name}", max_tokens, problems)
    return composed


def _check_magistral(reward: RewardSettings, path: str, max_tokens: int, problems: Problems) -> None:
    if reward.length_cache > reward.length_max:
        problems.add(RecipeError(f"{path}.length_cache must be at most {path}.length_max = {reward.length_max}",
                                 got=str(reward.length_cache), why="the penalty would start before the first token",
                                 fix=f"lower {path}.length_cache"))
        return
    _check_length(SoftLength(length_max=reward.length_max, length_cache=reward.length_cache, scale=reward.length_penalty), path,
                  max_tokens, problems)


def _check_length(shape: SoftLength, path: str, max_tokens: int, problems: Problems) -> None:
    free = shape.length_max - shape.length_cache
    if shape.scale and free >= max_tokens:
        problems.add(RecipeError(f"tasks.max_tokens = {max_tokens} ends before the length penalty begins",
                                 got=f"{path}.length_max - {path}.length_cache = {free}",
                                 why="no response could ever be penalised",
                                 fix=f"lower {path}.length_max, or set {path}.length_penalty = 0"))
