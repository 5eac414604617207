"""A trajectory as a reader sees it: turns with their owners, and for each sampled token what sampling and training made of it.

Legend: T action tokens of a batch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollbook.records import AttemptId, Episode, NotExposed, Part, Segment, TaskId, Trace, decode
from rollbook.report.text import clip, number, percent
from rollbook.report.tokens import TokenTexts
from rollbook.report.transcripts import context_title
from rollbook.view.held import HeldRun, Steps

SHOWN = 4000        # tokens of one trajectory drawn; the rest is counted
CHARS = 60          # characters of one token
LEVELS = ((0.9, "p4"), (0.5, "p3"), (0.1, "p2"), (0.0, "p1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token, or the few that make one character. `told` are (name, value) pairs for the reader."""

    text: str
    css: str
    told: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Consecutive tokens of one owner; `more` counts those not drawn, `text` stands in where token texts are absent."""

    owner: str
    version: int | None
    count: int
    tokens: tuple[Token, ...]
    more: int
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What one update made of the policy's tokens of a trajectory, in their order; a quantity that was not read is absent."""

    scope: str
    batch: str
    update: str | None
    values: Mapping[str, np.ndarray]


def trained(run: HeldRun, trace: str) -> tuple[Trained, ...]:
    """Every update that a trajectory was part of; one whose tensors cannot be read is left out."""
    found = []
    for step in run.steps_of(trace):
        try:
            found.append(_trained(run, step))
        except Exception:       # the blob is gone, is no safetensors, or lacks a tensor: its library raises a kind of its own
            continue
    return tuple(found)


def _trained(run: HeldRun, step: Steps) -> Trained:
    ledger = run.facts.ledger
    batch_T = _tensors(ledger.get(step.tensors))
    after_T = _tensors(ledger.get(step.update_tensors)) if step.update_tensors else {}
    mine_T = batch_T["seq"] == step.sequence
    values: dict[str, np.ndarray] = {}
    for name in ("behavior", "anchor", "advantage", "reference", "value"):
        if name in batch_T and len(batch_T[name]) == len(mine_T):
            values[name] = batch_T[name][mine_T]
    values |= {name: batch_T[name][mine_T] for name in batch_T if name.startswith("weight") and len(batch_T[name]) == len(mine_T)}
    for name in ("logp", "entropy", "clipped"):
        if name in after_T and len(after_T[name]) == len(mine_T):
            values[name] = after_T[name][mine_T]
    if "logp" in values and "behavior" in values:
        values["ratio"] = np.exp(np.clip(values["logp"] - values["behavior"], -60, 60))
    return Trained(scope=step.scope, batch=step.batch, update=step.update, values=values)


def _tensors(blob: bytes) -> dict[str, np.ndarray]:
    from safetensors.numpy import load
    return {name: np.asarray(value) for name, value in load(blob).items()}


def contexts(row: Mapping[str, Any], texts: TokenTexts, learned: Sequence[Trained]) -> tuple[tuple[str, tuple[Turn, ...]], ...]:
    """Every context of a trajectory with its title, empty where there is but one, in the order they were opened, the one it ended
    in last."""
    trace = _trace(row)
    if trace is None:
        return (("", turns(row, texts, learned)),)
    start, places = 0, {}
    count = len(next(iter(learned[0].values.values()), ())) if learned else -1
    taught = trace.with_subagents() if trace.with_subagents().learnt_count == count else trace
    for place in taught.learnt_parts if taught.learnt_count == count else ():
        places[place] = start
        start += sum(segment.count for segment in trace.segments_of(place) if segment.owner == "policy")
    return tuple((context_title(trace.parts, place), turns(_row_of(trace.segments_of(place), row), texts, learned,
                                                            places.get(place)))
                 for place in (*range(1, len(trace.parts) + 1), 0))


def _trace(row: Mapping[str, Any]) -> Trace | None:
    """The trajectory of a row that has several contexts; None where there is one, or its tokens are only counted."""
    if not row.get("episode") or hidden(row):
        return None
    held = json.loads(row["episode"])
    parts, ids, logps = decode(tuple[Part, ...], held["parts"], "parts"), list(row["token_ids"] or ()), list(row["logps"] or ())
    if not parts:
        return None
    segments, at = [], 0
    for span in row["spans"] or ():
        end, own = at + int(span["length"]), span["owner"] == "policy"
        known = None if not own else NotExposed() if None in logps[at:end] else tuple(logps[at:end])
        segments.append(Segment(owner=span["owner"], token_ids=tuple(ids[at:end]), logps=known, version=span["version"]))
        at = end
    return Trace(attempt=AttemptId(str(row["attempt"])), task=TaskId(str(row["task"])), group=str(row["group"]), envelope=None,
                 segments=tuple(segments), stop_reason=row["stop_reason"], text=str(row["text"]), parts=parts,
                 episode=decode(Episode | None, held["episode"], "episode"))


