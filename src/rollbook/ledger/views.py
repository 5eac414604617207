"""The views of `rollbook query`: their columns, and the rows that each record gives. docs/query.md explains them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import pyarrow as pa

from rollbook.ledger.scopes import place_of
from rollbook.records import (
    Batch,
    Comparison,
    Credit,
    CurriculumReport,
    Demonstration,
    Dispatch,
    EvalReport,
    HostEvaluation,
    HostTask,
    HostUpdate,
    Outcome,
    PolicyVersion,
    ProtocolBundle,
    RawTask,
    SamplingEnvelope,
    Selection,
    SftReport,
    StageEnd,
    StepReport,
    Task,
    Update,
)
from rollbook.records.curriculum import Pool
from rollbook.records.metrics import CATALOGUE

TEXT, REAL, WHOLE, TRUTH = pa.string(), pa.float64(), pa.int64(), pa.bool_()
POOLS: tuple[str, ...] = get_args(Pool)
TEXTS, REALS = pa.list_(TEXT), pa.map_(TEXT, REAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a record stands: the event's number, the record's id, and the table it is a row of (None when logged alone)."""

    seq: int
    id: str
    table: str | None


@dataclass(slots=True)
class Seen:
    """What later records refer to: the scope of each batch, the number of each policy, protocols and the stages of reports."""

    batches: dict[str, str] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    protocols: dict[str, ProtocolBundle] = field(default_factory=dict)
    reports: dict[str, str] = field(default_factory=dict)

    def take(self, identity: str, record: Any) -> None:
        match record:
            case Batch():
                self.batches[identity] = record.scope
            case PolicyVersion():
                self.versions[identity] = record.index
            case ProtocolBundle():
                self.protocols[identity] = record
            case EvalReport():
                self.reports[identity] = record.stage
            case _:
                pass


