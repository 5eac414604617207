"""The ten parts of a complete release (the evidence-matrix case study, section 9), each from the records of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollbook.audit.export import Part, Source, observations
from rollbook.ledger import columns
from rollbook.ledger.bundle import COLLECTED
from rollbook.ledger.bundle import CURATED as FOLDER
from rollbook.records import Batch, Collected, EnvironmentImage, SftReport, StageEnd, Task, Update, encode
from rollbook.records.codec import OBSERVED
from rollbook.records.graph import CURATED, learns_curated
from rollbook.records.recipe import Conversations, Evaluate, PassRate, PolicyGradient, Pretrained, Sft, Stage

Told = Callable[[str], None]
LEFT_OUT = ("observed", "verdict_observed")
KEPT = "kept"
OTHER_CODE = "the program here is not the one that ran (its source hash is in `09_hardware/manifest.json`)"


def ten_parts(source: Source, told: Told = lambda _: None) -> list[Part]:
    """All ten parts, written."""
    parts = []
    for make in (_tasks, _synthesis, _environments, _verifiers, _mixtures, _rollouts, _model, _selection, _hardware, _evaluation):
        part = make(source)
        told(f"part {part.number}: {part.title}")
        parts.append(part)
    return parts


def _stages(source: Source, *kinds: type) -> Mapping[str, Stage]:
    return {name: stage for name, stage in source.recipe.settings.stages.items() if isinstance(stage, kinds)}


def _put(part: Part, what: str, name: str, count: int, why: str) -> None:
    """What is there when something was written, else why it is missing."""
    if count:
        part.holds[what] = part.place(name)
    else:
        part.missing[what] = why


def _code(part: Part, source: Source, what: str, *folders: str) -> None:
    if source.program is None:
        part.missing[what] = OTHER_CODE
    else:
        part.holds[what] = ", ".join(f"{source.program}/{folder}" for folder in folders)


def _tasks(source: Source) -> Part:
    part = Part(number=1, folder="01_tasks", title="Task identifiers, raw and filtered")
    none = "the run recorded none"
    _put(part, "raw tasks: source, licence, lineage, content", "raw.jsonl",
         source.table(part.place("raw.jsonl"), lambda name: name == "tasks/raw"), none)
    for side in ("train", "heldout"):
        _put(part, f"task contracts of the {side} side", f"{side}.jsonl",
             source.table(part.place(f"{side}.jsonl"), lambda name, side=side: name == f"tasks/{side}"), none)  # type: ignore[misc]
    _put(part, "split and decontamination", "split.jsonl",
         source.records(part.place("split.jsonl"), "SplitManifest", "Decontamination"), none)
    if source.recipe.settings.tasks.curated is not None:
        _put(part, "the curated set that the tasks are drawn from, with the records of its stages", "curated",
             source.curated(FOLDER), none)
    if _stages(source, PassRate):
        _put(part, "tasks kept by pass rate, and rejections by reason", "selection.jsonl",
             source.records(part.place("selection.jsonl"), "Selection"), "the stage had not ended")
    return part


def _synthesis(source: Source) -> Part:
    part = Part(number=2, folder="02_synthesis", title="Synthesis prompts, teachers and their sampling")
    stages = _stages(source, Sft)
    if not stages:
        part.none["synthetic data"] = "no stage of this recipe trains on any"
        return part
    count = source.table(part.place("demonstrations.jsonl"), lambda name: name.partition("/")[0] in {*stages, CURATED})
    _put(part, "demonstrations with messages, author and validation", "demonstrations.jsonl", count, "the stage had not begun")
    source.writer.json(part.place("mixture.json"), {name: encode(stage) for name, stage in stages.items()})
    part.holds["mixture of styles and share of general answers"] = part.place("mixture.json")
    _code(part, source, "programs that write the traces, prompts of the general answers, their sampling", "tasks",
          "orchestration/stages")
    if any(learns_curated(stage) for stage in stages.values()):
        part.missing["who wrote the traces of the curated set, and how"] = "the rows say no more than the author of each"
    else:
        part.none["a teacher model"] = ("traces are written by programs; general answers come from the policy the stage starts "
                                        "from")
    return part


def _environments(source: Source) -> Part:
    part = Part(number=3, folder="03_environments", title="Environment images, reset, network and tool schemas")
    none = "the run recorded none"
    _put(part, "images: digest, dependencies, reset, network and credential policy", "images.jsonl",
         source.records(part.place("images.jsonl"), "EnvironmentImage"), none)
    _put(part, "proof: built twice, reset twice, judged again under other conditions", "proof.jsonl",
         source.records(part.place("proof.jsonl"), "EnvironmentProof"), none)
    _code(part, source, "source of the environment", "environments")
    if not any(task.tools for task in source.ledger.records(Task)):
        part.none["tool schemas"] = "no task permits a tool"
    if all(image.reset == "stateless" for image in source.ledger.records(EnvironmentImage)):
        part.none["container images"] = "the environment has no state and runs inside the program"
    return part


def _verifiers(source: Source) -> Part:
    part = Part(number=4, folder="04_verifiers", title="Verifier sources, hidden tests, timeouts, judge prompts")
    _put(part, "composition of the reward as data", "composition.jsonl",
         source.records(part.place("composition.jsonl"), "Composition"), "the run recorded none")
    source.writer.json(part.place("settings.json"), encode(source.recipe.settings.reward))
    part.holds["reward values, time limits and workers"] = part.place("settings.json")
    part.holds["reference answers (field `reference`), which no policy sees"] = "01_tasks"
    _code(part, source, "source of the verifiers", "rewards")
    if all(image.hidden_tests is None for image in source.ledger.records(EnvironmentImage)):
        part.none["hidden tests"] = "answers are compared with a reference; no program is tested"
    part.none["judge prompts"] = "no model judges"
    return part


def _mixtures(source: Source) -> Part:
    part = Part(number=5, folder="05_mixtures", title="Every mixture and mask")
    source.writer.json(part.place("tasks.json"), encode(source.recipe.settings.tasks))
    part.holds["mixture of task families"] = part.place("tasks.json")
    if _stages(source, Sft):
        _put(part, "supervised steps: demonstrations in order; token ids and loss weights in `objects/`", "sft.jsonl",
             source.records(part.place("sft.jsonl"), "SftReport"), "no supervised step was taken")
        source.objects([one.tensors for one in source.ledger.records(SftReport)])
    if _stages(source, Conversations):
        _put(part, "conversations of files: rows kept and left out; the files themselves in `files/`", "collected.jsonl",
             source.records(part.place("collected.jsonl"), "Collected"), "no file was read")
        for name in dict.fromkeys(one.sha256 for one in source.ledger.records(Collected)):
            target = source.writer.made(f"{COLLECTED}/{name}")
            target.write_bytes(source.ledger.get(name))
            source.writer.written(f"{COLLECTED}/{name}")
    if _stages(source, PolicyGradient):
        _put(part, "policy batches: sequences, micro-batches, weights; tensors in `objects/`", "batches.jsonl",
             source.records(part.place("batches.jsonl"), "Batch"), "no policy update was made")
        _put(part, "credit of every sequence", "credit.jsonl", source.records(part.place("credit.jsonl"), "Credit"),
             "no policy update was made")
        source.objects([one.tensors for one in source.ledger.records(Batch)])
    _put(part, "census of attempts by family and outcome", "census.jsonl", source.records(part.place("census.jsonl"), "Census"),
         "no attempt was made")
    part.none["preference mixture"] = "no stage of this recipe trains on preferences"
    return part


def _rollouts(source: Source) -> Part:
    part = Part(number=6, folder="06_rollouts", title="Rollout log-probs, versions, queue policy and staleness limit")
    _put(part, "trajectories: token ids, log-probs, version of each segment, verdicts, outcomes", "trajectories.parquet",
         _trajectories(source, part.place("trajectories.parquet")), "no attempt was made")
    _put(part, "envelopes and what was issued under them", "requests.jsonl",
         source.records(part.place("requests.jsonl"), "SamplingEnvelope", "Dispatch"), "nothing was sampled")
    stages = _stages(source, PolicyGradient)
    if stages:
        policy = {name: {"max_policy_age": stage.max_policy_age, "waves": stage.max_waves, "prompts": stage.prompts,
                         "per_task": stage.per_task, "groups": stage.groups, "queue": "none: sampling and training alternate"}
                  for name, stage in stages.items() if isinstance(stage, PolicyGradient)}
        source.writer.json(part.place("queue.json"), policy)
        part.holds["queue policy and staleness limit"] = part.place("queue.json")
    else:
        part.none["queue policy and staleness limit"] = "no stage of this recipe trains on its own samples"
    return part


def _trajectories(source: Source, path: str) -> int:
    """Every trace table in one Parquet file, without what was merely observed; how many rows.

    A column `kept` holds what sampling decided, as JSON, where a stage asked for it.
    """
    names = [name for name in columns.SCHEMA.names if name not in LEFT_OUT]
    keeps = any(stage.sampling_mask or stage.routing == "sampled" for stage in _stages(source, PolicyGradient).values()
                if isinstance(stage, PolicyGradient))
    target = source.writer.made(path)
    writer, rows = None, 0
    for batch in source.ledger.traces(None) if keeps else source.ledger.traces(names):
        batch = batch.select(names).append_column(KEPT, _kept(batch)) if keeps else batch
        writer = writer or pq.ParquetWriter(target, batch.schema, compression="zstd", compression_level=3)
        writer.write_batch(batch)
        rows += batch.num_rows
    if writer is not None:
        writer.close()
        source.writer.written(path)
    return rows


def _kept(batch: pa.RecordBatch) -> pa.Array:
    """What was kept of each trajectory's sampling as JSON; null where nothing was."""
    held = batch.column("episode").to_pylist() if "episode" in batch.schema.names else [None] * batch.num_rows
    kept = [None if one is None else json.loads(one).get("kept") for one in held]
    return pa.array([None if one is None else json.dumps(one, sort_keys=True) for one in kept], pa.string())


