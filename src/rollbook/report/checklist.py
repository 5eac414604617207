"""The ten questions of a research audit, answered for a run from its artifacts: facts, each with the record it stands in."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rollbook.evidence import parameters
from rollbook.evidence.accounting import Quantity, number, ratio
from rollbook.evidence.errors import EvidenceError
from rollbook.evidence.registry import Registry
from rollbook.ledger import TraceTable
from rollbook.records import (
    AuditReport,
    Census,
    Demonstration,
    EvalReport,
    GateDecision,
    RawTask,
    RollbookError,
    RunEnd,
    Selection,
    SftReport,
    StageEnd,
    Task,
    content_id,
)
from rollbook.report.checklist_facts import Answer, Fact, Seen, listed, stated, stored
from rollbook.report.facts import read_facts
from rollbook.report.tables import LABELS, leaves
from rollbook.report.text import percent, short


def checklist(run: Path, parts: Sequence[tuple[str, str]], registry: Registry) -> tuple[Answer, ...]:
    """The ten answers for a run; `parts` are title and status of the ten parts of a release. LedgerError for what is no run."""
    seen = Seen(facts=read_facts(run), parts=parts, registry=registry)
    seen.read()
    return tuple(Answer(number=place, question=question, facts=tuple(answer(seen)))
                 for place, (question, answer) in enumerate(_QUESTIONS, 1))


def _source(seen: Seen) -> Iterator[Fact]:
    facts, recipe = seen.facts, seen.recipe
    code = facts.manifest.get("code") or {}
    yield Fact(what="kind of source", value="artifacts of a run", where="manifest.json")
    yield Fact(what="records", value=number(facts.events), where="events/")
    yield Fact(what="log unbroken", value="no" if facts.faults else "yes", where=facts.faults[0] if facts.faults else "events/")
    yield stated("program, by hash", short(code.get("source")) if code.get("source") else None, "manifest.json", "no source hash")
    yield stated("recipe", content_id(recipe)[:27] if recipe else None, "ResolvedRecipe", "no recipe on record")
    audit = facts.last(AuditReport)
    failed = sum(row.result == "fail" for row in audit.rows) if audit else 0
    yield stated("audit on record", f"{failed} of {len(audit.rows)} rows failed" if audit else None, "AuditReport",
                 "none; `rollbook audit RUN --record` writes one")


def _tokens(seen: Seen) -> Iterator[Fact]:
    reports = seen.facts.all(SftReport)
    if reports:
        shown = [name for report in reports for name in report.demonstrations]
        processed = Quantity(amount=sum(report.tokens for report in reports), unit="tokens processed",
                             of="policy tokens of demonstrations, repetitions counted")
        yield Fact(what="supervised", value=str(processed), where="SftReport")
        yield Fact(what="demonstrations", where="SftReport",
                   value=f"{number(len(shown))} shown, {number(len(set(shown)))} different")
        yield from _unique(seen, set(shown), processed)
    if seen.batches:
        used = [name for batch in seen.batches for name in batch.traces]
        yield Fact(what="reinforcement learning", where="Batch", value=str(Quantity(
            amount=sum(batch.action_tokens for batch in seen.batches), unit="tokens processed", of="policy tokens in updates")))
        yield Fact(what="sequences in updates", value=f"{number(len(used))}, {number(len(set(used)))} different", where="Batch")
        yield stated("tasks trained on", number(len(seen.trained_tasks)) if seen.trained_tasks else None, "Credit",
                     "no credit recorded")
    if not reports and not seen.batches:
        yield Fact(what="tokens trained on", value=None, where="no stage has trained")
    yield Fact(what="sampled in all", where="TraceTable", value=str(Quantity(
        amount=sum(table.tokens for table in seen.facts.all(TraceTable)), unit="tokens processed",
        of="tokens of trajectories, those of prompts and of evaluation among them")))


def _unique(seen: Seen, shown: set[str], processed: Quantity) -> Iterator[Fact]:
    """Policy tokens of the different demonstrations, and how often each was passed."""
    try:
        sizes = {content_id(one): sum(span.length for span in one.owners if span.owner == "policy")
                 for one in seen.facts.ledger.records(Demonstration)}
    except RollbookError as error:
        yield Fact(what="unique tokens", value=None, where=error.what)
        return
    if not shown <= set(sizes):
        yield Fact(what="unique tokens", value=None, where=f"{len(shown - set(sizes))} demonstrations are not in the run")
        return
    unique = Quantity(amount=sum(sizes[name] for name in shown), unit="unique tokens",
                      of="policy tokens of different demonstrations")
    yield Fact(what="of these", value=str(unique), where="Demonstration")
    if unique.amount:
        yield Fact(what="passes over each token", value=f"{ratio(processed, unique).value:.3g}", where="SftReport")


def _parameters(seen: Seen) -> Iterator[Fact]:
    ends = [end for end in seen.facts.all(StageEnd) if end.checkpoint is not None]
    if not ends:
        yield Fact(what="parameters", value=None, where="no checkpoint on record")
        return
    checkpoint = str(ends[-1].checkpoint)
    folder = seen.facts.root / checkpoint
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        tensors, elements = stored(folder)
    except (OSError, ValueError, struct.error) as error:
        yield Fact(what="parameters", value=None, where=f"{checkpoint} cannot be read: {type(error).__name__}")
        return
    yield Fact(what="in the checkpoint's tensors", value=f"{number(elements)} in {tensors} tensors", where=checkpoint)
    try:
        counted = parameters.count(config)
    except EvidenceError as error:
        yield Fact(what="by the configuration", value=None, where=error.what)
        return
    where = f"{checkpoint}/config.json"
    yield Fact(what="total", value=number(counted.total), where=where)
    yield Fact(what="active for a token", value=number(counted.active), where=where)
    yield Fact(what="without embeddings", value=number(counted.non_embedding), where=where)
    yield Fact(what="embedding and head", value="one table" if counted.tied else "two tables", where=where)


def _tasks(seen: Seen) -> Iterator[Fact]:
    facts = seen.facts
    for what, name in (("raw tasks", "tasks/raw"), ("training tasks", "tasks/train"), ("held-out tasks", "tasks/heldout")):
        rows = seen.rows(name)
        yield stated(what, number(rows) if rows is not None else None, f"RecordTable {name}", "no such table")
    for chosen in facts.all(Selection):
        yield Fact(what=f"kept by {chosen.stage}", value=f"{number(len(chosen.kept))} of {number(len(chosen.pass_counts))} tasks",
                   where="Selection")
    yield Fact(what="environments", value=number(len({content_id(image) for image in seen.images})), where="EnvironmentImage")
    yield Fact(what="policy samples issued", value=number(seen.issued), where="Dispatch")
    yield Fact(what="trajectories", value=number(sum(table.rows for table in facts.all(TraceTable))), where="TraceTable")
    used = {name for batch in seen.batches for name in batch.traces}
    yield Fact(what="trajectories in updates", value=number(len(used)), where="Batch")


def _optimizer(seen: Seen) -> Iterator[Fact]:
    kinds = Counter(str(batch.objective.get("kind")) for batch in seen.batches)
    recipe = seen.recipe
    if not kinds:
        yield Fact(what="objective", value=None, where="no policy update was made")
    for kind, count in kinds.items():
        yield Fact(what="objective", value=f"{kind} in {number(count)} batches", where="Batch.objective")
    for spec in dict.fromkeys(spec for batch in seen.batches for spec in batch.terms):
        yield Fact(what=f"term {spec.name}", where="Batch.terms",
                   value=f"{spec.coefficient:g} x {spec.aggregate} over {spec.population}")
    for path, about in (recipe.provenance if recipe else {}).items():
        if path.endswith(".objective.kind"):
            yield Fact(what=path, value=LABELS[about.label] if about.label else "choice",
                       where=about.claim or about.reason or "recipe")
    audit = seen.facts.last(AuditReport)
    rows = [row.result for row in audit.rows if row.stage == 11] if audit else []
    yield stated("loss computed again from its equation", rows[0] if rows else None, "AuditReport, row 11",
                 "no audit on record; `rollbook audit RUN --record` writes one")
    for path, value in leaves(recipe.settings) if recipe else ():
        if path.endswith("optimizer.learning_rate"):
            yield Fact(what=path, value=f"{value:g} (AdamW)", where="ResolvedRecipe")


def _scale(seen: Seen) -> Iterator[Fact]:
    recipe = seen.recipe
    if recipe is None:
        yield Fact(what="recipe", value=None, where="no recipe on record")
        return
    labels = Counter(LABELS[about.label] if about.label else "choice" for about in recipe.provenance.values())
    yield Fact(what="subject", value=recipe.subject, where="ResolvedRecipe")
    yield Fact(what="scale", value=recipe.scale, where="ResolvedRecipe")
    yield Fact(what="model", value=str(seen.facts.manifest.get("model")), where="manifest.json")
    for label, count in sorted(labels.items(), key=lambda item: -item[1]):
        yield Fact(what=f"values: {label}", value=number(count), where="ResolvedRecipe.provenance")
    scaled = [path for path, about in recipe.provenance.items() if about.scaled_from is not None]
    yield Fact(what="values other than the source's", value=listed(scaled), where="ResolvedRecipe.provenance")
    own = [path for path, about in recipe.provenance.items() if about.origin == "user"]
    yield Fact(what="values set by the user", value=listed(own), where="ResolvedRecipe.provenance")


def _benchmarks(seen: Seen) -> Iterator[Fact]:
    reports = [report for report in seen.facts.all(EvalReport) if "/probe/" not in report.stage]
    if not reports:
        yield Fact(what="evaluations", value=None, where="none on record")
    for report in reports:
        protocol, right = seen.protocols.get(report.protocol), report.accuracy
        span = f"{percent(right.low)} to {percent(right.high)}, {right.method}"
        kin = ", same family as training" if report.in_family else ""
        yield Fact(what=report.stage, where="EvalReport",
                   value=f"{percent(right.estimate)} ({span}) of {right.count} outcomes, {report.unscored} unscored{kin}")
        yield stated(f"{report.stage}: protocol", f"{protocol.trials} attempt{'s' if protocol.trials > 1 else ''} a task, "
                     f"{protocol.aggregation} of attempts, temperature {protocol.temperature:g}, top-p {protocol.top_p:g}, "
                     f"{protocol.max_tokens} tokens" if protocol else None, "ProtocolBundle", "the protocol is not on record")


def _scaffold(seen: Seen) -> Iterator[Fact]:
    scaffolds, turns = sorted({one.scaffold for one in seen.envelopes}), {one.max_turns for one in seen.envelopes}
    yield stated("scaffolds", listed(scaffolds) if scaffolds else None, "SamplingEnvelope", "nothing was sampled")
    yield stated("most turns of an attempt", str(max(turns)) if turns else None, "SamplingEnvelope", "nothing was sampled")
    yield _tried("tools", "Task.tools", lambda: {tool for task in seen.facts.ledger.records(Task) for tool in task.tools})
    yield _tried("authors of tokens", "Trace.segments", seen.owners)
    censuses = seen.facts.all(Census)
    yield Fact(what="attempts resampled", value=number(sum(one.count("resampled") for one in censuses)), where="Census")


def _tried(what: str, where: str, names: Callable[[], Any]) -> Fact:
    """The names that the run's tables hold, or why these cannot be read."""
    try:
        return Fact(what=what, value=listed(sorted(names())), where=where)
    except RollbookError as error:
        return Fact(what=what, value=None, where=error.what)


