"""A curation from its description: stages in order, each recorded and resumable, an immutable task set at the end.

    OUT/pipeline.json            the description as it is in force
    OUT/stages/03-NearDuplicates/record.json, rejected.jsonl, rows.jsonl (only what is new or changed), kept.npy
    OUT/tasks.jsonl              the set; read-only, its hash in
    OUT/taskset.json
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rollbook.records import CodecError, canonical, content_id, decode, digest, encode
from rollbook.records.codec import nearest
from rollbook.records.curation import CuratedSet, CurationStage
from rollbook.tasks.curation import asking, consensus, filters, grading, rewriting, rows, units
from rollbook.tasks.curation.filters import Filtered, Helpers
from rollbook.tasks.curation.rows import Candidate, candidate_of, read_candidates, rows_hash
from rollbook.tasks.errors import TaskError

SCHEMA = "rollbook.curation/1"
Stage = (filters.Completeness | filters.Verifiability | filters.ExactDuplicates | filters.NgramDuplicates | filters.NearDuplicates
         | filters.Decontaminate | grading.Grade | grading.PassRate | grading.TwoPass | grading.MajorityDisagrees
         | grading.ScoreVariance | grading.TraceCaps | grading.UpsampleHard | units.SemanticClusters | units.Split
         | consensus.CodeConsensus | rewriting.ChoiceToStatement | rewriting.CodeLanguages | rewriting.MixGeneral)
MODULES = (filters, grading, units, consensus, rewriting, rows, asking)
Told = Callable[[CurationStage], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grader:
    """A model that samples answers: a built-in name or folder, how it is asked and sampled."""

    model: str
    max_tokens: int
    temperature: float = 1.0
    context: int = 2048
    system_prompt: str = "Answer with the final result in \\boxed{}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A model that is asked in words: a local one by `model`, or one behind an OpenAI-compatible `server`."""

    model: str
    server: str | None = None
    context: int = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What a curation file says. `input` are files of rows beside it: JSON lines, JSON lists (.json), Parquet (.parquet)."""

    name: str
    input: tuple[str, ...]
    stages: tuple[Stage, ...]
    seed: int = 1
    graders: Mapping[str, Grader]
    chat: Chat | None = None


def load_pipeline(file: Path) -> Pipeline:
    """The pipeline of a YAML file; TaskError with what does not fit."""
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise TaskError(f"{file} is no readable YAML", got=str(error)[:200]) from None
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
        got = document.get("schema") if isinstance(document, Mapping) else type(document).__name__
        raise TaskError(f"{file} is no curation", got=repr(got), fix=f"write schema: {SCHEMA}")
    body = {key: value for key, value in document.items() if key != "schema"}
    for number, stage in enumerate(body.get("stages") or ()):
        kinds = [kind.__name__ for kind in Stage.__args__]
        if not isinstance(stage, Mapping) or stage.get("kind") not in kinds:
            named = str(stage.get("kind") if isinstance(stage, Mapping) else stage)
            raise TaskError(f"stages[{number}].kind names no stage", got=repr(stage)[:80],
                            fix=f"nearest names: {nearest(named, kinds)}")
    try:
        return decode(Pipeline, {"graders": {}, **body})  # type: ignore[no-any-return]
    except CodecError as error:
        raise TaskError(f"{file}: {error.what}", got=error.got, why=error.why, fix=error.fix) from None


def curate(pipeline: Pipeline, helpers: Helpers, out: Path, told: Told) -> CuratedSet:
    """Runs what is not done yet; a stage whose input, settings and code are those of its record is read, not run again."""
    files = [helpers.folder / name for name in pipeline.input]
    for file in files:
        if not file.is_file():
            raise TaskError("no such input file", got=str(file), fix="paths are relative to the curation file")
    out.mkdir(parents=True, exist_ok=True)
    _claim(out, pipeline)
    unread: Counter[str] = Counter()
    held = list(read_candidates(files, unread))
    if not held:
        counted = ", ".join(f"{why} {count}" for why, count in sorted(unread.items()))
        raise TaskError("no row of the input can be read", got=counted or "no row",
                        why="an empty set would look like a strict one",
                        fix="input is JSON lines, a JSON list (.json) or Parquet (.parquet); see docs/curation.md for a row")
    keys = {row.number: row.digest() for row in held}
    records = []
    for number, stage in enumerate(pipeline.stages, 1):
        folder = out / "stages" / f"{number:02d}-{type(stage).__name__}"
        before = rows_hash(keys[row.number] for row in held)
        settings = settings_digest(stage, pipeline, helpers)
        record = _done(folder, settings, before)
        kept = None if record is None else _replayed(folder, held, keys, record)
        if record is None or kept is None:
            record, kept = _run(Step(number=number, stage=stage, folder=folder, before=before, settings=settings), held, keys,
                                helpers)
        held = kept
        told(record)
        records.append(record)
    return _finished(pipeline, out, (held, records, unread, files))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One stage about to run."""

    number: int
    stage: Stage
    folder: Path
    before: str
    settings: str


