"""A model's published config.json held against what is claimed of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rollbook.evidence import parameters
from rollbook.evidence.claims import Claim, Config, Value
from rollbook.evidence.errors import EvidenceError
from rollbook.evidence.registry import Registry
from rollbook.records.codec import nearest

Outcome = Literal["agrees", "differs", "not_shown"]
ABOUT, ABOUT_MOST = 0.05, 0.15  # how far a rounded claim may be off: one unit of its last digit, within these shares of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One claim and what the configuration shows of it; `found` is None where it shows nothing, and `why` says why not.

    Example: Comparison(claim=..., quantity="layers", found=36, outcome="agrees", why="")
    """

    claim: Claim
    quantity: str
    found: Value
    outcome: Outcome
    why: str


def check(file: Path, model: str, registry: Registry) -> tuple[Comparison, ...]:
    """Every claim about `model` that names a quantity of its configuration, compared with `file`. None at all is an error."""
    config = _load(file)
    claims = list(about_model(model, registry))
    if not claims:
        known = sorted({str(claim.model) for claim in _checkable(registry)})
        raise EvidenceError("no claim about this model can be checked against a configuration", got=repr(model),
                            fix=f"nearest models: {nearest(model, known)}")
    return tuple(compare(claim, config) for claim in claims)


def about_model(model: str, registry: Registry) -> Iterator[Claim]:
    """The claims about a model that its configuration can show."""
    yield from (claim for claim in _checkable(registry) if claim.model == model)


def _checkable(registry: Registry) -> Iterator[Claim]:
    yield from (claim for name in registry.ids if isinstance((claim := registry.claim(name)).artifact, Config))


def compare(claim: Claim, config: Mapping[str, Any]) -> Comparison:
    """One claim against a configuration."""
    assert isinstance(claim.artifact, Config)
    quantity = claim.artifact.quantity
    try:
        found = shown(quantity, config)
    except EvidenceError as error:
        return Comparison(claim=claim, quantity=quantity, found=None, outcome="not_shown", why=str(error).splitlines()[0])
    if found is None:
        return Comparison(claim=claim, quantity=quantity, found=None, outcome="not_shown", why="the configuration does not say")
    if _agrees(claim, found):
        return Comparison(claim=claim, quantity=quantity, found=found, outcome="agrees", why="")
    if quantity == "parameters_active" and _agrees(claim, other := parameters.count(config).active_with_head):
        return Comparison(claim=claim, quantity=quantity, found=other, outcome="agrees",
                          why="counted without the input embedding")
    return Comparison(claim=claim, quantity=quantity, found=found, outcome="differs",
                      why=f"{quantity} is {found}, claimed {claim.bound} {claim.value} ({claim.at})")


def shown(quantity: str, config: Mapping[str, Any]) -> Value:
    """What a configuration shows of a quantity, or None where it does not say."""
    text = parameters.text_config(config)
    if quantity.startswith("parameters_"):
        return _COUNTS[quantity](parameters.count(config))
    if quantity == "tied_embeddings":
        return parameters.tied(config)
    if quantity == "latent_attention":
        return bool(text.get("kv_lora_rank"))
    if quantity == "rope_scaling":
        scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
        return scaling.get("rope_type", scaling.get("type"))
    if quantity == "experts":
        return parameters.experts(text)
    if quantity == "head_dim":
        return parameters.head_dim(text)
    if quantity == "kv_heads":
        return parameters.kv_heads(text)
    value = text.get(_KEYS[quantity])
    if quantity == "rope_base" and value is None:
        value = (text.get("rope_parameters") or {}).get("rope_theta")
    return value if isinstance(value, int | float) else None


_KEYS: Mapping[str, str] = {
    "layers": "num_hidden_layers", "width": "hidden_size", "ffn_width": "intermediate_size", "heads": "num_attention_heads",
    "vocabulary": "vocab_size", "context": "max_position_embeddings", "experts_per_token": "num_experts_per_tok",
    "shared_experts": "n_shared_experts", "sliding_window": "sliding_window", "rope_base": "rope_theta",
}
_COUNTS: Mapping[str, Callable[[parameters.Parameters], int]] = {
    "parameters_total": lambda counted: counted.total,
    "parameters_active": lambda counted: counted.active,
    "parameters_non_embedding": lambda counted: counted.non_embedding,
    "parameters_active_non_embedding": lambda counted: counted.active_non_embedding,
    "parameters_with_mtp": lambda counted: counted.stored,
}


def _agrees(claim: Claim, found: Value) -> bool:
    if isinstance(claim.value, bool) or isinstance(found, bool):
        return claim.value is found
    if isinstance(claim.value, str):
        return claim.value == found
    if not isinstance(claim.value, int | float) or not isinstance(found, int | float):
        return False
    if claim.bound == "exact" and claim.unit != "parameters":
        return claim.value == found
    return abs(found - claim.value) <= tolerance(claim)


def tolerance(claim: Claim) -> float:
    """How far a count may be from a claim: half of its last digit; if the claim is rounded one digit, of 5 to 15 percent.

    A model named 30B-A3B has 30.5 billion parameters of which 3.3 billion work on a token.
    """
    value = float(claim.value) if isinstance(claim.value, int | float) else math.nan
    digit = 10.0 ** (len(str(int(value))) - len(str(int(value)).rstrip("0")))
    if claim.bound == "exact":
        return digit / 2
    return min(max(digit, ABOUT * value), ABOUT_MOST * value)


def _load(file: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{file} cannot be read as a configuration", got=str(error), fix="give a config.json") from None
    if not isinstance(config, Mapping):
        raise EvidenceError(f"{file} is no configuration", got=type(config).__name__, fix="give a config.json")
    return config