def _openness(seen: Seen) -> Iterator[Fact]:
    whole = sum(status == "complete" for _, status in seen.parts)
    absent = [title for title, status in seen.parts if status == "missing"]
    yield Fact(what="parts of a release, complete", value=f"{whole} of {len(seen.parts)}", where="rollbook export")
    yield Fact(what="parts missing", value=listed(absent), where="rollbook export")
    checkpoints = [end.checkpoint for end in seen.facts.all(StageEnd) if end.checkpoint is not None]
    there = [name for name in checkpoints if (seen.facts.root / name).is_dir()]
    yield Fact(what="weights in the run", value=listed(there), where="StageEnd.checkpoint")
    yield _tried("licences of the tasks", "RawTask.licence", lambda: {one.licence for one in seen.facts.ledger.records(RawTask)})
    gate = seen.facts.last(GateDecision)
    yield stated("permission to use the policy", gate.decision if gate else None, "GateDecision", "none was decided")


def _unknown(seen: Seen) -> Iterator[Fact]:
    recipe = seen.recipe
    held = recipe.provenance.items() if recipe else ()
    for origin, words in (("user", "assumed by the user"), ("overlay", "inferred for this scale"),
                          ("recipe", "inferred by the recipe")):
        paths = [path for path, about in held if about.label == "I" and about.origin == origin]
        yield Fact(what=words, value=listed(paths), where="ResolvedRecipe.provenance")
    if recipe is not None:
        yield _of_subject(seen, recipe.subject)
    ended = seen.facts.last(RunEnd)
    yield stated("how the run ended", ended.status if ended else None, "RunEnd", "the run has not ended")
    for title, status in seen.parts:
        if status != "complete":
            yield Fact(what=title, value=status, where="the ten parts of a release")
    for fault in seen.facts.faults:
        yield Fact(what="unreadable", value=None, where=fault.splitlines()[0])


def _of_subject(seen: Seen, subject: str) -> Fact:
    """What the sources withhold of the release that the recipe is about."""
    if subject not in {release.subject for release in seen.registry.releases.values()}:
        return Fact(what=f"unknown of {subject}", value=None, where="no claims about this subject")
    unknown = [claim.id for claim in seen.registry.about(subject) if claim.label == "U"]
    return Fact(what=f"claims of unknowns of {subject}", value=number(len(unknown)), where="rollbook evidence show")


_QUESTIONS: tuple[tuple[str, Any], ...] = (
    ("What kind of source is this?", _source),
    ("Do tokens count different text or passes over it?", _tokens),
    ("Which parameters are counted?", _parameters),
    ("What does a task count stand for?", _tasks),
    ("Is the optimizer named, written down, or only called RL?", _optimizer),
    ("Are the numbers the flagship's or a smaller experiment's?", _scale),
    ("How are benchmark results sampled and aggregated?", _benchmarks),
    ("Which scaffold, tools, turns and retries stand behind a score?", _scaffold),
    ("What is released, and under which terms?", _openness),
    ("What is unknown?", _unknown),
)
