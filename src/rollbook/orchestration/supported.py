"""What a recipe may say and this runtime does not do: refused before a run begins, instead of ignored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rollbook.experience.token_credit import per_token
from rollbook.models.load import Policy
from rollbook.objectives import all_reads
from rollbook.objectives.credit import StepGroups
from rollbook.objectives.errors import ObjectiveError
from rollbook.objectives.settings import from_settings
from rollbook.orchestration.asynchronous.throttle import first_room
from rollbook.orchestration.engines import check_engine
from rollbook.orchestration.judges import check_rewards
from rollbook.orchestration.readiness import unready
from rollbook.records import RecipeError, Task
from rollbook.records.graph import family_of, pruned_beyond
from rollbook.records.problems import Problems
from rollbook.records.recipe import Embedded, Fsdp2, PolicyGradient, Prune, SamplingSettings, Settings, Sft
from rollbook.tasks import Split, TaskError, applicable


def check_supported(settings: Settings) -> None:
    """Refuses what the recipe may say and this runtime does not do, instead of ignoring it; all of it at once."""
    problems = Problems()
    problems.attempt(check_engine, settings)
    problems.attempt(check_rewards, settings)
    for error in unready(settings):
        problems.add(error)
    for name, stage in settings.stages.items():
        if not isinstance(stage, PolicyGradient):
            continue
        if problems.attempt(_check_objective, name, stage):
            problems.attempt(_check_observation_loss, name, stage, settings)
            problems.attempt(_check_subagents, name, stage)
            problems.attempt(_check_steps, name, stage, settings)
            problems.attempt(_check_kept, name, stage, settings)
        for unsupported in _unsupported(name, stage, settings):
            problems.add(unsupported)
    problems.raise_any("the recipe")


def _unsupported(name: str, stage: PolicyGradient, settings: Settings) -> Iterator[RecipeError]:
    """What of a policy stage goes together and is not built, or does not go together."""
    around = settings.environment
    if stage.subagents_learn and (around is None or not around.subagents):
        yield RecipeError(f"stages.{name}.subagents_learn needs subagents", got="environment.subagents 0",
                          why="there is nothing of theirs to train", fix=f"--set stages.{name}.subagents_learn=false")
    if around is not None and around.agent is not None and (stage.asynchrony is not None or stage.subagents_learn):
        yield RecipeError(f"stages.{name} cannot train an outside agent's attempts that way", got=f"agent {around.agent.name}",
                          why="its calls come when it makes them: it is waited for, and calls no subagents of the turn loop's",
                          fix=f"--set stages.{name}.asynchrony=null --set stages.{name}.max_policy_age=0 "
                              f"--set stages.{name}.subagents_learn=false")
    if (stage.max_policy_age != 0) != (stage.asynchrony is not None):
        yield RecipeError(f"stages.{name}.asynchrony and a max_policy_age above 0 come together",
                          got=f"max_policy_age {stage.max_policy_age}, asynchrony {stage.asynchrony}",
                          why="where sampling and training alternate no token is older than the policy it trains; where they "
                              "do not, none can be of age 0",
                          fix=f"--set stages.{name}.max_policy_age=0, or say how: stages.{name}.asynchrony")
    if stage.asynchrony is not None and (room := first_room(stage.asynchrony, stage)) < stage.per_task:
        yield RecipeError(f"stages.{name}.asynchrony has no room for a first group of {stage.per_task} attempts",
                          got=f"concurrency {stage.asynchrony.concurrency}, {stage.asynchrony.throttle}: {room} may start",
                          why="a group starts whole, so nothing would ever start and nothing be published",
                          fix=f"--set stages.{name}.asynchrony.concurrency={max(stage.per_task, stage.asynchrony.concurrency)}, "
                              "and a throttle's number that lets a group through")
    if stage.routing != "free" and not getattr(settings.model, "experts", 1):
        yield RecipeError(f"stages.{name}.routing = {stage.routing} needs a model with experts", got="model.experts 0",
                          why="a dense model has no routes", fix=f"--set stages.{name}.routing=free")
    if _restricted(stage.sampling) and not stage.sampling_mask:
        yield RecipeError(f"stages.{name}.sampling must draw from all ids to be trained on", got=str(stage.sampling),
                          why="the engine's log-probs would be over the kept ids, the trainer's over all: every ratio biased",
                          fix=f"--set stages.{name}.sampling_mask=true, which keeps those ids for the trainer, or --set "
                              f"stages.{name}.sampling.top_p=1 --set stages.{name}.sampling.top_k=0 "
                              f"--set stages.{name}.sampling.min_p=0")


def _check_objective(name: str, stage: PolicyGradient) -> None:
    """Refuses settings that are none of the objective's, before any stage has computed for hours."""
    try:
        from_settings(dict(stage.objective))
    except ObjectiveError as error:
        raise RecipeError(f"stages.{name}.objective: {error.what}", got=error.got, why=error.why, fix=error.fix) from error


