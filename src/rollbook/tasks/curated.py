"""A curated set as a run's source of tasks: its rows become raw tasks and contracts, and its two sides stay as they were cut."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollbook.records import Budget, CodecError, RawTask, SplitManifest, Task, TaskId, content_id, decode, digest
from rollbook.records.curation import CuratedSet, CurationStage
from rollbook.records.recipe import TaskSettings
from rollbook.tasks.curation.asking import asked, reference_of, shown
from rollbook.tasks.curation.pipeline import read_task_set
from rollbook.tasks.curation.rows import Candidate, candidate_of
from rollbook.tasks.decontamination import Likeness, Side, decontaminate
from rollbook.tasks.errors import TaskError
from rollbook.tasks.generators import Acquired
from rollbook.tasks.splits import Split, units_digest
from rollbook.tasks.units import split_unit

FORMATTER = "curated/1"
PREDICATES = {"math": "math.equivalent", "code": "code.tests", "choice": "choice.letter", "text": "text.exact",
              "general": "judged"}
UNDETERMINED = "und"        # ISO 639-2: rows do not say in which language they are
ROUNDS = 8                  # times that tasks which resemble held-out ones are replaced by others


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A curated set as it lies in its folder: its record, those of its stages, the bytes of its tasks."""

    made: CuratedSet
    stages: tuple[CurationStage, ...]
    data: bytes


def read_curated(folder: Path, wanted: str | None) -> Stored:
    """The set of a folder; TaskError where its tasks are not those of its record, or of `wanted`, or a stage's record is gone."""
    made, _ = read_task_set(folder)
    if wanted is not None and made.tasks != wanted:
        raise TaskError(f"{folder} holds another set than the recipe names",
                        got=f"{made.tasks[:12]}, tasks.curated_hash is {wanted[:12]}",
                        why="the run would be trained on other tasks",
                        fix="name the folder of that set, or leave out tasks.curated_hash")
    found: dict[str, CurationStage] = {}
    for file in sorted((folder / "stages").glob("*/record.json")):
        try:
            record: CurationStage = decode(CurationStage, json.loads(file.read_bytes()))
        except (OSError, ValueError, CodecError):
            continue
        found[content_id(record)] = record
    missing = [name for name in made.stages if name not in found]
    if missing:
        raise TaskError(f"{folder} lacks the records of {len(missing)} of its {len(made.stages)} stages", got=missing[0],
                        why="nothing would say how the tasks were chosen",
                        fix="run `rollbook curate` again with this folder as --out")
    return Stored(made=made, stages=tuple(found[name] for name in made.stages), data=(folder / "tasks.jsonl").read_bytes())


def rows_in(data: bytes) -> list[Candidate]:
    """The rows of a set's file, numbered from 1."""
    rows = [candidate_of(line, number) for number, line in enumerate(data.split(b"\n"), 1) if line]
    broken = next((row for row in rows if not isinstance(row, Candidate)), None)
    if broken is not None:
        raise TaskError("a row of the curated set cannot be read", got=str(broken), fix="run `rollbook curate` again")
    return [row for row in rows if isinstance(row, Candidate)]


def curated(made: CuratedSet, data: bytes, settings: TaskSettings, *, likeness: Likeness) -> tuple[Acquired, Split]:
    """All rows as raw tasks and contracts, and the two sides: `train` and `heldout` rows of the set's own sides, by `seed`.

    What cannot be judged is rejected by its reason, as is a training row that shares its unit with a held-out one or resembles
    one (`likeness`). TaskError where a side has too few rows. Depends on the arguments alone.
    """
    raw: list[RawTask] = []
    tasks: dict[Task, str] = {}
    weights: dict[TaskId, int] = {}
    seen: set[tuple[str, str]] = set()
    rejected: Counter[str] = Counter()
    for row in rows_in(data):
        found = contract(row, made, settings)
        if isinstance(found, str):
            rejected[f"{_family(row)}/{found}"] += 1
        elif (found[0].content, found[1].reference) in seen:
            rejected[f"{_family(row)}/stands twice"] += 1
        else:
            seen.add((found[0].content, found[1].reference))
            raw.append(found[0])
            tasks[found[1]] = "heldout" if row.more.get("side") == "heldout" else "train"
            weights[found[1].id] = row.more.get("weight", 1)
    pools = {side: [task for task, own in tasks.items() if own == side] for side in ("train", "heldout")}
    drawn = random.Random(f"curated/{settings.seed}")
    held = drawn.sample(pools["heldout"], min(settings.heldout, len(pools["heldout"])))
    _enough(made, "heldout", settings.heldout, len(held))
    units = {task.canonical for task in held}
    free = [task for task in pools["train"] if task.canonical not in units]
    rejected["shares its unit with a held-out task"] += len(pools["train"]) - len(free)
    raw_of = {content_id(one): one for one in raw}
    train = _apart(drawn.sample(free, len(free)), held, settings.train, (raw_of, likeness, rejected))
    _enough(made, "train", settings.train, len(train))
    acquired = Acquired(raw=tuple(raw), tasks=tuple(tasks), rejected={why: n for why, n in sorted(rejected.items()) if n},
                        draws={made.name: made.rows}, formatter=FORMATTER)
    heavy = {task.id: weights[task.id] for task in train if weights[task.id] > 1}
    return acquired, Split(train=tuple(train), heldout=tuple(held), manifest=_manifest(train, held, raw_of), weights=heavy)


