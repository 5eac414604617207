"""A curated set as the source of a run's tasks: pinned in its recipe by hash, and copied into the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rollbook.ledger import Ledger
from rollbook.ledger.manifest import without_home
from rollbook.records import CuratedSet, CurationStage, ResolvedRecipe, content_id
from rollbook.records.recipe import Provenance, TaskSettings
from rollbook.tasks import Acquired, Likeness, Split
from rollbook.tasks.curated import Stored, curated, read_curated

LIKENESS = Likeness(ngram=13, jaccard=0.8, boilerplate=0.05)      # 13 words: GPT-3's overlap, arXiv 2005.14165 appendix C


def pinned(recipe: ResolvedRecipe) -> ResolvedRecipe:
    """The recipe with the hash of the curated set that it names, so that no other set can take its place later."""
    tasks = recipe.settings.tasks
    if tasks.curated is None:
        return recipe
    made = _folder(tasks.curated, tasks.curated_hash).made
    about = {name: recipe.provenance.get(name, Provenance(origin="user", label=None))
             for name in ("tasks.curated", "tasks.curated_hash")}
    named = replace(tasks, curated=without_home(tasks.curated), curated_hash=made.tasks)
    return replace(recipe, settings=replace(recipe.settings, tasks=named), provenance={**recipe.provenance, **about})


def curated_tasks(wanted: TaskSettings, folder: str, kept: Stored | None, *, likeness: Likeness) -> tuple[Acquired, Split]:
    """The tasks of a curated set on its two sides; of the run's own copy, where there is one."""
    stored = kept if kept is not None else _folder(folder, wanted.curated_hash)
    acquired, sides = curated(stored.made, stored.data, wanted, likeness=likeness)
    return replace(acquired, curated=stored), sides


def record_set(ledger: Ledger, stored: Stored) -> None:
    """A curated set on a run's record: the stages that made it, its own record, and its rows as a blob under their hash."""
    ledger.put(stored.data)
    ledger.append_many([*stored.stages, stored.made])


def kept_set(ledger: Ledger) -> Stored | None:
    """The run's own copy of its curated set; None before it was recorded, or where the recipe names none."""
    made = next(iter(ledger.records(CuratedSet)), None)
    if made is None:
        return None
    stages = {content_id(one): one for one in ledger.records(CurationStage)}
    return Stored(made=made, stages=tuple(stages[name] for name in made.stages), data=ledger.get(made.tasks))


def _folder(path: str, wanted: str | None) -> Stored:
    return read_curated(Path(path).expanduser(), wanted)
