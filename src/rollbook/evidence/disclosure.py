"""Who discloses what, laboratory beside laboratory: ten items, each answered by the claims that speak of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rollbook.evidence.claims import Claim
from rollbook.evidence.errors import EvidenceError
from rollbook.evidence.matrix import aspect, says
from rollbook.evidence.registry import Registry
from rollbook.records.codec import nearest

MOST = 3        # claims of one laboratory about one item; the others are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One row of the comparison and which claims answer it."""

    title: str
    covers: Callable[[Claim], bool]


def _named(*quantities: str) -> Callable[[Claim], bool]:
    return lambda claim: claim.quantity in quantities


def _pretraining_setting(claim: Claim) -> bool:
    return claim.stage == "pretraining" and says(claim.quantity, (
        "optimizer", "schedule", "warmup", "learning_rate", "batch", "beta*", "eps", "weight_decay", "max_grad_norm"))


def _either(*rules: Callable[[Claim], bool]) -> Callable[[Claim], bool]:
    return lambda claim: any(rule(claim) for rule in rules)


ITEMS: tuple[Item, ...] = (
    Item(title="Open weights", covers=_named("open_weights", "open_model", "max_access", "access", "license")),
    Item(title="Architecture", covers=lambda claim: claim.stage == "architecture"),
    Item(title="Pretraining tokens", covers=_named("pretraining_tokens", "training_tokens", "tokens")),
    Item(title="Source mixture", covers=_either(
        _named("source_mixture", "mixture", "data_mixture", "raw_corpus", "pretraining_mixture"),
        lambda claim: claim.denominator == "of the pretraining tokens")),
    Item(title="Optimizer and schedule", covers=_either(_named("optimizer_disclosure", "optimizer", "pretraining_optimizer"),
                                                        _pretraining_setting)),
    Item(title="Agent tasks and environments", covers=lambda claim: claim.stage == "environment" and (
        claim.unit in ("tasks", "environments", "tools", "instances") or claim.quantity in ("terminal_tasks", "environments"))),
    Item(title="RL hyper-parameters", covers=_either(_named("rl_disclosure", "hyper_parameters", "rl_hyper_parameters"),
                                                     lambda claim: claim.stage == "rl" and aspect(claim) == "hyper_parameters")),
    Item(title="Hardware and cost", covers=_either(_named("hardware_and_cost", "hardware_disclosure"),
                                                   lambda claim: aspect(claim) == "hardware")),
    Item(title="Complete code and data", covers=_named("complete_code_and_data", "training_code", "full_reproduction")),
    Item(title="Production orchestration", covers=_named("production_orchestration", "orchestration")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one laboratory's releases disclose of one item: the claims shown, newest release first, and how many there are."""

    claims: tuple[Claim, ...]
    count: int


def comparison(registry: Registry, laboratories: Sequence[str]) -> dict[str, dict[str, Answer]]:
    """By item and laboratory. What no claim speaks of has an empty answer, which is not the same as unknown."""
    known = sorted({release.laboratory for release in registry.releases.values()})
    for name in laboratories:
        if name not in known:
            raise EvidenceError("unknown laboratory", got=repr(name), fix=f"nearest names: {nearest(name, known)}")
    held: dict[str, list[Claim]] = {name: [] for name in laboratories}
    for claim in map(registry.claim, registry.ids):
        owner = registry.releases[claim.release].laboratory
        if owner in held:
            held[owner].append(claim)
    return {item.title: {name: _answer(registry, [claim for claim in held[name] if item.covers(claim)]) for name in laboratories}
            for item in ITEMS}


def _answer(registry: Registry, claims: Sequence[Claim]) -> Answer:
    """The lineage as a whole stands first, then how much a report discloses; the known before the unknown, the newest first."""
    newest = sorted(claims, key=lambda claim: registry.releases[claim.release].date, reverse=True)
    ordered = sorted(newest, key=lambda claim: (".lineage." not in claim.id, claim.label == "U",
                                                not claim.quantity.endswith(("_disclosure", "hardware_and_cost"))))
    return Answer(claims=tuple(ordered[:MOST]), count=len(ordered))
