"""The range of every number of a recipe that has one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollbook.recipes.yamltext import join
from rollbook.records import recipe as r
from rollbook.records.errors import RecipeError
from rollbook.records.problems import Problems


@dataclass(frozen=True, slots=True)
class Bound:
    """An interval; `open_low` and `open_high` leave the end out."""

    low: float
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def holds(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        return above and (value < self.high if self.open_high else value <= self.high)

    def __str__(self) -> str:
        low = f"{'>' if self.open_low else '>='} {self.low:g}"
        return low if self.high == math.inf else f"{low} and {'<' if self.open_high else '<='} {self.high:g}"


COUNT = Bound(1)
NATURAL = Bound(0)
POSITIVE = Bound(0, open_low=True)
PROBABILITY = Bound(0, 1, open_high=True)

BOUNDS: Mapping[type, Mapping[str, Bound]] = {
    r.RunSettings: {"seed": NATURAL, "threads": NATURAL},
    r.Fsdp2: {"ranks": COUNT, "patience_s": POSITIVE},
    r.Vllm: {"rows": COUNT, "shown": NATURAL, **dict.fromkeys(("request_s", "update_s", "start_s"), POSITIVE)},
    r.Pretrained: {"context": COUNT},
    r.Tiny: {**dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "intermediate", "context", "window"), COUNT),
             **dict.fromkeys(("experts", "experts_per_token", "seed"), NATURAL)},
    r.Family: {"weight": POSITIVE},
    r.TaskSettings: {"train": COUNT, "heldout": COUNT, "max_tokens": COUNT, "seed": NATURAL},
    r.RewardSettings: {**dict.fromkeys(("format_reward", "length_penalty", "language_reward"), NATURAL),
                       "correct_reward": POSITIVE, "length_max": COUNT, "length_cache": COUNT, "verify_seconds": POSITIVE,
                       "verify_workers": COUNT},
    r.EnvironmentReward: {"format_reward": NATURAL, "correct_reward": POSITIVE},
    r.EnvironmentSettings: {
        **dict.fromkeys(("max_turns", "turn_tokens", "max_calls", "reply_characters", "summary_tokens", "subagent_tokens"),
                        COUNT),
        **dict.fromkeys(("max_seconds", "call_seconds"), POSITIVE),
        **dict.fromkeys(("compact_at", "keep_turns", "subagents", "misfit_penalty"), NATURAL)},
    r.OptimizerSettings: {"learning_rate": POSITIVE, "beta1": PROBABILITY, "beta2": PROBABILITY, "eps": POSITIVE,
                          "weight_decay": NATURAL, "warmup_steps": NATURAL, "max_grad_norm": POSITIVE},
    r.SamplingSettings: {"temperature": NATURAL, "top_p": Bound(0, 1, open_low=True), "top_k": NATURAL, "min_p": PROBABILITY},
    r.SuiteSettings: {"every": NATURAL, "tasks": Bound(2), "max_tokens": COUNT, "seed": NATURAL},
    r.Evaluate: {"trials": COUNT, "seed": NATURAL},
    r.Sft: {"steps": COUNT, "batch": COUNT, "general_share": PROBABILITY, "fim": Bound(0, 1), "max_batch_tokens": COUNT},
    r.Repeats: dict.fromkeys(("period", "copies", "span"), COUNT),
    r.PassRate: {"candidates": COUNT, "samples": COUNT, "low": NATURAL, "high": NATURAL},
    r.PolicyGradient: {**dict.fromkeys(("steps", "prompts", "per_task", "groups", "max_waves", "minibatches",
                                        "max_batch_tokens", "checkpoint_every"), COUNT),
                       **dict.fromkeys(("max_policy_age", "probe", "probe_every"), NATURAL), "ema": PROBABILITY},
    r.Critic: {"warmup": NATURAL, "updates": COUNT, "factor": POSITIVE, "clip": POSITIVE},
    r.Pretraining: {"batch": COUNT},
    r.Lora: {"rank": COUNT, "alpha": POSITIVE, "seed": NATURAL},
    r.Muon: {"learning_rate": POSITIVE, "momentum": PROBABILITY, "weight_decay": NATURAL},
    r.RejectionSampling: dict.fromkeys(("prompts", "samples", "per_task"), COUNT),
    r.Comparisons: {"prompts": COUNT, "per_task": Bound(2), "apart": PROBABILITY},
    r.Revise: dict.fromkeys(("prompts", "rounds", "max_tokens"), COUNT),
    r.Lessons: {"prompts": COUNT, "answers": COUNT},
    r.Conversations: {"max_tokens": COUNT, "apart": PROBABILITY},
    r.Oracle: {"noise": NATURAL, "seed": NATURAL, "grades": POSITIVE},
    r.RewardModel: dict.fromkeys(("steps", "batch", "max_batch_tokens"), COUNT),
    r.Preference: dict.fromkeys(("steps", "batch", "max_batch_tokens"), COUNT),
    r.Distill: dict.fromkeys(("steps", "prompts", "per_task", "max_batch_tokens", "checkpoint_every"), COUNT),
    r.HardTargets: {"batch": COUNT, "first": Bound(0, 1), "last": Bound(0, 1)},
    r.Dpo: {"beta": POSITIVE},
    r.Llama3Dpo: {"beta": POSITIVE, "nll_coefficient": NATURAL},
    r.Merging: {"alpha": Bound(0, 1), "keep": Bound(0, 1, open_low=True), "seed": NATURAL},
    r.Prune: {"intermediate": COUNT},
    r.Merge: {"decay": PROBABILITY},
}


def check(record: Any, path: str, problems: Problems) -> None:
    """Every number of the record, and of the records in it, that is out of its range."""
    bounds = BOUNDS.get(type(record), {})
    for field in dataclasses.fields(record):
        value, below = getattr(record, field.name), join(path, field.name)
        if dataclasses.is_dataclass(value):
            check(value, below, problems)
        elif isinstance(value, Mapping):
            for name, item in value.items():
                if dataclasses.is_dataclass(item):
                    check(item, join(below, name), problems)
        elif value is not None and field.name in bounds and not bounds[field.name].holds(value):
            problems.add(RecipeError(f"{below} must be {bounds[field.name]}", got=f"{value:g}",
                                     fix=f"set {below} inside that range"))