def _row_of(segments: Sequence[Segment], row: Mapping[str, Any]) -> dict[str, Any]:
    """A context as the row of a trajectory that had no other."""
    return {"text": row["text"], "token_ids": [token for one in segments for token in one.token_ids],
            "logps": [value for one in segments for value in (one.logps or (None,) * len(one.token_ids))],
            "spans": [{"owner": one.owner, "length": len(one.token_ids), "version": one.version} for one in segments]}


def turns(row: Mapping[str, Any], texts: TokenTexts, learned: Sequence[Trained], start: int | None = 0) -> tuple[Turn, ...]:
    """A trajectory's segments as turns, its own tokens with the numbers of the first update that read them: those from `start`
    on, none where it is None."""
    ids, logps = list(row["token_ids"] or ()), list(row["logps"] or ())
    values = learned[0].values if learned and start is not None else {}
    made, at, action, left = [], 0, start or 0, SHOWN
    for span in row["spans"] or ():
        length, owner = int(span["length"]), str(span["owner"])
        kept = ids[at:at + min(length, left)]
        own = owner == "policy"
        tokens = ()
        shown = texts.tokenizer is not None and None not in kept
        if shown:
            here = _Place(ids=kept, logps=logps[at:at + len(kept)], action=action if own else None, version=span["version"])
            tokens = tuple(_tokens(here, texts, values))
        made.append(Turn(owner=owner, version=span["version"], count=length, tokens=tokens, more=length - len(kept),
                         text=None if shown else _plain(row, owner, length)))
        at, left = at + length, max(0, left - length)
        action += length if own else 0
    return tuple(made)


def hidden(row: Mapping[str, Any]) -> bool:
    """Whether an endpoint answered that showed no tokens."""
    return None in (row["token_ids"] or ())


def _plain(row: Mapping[str, Any], owner: str, length: int) -> str:
    return str(row["text"]) if owner == "policy" else f"[{length} tokens]"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Tokens of one segment; `action` is the place of the first among all action tokens, None where nobody sampled them."""

    ids: Sequence[int]
    logps: Sequence[float | None]
    action: int | None
    version: int | None


def _tokens(here: _Place, texts: TokenTexts, values: Mapping[str, np.ndarray]) -> list[Token]:
    found, at = [], 0
    for length, text in texts.pieces(here.ids):
        found.append(_token(here, at, length, (text, values)))
        at += length
    return found


def _token(here: _Place, at: int, length: int, shown: tuple[str, Mapping[str, np.ndarray]]) -> Token:
    text, values = shown
    told = [("token", ", ".join(str(one) for one in here.ids[at:at + length]))]
    css = ""
    logps = [one for one in here.logps[at:at + length] if one is not None]
    if len(logps) == length and here.action is not None:
        chance = math.exp(min(math.fsum(logps), 0.0))
        css = next(level for least, level in LEVELS if chance >= least)
        told += [("probability", percent(chance, 2)), ("log-prob", f"{', '.join(number(one, 4) for one in logps)} nats")]
    elif here.action is None:
        told.append(("sampled", "no"))
    else:
        told.append(("probability", "not shown by the host"))
    if here.version is not None:
        told.append(("version", str(here.version)))
    if here.action is not None:
        places = slice(here.action + at, here.action + at + length)
        told += [(_NAMES.get(name, name), _said(name, held[places])) for name, held in values.items()
                 if name not in ("behavior", "logp") and len(held[places]) == length]
        if "clipped" in values and bool(np.any(values["clipped"][places])):
            css += " clipped"
        if "advantage" in values and len(values["advantage"][places]):
            mean = float(np.mean(values["advantage"][places]))
            css += " plus" if mean > 0 else " minus" if mean < 0 else ""
    return Token(text=clip(text.replace("\n", "⏎\n"), CHARS), css=css.strip(), told=tuple(told))


_NAMES = {"ratio": "ratio", "advantage": "advantage", "clipped": "clipped", "entropy": "entropy", "anchor": "anchor log-prob",
          "reference": "reference log-prob", "value": "value"}


def _said(name: str, held: np.ndarray) -> str:
    if name == "clipped":
        return "yes" if bool(np.any(held)) else "no"
    return ", ".join(number(float(one), 4) for one in held)