def _check_observation_loss(name: str, stage: PolicyGradient, settings: Settings) -> None:
    """Refuses to train on observations where a number would be needed that they do not have."""
    if not stage.observation_loss:
        return
    objective, around = from_settings(dict(stage.objective)), settings.environment
    reasons = {"no environment": around is None, "credit per token": per_token(objective.credit), "a critic": stage.critic,
               "an objective that reads the engine's log-probs": "behavior_T" in all_reads(objective),
               "environment.misfit_penalty": around is not None and around.misfit_penalty > 0.0,
               "attempts of several contexts": around is not None and (around.reasoning != "keep" or around.compaction != "none"),
               "subagents that learn": stage.subagents_learn,
               "a fixed length, to which only what the policy writes keeps": "fixed_length" in (
                   objective.aggregate, *(term.aggregate for term in objective.extra_terms))}
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        raise RecipeError(f"stages.{name}.observation_loss cannot go with: {'; '.join(found)}", got="observation_loss true",
                          why="no engine sampled the observations: they have no behavior log-prob and no place in a call",
                          fix=f"--set stages.{name}.observation_loss=false, which is what every published recipe does")


def _check_steps(name: str, stage: PolicyGradient, settings: Settings) -> None:
    """Refuses groups of steps where there are no steps, or where a step's tokens are not known."""
    around = settings.environment
    if not isinstance(from_settings(dict(stage.objective)).credit, StepGroups):
        return
    reasons = {"no environment": around is None, "an outside agent": around is not None and around.agent is not None,
               "attempts of several contexts": around is not None and (around.reasoning != "keep" or around.compaction != "none")}
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        raise RecipeError(f"stages.{name}: credit by groups of steps cannot go with: {'; '.join(found)}", got="StepGroups",
                          why="a step is a turn of the policy in an environment, and every token belongs to one",
                          fix="set an environment with reasoning: keep and compaction: none, or use credit per sequence")


def _check_subagents(name: str, stage: PolicyGradient) -> None:
    """Refuses to train subagents by credit that goes from token to token: they worked beside the one that called them."""
    if stage.subagents_learn and per_token(from_settings(dict(stage.objective)).credit):
        raise RecipeError(f"stages.{name}.subagents_learn needs credit per attempt", got=str(stage.objective.get("credit")),
                          why="which token of another context comes after a subagent's last is not defined",
                          fix=f"--set stages.{name}.subagents_learn=false, or use credit of a group")


def _check_kept(name: str, stage: PolicyGradient, settings: Settings) -> None:
    """Refuses to keep what was decided in sampling where nobody could tell it to the learner."""
    asked = [word for word, holds in (("sampling_mask", stage.sampling_mask), ("routing = sampled", stage.routing == "sampled"))
             if holds]
    if not asked:
        return
    how, routed = stage.asynchrony, stage.routing == "sampled"
    reasons = {"an environment": settings.environment is not None, "a learner on ranks": isinstance(settings.run.learner, Fsdp2),
               "generators of their own": how is not None and how.runtime != "threads",
               "keys and values made again in flight": routed and how is not None and how.on_update != "keep",
               "a served engine": routed and not isinstance(settings.run.engine, Embedded),
               "a bonus for entropy": stage.sampling_mask and "entropy_T" in all_reads(from_settings(dict(stage.objective))),
               "sampling from all ids": stage.sampling_mask and not _restricted(stage.sampling)}
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        raise RecipeError(f"stages.{name}: {' and '.join(asked)} cannot go with: {'; '.join(found)}", got=str(stage.sampling),
                          why="the learner decides what the engine decided: it must be told, and there must be something to tell",
                          fix=f"--set stages.{name}.sampling_mask=false --set stages.{name}.routing=free")


