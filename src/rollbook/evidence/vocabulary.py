"""The closed lists of the claims: labels, stages, units, bounds, documents and their sections, what a config.json can show."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Label = Literal["D", "C", "R", "I", "U"]
LABELS: Mapping[str, str] = {
    "D": "disclosed", "C": "confirmed artifact", "R": "reproduced here", "I": "inference", "U": "unknown",
}

STAGES = (
    "architecture", "tokenizer", "pretraining", "midtraining", "data", "environment", "cold_start", "sft", "reward_model",
    "reward", "rejection_sampling", "preference", "rl", "distillation", "systems", "serving", "evaluation", "release",
)

Bound = Literal["exact", "about", "at_least", "at_most", "more_than", "less_than", "range"]
BOUNDS: tuple[Bound, ...] = ("exact", "about", "at_least", "at_most", "more_than", "less_than", "range")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What a number with this unit may be. `shares` units mean nothing without their denominator.

    Example: Unit(low=0.0, high=1.0, whole=False, shares=True) is `fraction`
    """

    low: float | None
    high: float | None = None
    whole: bool = False
    shares: bool = False

    def admits(self, number: float) -> bool:
        """Whether a number can have this unit."""
        if not math.isfinite(number) or (self.whole and number != int(number)):
            return False
        return (self.low is None or number >= self.low) and (self.high is None or number <= self.high)

    @property
    def words(self) -> str:
        """The admitted numbers in words: `whole numbers from 0`."""
        low = "" if self.low is None else f" from {self.low:g}"
        return ("whole numbers" if self.whole else "numbers") + low + ("" if self.high is None else f" to {self.high:g}")


_COUNT, _MEASURE = Unit(low=0, whole=True), Unit(low=0)
UNITS: Mapping[str, Unit] = {
    "number": Unit(low=None),
    "fraction": Unit(low=0, high=1, shares=True),
    "score": Unit(low=0, high=100, shares=True),
    "points": Unit(low=None, shares=True),
    "times": _MEASURE,
    **dict.fromkeys((
        "tokens", "parameters", "layers", "heads", "dimensions", "experts", "languages", "epochs", "steps", "updates",
        "iterations", "rounds", "stages", "minibatches", "examples", "prompts", "problems", "responses", "pairs", "comparisons",
        "candidates", "trajectories", "environments", "tasks", "instances", "repositories", "tests", "turns", "tool_calls",
        "sequences", "samples", "runs", "models", "agents", "domains", "rules", "cases", "rows", "people", "interruptions",
        "gpus", "tools", "rewards",
    ), _COUNT),
    **dict.fromkeys((
        "gpu_hours", "seconds", "hours", "days", "megabytes", "terabytes", "terabytes_per_second", "flop", "dollars",
        "dollars_per_gpu_hour",
    ), _MEASURE),
}

CONFIG_QUANTITIES = (  # what `check` of a claim about a configuration may name
    "layers", "width", "ffn_width", "heads", "kv_heads", "head_dim", "vocabulary", "context", "tied_embeddings", "experts",
    "experts_per_token", "shared_experts", "sliding_window", "rope_base", "rope_scaling", "latent_attention",
    "parameters_total", "parameters_active",
    "parameters_non_embedding", "parameters_active_non_embedding", "parameters_with_mtp",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDocument:
    """A document the claims are drawn from, and the form its section names take."""

    title: str
    section: re.Pattern[str]
    form: str


_MATRIX = (
    "Frontier-Lab Case Studies: Evidence Matrix", "Evidence labels", "Choose a reading route",
    "Latest public generation at the cutoff", "Broader lineage coverage", "Longitudinal pattern", "Disclosure comparison",
    "Generation milestones", "Optimization and consolidation mechanisms at a glance", "The production artifact chain",
    "Reading the model tables correctly", "Parameter accounting", "Token accounting", "Cost accounting", "Benchmark accounting",
    'What the public evidence supports about “real operations”', "Primary-source policy",
)
_MATRIX_PATTERN = "|".join(re.escape(title).replace("“", "[“\"]").replace("”", "[”\"]") for title in _MATRIX)

DOCUMENTS: Mapping[str, SourceDocument] = {
    "case-study": SourceDocument(
        title="Qwen, Meta, and Mistral: Three Paths from Alignment to Agentic Reinforcement Learning "
              "(verified through 2026-07-19)",
        section=re.compile(r"(?:Front matter|Evidence labels|[1-9]|1[01]|"
                           r"2\.[1-3]|4\.(?:[1-9]|10)|5\.[1-5]|6\.(?:[1-9]|1[0-2])|7\.[1-5]|8\.[1-4])"),
        form='a number from "1" to "11" with its part, "6.9"; before them "Front matter" and "Evidence labels"'),
    "evidence-matrix": SourceDocument(
        title="Frontier-Lab Case Studies: Evidence Matrix (verified through 2026-07-19)",
        section=re.compile(_MATRIX_PATTERN), form="the text of one of its headings"),
    "mechanisms": SourceDocument(
        title="Mechanism specifications for LLM post-training: formulas, gradients, evidence",
        section=re.compile(r"(?:0\.[1-6]|[A-F]\d{1,2}|P\d|W|H\d|G|Register [1-4])(?:\.\d)?"),
        form='its section: "B8", "P1", "W", "0.5", "Register 2"'),
    "systems": SourceDocument(
        title="The systems in the case studies: one row each",
        section=re.compile(r"[A-Z]\d{1,2}|Controlled claims"), form='a row\'s id ("S4") or "Controlled claims"'),
}
