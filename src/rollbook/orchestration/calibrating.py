"""What a reward model of a run says of the rankings that were kept apart from it, pair by pair; and a judge of labelled pairs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch

from rollbook.ledger import Ledger
from rollbook.models.load import load_policy
from rollbook.models.scalar import ScalarModel, read_scalar
from rollbook.models.weights import weight_hash
from rollbook.orchestration.stages.reward_model import MODULE, scored
from rollbook.records import (
    LedgerError,
    ModuleVersion,
    Ranking,
    ResolvedRecipe,
    RollbookError,
    Task,
    Unrated,
    VerifierStamp,
    canonical,
    encode,
)
from rollbook.records.recipe import RewardModel
from rollbook.rewards.calibration import Compared, log_odds
from rollbook.rewards.judges import Pair, PairwiseJudge, Preferred

TIE = 1e-9          # probabilities closer to one half prefer neither


def compared_by_model(folder: Path, stage: str | None) -> tuple[str, list[Compared]]:
    """The pairs that a run kept apart from its reward model, by the model: the stage's name, and one entry per labelled pair.

    Pairs that the labels hold equal are left out. The source of a pair is the family of its task.
    """
    with Ledger.open(folder, write=False) as ledger:
        recipe = next(iter(ledger.records(ResolvedRecipe)), None)
        versions = {one.stage: one for one in ledger.records(ModuleVersion) if one.module == MODULE}
        if recipe is None or not versions or (stage is not None and stage not in versions):
            raise LedgerError("this run has no such reward model", got=stage or folder.name,
                              fix=f"--stage {' or '.join(versions)}" if versions else "give a run that trained one")
        name = stage if stage is not None else list(versions)[-1]
        settings = recipe.settings.stages[name]
        assert isinstance(settings, RewardModel)
        families: Mapping[str, str] = {task.id: task.family for task in ledger.records(Task)}
        apart = [one for one in _rankings(ledger, tuple(settings.data)) if one.heldout]
        model = _loaded(folder, versions[name], recipe)
    found = []
    for ranking, own in zip(apart, scored(model, apart, torch.float32), strict=True):
        held = ranking.candidates
        found += [Compared(margin=own[i] - own[j], first_better=held[i].score > held[j].score,
                           lengths=(len(held[i].token_ids), len(held[j].token_ids)), source=families.get(ranking.task, ""))
                  for i, j in combinations(range(len(held)), 2) if held[i].score != held[j].score]
    return name, found


def _rankings(ledger: Ledger, stages: Sequence[str]) -> list[Ranking]:
    wanted = {f"{stage}/rankings" for stage in stages}
    return [one for event in ledger.events("RecordTable") if event.body["name"] in wanted
            for one in ledger.table_records(event) if isinstance(one, Ranking)]


def _loaded(folder: Path, version: ModuleVersion, recipe: ResolvedRecipe) -> ScalarModel:
    model = read_scalar(folder / version.checkpoint, load_policy(recipe.settings.model).decoder)
    if weight_hash(model.named_parameters()) != version.weights:
        raise LedgerError(f"the checkpoint of {version.stage} does not hold the reward model that was published",
                          got=version.checkpoint, why="it was changed after it was written",
                          fix="restore it from a copy of the run")
    return model.requires_grad_(False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """Two responses to one task with the label which is better.

    Example: Labelled(task="4 + 3 =", one="7", other="8", better="one", source="sums")
    """

    task: str
    one: str
    other: str
    better: str
    source: str = ""
    reference: str | None = None


def read_labelled(file: Path) -> tuple[list[Labelled], Counter[str]]:
    """The labelled pairs of a JSON-lines file, and how many lines could not be read, by reason."""
    rows: list[Labelled] = []
    unread: Counter[str] = Counter()
    for line in file.read_bytes().split(b"\n"):
        if line.strip():
            found = _labelled(line)
            if isinstance(found, str):
                unread[found] += 1
            else:
                rows.append(found)
    return rows, unread


def _labelled(line: bytes) -> Labelled | str:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return "not UTF-8"
    except (ValueError, RecursionError):
        return "not JSON"
    if not isinstance(row, dict):
        return "not an object"
    for name in ("task", "one", "other"):
        if not isinstance(row.get(name), str) or any("\ud800" <= character <= "\udfff" for character in row[name]):
            return f"no text under {name}"
    if row.get("better") not in ("one", "other"):
        return "better is neither one nor other"
    source, reference = row.get("source", ""), row.get("reference")
    if not isinstance(source, str) or not (reference is None or isinstance(reference, str)):
        return "source or reference of another type"
    return Labelled(task=row["task"], one=row["one"], other=row["other"], better=row["better"], source=source,
                    reference=reference)


def judged(judge: PairwiseJudge, rows: Sequence[Labelled]) -> list[Preferred | Unrated]:
    """The judge's preference for every labelled pair, both orders asked."""
    if not rows:
        raise RollbookError("no labelled pair can be read",
                            fix='one a line: {"task": .., "one": .., "other": .., "better": "one"}')
    return judge.compare([Pair(task=row.task, one=row.one, other=row.other, reference=row.reference) for row in rows])


def told(stamp: VerifierStamp, rows: Sequence[Labelled], found: Sequence[Preferred | Unrated]) -> bytes:
    """Every labelled pair with what the judge made of it and which judge it was, one JSON object a line."""
    lines = ({"row": encode(row), "judge": encode(stamp), ("unrated" if isinstance(one, Unrated) else "preferred"): encode(one)}
             for row, one in zip(rows, found, strict=True))
    return b"".join(canonical(line) + b"\n" for line in lines)


def compared(row: Labelled, found: Preferred) -> Compared:
    """A labelled pair as the judge sees it; where its two orders cancel out it has no margin."""
    margin = 0.0 if abs(found.probability - 0.5) < TIE else log_odds(found.probability)
    return Compared(margin=margin, first_better=row.better == "one", lengths=(len(row.one), len(row.other)), source=row.source)


def verdict(found: Preferred | Unrated) -> str | Unrated:
    """Which of a pair a preference names; Unrated where the two orders cancel out."""
    if isinstance(found, Unrated):
        return found
    if abs(found.probability - 0.5) < TIE:
        return Unrated(code="undecided", detail="the two orders cancel out")
    return "one" if found.probability > 0.5 else "other"
