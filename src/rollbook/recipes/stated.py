"""What a recipe only repeats: facts and steps of a pipeline taken from their claims by id, so that a number has one home."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from rollbook.evidence.claims import Claim
from rollbook.evidence.errors import EvidenceError
from rollbook.evidence.registry import Registry
from rollbook.recipes.values import Entry, Reading

Claims = Callable[[], Registry]


def entry(name: str, path: str, reading: Reading, registry: Claims) -> Entry | None:
    """The entry of a claim: its value with its label; its sentence where it has no value, and where it is unknown."""
    try:
        claim = registry().claim(name)
    except EvidenceError as error:
        parts = {"got": error.got, "why": error.why, "fix": error.fix}
        reading.refuse(path, error.what, **{name: text for name, text in parts.items() if text})
        return None
    value = None if claim.label == "U" else written(claim)
    value = claim.says if value is None and claim.label != "U" else value
    return Entry(value=value, label=claim.label, claim=name, origin=reading.origin,
                 reason="; ".join(claim.assumes) if claim.label == "I" else None,
                 note=claim.says if claim.label == "U" else None, line=reading.line(path), file=reading.source)


def written(claim: Claim) -> Any:
    """A claim's value as YAML has it."""
    return list(claim.value) if isinstance(claim.value, tuple) else claim.value


def facts(names: Any, reading: Reading, registry: Claims) -> dict[str, Entry]:
    """The facts of a list of claim ids, each under its quantity, under its group too where two would have one name."""
    found: dict[str, Entry] = {}
    for index, name in enumerate(names):
        path = f"facts.{index}"
        if not isinstance(name, str):
            reading.refuse("facts", "facts must be ids of claims", got=repr(name), fix="write one id a line")
            continue
        held = entry(name, path, reading, registry)
        if held is None:
            continue
        if held.label == "U":
            reading.refuse(path, f"claim {name} is no fact", got="label U", why="what is unknown is listed by itself in the card",
                           fix="remove it")
            continue
        if any(one.claim == name for one in found.values()):
            reading.refuse(path, f"claim {name} is listed twice", fix="keep one")
            continue
        key = name.rpartition(".")[2]
        found[key if key not in found else ".".join(name.split(".")[1:])] = held
    return found


def steps(body: Mapping[str, Any], reading: Reading, registry: Claims) -> dict[str, Entry]:
    """The steps of a pipeline that are written as the id of a claim: its sentence."""
    named = {name: item for name, item in body.items() if isinstance(item, str)}
    found = {name: entry(item, f"pipeline.{name}", reading, registry) for name, item in named.items()}
    return {name: held if held.unknown else dataclasses.replace(held, value=registry().claim(str(held.claim)).says)
            for name, held in found.items() if held is not None}
