"""A recipe as a graph with what each stage will cost: counted from its settings, before anything heavy starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollbook.recipes.graph_check import TRAINED
from rollbook.records.graph import inputs, order, scored_by
from rollbook.records.recipe import (
    Comparisons,
    Conversations,
    Distill,
    Evaluate,
    Lessons,
    Merge,
    PassRate,
    PolicyGradient,
    Preference,
    Prune,
    RejectionSampling,
    ResolvedRecipe,
    Revise,
    RewardModel,
    Settings,
    Sft,
    Stage,
    Tiny,
)

TRAINED_BYTES = 16      # of a trained parameter: fp32 weight, gradient and two moments
FROZEN_BYTES = 2        # of a frozen copy in bfloat16
BYTE_VOCABULARY = 264   # ids of the tokenizer of a model from scratch


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One stage: what it reads, and upper bounds of what it will do.

    `flop` counts 2 per parameter and sampled token, 6 per parameter and trained token; None where the model's size is not known
    before it is loaded, and so is `bytes`, what its models need beside activations.

    Example: Planned(name="rl", kind="PolicyGradient", reads={"policy": "cold_start"}, attempts=2560, sampled_tokens=163840,
        updates=40, trained_tokens=163840, models=2, flop=1.3e12, bytes=18000000)
    """

    name: str
    kind: str
    reads: Mapping[str, str]
    attempts: int
    sampled_tokens: int
    updates: int
    trained_tokens: int
    models: int
    flop: float | None
    bytes: int | None


def plan(recipe: ResolvedRecipe) -> tuple[Planned, ...]:
    """The stages in the order in which they run."""
    settings = recipe.settings
    return tuple(_planned(settings, name, settings.stages[name]) for name in order(settings.stages, settings.rewards))


def along(settings: Settings) -> tuple[int, int]:
    """Attempts at suites that are asked along the run, and the tokens that they sample at most; (0, 0) where none are."""
    asked = settings.suites
    if asked is None:
        return 0, 0
    moving = [stage for stage in settings.stages.values() if isinstance(stage, TRAINED)]
    steps = [stage.steps for stage in moving if isinstance(stage, Sft | PolicyGradient)]
    within = sum((count - 1) // asked.every for count in steps) if asked.every else 0
    attempts = (1 + len(moving) + within) * len(asked.abilities) * asked.tasks
    return attempts, attempts * asked.max_tokens


def parameters(settings: Settings) -> int | None:
    """Parameters of a model from scratch; None for one that must be loaded to be counted."""
    model = settings.model
    if not isinstance(model, Tiny):
        return None
    head = model.hidden // model.heads
    attention = 2 * model.hidden * model.heads * head + 2 * model.hidden * model.kv_heads * head
    feed = 3 * model.hidden * model.intermediate * max(1, model.experts) + model.hidden * model.experts
    norms = 2 * model.hidden + (2 * head if model.architecture == "qwen3_moe" else 0)
    return BYTE_VOCABULARY * model.hidden + model.layers * (attention + feed + norms) + model.hidden


def _planned(settings: Settings, name: str, stage: Stage) -> Planned:
    attempts, updates, sequences, trained, frozen = _counts(settings, stage)
    length = max([settings.tasks.max_tokens, *(other.max_tokens for other in _read(settings, stage))])
    size = parameters(settings)
    reads = {**inputs(stage), **{f"reward of {model}": model for model in sorted(scored_by(stage, settings.rewards))}}
    return Planned(name=name, kind=type(stage).__name__, reads=reads, attempts=attempts, sampled_tokens=attempts * length,
                   updates=updates, trained_tokens=sequences * length, models=trained + frozen,
                   flop=None if size is None else size * (2.0 * attempts + 6.0 * sequences) * length,
                   bytes=None if size is None else size * (TRAINED_BYTES * trained + FROZEN_BYTES * (frozen + 1)))


def _read(settings: Settings, stage: Stage) -> list[Conversations]:
    """The files of conversations that a stage learns from, whose rows may be longer than an answer."""
    named = (settings.stages.get(name) for name in getattr(stage, "data", {}))
    return [one for one in named if isinstance(one, Conversations)]


def _counts(settings: Settings, stage: Stage) -> tuple[int, int, int, int, int]:
    """Attempts, optimizer steps, trained sequences, trained models, frozen models beside the engine's copy."""
    match stage:
        case Evaluate():
            return settings.tasks.heldout * stage.trials, 0, 0, 0, 1
        case Sft():
            return round(stage.steps * stage.batch * stage.general_share), stage.steps, stage.steps * stage.batch, 1, 0
        case PassRate():
            return stage.candidates * stage.samples, 0, 0, 0, 1
        case RejectionSampling():
            return stage.prompts * stage.samples, 0, 0, 0, 1 + (stage.scorer is not None)
        case Comparisons():
            return stage.prompts * stage.per_task, 0, 0, 0, 1
        case Lessons():
            return stage.prompts * stage.answers, 0, 0, 0, 1
        case Revise():
            return stage.prompts * (1 + 2 * stage.rounds), 0, 0, 0, 1
        case RewardModel():
            return 0, stage.steps, stage.steps * stage.batch * 2, 1, 1
        case Preference():
            return 0, stage.steps, stage.steps * stage.batch * 2, 1, 1
        case Prune() | Conversations():
            return 0, 0, 0, 0, 1
        case Merge():
            return 0, 0, 0, 0, len(stage.policies) + (stage.base is not None)
        case Distill():
            asked = stage.steps * stage.prompts * stage.per_task
            hard = stage.steps * stage.hard.batch if stage.hard is not None else 0
            return asked, stage.steps, asked + hard, 1, 1 + len(set(stage.teachers.values()))
        case PolicyGradient():
            return _policy_counts(stage)


def _policy_counts(stage: PolicyGradient) -> tuple[int, int, int, int, int]:
    probes = stage.probe * ((stage.steps - 1) // stage.probe_every) if stage.probe_every else 0
    attempts = stage.steps * stage.prompts * stage.per_task * stage.max_waves + probes
    own = stage.critic.updates if stage.critic is not None else 0
    beside = stage.pretraining.batch * stage.minibatches if stage.pretraining is not None else 0
    sequences = stage.steps * (stage.groups * stage.per_task * (1 + own) + beside)
    updates = stage.steps * stage.minibatches * (1 + own)
    return attempts, updates, sequences, 1 + (own > 0), 1 + (stage.reference is not None) + len(set(stage.teachers.values()))
