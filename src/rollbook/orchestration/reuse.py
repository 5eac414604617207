"""Stages of an earlier run taken over into a new one: by the hash of everything that went into them, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.ledger import Ledger
from rollbook.ledger.adoption import adopt
from rollbook.ledger.sameness import in_words, unlike
from rollbook.records import LedgerError, RecipeError, ResolvedRecipe, RunEnd, StageEnd, digest, encode
from rollbook.records.codec import canonical
from rollbook.records.graph import inputs, order, scored_by

OWN_WATCH = ("code.source",)        # beside what moves a run: the program itself
BASE = ("run", "model", "tasks", "environment", "reward", "judges", "suites")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """The run whose stages are taken over where they are the same; `again` is the first stage that is made anew whatever."""

    folder: Path
    again: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What is taken over: the stages, and the numbers of the first event before and of the last event of them in the source."""

    folder: Path
    run: str
    stages: tuple[str, ...]
    after: int
    last: int

    def told(self) -> dict[str, Any]:
        """What the manifest of the new run says of it."""
        return {"run": self.run, "stages": list(self.stages)}


def stage_keys(recipe: ResolvedRecipe) -> dict[str, str]:
    """For every stage, in order, a hash of all that its outcome depends on beside program and machine.

    That is its own settings, the keys of the stages that it reads, the rewards it uses, what all stages share (model, tasks,
    run), and what was made before it: versions are numbered through the run, and every number stands in the trajectories.
    """
    settings = recipe.settings
    document: Mapping[str, Any] = encode(settings)
    base = {name: document.get(name) for name in BASE}
    keys: dict[str, str] = {}
    before = digest(canonical(base))
    for name in order(settings.stages, settings.rewards):
        stage = settings.stages[name]
        judged = getattr(stage, "reward", None)
        reads = {field: keys.get(source, source) for field, source in inputs(stage).items()}
        scored = {source: keys.get(source, source) for source in scored_by(stage, settings.rewards)}
        before = keys[name] = digest(canonical({
            "name": name, "stage": document["stages"][name], "reward": document["rewards"].get(judged) if judged else None,
            "reads": reads, "scored": scored, "before": before}))
    return keys


def reusable(recipe: ResolvedRecipe, manifest: Mapping[str, Any], reuse: Reuse) -> Taken:
    """The leading stages of `reuse.folder` that this recipe would make again bit for bit; refuses where there are none.

    With `reuse.again` everything before that stage must be there, and nothing from it on is taken.
    """
    if recipe.settings.suites is not None:
        raise RecipeError("nothing is taken over into a run that asks suites along", got="suites",
                          why="the answers of the earlier run's policies are in folders that name that run",
                          fix="leave out --reuse: every stage is made again")
    wanted = list(stage_keys(recipe).items())
    if reuse.again is not None and reuse.again not in dict(wanted):
        raise RecipeError("the recipe has no stage to start from by this name", got=reuse.again,
                          fix=f"one of {', '.join(name for name, _ in wanted)}")
    with Ledger.open(reuse.folder, write=False) as source:
        _check_same(source.manifest, manifest, reuse.folder)
        before = next(iter(source.records(ResolvedRecipe)), None)
        first = next(source.events("ResolvedRecipe"), None)
        if before is None or first is None:
            raise LedgerError("nothing can be taken over from this run", got=reuse.folder.name, why="it holds no recipe")
        ends = {event.body["stage"]: event.seq for event in source.events("StageEnd")}
        same: list[str] = []
        for (name, key), (other, there) in zip(wanted, stage_keys(before).items(), strict=False):
            if name == reuse.again or (name, key) != (other, there) or name not in ends:
                break
            same.append(name)
        run = source.genesis
    names = [name for name, _ in wanted]
    if reuse.again is not None and len(same) < names.index(reuse.again):
        raise LedgerError(f"the run cannot start from {reuse.again}",
                          got=f"{names[len(same)]} is not the same in {reuse.folder.name}",
                          why="a stage reads what earlier stages left, and that would be another",
                          fix=f"leave out --from, which takes over {', '.join(same) or 'nothing'} and makes the rest")
    return Taken(folder=reuse.folder, run=run, stages=tuple(same), after=first.seq, last=ends[same[-1]] if same else first.seq)


def take_over(ledger: Ledger, taken: Taken) -> None:
    """Appends what is taken over to the new run, which holds its recipe and nothing else."""
    with Ledger.open(taken.folder, write=False) as source:
        adopt(ledger, source, after=taken.after, last=taken.last)
    ended = {end.stage for end in ledger.records(StageEnd)}
    if ended != set(taken.stages) or any(True for _ in ledger.records(RunEnd)):
        raise LedgerError("the run that is taken over from has changed meanwhile", got=", ".join(sorted(ended)),
                          fix="start again with another --out")


def _check_same(there: Mapping[str, Any], here: Mapping[str, Any], folder: Path) -> None:
    differ = [one for one in unlike(there, here) if one.moves_run or one.what in OWN_WATCH]
    if differ:
        raise LedgerError("nothing can be taken over from this run", got=f"{folder.name}: {in_words(differ)}",
                          why="the same stage may come out otherwise with another program or machine",
                          fix="leave out --reuse: every stage is made again")
