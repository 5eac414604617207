"""What no single field shows of the stages that sample, compare, rate, prefer and merge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from rollbook.recipes.stage_checks import check_batch_tokens, check_exploring, check_warmup, refuse
from rollbook.records import graph
from rollbook.records.demonstrating import TAUGHT
from rollbook.records.problems import Problems
from rollbook.records.recipe import (
    Comparisons,
    Conversations,
    Distill,
    Feedback,
    Lessons,
    Merge,
    Preference,
    Principle,
    Prune,
    RejectionSampling,
    Revise,
    RewardModel,
    Settings,
    Tiny,
    Vllm,
)

MEASURES = ("accuracy", "format", "tokens")
Kinds = RejectionSampling | Comparisons | RewardModel | Preference | Merge | Distill | Revise | Lessons | Prune | Conversations


def check(stage: Kinds, path: str, settings: Settings, problems: Problems) -> None:
    """Adds every problem of the stage itself."""
    match stage:
        case RejectionSampling():
            _rejection_sampling(stage, path, settings, problems)
        case Comparisons():
            _comparisons(stage, path, settings, problems)
        case Revise() | Lessons():
            _prompts(stage.prompts, stage.tasks, path, settings, problems)
            _principles(stage.principles, path, problems)
            if isinstance(stage, Lessons):
                _lessons(stage, path, settings, problems)
        case RewardModel():
            _reward_model(stage, path, settings, problems)
        case Preference():
            _preference(stage, path, settings, problems)
        case Merge():
            _merge(stage, path, problems)
        case Prune():
            _prune(stage, path, settings, problems)
        case Conversations():
            _conversations(stage, path, settings, problems)
        case Distill():
            _distill(stage, path, settings, problems)
        case _:
            assert_never(stage)


def _prompts(wanted: int, tasks: str, path: str, settings: Settings, problems: Problems) -> None:
    if tasks == graph.TRAIN and wanted > settings.tasks.train:
        refuse(problems, f"{path}.prompts must be at most tasks.train = {settings.tasks.train}", wanted,
               "each prompt is asked once", f"lower {path}.prompts or raise tasks.train")


def _rejection_sampling(stage: RejectionSampling, path: str, settings: Settings, problems: Problems) -> None:
    _prompts(stage.prompts, stage.tasks, path, settings, problems)
    if stage.samples > 1:
        check_exploring(stage.sampling, path, problems)
    if (stage.keep == "best") != (stage.scorer is not None):
        refuse(problems, f"{path}.scorer goes with {path}.keep = best", f"keep = {stage.keep}, scorer = {stage.scorer}",
               "a reward model that rates nothing, or a best without a rating, would be ignored", "set both or neither")
    if stage.keep == "correct" and stage.per_task > stage.samples:
        refuse(problems, f"{path}.per_task must be at most {path}.samples = {stage.samples}", stage.per_task,
               "no more answers can be kept than there are", f"lower {path}.per_task")


def _comparisons(stage: Comparisons, path: str, settings: Settings, problems: Problems) -> None:
    _prompts(stage.prompts, stage.tasks, path, settings, problems)
    check_exploring(stage.sampling, path, problems)
    if isinstance(stage.labeler, Feedback):
        _principles(stage.labeler.principles, f"{path}.labeler", problems)
        if stage.per_task != 2:
            refuse(problems, f"{path}.per_task must be 2 where a model labels", stage.per_task, "it chooses between two answers",
                   f"set {path}.per_task = 2")
        return
    strange = sorted(set(stage.labeler.rule) - set(MEASURES))
    if strange or not any(stage.labeler.rule.values()):
        refuse(problems, f"{path}.labeler.rule must weigh some of {', '.join(MEASURES)}", ", ".join(strange) or "no weight",
               "an oracle knows what the judge and the trace say, and nothing else", f"name one of {', '.join(MEASURES)}")


def _lessons(stage: Lessons, path: str, settings: Settings, problems: Problems) -> None:
    check_exploring(stage.sampling, path, problems)
    if settings.environment is not None:
        refuse(problems, f"{path} writes lessons about single answers", settings.environment.name,
               "an episode in an environment is no answer that a program could revise", f"leave out {path}")
    if not stage.teach or len(set(stage.teach)) < len(stage.teach):
        refuse(problems, f"{path}.teach must name some of {', '.join(TAUGHT)}, each once", ", ".join(stage.teach) or "none",
               "a stage that writes no lesson teaches nothing", f"leave out {path}.teach: all three are written")
    if "choice" in stage.teach and stage.answers < 2:
        refuse(problems, f"{path}.answers must be 2 or more where choices are taught", stage.answers,
               "a choice is between two answers", f"set {path}.answers = 2")


def _principles(principles: Mapping[str, Principle], path: str, problems: Problems) -> None:
    empty = sorted(name for name, one in principles.items() if not (one.critique.strip() and one.revision.strip()
                                                                    and one.choice.strip()))
    if not principles or empty:
        refuse(problems, f"{path}.principles must name at least one, each in words", ", ".join(empty) or "none",
               "a model is asked by what they say", f"write {path}.principles.NAME with critique, revision and choice")


def _reward_model(stage: RewardModel, path: str, settings: Settings, problems: Problems) -> None:
    if (stage.loss == "margin") != bool(stage.margins):
        refuse(problems, f"{path}.margins goes with {path}.loss = margin", f"loss = {stage.loss}, {len(stage.margins)} margins",
               "margins without their loss, or the loss without them, would be ignored", "set both or neither")
    _data(stage.data, path, problems)
    check_warmup(stage.optimizer.warmup_steps, stage.steps, path, problems)
    check_batch_tokens(stage.max_batch_tokens, path, settings, problems)


def _preference(stage: Preference, path: str, settings: Settings, problems: Problems) -> None:
    _data(stage.data, path, problems)
    merging = stage.merging
    if merging is not None and (merging.rule == "ties") != (merging.consensus is not None):
        refuse(problems, f"{path}.merging.consensus goes with {path}.merging.rule = ties", f"rule = {merging.rule}",
               "only that rule elects signs", "set both or neither")
    check_warmup(stage.optimizer.warmup_steps, stage.steps, path, problems)
    check_batch_tokens(stage.max_batch_tokens, path, settings, problems)


def _distill(stage: Distill, path: str, settings: Settings, problems: Problems) -> None:
    _prompts(stage.prompts, stage.tasks, path, settings, problems)
    if stage.hard is not None and not stage.hard.data:
        _data(stage.hard.data, f"{path}.hard", problems)
    lacking = sorted(set(settings.tasks.families) - set(stage.teachers)) if "*" not in stage.teachers else []
    if lacking:
        refuse(problems, f"{path}.teachers must teach every family of tasks", ", ".join(lacking), "a sequence without a teacher "
               "has no loss", f"set {path}.teachers.{lacking[0]}, or {path}.teachers.*")
    check_warmup(stage.optimizer.warmup_steps, stage.steps, path, problems)
    check_batch_tokens(stage.max_batch_tokens, path, settings, problems)
    if stage.sampling.top_p < 1 or stage.sampling.top_k or stage.sampling.min_p or stage.sampling.temperature == 0:
        refuse(problems, f"{path}.sampling must draw from all ids", str(stage.sampling), "the KL is over the whole vocabulary",
               f"set {path}.sampling.top_p = 1, top_k = 0, min_p = 0 and a temperature above 0")


def _prune(stage: Prune, path: str, settings: Settings, problems: Problems) -> None:
    if list(stage.layers) != sorted(set(stage.layers)) or not stage.layers or min(stage.layers) < 0:
        refuse(problems, f"{path}.layers must name layers to keep, each once and rising from 0", str(list(stage.layers)),
               "a model has an order, and needs a layer", f"for example {path}.layers = [0, 1]")
    if isinstance(settings.model, Tiny) and stage.intermediate is not None and settings.model.experts:
        refuse(problems, f"{path}.intermediate is for plain feed-forwards", "a mixture of experts",
               "every expert has neurons of its own", f"set {path}.intermediate = null")
    if isinstance(settings.run.engine, Vllm):
        refuse(problems, f"{path} changes the shape of the policy", "run.engine Vllm",
               "a server was started with the shape of the initial model", "sample in the run's own process")


def _conversations(stage: Conversations, path: str, settings: Settings, problems: Problems) -> None:
    if stage.max_tokens > settings.model.context:
        refuse(problems, f"{path}.max_tokens must be at most model.context = {settings.model.context}", stage.max_tokens,
               "a longer conversation has no positions left", f"lower {path}.max_tokens")
    if stage.apart and stage.form != "pairs":
        refuse(problems, f"{path}.apart is for {path}.form = pairs", f"{stage.apart:g}",
               "nothing asks demonstrations that were kept apart", f"leave out {path}.apart")
    learns = [name for name, other in settings.stages.items() if path.rpartition(".")[2] in getattr(other, "data", {})]
    for name in learns:
        other = settings.stages[name]
        wants = "by" if isinstance(other, Preference) and other.by == "correct" else "loss" if isinstance(
            other, RewardModel) and other.loss in ("listwise", "soft_label") else None
        if wants is not None:
            refuse(problems, f"stages.{name}.{wants} = {getattr(other, wants)} asks more than {path} knows",
                   "chosen and rejected", "a file says which of two answers is better, not which is right nor how sure that is",
                   f"set stages.{name}.{wants} = {'score' if wants == 'by' else 'ranked'}")
        room: int = getattr(settings.stages[name], "max_batch_tokens", stage.max_tokens)
        if room < stage.max_tokens:
            refuse(problems, f"stages.{name}.max_batch_tokens is too small for a conversation of {path}",
                   f"{room}, up to {stage.max_tokens} may be needed", "a sequence is never cut between micro-batches",
                   f"raise stages.{name}.max_batch_tokens, or lower {path}.max_tokens")


def _data(data: object, path: str, problems: Problems) -> None:
    if not data:
        refuse(problems, f"{path}.data must name a stage", "none", "there is nothing to learn from", f"set {path}.data")


def _merge(stage: Merge, path: str, problems: Problems) -> None:
    need = {"average": (False, False), "task_vector": (True, False), "moving_average": (False, True)}[stage.method]
    if not stage.policies or any(weight == 0 for weight in stage.policies.values()):
        refuse(problems, f"{path}.policies must give every policy a weight other than 0", str(dict(stage.policies)),
               "a policy without weight is not merged", "leave it out")
    elif stage.method == "average" and sum(stage.policies.values()) == 0:
        refuse(problems, f"{path}.policies must not sum to 0 in an average", "0", "the shares are weights over their sum",
               "use task_vector for differences")
    if (stage.base is not None, stage.decay is not None) != need:
        refuse(problems, f"{path}: base goes with task_vector, decay with moving_average",
               f"method {stage.method}, base {stage.base}, decay {stage.decay}", "what a method does not read would be ignored",
               "set what the method needs and nothing else")