def _restricted(sampling: SamplingSettings) -> bool:
    """Whether tokens are drawn from a part of the vocabulary, or not drawn at all."""
    return sampling.top_p < 1.0 or sampling.top_k > 0 or sampling.min_p > 0.0 or sampling.temperature == 0.0


def check_curated_families(settings: Settings, sides: Split) -> None:
    """Refuses stages whose tasks are a family that no training row of the curated set is of; all of them at once."""
    if settings.tasks.curated is None:
        return
    there = sorted({task.family for task in sides.train})
    problems = Problems()
    for name, stage in settings.stages.items():
        family = family_of(getattr(stage, "tasks", ""))
        if family is not None and family not in there:
            problems.add(RecipeError(f"stages.{name}.tasks names no family of the curated set's training tasks", got=family,
                                     why="there is nothing to solve", fix=f"one of {', '.join(there)}"))
    problems.raise_any("the recipe")


def check_weights(settings: Settings, sides: Split) -> None:
    """Refuses curricula over tasks that a curated set weighs, all of them at once: a curriculum draws by its own rule."""
    if not sides.weights:
        return
    problems = Problems()
    for name, stage in settings.stages.items():
        if isinstance(stage, PolicyGradient) and stage.curriculum is not None:
            problems.add(RecipeError(f"stages.{name}.curriculum cannot go with rows that have a weight",
                                     got=f"{len(sides.weights)} of the {len(sides.train)} training tasks weigh more than 1",
                                     why="a curriculum draws by what it measures; the weights would be ignored",
                                     fix=f"curate again without UpsampleHard, or --set stages.{name}.curriculum=null"))
    problems.raise_any("the recipe")


def check_pruned(settings: Settings, policy: Policy) -> None:
    """Refuses stages that would keep layers or neurons which the model, now that it is loaded, does not have."""
    problems = Problems()
    if policy.slow is not None:
        for name, stage in settings.stages.items():
            if isinstance(stage, Prune):
                problems.add(RecipeError(f"stages.{name} prunes a model that transformers computes", got=policy.slow,
                                         why="only layers of the fast path are known here", fix="use a model of the fast path"))
        problems.raise_any("the recipe")
        return
    a = policy.decoder.architecture
    for error in pruned_beyond(settings.stages, (a.layers, a.intermediate)):
        problems.add(error)
    problems.raise_any("the recipe")


def check_written(settings: Settings, train: Sequence[Task]) -> None:
    """Refuses a mixture of styles that has nothing to show for a task it may have to demonstrate; all such stages at once."""
    if settings.environment is not None:
        return
    lacking: dict[str, tuple[str, set[str]]] = {}
    for name, stage in settings.stages.items():
        if not isinstance(stage, Sft) or not stage.traces:
            continue
        family = family_of(stage.tasks)
        for task in (task for task in train if family in (None, task.family)):
            try:
                fits = applicable(task)
            except TaskError:
                fits = ()
            if not any(stage.traces.get(style, 0.0) > 0 for style in fits):
                lacking.setdefault(name, (task.prompt[-1].content, set(fits)))
                break
    if lacking:
        told = [f"stages.{name}.traces for {asked!r} (add one of {', '.join(sorted(fits)) or 'none'})"
                for name, (asked, fits) in sorted(lacking.items())]
        raise RecipeError("a mixture of styles has nothing to show for some tasks", got="; ".join(told),
                          why="their demonstrations could not be written when the stage begins",
                          fix="add a style that applies, with a small weight: direct, or silent after /no_think")
