"""Checks that stages of several kinds share."""

from __future__ import annotations

from typing import Any

from rollbook.records import graph
from rollbook.records.codec import nearest
from rollbook.records.errors import RecipeError
from rollbook.records.problems import Problems
from rollbook.records.recipe import (
    Fsdp2,
    OptimizerSettings,
    PolicyGradient,
    Preference,
    RewardModel,
    SamplingSettings,
    Settings,
    Stage,
    Tiny,
)

CHARACTERS_PER_TOKEN = 8  # no text of a system prompt packs more into a token of a pretrained vocabulary, on average


def refuse(problems: Problems, what: str, got: Any, why: str, fix: str) -> None:
    """Adds a refusal with all its parts."""
    problems.add(RecipeError(what, got=str(got), why=why, fix=fix))


def check_source(source: str, path: str, settings: Settings, problems: Problems) -> None:
    """A family whose tasks a stage uses is one of the recipe's; those of a curated set are known when it is read."""
    family = graph.family_of(source)
    if family is not None and settings.tasks.curated is None and family not in settings.tasks.families:
        refuse(problems, f"{path}.tasks names no family of tasks", repr(source), "there is nothing to solve",
               f"nearest names: {nearest(family, list(settings.tasks.families))}")


def check_lora(stage: Stage, path: str, settings: Settings, problems: Problems) -> None:
    """Low-rank factors stand alone, and belong to a policy."""
    optimizer: OptimizerSettings | None = getattr(stage, "optimizer", None)
    critic = stage.critic if isinstance(stage, PolicyGradient) else None
    if critic is not None and critic.optimizer.lora is not None:
        refuse(problems, f"{path}.critic.optimizer.lora is for policies", "a critic", "its new head is no small difference to "
               "anything", f"leave it out; {path}.critic.optimizer.frozen keeps a body still")
    if optimizer is None or optimizer.lora is None:
        return
    beside = ["frozen"] * bool(optimizer.frozen) + ["muon"] * (optimizer.muon is not None)
    beside += ["merging"] * (isinstance(stage, Preference) and stage.merging is not None)
    beside += ["ranks"] * (isinstance(stage, PolicyGradient) and isinstance(settings.run.learner, Fsdp2))
    if beside:
        refuse(problems, f"{path}.optimizer.lora stands alone", f"beside {', '.join(beside)}",
               "the factors are trained by AdamW in one process, and everything else stands still", f"leave out {beside[0]}")
    if isinstance(stage, RewardModel):
        refuse(problems, f"{path}.optimizer.lora is for policies", "a reward model", "its new head is no small difference to "
               "anything", f"leave it out; {path}.optimizer.frozen keeps a body still")


def shortest_prompt(settings: Settings) -> int:
    """A lower bound, in tokens, of any prompt; the exact length is known to the tokenizer only."""
    text = settings.tasks.system_prompt
    return 1 + (len(text) if isinstance(settings.model, Tiny) else len(text) // CHARACTERS_PER_TOKEN)


def check_exploring(sampling: SamplingSettings, path: str, problems: Problems) -> None:
    """Several attempts at a task must be able to differ."""
    if sampling.temperature == 0:
        refuse(problems, f"{path}.sampling.temperature must be > 0", "0", "all attempts at a task would be the same",
                f"set {path}.sampling.temperature = 1.0")


def check_warmup(warmup: int, updates: int, path: str, problems: Problems) -> None:
    """The warm-up ends within the stage."""
    if warmup > updates:
        refuse(problems, f"{path}.optimizer.warmup_steps must be at most the {updates} optimizer steps of the stage", warmup,
                "the learning rate would never be reached", f"lower {path}.optimizer.warmup_steps")


def check_batch_tokens(capacity: int, path: str, settings: Settings, problems: Problems) -> None:
    """The longest possible sequence fits into a micro-batch."""
    longest = shortest_prompt(settings) + settings.tasks.max_tokens
    if capacity < longest:
        refuse(problems, f"{path}.max_batch_tokens is too small for one sequence", f"{capacity}, at least {longest} are needed",
                "a sequence is never cut between micro-batches", f"raise {path}.max_batch_tokens")