def _model(source: Source) -> Part:
    part = Part(number=7, folder="07_model", title="Model, optimizer, scheduler, precision, parallelism, seeds")
    settings = source.recipe.settings
    training = {name: {"optimizer": encode(stage.optimizer), "steps": stage.steps, "max_batch_tokens": stage.max_batch_tokens}
                for name, stage in settings.stages.items() if isinstance(stage, (Sft, PolicyGradient))}
    source.writer.json(part.place("settings.json"), {
        "model": encode(settings.model), "run": encode(settings.run), "threads": source.ledger.manifest.get("threads"),
        "parallelism": "one process", "training": training})
    part.holds["model, optimizers with schedule, precision, threads, seeds"] = part.place("settings.json")
    _put(part, "published versions: weights, optimizer state by hash, what they were made from", "versions.jsonl",
         source.records(part.place("versions.jsonl"), "PolicyVersion"), "none was published")
    _put(part, "updates: loss, gradient norm, rates; log-probs and gradients in `objects/`", "updates.jsonl",
         source.records(part.place("updates.jsonl"), "Update"), "no policy update was made")
    source.objects([one.tensors for one in source.ledger.records(Update)])
    for end in source.ledger.records(StageEnd):
        if end.checkpoint is None:
            continue
        folder = source.ledger.root / end.checkpoint
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            source.writer.copy(path.relative_to(source.ledger.root).as_posix(), path)
        if folder.is_dir():
            part.holds[f"weights after {end.stage}"] = end.checkpoint
        else:
            part.missing[f"weights after {end.stage}"] = "the checkpoint is not in this copy of the run"
    if isinstance(settings.model, Pretrained):
        part.missing["start weights"] = "they are somebody else's release, named by the recipe and by hash in version 0"
    part.missing["optimizer moments"] = "only their hashes are kept; `rollbook replay` makes them again"
    return part


