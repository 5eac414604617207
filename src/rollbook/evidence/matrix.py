"""Who discloses what: releases by aspects, derived from the claims; and the releases in the order of their dates."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rollbook.evidence.agreement import shown
from rollbook.evidence.claims import Claim, Release
from rollbook.evidence.registry import Registry
from rollbook.evidence.vocabulary import LABELS

Aspect = Literal["weights", "architecture", "data", "equations", "hyper_parameters", "environments", "hardware", "reproduction"]
ASPECTS: Mapping[Aspect, str] = {
    "weights": "Weights", "architecture": "Architecture", "data": "Data counts", "equations": "Equations",
    "hyper_parameters": "Hyper-parameters", "environments": "Environments", "hardware": "Hardware",
    "reproduction": "Full reproduction",
}
State = Literal["known", "partial", "inferred", "unknown", "silent"]
STATES: Mapping[State, str] = {
    "known": "stated or visible", "partial": "stated in part, the rest withheld", "inferred": "inferred only",
    "unknown": "withheld", "silent": "no claim",
}

_TRAINING = ("pretraining", "midtraining", "cold_start", "sft", "reward_model", "reward", "rejection_sampling", "preference",
             "rl", "distillation")
_WEIGHTS = ("license", "open_weights", "open_model", "access", "max_access", "plus", "weights_date", "status", "release_kind",
            "reward_model_weights", "kind")
_WHOLE = ("complete_code_and_data", "reproducible", "full_reproduction", "frozen_recipe", "training_code", "disclosed_parts",
          "disclosure", "release_parts", "components", "combination", "anchor", "latest_documented")
_MACHINE_UNITS = ("gpus", "gpu_hours", "hours", "days", "dollars", "dollars_per_gpu_hour", "flop", "terabytes",
                  "terabytes_per_second", "megabytes", "interruptions")
_MACHINE = ("hardware", "gpu", "compute", "cost", "accelerator", "parallelism", "utilization", "server", "storage", "duration",
            "time")
_COUNTS = ("examples", "prompts", "problems", "pairs", "comparisons", "trajectories", "tasks", "instances", "repositories",
           "languages", "people", "cases", "rows", "environments")
_DATA = ("example", "pair", "comparison", "problem", "trajector*", "trace", "mixture", "mix", "corpus", "corpora", "data",
         "share", "languages", "task", "prompts", "sources", "question", "synth*")
_SETTINGS = ("learning_rate", "batch", "epoch", "optimizer", "hyper_parameter", "beta*", "eps", "epsilon", "warmup", "schedule",
             "temperature", "group_size", "update", "step", "gamma", "lambda", "clip", "coefficient", "tau", "per_prompt",
             "per_step", "per_batch", "weight_decay", "round", "delta", "cap", "setting", "length_max", "length_cache",
             "threshold")
_NAMED = ("optimizer", "schedule", "hyper_parameter", "setting")  # what makes a statement without a number one about settings
_METHOD = ("policy_optimizer", "only_optimizer")                  # an algorithm, though its name says optimizer


def aspect(claim: Claim) -> Aspect | None:
    """The aspect that a claim tells of, by its stage, unit and quantity; None for evaluation, serving and orchestration."""
    stage, quantity = claim.stage, claim.quantity
    if stage in ("architecture", "tokenizer"):
        return "architecture"
    if stage == "environment":
        return "environments"
    if stage == "release":
        return "weights" if quantity in _WEIGHTS else "reproduction" if quantity in _WHOLE else None
    if stage == "systems":
        return "hardware" if claim.unit in _MACHINE_UNITS or says(quantity, _MACHINE) else None
    if stage == "data":
        return "data"
    return _of_training(claim) if stage in _TRAINING else None


def _of_training(claim: Claim) -> Aspect:
    """A stage of training: what it was fed, its numbers, or what it computes."""
    quantity, unit = claim.quantity, claim.unit
    if claim.stage in ("pretraining", "midtraining") and says(quantity, ("tokens",)) and not says(quantity, ("batch",)):
        return "data"
    if unit is not None:
        setting = says(quantity, _SETTINGS) or (claim.denominator or "").startswith("per ")
        shared = unit == "fraction" and says(quantity, _DATA)
        return "data" if (unit in _COUNTS or shared) and not setting else "hyper_parameters"
    if says(quantity, _SETTINGS if claim.label == "U" else _NAMED) and not says(quantity, _METHOD):
        return "hyper_parameters"
    return "data" if says(quantity, _DATA) else "equations"


def says(quantity: str, words: Sequence[str]) -> bool:
    """Whether a quantity's name has one of the words: whole or in the plural, or as a beginning where the word ends in `*`.

    Example: says("sft_examples", ("example",)) and not says("kv_cache_recomputed", ("compute", "cap"))
    """
    name = f"_{quantity}_"
    return any(f"_{word[:-1]}" in name if word.endswith("*") else f"_{word}_" in name or f"_{word}s_" in name for word in words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The claims of one release about one aspect.

    Example: Cell(claims=(...)).counts == {"D": 12, "U": 3}
    """

    claims: tuple[Claim, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        found: Counter[str] = Counter(claim.label for claim in self.claims)
        return {label: found[label] for label in LABELS if found[label]}

    @property
    def state(self) -> State:
        counts = self.counts
        if not counts:
            return "silent"
        if counts.keys() & {"D", "C", "R"}:
            return "partial" if "U" in counts else "known"
        return "inferred" if "I" in counts else "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One release: a cell for each aspect, and the claims that tell of something else."""

    release: Release
    cells: Mapping[Aspect, Cell]
    others: tuple[Claim, ...]


def about(registry: Registry) -> Mapping[str, tuple[Claim, ...]]:
    """By release id: every claim that speaks of the release or that may be used for it."""
    found: dict[str, list[Claim]] = defaultdict(list)
    for claim in map(registry.claim, registry.ids):
        for release in dict.fromkeys((claim.release, *claim.scope)):
            found[release].append(claim)
    return {release: tuple(found.get(release, ())) for release in registry.releases}


def matrix(registry: Registry, releases: Sequence[str] = ()) -> tuple[Row, ...]:
    """A row for each release (all of them where none is named), by laboratory and date."""
    claims = about(registry)
    wanted = [registry.release(name) for name in releases] or list(registry.releases.values())
    ordered = sorted(wanted, key=lambda one: (one.laboratory, one.date, one.id))
    return tuple(_row(release, claims[release.id]) for release in ordered)


def _row(release: Release, claims: Sequence[Claim]) -> Row:
    held: dict[Aspect | None, list[Claim]] = defaultdict(list)
    for claim in claims:
        held[aspect(claim)].append(claim)
    return Row(release=release, cells={name: Cell(claims=tuple(held[name])) for name in ASPECTS}, others=tuple(held[None]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A release on the time line. `sourced` is false where the sources give no date and the month is common knowledge.

    Example: Event(release=..., sourced=True, trained_by=("GRPO",), claims=12)
    """

    release: Release
    sourced: bool
    trained_by: tuple[str, ...]
    claims: int


_METHODS = ("introduces", "rl_algorithm", "reasoning_rl_algorithm", "policy_optimizer", "objective", "policy_optimization",
            "milestone", "method", "instruct_method", "post_training", "pipeline", "uses_ppo", "uses_rl")
_NO_DATE = ("no date", "no month", "no dates", "recalled")


def timeline(registry: Registry) -> tuple[Event, ...]:
    """Every release by date; one that names only its year stands before the dated ones of that year."""
    claims = about(registry)
    releases = sorted(registry.releases.values(), key=lambda one: (one.date, one.laboratory, one.id))
    return tuple(Event(release=release, sourced=_dated(release), claims=len(claims[release.id]),
                       trained_by=tuple(_methods(release, claims[release.id]))) for release in releases)


def _dated(release: Release) -> bool:
    return not any(words in (release.note or "") for words in _NO_DATE)


def _methods(release: Release, claims: Sequence[Claim]) -> Iterator[str]:
    """How the claims about a release name its training: at most three statements, its own before those in scope."""
    named = [claim for claim in claims if claim.quantity in _METHODS and claim.value is not None]
    for claim in sorted(named, key=lambda one: (one.release != release.id, _METHODS.index(one.quantity)))[:3]:
        if isinstance(claim.value, bool):
            word = claim.quantity.removeprefix("uses_").upper()
            yield word if claim.value else f"no {word}"
        else:
            yield shown(claim)
