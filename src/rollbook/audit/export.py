"""Export: a run as a bundle with the ten parts of a complete release, what is missing named, the same bytes for equal runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import rollbook
from rollbook.audit.bundle_writer import Writer, bundle_at
from rollbook.audit.provenance import statements
from rollbook.ledger import Event, Ledger, environment_manifest, merge
from rollbook.ledger.bundle import EXPECTED, LOG, RECIPE, label, story
from rollbook.ledger.kinds import HOUSEKEEPING
from rollbook.records import (
    Census,
    CuratedSet,
    CurationStage,
    EvalReport,
    LedgerError,
    PolicyVersion,
    ResolvedRecipe,
    RunEnd,
    SftReport,
    StageEnd,
    encode,
)
from rollbook.records.codec import OBSERVED

Told = Callable[[str], None]
ABOUT = """\
A release of one training run. `index.json` lists every file with its SHA-256 and says for each of the ten parts what is there,
what is missing, and why. `rollbook reproduce BUNDLE --out DIR` runs it again from scratch and compares.

- `recipe.json`: every value in force and where it comes from
- `expected.json`: the hashes a reproduction ends with
- `log.jsonl`: kind and id of every record of the run, in order
- `provenance/`: an in-toto statement with an SLSA v1 predicate for each checkpoint, unsigned
- `objects/`: tensors of optimizer batches and updates, named by SHA-256
- `checkpoints/`: model folders for transformers' from_pretrained
- `source/`: the program that ran, where it was at hand
"""


@dataclass(slots=True, kw_only=True)
class Part:
    """One of the ten parts: `holds` maps what is there to its file or folder, `missing` what should be and is not to why,
    `none` what this run does not have to why not."""

    number: int
    folder: str
    title: str
    holds: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    none: dict[str, str] = field(default_factory=dict)

    def place(self, name: str) -> str:
        return f"{self.folder}/{name}"

    @property
    def status(self) -> str:
        if self.missing:
            return "partial" if self.holds else "missing"
        return "complete" if self.holds else "none"


@dataclass(slots=True, kw_only=True)
class Source:
    """What the parts are made from. `program` is the folder of the code in the bundle, None where it is not the run's."""

    ledger: Ledger
    recipe: ResolvedRecipe
    writer: Writer
    program: str | None

    def records(self, path: str, *kinds: str, where: Callable[[Mapping[str, Any]], bool] = lambda _: True) -> int:
        """Standing records of these kinds as lines; how many."""
        return self.writer.lines(path, ({"id": event.id, **_semantic(event)} for event in self.ledger.events()
                                        if event.kind in kinds and where(event.body)))

    def table(self, path: str, where: Callable[[str], bool]) -> int:
        """The records of tables as lines."""
        from rollbook.audit.bundle_writer import semantic
        from rollbook.records import content_id

        return self.writer.lines(path, (semantic(content_id(one), one) for event in self.ledger.events("RecordTable")
                                        if where(str(event.body["name"])) for one in self.ledger.table_records(event)))

    def objects(self, names: list[str]) -> None:
        """Stored tensor blobs, each once."""
        for name in names:
            path = f"objects/{name}.safetensors"
            if path not in self.writer.files:
                target = self.writer.made(path)
                target.write_bytes(self.ledger.get(name))
                self.writer.written(path)


    def curated(self, folder: str) -> int:
        """The run's curated set as the folder that `rollbook curate` makes; its rows."""
        made = next(iter(self.ledger.records(CuratedSet)), None)
        if made is None:
            return 0
        for stage in self.ledger.records(CurationStage):
            self.writer.json(f"{folder}/stages/{stage.number:02d}-{stage.kind}/record.json", encode(replace(stage, observed={})))
        self.writer.json(f"{folder}/taskset.json", encode(made))
        self.writer.made(f"{folder}/tasks.jsonl").write_bytes(self.ledger.get(made.tasks))
        self.writer.written(f"{folder}/tasks.jsonl")
        return made.rows