Row = tuple[Any, ...]
Rows = Callable[[Seen, Place, Any], Iterable[Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A table made of records of one kind, logged alone or in record tables."""

    of: type
    columns: tuple[tuple[str, pa.DataType], ...]
    rows: Rows

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(self.columns)


def text(document: Any) -> str:
    """A plain value as JSON text."""
    return json.dumps(_plain(document), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _pairs(values: Mapping[str, float]) -> list[tuple[str, float]]:
    return list(values.items())


def _dispatches(seen: Seen, at: Place, r: Dispatch) -> Iterator[Row]:
    count = len(r.tasks)
    yield at.seq, at.id, r.scope, r.scope.split("/")[0], count, r.samples, count * r.samples, r.envelope, list(r.tasks)


def _envelopes(seen: Seen, at: Place, r: SamplingEnvelope) -> Iterator[Row]:
    yield (at.id, r.policy, r.temperature, r.top_p, r.top_k, r.min_p, r.seed, r.max_tokens, r.max_turns, r.max_seconds,
           list(r.stop), r.template, r.scaffold)


def _outcomes(seen: Seen, at: Place, r: Outcome) -> Iterator[Row]:
    yield at.seq, r.attempt, r.family, r.code, r.detail


def _credits(seen: Seen, at: Place, r: Credit) -> Iterator[Row]:
    place, rule = place_of(r.scope), (str(r.rule.get("kind")), r.baseline, r.normalized_over)
    for trace, group, reward, advantage in zip(r.traces, r.group_of, r.reward, r.advantage, strict=True):
        yield at.id, *place, trace, group, reward, advantage, *rule


def _batches(seen: Seen, at: Place, r: Batch) -> Iterator[Row]:
    yield (at.seq, at.id, *place_of(r.scope), r.scope, list(r.traces), len(r.traces), r.action_tokens, r.groups, r.max_age,
           r.max_length, len(r.plan), str(r.objective.get("kind")), text(r.objective), [term.name for term in r.terms], r.threads,
           r.deterministic, r.compute_dtype, r.tensors)


def _updates(seen: Seen, at: Place, r: Update) -> Iterator[Row]:
    place = place_of(seen.batches[r.batch]) if r.batch in seen.batches else (None, None, None)
    yield (at.seq, at.id, r.batch, *place, r.index, _pairs(r.loss), r.grad_norm, r.grad_clipped, r.clip_fraction, r.ratio_min,
           r.ratio_max, r.entropy_nats, r.kl_nats, r.mismatch_k3_nats, r.learning_rate, r.weights_before, r.weights_after,
           r.tensors)


def _loss_terms(seen: Seen, at: Place, r: Update) -> Iterator[Row]:
    place = place_of(seen.batches[r.batch]) if r.batch in seen.batches else (None, None, None)
    for term, value in r.loss.items():
        yield at.id, *place, r.index, term, value


def _policy_versions(seen: Seen, at: Place, r: PolicyVersion) -> Iterator[Row]:
    yield (at.seq, at.id, r.index, r.stage, r.parent, seen.versions.get(r.parent) if r.parent else None, r.weights, r.published,
           r.optimizer, r.updates, r.healthy, [one.consumer for one in r.acknowledged], list(r.window))


def _evaluations(seen: Seen, at: Place, r: EvalReport) -> Iterator[Row]:
    rule = seen.protocols.get(r.protocol)
    yield (at.seq, at.id, r.stage, r.policy, seen.versions.get(r.policy), r.weights, r.protocol, rule.name if rule else None,
           rule.temperature if rule else None, rule.trials if rule else None, r.accuracy.estimate, r.accuracy.low,
           r.accuracy.high, r.accuracy.level, r.accuracy.method, r.accuracy.count, r.format_rate, r.unscored, r.in_family,
           r.mean_tokens, _pairs(r.by_family))


def _evaluation_outcomes(seen: Seen, at: Place, r: EvalReport) -> Iterator[Row]:
    for task, value in r.outcomes.items():
        yield at.id, r.stage, seen.versions.get(r.policy), task, value


def _comparisons(seen: Seen, at: Place, r: Comparison) -> Iterator[Row]:
    yield (at.seq, at.id, r.before, r.after, seen.reports.get(r.before), seen.reports.get(r.after), r.gain.estimate, r.gain.low,
           r.gain.high, r.gain.level, r.gain.method, r.gain.count, r.changed, r.claim, r.p_value)


def _tasks(seen: Seen, at: Place, r: Task) -> Iterator[Row]:
    prompt = [{"role": one.role, "content": one.content, "origin": one.origin} for one in r.prompt]
    yield (at.id, at.table, r.family, r.prompt[-1].content if r.prompt else None, prompt, r.reference, r.canonical, r.predicate,
           r.budget.max_tokens, r.raw)


def _raw_tasks(seen: Seen, at: Place, r: RawTask) -> Iterator[Row]:
    yield (at.id, at.table, r.source, r.licence, r.acquired_at, r.language, r.domain, r.content, list(r.sensitive),
           list(r.lineage.items()))


def _demonstrations(seen: Seen, at: Place, r: Demonstration) -> Iterator[Row]:
    own = sum(span.length for span in r.owners if span.owner == "policy")
    yield (at.id, at.table, r.task, r.author, r.validation, r.messages[-1].content if r.messages else None, len(r.token_ids), own,
           list(r.token_ids), [{"owner": span.owner, "length": span.length} for span in r.owners])


def _selections(seen: Seen, at: Place, r: Selection) -> Iterator[Row]:
    kept = set(r.kept)
    for task, count in r.pass_counts.items():
        yield r.stage, seen.versions.get(r.policy), task, count, r.samples, task in kept


def _curriculum_reports(seen: Seen, at: Place, r: CurriculumReport) -> Iterator[Row]:
    yield (at.seq, r.stage, r.step, *(r.pools.get(name, 0) for name in POOLS), r.measured, r.attempts, r.informative,
           _pairs(r.moved))


def _step_reports(seen: Seen, at: Place, r: StepReport) -> Iterator[Row]:
    yield (at.seq, at.id, r.stage, r.step, seen.versions.get(r.policy), seen.versions.get(r.published), list(r.batches),
           list(r.updates), _pairs(r.metrics), _pairs(r.observed))


def _metrics(seen: Seen, at: Place, r: StepReport) -> Iterator[Row]:
    for values, observed in ((r.metrics, False), (r.observed, True)):
        for name, value in values.items():
            spec = CATALOGUE.get(name)
            yield r.stage, r.step, seen.versions.get(r.policy), name, value, spec.unit if spec else None, observed


def _sft_reports(seen: Seen, at: Place, r: SftReport) -> Iterator[Row]:
    yield (at.seq, at.id, r.stage, r.step, r.loss_nats, r.grad_norm, r.learning_rate, r.tokens, list(r.demonstrations), r.tensors,
           _pairs(r.observed), r.repeated)


def _host_tasks(seen: Seen, at: Place, r: HostTask) -> Iterator[Row]:
    asked = r.prompt if isinstance(r.prompt, str) else text([{"role": one.role, "content": one.content} for one in r.prompt])
    yield at.id, r.family, asked, r.reference


def _host_updates(seen: Seen, at: Place, r: HostUpdate) -> Iterator[Row]:
    yield (at.seq, at.id, r.index, list(r.traces), len(r.sequences), r.unmatched, r.loss, r.grad_norm, r.learning_rate,
           _pairs(r.metrics), list(r.not_finite), r.averaged_over, r.weights_before, r.weights_after, r.tensors)


def _host_evaluations(seen: Seen, at: Place, r: HostEvaluation) -> Iterator[Row]:
    yield at.seq, r.name, r.index, _pairs(r.metrics), list(r.not_finite)


def _stages(seen: Seen, at: Place, r: StageEnd) -> Iterator[Row]:
    yield at.seq, r.stage, r.kind, seen.versions.get(r.started), seen.versions.get(r.ended), r.checkpoint


PLACE = (("stage", TEXT), ("step", WHOLE), ("minibatch", WHOLE))
MESSAGE = pa.list_(pa.struct([("role", TEXT), ("content", TEXT), ("origin", TEXT)]))
OWNED = pa.list_(pa.struct([("owner", TEXT), ("length", WHOLE)]))


def _view(of: type, rows: Rows, *columns: tuple[str, pa.DataType]) -> View:
    return View(of=of, columns=columns, rows=rows)


LONE = "lone_outcomes"      # outcomes without a trajectory; a part of the view `outcomes`
RECORD_VIEWS: dict[str, View] = {
    "dispatches": _view(Dispatch, _dispatches, ("seq", WHOLE), ("id", TEXT), ("scope", TEXT), ("stage", TEXT),
                        ("task_count", WHOLE), ("samples", WHOLE), ("attempts", WHOLE), ("envelope", TEXT), ("tasks", TEXTS)),
    "envelopes": _view(SamplingEnvelope, _envelopes, ("id", TEXT), ("weights", TEXT), ("temperature", REAL), ("top_p", REAL),
                       ("top_k", WHOLE), ("min_p", REAL), ("seed", WHOLE), ("max_tokens", WHOLE), ("max_turns", WHOLE),
                       ("max_seconds", REAL), ("stop", TEXTS), ("template", TEXT), ("scaffold", TEXT)),
    LONE: _view(Outcome, _outcomes, ("seq", WHOLE), ("attempt", TEXT), ("family", TEXT), ("code", TEXT), ("detail", TEXT)),
    "credits": _view(Credit, _credits, ("id", TEXT), *PLACE, ("trace", TEXT), ("group_name", TEXT), ("reward", REAL),
                     ("advantage", REAL), ("rule", TEXT), ("baseline", TEXT), ("normalized_over", TEXT)),
    "batches": _view(Batch, _batches, ("seq", WHOLE), ("id", TEXT), *PLACE, ("scope", TEXT), ("traces", TEXTS),
                     ("sequences", WHOLE), ("action_tokens", WHOLE), ("groups", WHOLE), ("max_age", WHOLE), ("max_length", WHOLE),
                     ("micro_batches", WHOLE), ("objective", TEXT), ("objective_json", TEXT), ("terms", TEXTS),
                     ("threads", WHOLE), ("deterministic", TRUTH), ("compute_dtype", TEXT), ("tensors", TEXT)),
    "updates": _view(Update, _updates, ("seq", WHOLE), ("id", TEXT), ("batch", TEXT), *PLACE, ("index", WHOLE), ("loss", REALS),
                     ("grad_norm", REAL), ("grad_clipped", TRUTH), ("clip_fraction", REAL), ("ratio_min", REAL),
                     ("ratio_max", REAL), ("entropy_nats", REAL), ("kl_nats", REAL), ("mismatch_k3_nats", REAL),
                     ("learning_rate", REAL), ("weights_before", TEXT), ("weights_after", TEXT), ("tensors", TEXT)),
    "loss_terms": _view(Update, _loss_terms, ("update_id", TEXT), *PLACE, ("index", WHOLE), ("term", TEXT), ("value", REAL)),
    "policy_versions": _view(PolicyVersion, _policy_versions, ("seq", WHOLE), ("id", TEXT), ("version", WHOLE), ("stage", TEXT),
                             ("parent", TEXT), ("parent_version", WHOLE), ("weights", TEXT), ("published", TEXT),
                             ("optimizer", TEXT), ("updates", WHOLE), ("healthy", TRUTH), ("consumers", TEXTS),
                             ("trained_on", TEXTS)),
    "evaluations": _view(EvalReport, _evaluations, ("seq", WHOLE), ("id", TEXT), ("stage", TEXT), ("policy", TEXT),
                         ("version", WHOLE), ("weights", TEXT), ("protocol", TEXT), ("protocol_name", TEXT),
                         ("temperature", REAL), ("trials", WHOLE), ("accuracy", REAL), ("low", REAL), ("high", REAL),
                         ("level", REAL), ("method", TEXT), ("count", WHOLE), ("format_rate", REAL), ("unscored", WHOLE),
                         ("in_family", TRUTH), ("mean_tokens", REAL), ("by_family", REALS)),
    "evaluation_outcomes": _view(EvalReport, _evaluation_outcomes, ("evaluation", TEXT), ("stage", TEXT), ("version", WHOLE),
                                 ("task", TEXT), ("accuracy", REAL)),
    "comparisons": _view(Comparison, _comparisons, ("seq", WHOLE), ("id", TEXT), ("before", TEXT), ("after", TEXT),
                         ("before_stage", TEXT), ("after_stage", TEXT), ("gain", REAL), ("low", REAL), ("high", REAL),
                         ("level", REAL), ("method", TEXT), ("count", WHOLE), ("changed", TEXT), ("claim", TEXT),
                         ("p_value", REAL)),
    "tasks": _view(Task, _tasks, ("id", TEXT), ("record_table", TEXT), ("family", TEXT), ("question", TEXT), ("prompt", MESSAGE),
                   ("reference", TEXT), ("canonical", TEXT), ("predicate", TEXT), ("max_tokens", WHOLE), ("raw", TEXT)),
    "raw_tasks": _view(RawTask, _raw_tasks, ("id", TEXT), ("record_table", TEXT), ("source", TEXT), ("licence", TEXT),
                       ("acquired_at", TEXT), ("language", TEXT), ("domain", TEXT), ("content", TEXT), ("sensitive", TEXTS),
                       ("lineage", pa.map_(TEXT, TEXT))),
    "demonstrations": _view(Demonstration, _demonstrations, ("id", TEXT), ("record_table", TEXT), ("task", TEXT),
                            ("author", TEXT), ("validation", TEXT), ("answer", TEXT), ("tokens", WHOLE), ("policy_tokens", WHOLE),
                            ("token_ids", pa.list_(WHOLE)), ("spans", OWNED)),
    "selections": _view(Selection, _selections, ("stage", TEXT), ("version", WHOLE), ("task", TEXT), ("passes", WHOLE),
                        ("samples", WHOLE), ("kept", TRUTH)),
    "curriculum_reports": _view(CurriculumReport, _curriculum_reports, ("seq", WHOLE), ("stage", TEXT), ("step", WHOLE),
                                *((name, WHOLE) for name in POOLS), ("measured", WHOLE), ("attempts", WHOLE),
                                ("informative", WHOLE), ("moved", pa.map_(TEXT, WHOLE))),
    "step_reports": _view(StepReport, _step_reports, ("seq", WHOLE), ("id", TEXT), ("stage", TEXT), ("step", WHOLE),
                          ("version", WHOLE), ("published_version", WHOLE), ("batches", TEXTS), ("updates", TEXTS),
                          ("metrics", REALS), ("observed", REALS)),
    "metrics": _view(StepReport, _metrics, ("stage", TEXT), ("step", WHOLE), ("version", WHOLE), ("name", TEXT), ("value", REAL),
                     ("unit", TEXT), ("observed", TRUTH)),
    "sft_reports": _view(SftReport, _sft_reports, ("seq", WHOLE), ("id", TEXT), ("stage", TEXT), ("step", WHOLE),
                         ("loss_nats", REAL), ("grad_norm", REAL), ("learning_rate", REAL), ("tokens", WHOLE),
                         ("demonstrations", TEXTS), ("tensors", TEXT), ("observed", REALS), ("repeated", WHOLE)),
    "stages": _view(StageEnd, _stages, ("seq", WHOLE), ("stage", TEXT), ("kind", TEXT), ("started_version", WHOLE),
                    ("ended_version", WHOLE), ("checkpoint", TEXT)),
    "host_tasks": _view(HostTask, _host_tasks, ("id", TEXT), ("family", TEXT), ("prompt", TEXT), ("reference", TEXT)),
    "host_updates": _view(HostUpdate, _host_updates, ("seq", WHOLE), ("id", TEXT), ("index", WHOLE), ("traces", TEXTS),
                          ("sequences", WHOLE), ("unmatched", WHOLE), ("loss", REAL), ("grad_norm", REAL),
                          ("learning_rate", REAL), ("metrics", REALS), ("not_finite", TEXTS), ("averaged_over", WHOLE),
                          ("weights_before", TEXT), ("weights_after", TEXT), ("tensors", TEXT)),
    "host_evaluations": _view(HostEvaluation, _host_evaluations, ("seq", WHOLE), ("name", TEXT), ("index", WHOLE),
                              ("metrics", REALS), ("not_finite", TEXTS)),
}

EVENTS = pa.schema([("seq", WHOLE), ("time_s", REAL), ("kind", TEXT), ("schema", WHOLE), ("id", TEXT), ("hash", TEXT),
                    ("body", TEXT), ("observed", TEXT)])

TRACES = """
SELECT scope, stage, seq, id, attempt, task, "group" AS group_name, envelope, family, outcome, outcome_detail, stop_reason,
  CAST(coalesce(list_sum([s.length for s in spans if s.owner = 'policy']), 0) AS BIGINT) AS policy_tokens,
  CAST(len(token_ids) AS BIGINT) AS tokens, CAST([s.version for s in spans if s.owner = 'policy'][1] AS BIGINT) AS version,
  map_extract(observed, 'latency_s')[1] AS latency_s, verdict, total, accuracy, composition, composition_digest,
  hidden_test_access, failure_code, failure_detail, failure_verifier, text, token_ids, logps, spans, sampled, observed,
  verdict_observed
FROM trace_rows"""
COMPONENTS = """
SELECT trace, stage, scope, c.name AS component, c.value AS value, c.confidence AS confidence, c.detail AS detail,
  c.verifier.name AS verifier, c.verifier.version AS verifier_version, c.verifier.digest AS verifier_digest
FROM (SELECT id AS trace, stage, scope, unnest(components) AS c FROM trace_rows)"""
ABSENT = """
SELECT trace, stage, scope, c.name AS component, c.reason AS reason
FROM (SELECT id AS trace, stage, scope, unnest(absent) AS c FROM trace_rows)"""
OUTCOMES = f"""
SELECT seq, attempt, id AS trace, scope, stage, family, outcome AS code, outcome_detail AS detail FROM trace_rows
UNION ALL SELECT seq, attempt, NULL, NULL, split_part(attempt, '/', 1), family, code, detail FROM {LONE}"""
TRACE_VIEWS = {"traces": TRACES, "verdict_components": COMPONENTS, "verdict_absent": ABSENT, "outcomes": OUTCOMES}
NAMES = (*TRACE_VIEWS, *(name for name in RECORD_VIEWS if name != LONE), "events")