def code_digest() -> str:
    """The hash of the code that curates."""
    return digest(b"".join(Path(str(module.__file__)).read_bytes() for module in MODULES))


def settings_digest(stage: Stage, pipeline: Pipeline, helpers: Helpers) -> str:
    """The hash of a stage's settings, of the code, and of what else it reads: files, registered protocols, models' settings."""
    files = list(getattr(stage, "protocols", {}).values()) + ([stage.file] if isinstance(stage, rewriting.MixGeneral) else [])
    read = {name: _file_digest(helpers.folder / name) for name in files if (helpers.folder / name).is_file()}
    protected = {name: list(items) for name, items in helpers.registered.items()} if getattr(stage, "registered", False) else {}
    grader = pipeline.graders.get(stage.grader) if isinstance(stage, grading.Grade) else None
    if isinstance(stage, grading.Grade) and grader is None:
        raise TaskError("the pipeline has no such grader", got=stage.grader,
                        fix=f"one of {', '.join(pipeline.graders) or 'none'}")
    asked = pipeline.chat if isinstance(stage, rewriting.ChoiceToStatement) else None
    return digest(canonical({"stage": encode(stage), "code": code_digest(), "files": read, "registered": protected,
                             "grader": encode(grader), "chat": encode(asked), "seed": pipeline.seed}))


def _run(step: Step, held: Sequence[Candidate], keys: dict[int, bytes],
         helpers: Helpers) -> tuple[CurationStage, list[Candidate]]:
    began = time.monotonic()
    done: Filtered = step.stage.apply(held, helpers)
    known = {row.number: row for row in held}
    new = [row for row in done.kept if known.get(row.number) is not row]
    for row in new:
        keys[row.number] = row.digest()
    record = CurationStage(
        number=step.number, kind=type(step.stage).__name__, settings=step.settings, before=step.before,
        after=rows_hash(keys[row.number] for row in done.kept), count_in=len(held), count_out=len(done.kept),
        rejected=dict(sorted(Counter(done.rejected.values()).items())), added=done.added,
        changed={name: count for name, count in sorted(done.changed.items()) if count}, notes=done.notes,
        observed={"seconds": time.monotonic() - began})
    _store(step.folder, record, done, new)
    return record, done.kept


def _store(folder: Path, record: CurationStage, done: Filtered, new: Sequence[Candidate]) -> None:
    """Writes a stage beside its place and moves it there: a stage is there whole or not at all."""
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    np.save(part / "kept.npy", np.array([row.number for row in done.kept], dtype=np.int64))
    _write(part / "rejected.jsonl", ({"number": number, "reason": why} for number, why in sorted(done.rejected.items())))
    _write(part / "rows.jsonl", ({"number": row.number, **row.document()} for row in new))
    (part / "record.json").write_bytes(canonical(encode(record)) + b"\n")
    gone = folder.with_name(folder.name + ".gone")
    shutil.rmtree(gone, ignore_errors=True)
    if folder.exists():
        folder.rename(gone)
    part.rename(folder)
    shutil.rmtree(gone, ignore_errors=True)


def _done(folder: Path, settings: str, before: str) -> CurationStage | None:
    """The record of a stage that was run on exactly these rows with these settings by this code."""
    try:
        record: CurationStage = decode(CurationStage, json.loads((folder / "record.json").read_bytes()))
    except (OSError, ValueError, CodecError):
        return None
    return record if (record.settings, record.before) == (settings, before) else None


