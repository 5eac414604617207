"""The curated set of a run: is it the one that its recipe names, are its rows kept, and do its stages account for all of them?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from rollbook.audit.index import RunIndex
from rollbook.records import CuratedSet
from rollbook.tasks.curated import rows_in
from rollbook.tasks.curation.rows import rows_hash
from rollbook.tasks.errors import TaskError

AGAIN = "curate again, and train on the set that comes of it"


def curated_faults(run: RunIndex) -> Iterator[tuple[str, str]]:
    """What is wrong with the set that a recipe names: (evidence, remedy)."""
    wanted = run.recipe.settings.tasks if run.recipe is not None else None
    if wanted is None or wanted.curated is None:
        if run.curated is not None and wanted is not None:
            yield f"the curated set {run.curated.name} is on record, and the recipe names none", AGAIN
        return
    made = run.curated
    if made is None:
        yield f"the recipe trains on the curated set of {wanted.curated}, and none is on record", "record the set first"
        return
    if made.tasks != wanted.curated_hash:
        yield (f"the curated set on record has the hash {made.tasks[:12]}, the recipe's has "
               f"{(wanted.curated_hash or 'none')[:12]}", "train on the set that the recipe names")
    kept = run.kept_set
    if kept is None:
        yield f"the rows of the curated set {made.tasks[:12]} are not kept with the run", "keep the set's file among the objects"
    elif isinstance(run.generated, str):
        yield run.generated, AGAIN
    yield from _stages(run, made, None if kept is None else kept[1])


def _stages(run: RunIndex, made: CuratedSet, data: bytes | None) -> Iterator[tuple[str, str]]:
    missing = [name for name in made.stages if name not in run.curation]
    if missing:
        yield f"{len(missing)} of the {len(made.stages)} stages of the curated set are not on record, first {missing[0]}", AGAIN
        return
    stages = [run.curation[name] for name in made.stages]
    for before, after in pairwise(stages):
        if (before.after, before.count_out) != (after.before, after.count_in):
            yield (f"curation stage {after.number} ({after.kind}) did not begin with the rows that stage {before.number} "
                   f"({before.kind}) left", AGAIN)
    if data is None:
        return
    try:
        rows = rows_in(data)
    except TaskError as error:
        yield f"the rows of the curated set cannot be read: {error.what}", AGAIN
        return
    if len(rows) != made.rows or (stages and rows_hash(row.digest() for row in rows) != stages[-1].after):
        yield f"the curated set has {len(rows)} rows that are not those which its last stage left ({made.rows} rows)", AGAIN
