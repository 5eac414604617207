"""Provenance of a run's checkpoints as in-toto statements (v1) with the SLSA provenance predicate (v1), unsigned.

Structure: in-toto Attestation Framework, Statement v1 and ResourceDescriptor v1; SLSA v1.0, Provenance.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollbook.ledger import Ledger, RecordTable
from rollbook.ledger.objects import file_digest
from rollbook.records import Batch, PolicyVersion, ResolvedRecipe, SftReport, StageEnd, Update, content_id, encode
from rollbook.records.graph import START

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:rollbook:training-stage:1"
BUILDER = "urn:rollbook:runner:local:1"
IDS = "the ids of the table's records, one a line"
TENSORS = "names, shapes, dtypes and bytes of all tensors in name order"


def statements(ledger: Ledger) -> dict[str, dict[str, Any]]:
    """A statement for each stage that left a checkpoint in this folder: what it is, and what it was made from."""
    recipe = next(iter(ledger.records(ResolvedRecipe)))
    versions = {version.id: version for version in ledger.records(PolicyVersion)}
    found: dict[str, dict[str, Any]] = {}
    ended: dict[str, StageEnd] = {}
    for end in ledger.records(StageEnd):
        ended[end.ended] = ended.get(end.ended, end)
        if end.checkpoint is not None and (ledger.root / end.checkpoint).is_dir():
            parent = ended.get(end.started)
            found[end.stage] = _statement(ledger, recipe, end, (versions[end.started], parent), versions[end.ended])
    return found


def _statement(ledger: Ledger, recipe: ResolvedRecipe, end: StageEnd, started: tuple[PolicyVersion, StageEnd | None],
               ended: PolicyVersion) -> dict[str, Any]:
    assert end.checkpoint is not None
    stage = recipe.settings.stages[end.stage]
    manifest = ledger.manifest
    packages = {name: value for name, value in manifest.get("packages", {}).items() if value}
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"recipe": content_id(recipe), "name": recipe.name, "scale": recipe.scale, "stage": end.stage,
                                   "settings": encode(stage), "run": encode(recipe.settings.run)},
            "internalParameters": {"threads": manifest.get("threads"), "machine": manifest.get("machine")},
            "resolvedDependencies": [_code(manifest), _parent(ledger, *started), *_tables(ledger, end.stage),
                                     *_objects(ledger, end.stage)]},
        "runDetails": {
            "builder": {"id": BUILDER, "version": packages},
            "metadata": {"invocationId": f"{ledger.genesis}/{end.stage}"},
            "byproducts": [{"name": ended.id, "digest": {"blake3": ended.weights}, "annotations": {"digestOf": TENSORS}}]}}
    subject = _files(ledger.root, end.checkpoint)
    return {"_type": STATEMENT, "subject": subject, "predicateType": PREDICATE, "predicate": predicate}


def _files(root: Path, folder: str) -> list[dict[str, Any]]:
    return [{"name": path.relative_to(root).as_posix(), "digest": {"sha256": file_digest(path)}}
            for path in sorted((root / folder).rglob("*")) if path.is_file()]


def _code(manifest: Mapping[str, Any]) -> dict[str, Any]:
    code = manifest.get("code", {})
    digests = {"sha256": code.get("source"), "gitCommit": code.get("commit")}
    changed = {} if code.get("diff") is None else {"uncommittedChanges": code["diff"]}
    return {"name": "rollbook", "digest": {name: value for name, value in digests.items() if value},
            "annotations": {"digestOf": "path, size and bytes of every file of the package in order", **changed}}


def _parent(ledger: Ledger, version: PolicyVersion, end: StageEnd | None) -> dict[str, Any]:
    """The weights the stage began with: a checkpoint of the run by its file, or the recipe's model by its tensors."""
    weights = {"blake3": version.weights}
    if end is None or end.checkpoint is None:
        return {"name": START, "digest": weights, "annotations": {"digestOf": TENSORS, "policyVersion": version.id}}
    file = ledger.root / end.checkpoint / "model.safetensors"
    if not file.is_file():
        return {"name": end.checkpoint, "digest": weights, "annotations": {"digestOf": TENSORS, "policyVersion": version.id}}
    return {"name": file.relative_to(ledger.root).as_posix(), "digest": {"sha256": file_digest(file)},
            "annotations": {"policyVersion": version.id, "weights": version.weights}}


def _tables(ledger: Ledger, stage: str) -> list[dict[str, Any]]:
    """The data sets the stage could draw from: the run's tasks and its own tables; never the held-out side."""
    found = []
    for event in ledger.events("RecordTable"):
        table: RecordTable = event.record()
        if table.name in ("tasks/raw", "tasks/train") or table.name.startswith(f"{stage}/"):
            found.append({"name": table.name, "digest": {"sha256": table.root},
                          "annotations": {"digestOf": IDS, "records": table.of, "rows": table.rows}})
    return found


def _objects(ledger: Ledger, stage: str) -> list[dict[str, Any]]:
    """Every stored tensor blob of the stage's optimizer steps."""
    named: dict[str, str] = {}
    batches: dict[str, str] = {}
    for event in ledger.events():
        record: Any = event.record() if event.kind in ("SftReport", "Batch", "Update") else None
        match record:
            case SftReport() if record.stage == stage:
                named.setdefault(record.tensors, f"step {record.step}")
            case Batch() if record.scope.startswith(f"{stage}/"):
                named.setdefault(record.tensors, f"batch {record.scope}")
                batches[event.id] = record.scope
            case Update() if record.batch in batches:
                named.setdefault(record.tensors, f"update {batches.pop(record.batch)}")
            case _:
                pass
    return [{"name": f"objects/{name}.safetensors", "digest": {"sha256": name}, "annotations": {"holds": what}}
            for name, what in named.items()]