def _selection(source: Source) -> Part:
    part = Part(number=8, folder="08_selection", title="Reward and value models, checkpoint selection rules")
    rule = "the last version of a stage is its checkpoint; no checkpoint was chosen by a score"
    source.writer.json(part.place("rule.json"), {"rule": rule, "ends": [_plain(end) for end in source.ledger.records(StageEnd)]})
    part.holds["checkpoint selection rule and the stages' ends"] = part.place("rule.json")
    _put(part, "release decisions", "gates.jsonl", source.records(part.place("gates.jsonl"), "GateDecision"), "none was made")
    part.none["reward model"] = "rewards are computed by rules (part 4)"
    part.none["value model"] = "no objective of this recipe reads values"
    return part


def _plain(record: Any) -> dict[str, Any]:
    return {key: value for key, value in encode(record).items() if key != OBSERVED}


def _hardware(source: Source) -> Part:
    part = Part(number=9, folder="09_hardware", title="Hardware, failures, restarts, times")
    source.writer.json(part.place("manifest.json"), dict(source.ledger.manifest))
    part.holds["machine, packages, code, thread settings"] = part.place("manifest.json")
    count = source.writer.lines(part.place("observed.jsonl"), observations(source.ledger), observed=True)
    _put(part, "times of stages and steps, memory, restarts, repairs, failures (differs between equal runs)", "observed.jsonl",
         count, "nothing was observed")
    if source.recipe.settings.run.device == "cpu":
        part.none["accelerator hours"] = "no accelerator was used; wall times and threads are given"
    return part


def _evaluation(source: Source) -> Part:
    part = Part(number=10, folder="10_evaluation", title="Evaluation scaffold, budget and aggregation")
    if not _stages(source, Evaluate):
        part.none["evaluations"] = "no stage of this recipe evaluates"
        return part
    _put(part, "protocols: tasks, environment, verifier, budget, trials, aggregation", "protocols.jsonl",
         source.records(part.place("protocols.jsonl"), "ProtocolBundle"), "no evaluation had begun")
    _put(part, "reports with intervals and outcomes, and comparisons", "reports.jsonl",
         source.records(part.place("reports.jsonl"), "EvalReport", "Comparison"), "no evaluation had ended")
    _code(part, source, "scaffold and statistics", "evaluation", "rollouts/solve.py")
    part.holds["the evaluated trajectories (attempts named eval/...)"] = "06_rollouts/trajectories.parquet"
    return part