def contract(row: Candidate, made: CuratedSet, settings: TaskSettings) -> tuple[RawTask, Task] | str:
    """A row as its raw task and its contract, or why no answer to it could be judged."""
    reference = reference_of(row)
    if reference is None:
        return {"code": "no complete tests", "choice": "no option is right"}.get(row.kind, "no reference")
    text = shown(row)
    raw = RawTask(source=row.source or f"curated set {made.name}", licence=row.licence or "unstated",
                  acquired_at=str(row.more.get("acquired_at") or "unstated"), content=text, language=UNDETERMINED,
                  domain=row.kind, sensitive=(), lineage={**row.lineage, "set": made.tasks[:16], "row": str(row.number)})
    unit = split_unit(raw) or f"unit:{row.more.get('unit') or digest(row.problem.encode())[:24]}"
    return raw, Task(raw=content_id(raw), family=_family(row), prompt=asked(row, settings.system_prompt), reference=reference,
                     canonical=unit, predicate=PREDICATES[row.kind], initial_state="prompt", tools=(),
                     budget=Budget(max_tokens=settings.max_tokens), termination=("end_of_turn", "length"))


def _family(row: Candidate) -> str:
    return row.family or row.source or row.kind


def _apart(order: Sequence[Task], held: Sequence[Task], count: int,
           known: tuple[Mapping[str, RawTask], Likeness, Counter[str]]) -> list[Task]:
    """The first `count` of the training tasks that resemble no held-out one; those that do are replaced by later ones."""
    raw_of, likeness, rejected = known
    chosen, left = list(order[:count]), list(order[count:])
    for _ in range(ROUNDS):
        if not chosen or not held:
            return chosen
        sides = [Side(tasks=tuple(own), raws=tuple(raw_of[task.raw] for task in own)) for own in (chosen, held)]
        alike = {one.train for one in decontaminate(*sides, protocol="heldout", likeness=likeness).found}
        if not alike:
            return chosen
        rejected["resembles a held-out task"] += len(alike)
        chosen = [task for task in chosen if task.id not in alike]
        more = count - len(chosen)
        chosen, left = chosen + left[:more], left[more:]
    raise TaskError("training rows of the set keep resembling its held-out rows",
                    got=f"{rejected['resembles a held-out task']} so far",
                    why="what is measured on the held-out side would be memory",
                    fix="curate again with a Split of `families: true`")


def _enough(made: CuratedSet, side: str, wanted: int, found: int) -> None:
    if found < wanted:
        raise TaskError(f"the curated set {made.name} has not enough rows for tasks.{side} = {wanted}",
                        got=f"{found} that can be used",
                        why="its sides are "
                            + (", ".join(f"{name} {count}" for name, count in sorted(made.sides.items())) or "empty"),
                        fix=f"lower tasks.{side}, or curate again with a stage {{kind: Split, heldout: ..}}")


def _manifest(train: Sequence[Task], heldout: Sequence[Task], raw_of: Mapping[str, RawTask]) -> SplitManifest:
    sides = {"train": train, "heldout": heldout}
    units = {side: {task.canonical for task in own} for side, own in sides.items()}
    origins = [{_origin(raw_of[task.raw]) for task in own} for own in sides.values()]
    return SplitManifest(unit="unit of the curation", generators=tuple(sorted({task.family for task in (*train, *heldout)})),
                         counts={side: (len(own), len(units[side])) for side, own in sides.items()},
                         units={side: units_digest(own) for side, own in units.items()},
                         overlap=len(units["train"] & units["heldout"]), in_family=bool(origins[0] & origins[1]))


def _origin(raw: RawTask) -> str:
    return raw.lineage.get("generator") or raw.lineage.get("repository") or raw.source