def _replayed(folder: Path, held: Sequence[Candidate], keys: dict[int, bytes], record: CurationStage) -> list[Candidate] | None:
    """The rows that a stage kept, as it left them; None where its files do not give what its record says, so that it runs
    again."""
    known = {row.number: row for row in held}
    names = dict(keys)
    try:
        with (folder / "rows.jsonl").open("rb") as lines:
            for line in lines:
                number = json.loads(line)["number"]
                row = candidate_of(canonical({k: v for k, v in json.loads(line).items() if k != "number"}), number)
                if not isinstance(row, Candidate):
                    return None
                known[number] = row
                names[number] = row.digest()
        kept = [known[number] for number in np.load(folder / "kept.npy").tolist()]
        (folder / "rejected.jsonl").stat()
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None
    if rows_hash(names[row.number] for row in kept) != record.after:
        return None
    keys.update(names)
    return kept


def _finished(pipeline: Pipeline, out: Path, made: tuple[Sequence[Candidate], Sequence[CurationStage], Counter[str],
                                                        Sequence[Path]]) -> CuratedSet:
    held, records, unread, files = made
    part = out / "tasks.jsonl.part"
    part.unlink(missing_ok=True)
    _write(part, (row.document() for row in held))
    name = _file_digest(part)
    made_set = CuratedSet(name=pipeline.name, tasks=name, rows=len(held), sides=units.sides(held),
                       stages=tuple(content_id(record) for record in records), unread=dict(sorted(unread.items())),
                       sources={file.name: _file_digest(file) for file in files}, pipeline=digest(canonical(encode(pipeline))))
    os.chmod(part, 0o444)
    part.replace(out / "tasks.jsonl")
    _replace(out / "taskset.json", canonical(encode(made_set)) + b"\n")
    return made_set


def _replace(file: Path, data: bytes) -> None:
    """Writes a file beside its place and moves it there: it is there whole or as it was."""
    part = file.with_name(file.name + ".part")
    part.write_bytes(data)
    part.replace(file)


def _claim(out: Path, pipeline: Pipeline) -> None:
    """A folder belongs to one pipeline by name: another one is refused, a changed one goes on from what still holds."""
    file = out / "pipeline.json"
    if file.exists():
        try:
            other = json.loads(file.read_bytes()).get("name")
        except (ValueError, AttributeError):
            raise TaskError(f"{file} cannot be read", got=repr(file.read_bytes()[:40]), why="it says whose this folder is",
                            fix="remove the folder, or choose another one with --out") from None
        if other != pipeline.name:
            raise TaskError("this folder holds another curation", got=f"{other}, not {pipeline.name}",
                            fix="choose another folder with --out")
    elif any(other != file.with_name(file.name + ".part") for other in out.iterdir()):
        raise TaskError("the folder is not empty and holds no curation", got=str(out), fix="choose another folder with --out")
    _replace(file, canonical(encode(pipeline)) + b"\n")


def read_task_set(folder: Path) -> tuple[CuratedSet, list[dict[str, Any]]]:
    """A task set with its rows; TaskError where the file is not the one that was curated."""
    try:
        made: CuratedSet = decode(CuratedSet, json.loads((folder / "taskset.json").read_bytes()))
    except (OSError, ValueError, CodecError) as error:
        raise TaskError(f"{folder} holds no task set", got=str(error)[:120], fix="make one with `rollbook curate`") from None
    if (found := _file_digest(folder / "tasks.jsonl")) != made.tasks:
        raise TaskError(f"the tasks of {folder} were changed after curation",
                        got=f"{found[:12]}, the record says {made.tasks[:12]}",
                        why="what is trained on would not be what was curated", fix="run `rollbook curate` again")
    with (folder / "tasks.jsonl").open("rb") as lines:
        return made, [json.loads(line) for line in lines]


def _write(file: Path, documents: Any) -> None:
    with file.open("wb") as out:
        for document in documents:
            out.write(canonical(document) + b"\n")
        out.flush()
        os.fsync(out.fileno())


def _file_digest(file: Path) -> str:
    whole = hashlib.sha256()
    with file.open("rb") as data:
        while block := data.read(1 << 20):
            whole.update(block)
    return whole.hexdigest()