def export_run(run: str | os.PathLike[str], out: str | os.PathLike[str], *, told: Told = lambda _: None) -> dict[str, Any]:
    """Writes the bundle of a run to a folder, or to an archive where `out` ends with .tar.gz; its index.

    What merely happened (times, restarts) stands apart, in files that the index calls observed; all else is the same for equal
    runs, byte for byte.
    """
    from rollbook.audit.export_parts import ten_parts

    ledger = Ledger.open(Path(run), write=False)
    ledger.verify().require("a release")
    recipe = next(iter(ledger.records(ResolvedRecipe)), None)
    if recipe is None:
        raise LedgerError("this run cannot be released as a bundle", got="no recipe on record",
                          why="a bundle is there to be run again", fix="export a run that `rollbook run` made")
    with bundle_at(Path(out)) as writer:
        source = Source(ledger=ledger, recipe=recipe, writer=writer, program=program(ledger, writer, told))
        writer.json(RECIPE, encode(recipe))
        writer.json(EXPECTED, expected(ledger))
        told("the log and the provenance of checkpoints")
        writer.lines(LOG, ({"kind": event.kind, "id": event.id, "label": label(event)} for event in story(ledger)))
        for stage, statement in statements(ledger).items():
            writer.json(f"provenance/{stage}.intoto.json", statement)
        parts = ten_parts(source, told)
        writer.text("README.md", readme(recipe, parts))
        head = {"run": {"name": recipe.name, "title": recipe.title, "scale": recipe.scale, "seed": recipe.settings.run.seed},
                "parts": [{"number": part.number, "title": part.title, "folder": part.folder, "status": part.status,
                           "holds": part.holds, "missing": part.missing, "none": part.none} for part in parts]}
        writer.finish(head)
        return {**head, "files": len(writer.files), "bytes": sum(about["bytes"] for about in writer.files.values())}


def expected(ledger: Ledger) -> dict[str, Any]:
    """What a reproduction must end with: hashes first, then the numbers that are compared on another machine."""
    import hashlib

    hasher = hashlib.sha256()
    for event in story(ledger):
        hasher.update(f"{event.kind} {event.id}\n".encode())
    return {
        "complete": any(end.status == "completed" for end in ledger.records(RunEnd)),
        "log": hasher.hexdigest(),
        "versions": [{"index": one.index, "stage": one.stage, "weights": one.weights} for one in ledger.records(PolicyVersion)],
        "census": encode(merge(ledger.records(Census))),
        "evaluations": {one.stage: encode(one.accuracy) for one in ledger.records(EvalReport)},
        "sft_loss_nats": {f"{one.stage} {one.step}": one.loss_nats for one in ledger.records(SftReport)},
        "checkpoints": {end.stage: end.checkpoint for end in ledger.records(StageEnd) if end.checkpoint is not None},
        "manifest": dict(ledger.manifest)}


def program(ledger: Ledger, writer: Writer, told: Told) -> str | None:
    """The package's files, if they are those that ran."""
    package = Path(rollbook.__file__).parent
    recorded = ledger.manifest.get("code", {}).get("source")
    if recorded is None or environment_manifest()["code"]["source"] != recorded:
        return None
    told("the program")
    for path in sorted(path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        writer.copy(f"source/rollbook/{path.relative_to(package).as_posix()}", path)
    packages = {name: version for name, version in ledger.manifest.get("packages", {}).items() if version and name != "rollbook"}
    writer.text("source/requirements.txt", "".join(f"{name}=={packages[name]}\n" for name in sorted(packages)))
    return "source/rollbook"


def _semantic(event: Event) -> dict[str, Any]:
    return {key: value for key, value in event.body.items() if key != OBSERVED}


def observations(ledger: Ledger) -> list[dict[str, Any]]:
    """What merely happened: times of stages and steps, restarts, repairs. Not equal between equal runs."""
    kinds = {"StageEnd", "RunEnd", "StepReport", "SftReport", "EnvironmentProof", *HOUSEKEEPING}
    first = next(iter(ledger.events()), None)
    found = [] if first is None else [{"kind": "start", "time": first.time}]
    return found + [{"kind": event.kind, "time": event.time, "about": label(event), "observed": event.body.get(OBSERVED, {}),
                     **({"body": dict(event.body)} if event.kind in HOUSEKEEPING else {})}
                    for event in ledger.events() if event.kind in kinds]


def readme(recipe: ResolvedRecipe, parts: list[Part]) -> str:
    """What the bundle is and where its parts are, for a person."""
    lines = [f"# {recipe.title} ({recipe.name}, scale {recipe.scale}, seed {recipe.settings.run.seed})", "", ABOUT]
    for part in parts:
        lines += [f"## {part.number}. {part.title}: {part.status}", ""]
        lines += [f"- {what}: `{path}`" for what, path in part.holds.items()]
        lines += [f"- missing: {what}. {why}." for what, why in part.missing.items()]
        lines += [f"- not in this run: {what}. {why}." for what, why in part.none.items()] + [""]
    return "\n".join(lines)
