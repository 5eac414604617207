"""Stage 6: request. What the policy was allowed to spend, whether it kept to it, and whether comparisons allowed the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollbook.audit.answering import answers
from rollbook.audit.detector import Detector, Row, StoredStep
from rollbook.audit.index import RunIndex
from rollbook.ledger.kinds import TraceTable
from rollbook.records import Comparison, Dispatch, EvalReport, PolicyVersion, ProtocolBundle, SamplingEnvelope, Task, Trace
from rollbook.records.codec import canonical, digest
from rollbook.records.recipe import PolicyGradient, Stage
from rollbook.records.rollout import UNSAMPLED, turns_of

BUNDLED = ("temperature", "top_p", "max_tokens", "template")       # what a protocol and an envelope both say
SAMPLING = ("temperature", "top_p", "top_k", "min_p")
UNASKED: Mapping[str, Any] = {"stop": (), "max_seconds": None, "max_turns": 1}      # where a recipe has no environment
DEVIATIONS, SURPRISE = 6.0, 0.3         # and both: admission by reward moves the mean, of honest runs by up to a fifth
SAME_BUDGET = "give both policies one budget and evaluate again; until then claim nothing"
BY_NAME = "record the dispatch before the first token and name attempts by it"


@dataclass(slots=True)
class Issued:
    """A dispatch and which of its attempts left a trajectory."""

    dispatch: Dispatch
    seen: bytearray
    begun: bool = False


@dataclass(slots=True)
class Usage:
    """What the trajectories of one table asked for and spent."""

    envelopes: set[str] = field(default_factory=set)
    scopes: set[str] = field(default_factory=set)
    attempts: int = 0
    tokens: int = 0
    most: int = 0


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A report with the one envelope its trajectories were sampled under and what they spent."""

    report: EvalReport
    envelope: SamplingEnvelope | None
    mean: float
    most: int


class RequestDetector(Detector):
    """Holds every trajectory against its envelope and dispatch, every report against its protocol, every comparison's two sides.

    That the engine drew from the distribution whose log-probs it reports is tested: over a batch sampled at the trained
    weights the tokens' mean surprise is the mean entropy. Limit: a batch too small, or a difference below `SURPRISE` of it.
    """

    stage, name = 6, "request"
    absent = "nothing was sampled"

    def __init__(self) -> None:
        super().__init__()
        self.issued: dict[str, Issued] = {}
        self.usage: dict[str, Usage] = {}
        self.reports: dict[str, Evaluated] = {}
        self.vetted: set[tuple[str | None, int | None]] = set()
        self.hidden = 0
        self.surprise = (0.0, 0.0, 0.0)         # the largest: standard deviations, mean difference and entropy, nats

    def record(self, run: RunIndex, identity: str, record: object) -> None:
        match record:
            case Dispatch():
                self.issued[record.scope] = Issued(record, bytearray(len(record.tasks) * record.samples))
                if record.envelope not in run.envelopes and (record.envelope is not None or run.recipe is not None):
                    self.fail(identity, f"attempts of {record.scope} were issued under {record.envelope}, which is not on record",
                              "record the envelope before the dispatch that uses it")
            case TraceTable():
                self.issued = {scope: one for scope, one in self.issued.items() if not one.begun}
                self.vetted.clear()
                if record.name.startswith("eval/"):
                    self.usage[record.name.removeprefix("eval/")] = Usage()
            case EvalReport():
                self._report(run, identity, record)
            case Comparison():
                self._comparison(run, identity, record)
            case _:
                pass

    def row(self, run: RunIndex, row: Row) -> None:
        trace = row.trace
        if trace.envelope is None and run.recipe is None:
            self.hidden += 1                        # a recorded host that did not show how it samples
            return
        self.checked()
        envelope = run.envelopes.get(trace.envelope or "")
        if envelope is None:
            self.fail(row.id, f"it names the envelope {trace.envelope}, which is not on record before it",
                      "record the envelope before anything is sampled under it")
            return
        spent = trace.spent
        problem = overspent(trace, spent, envelope, run.tasks.get(trace.task)) or stopped(trace, spent, envelope, _stops(run))
        if problem:
            self.fail(row.id, problem, "let the envelope that is recorded decide what is sampled")
        self._named(row)
        for segment in trace.sampled_segments:
            if (trace.envelope, segment.version) not in self.vetted:
                self._vet(run, row, envelope, segment.version)
        self._spend(run, trace, spent)

    def step(self, run: RunIndex, step: StoredStep) -> None:
        """Tokens drawn colder than they are said to be are less surprising than their distribution's entropy."""
        behavior_T, entropy_T = step.given.get("behavior"), step.found.get("entropy")
        made_by = {int(version) for version in np.unique(step.given.get("version", ()))} - {UNSAMPLED}
        sampled = {run.versions[version].weights for version in made_by if version in run.versions}
        if (behavior_T is None or entropy_T is None or behavior_T.shape != entropy_T.shape or not behavior_T.size
                or sampled != {step.update.weights_before} or not self._whole(run, step)):
            return
        entropy_T = entropy_T[step.sampled_T]
        surplus_T = -behavior_T.astype(np.float64)[step.sampled_T] - entropy_T.astype(np.float64)
        mean, entropy = float(surplus_T.mean()), float(entropy_T.mean())
        spread = float(np.sqrt((surplus_T**2).sum())) or 1.0
        score = float(surplus_T.sum()) / spread
        self.surprise = max(self.surprise, (abs(score), mean, entropy))
        if abs(score) > DEVIATIONS and abs(mean) > SURPRISE * entropy:
            how = "colder" if mean < 0 else "hotter"
            self.fail(step.batch_id, f"the tokens of {step.batch.scope} were drawn {how} than the envelope's temperature: their "
                      f"log-probs mean a surprise of {entropy + mean:.3f} nats per token, the entropy is {entropy:.3f} "
                      f"({abs(score):.0f} standard deviations over {surplus_T.size} tokens)",
                      "draw from the distribution whose log-probs are reported")

    def _whole(self, run: RunIndex, step: StoredStep) -> bool:
        """Whether the batch was sampled from all ids at a temperature above 0."""
        held = run.recent.get(step.batch.traces[0]) if step.batch.traces else None
        envelope = run.envelopes.get(held[0].envelope or "") if held is not None else None
        return envelope is not None and envelope.top_p >= 1 and not envelope.top_k and not envelope.min_p and \
            envelope.temperature > 0

    def finish(self, run: RunIndex) -> None:
        if self.surprise[0]:
            score, mean, entropy = self.surprise
            self.note(f"surprise and entropy of sampled tokens are {score:.1f} standard deviations apart at most ({mean:+.3f} of "
                      f"{entropy:.3f} nats)")
        if self.hidden:
            self.note(f"the host did not show how {self.hidden} trajectories were sampled")

    def _spend(self, run: RunIndex, trace: Trace, spent: int) -> None:
        usage = self.usage.get((run.table or "").removeprefix("eval/")) if (run.table or "").startswith("eval/") else None
        if usage is not None:
            usage.envelopes.add(trace.envelope or "")
            usage.scopes.add(trace.attempt.rsplit("/", 3)[0])
            usage.attempts += 1
            usage.tokens += spent
            usage.most = max(usage.most, spent)

    def _named(self, row: Row) -> None:
        """The attempt is one that was issued, once, at this task and under this envelope."""
        trace = row.trace
        scope, place, task, sample = (*trace.attempt.rsplit("/", 3), "", "", "")[:4]
        issued = self.issued.get(scope)
        problem = "its scope was never dispatched"
        if issued is not None:
            problem = misnamed(trace, issued.dispatch, (place, task, sample))
            issued.begun = True
        if issued is not None and not problem:
            at = int(place) * issued.dispatch.samples + int(sample)
            problem = "the same attempt has a trajectory already" if issued.seen[at] else ""
            issued.seen[at] = 1
        if problem:
            self.fail(row.id, f"attempt {trace.attempt}: {problem}", BY_NAME)

    def _vet(self, run: RunIndex, row: Row, envelope: SamplingEnvelope, version: int | None) -> None:
        """Once per table, envelope and version: the weights are the envelope's, the rest of it is what the recipe asks for."""
        self.vetted.add((row.trace.envelope, version))
        held = None if version is None else run.versions.get(version)
        exposed = envelope.policy is not None or run.recipe is not None
        problem = misplaced(run, envelope, version, held) if exposed else ""
        if problem:
            self.fail(row.id, problem, "name the weights that answered in the envelope")
        tokenizer = run.tokenizer
        if tokenizer is not None and envelope.template != tokenizer.template_digest:
            self.fail(str(row.trace.envelope), f"template {envelope.template[:12]} was asked for, the run's is "
                      f"{tokenizer.template_digest[:12]}", "prompt with the template that is on record")
        for name, found, wanted in asked(run, envelope):
            self.fail(str(row.trace.envelope), f"{run.table} was sampled with {name} {found}, the recipe says {wanted}",
                      "sample with the recipe's settings, or change the recipe")

    def _report(self, run: RunIndex, identity: str, report: EvalReport) -> None:
        self.checked()
        usage, bundle = self.usage.pop(report.stage, None), run.protocols.get(report.protocol)
        if usage is None or not usage.attempts or bundle is None:
            lacking = "its protocol" if bundle is None else "its trajectories"
            self.fail(identity, f"the report of {report.stage} stands without {lacking}", "record both before the report")
            return
        envelopes = [run.envelopes[name] for name in sorted(usage.envelopes) if name in run.envelopes]
        self.reports[identity] = Evaluated(report, envelopes[0] if len(envelopes) == 1 else None,
                                           usage.tokens / usage.attempts, usage.most)
        for problem in (*self._bundled(report, envelopes, bundle), *self._trials(usage, bundle)):
            self.fail(identity, f"{report.stage}: {problem}", "evaluate again as the protocol says")

    def _bundled(self, report: EvalReport, envelopes: list[SamplingEnvelope], bundle: ProtocolBundle) -> Iterator[str]:
        """What the trajectories asked for against what the protocol says."""
        if len(envelopes) > 1:
            yield f"its trajectories were sampled under {len(envelopes)} envelopes that differ in " + \
                ", ".join(differing(envelopes[0], envelopes[1]) or ["policy"])
        for envelope in envelopes[:1]:
            for name in BUNDLED:
                if getattr(envelope, name) != getattr(bundle, name):
                    yield f"{name} {getattr(envelope, name)} was used, the protocol says {getattr(bundle, name)}"
            if envelope.policy != report.weights:
                yield f"weights {str(envelope.policy)[:12]} answered, the report is about {report.weights[:12]}"

    def _trials(self, usage: Usage, bundle: ProtocolBundle) -> Iterator[str]:
        """As many attempts at every task as the protocol has trials, each of them once."""
        scope = f"eval/{bundle.name}/{bundle.seed}"
        if usage.scopes != {scope}:
            yield f"its attempts are named {', '.join(sorted(usage.scopes))}, the protocol's seed gives {scope}"
        issued = self.issued.get(scope)
        if issued is None:
            yield "its attempts were never dispatched"
            return
        tasks = issued.dispatch.tasks
        if issued.dispatch.samples != bundle.trials:
            yield f"{issued.dispatch.samples} attempts at each task were issued, the protocol has {bundle.trials} trials"
        if len(set(tasks)) != len(tasks):
            yield f"{len(tasks) - len(set(tasks))} tasks were tried more often than the protocol says"
        elif digest(canonical(list(tasks))) != bundle.tasks:
            yield f"the {len(tasks)} tasks that were asked are not the protocol's {bundle.task_count}"
        if not all(issued.seen):
            yield f"{len(issued.seen) - sum(issued.seen)} of {len(issued.seen)} issued attempts left no trajectory"

    def _comparison(self, run: RunIndex, identity: str, record: Comparison) -> None:
        self.checked()
        before, after = self.reports.get(record.before), self.reports.get(record.after)
        if before is None or after is None or before.envelope is None or after.envelope is None:
            self.fail(identity, "one of the two reports has no single envelope on record", SAME_BUDGET)
            return
        found = differing(before.envelope, after.envelope)
        both = (run.protocols[before.report.protocol], run.protocols[after.report.protocol])
        found += [f"protocol {f.name} ({getattr(both[0], f.name)} and {getattr(both[1], f.name)})"
                  for f in dataclasses.fields(ProtocolBundle) if getattr(both[0], f.name) != getattr(both[1], f.name)]
        names = f"{before.report.stage} and {after.report.stage}"
        if found:
            self.fail(identity, f"{names} had different budgets: " + ", ".join(found), SAME_BUDGET)
        self.note(f"{names} spent {before.mean:.1f} and {after.mean:.1f} tokens per attempt, at most {before.most} and "
                  f"{after.most}")


def overspent(trace: Trace, spent: int, envelope: SamplingEnvelope, task: Task | None) -> str:
    """What of its budget a trajectory overdrew; empty when nothing."""
    if spent > envelope.max_tokens:
        return f"{spent} tokens were sampled, its envelope allows {envelope.max_tokens}"
    if task is not None and spent > task.budget.max_tokens:
        return f"{spent} tokens were sampled, its task allows {task.budget.max_tokens}"
    if len(trace.segments) > 2 or trace.parts:
        own = trace.episode.turns if trace.parts and trace.episode is not None and not trace.episode.agent else None
        turns = len(own) if own else sum(1 for number in range(len(trace.parts) + 1) for _ in turns_of(trace.segments_of(number)))
        if turns > envelope.max_turns:
            return f"{turns} turns were taken, its envelope allows {envelope.max_turns}"
    seconds = trace.observed.get("latency_s", 0.0)
    if envelope.max_seconds is not None and seconds > envelope.max_seconds:
        return f"it took {seconds:.1f} s, its envelope allows {envelope.max_seconds:.1f}"
    return ""


def stopped(trace: Trace, spent: int, envelope: SamplingEnvelope, stops: Set[int | None]) -> str:
    """How the stop reason contradicts the tokens; empty when it does not."""
    last = trace.segments[-1]
    ended = bool(stops) and last.owner == "policy" and bool(last.token_ids) and last.token_ids[-1] in stops
    match trace.stop_reason:
        case "end_of_turn" if stops and not ended:
            return "it is said to have ended its turn, its last token ends none"
        case "length" if trace.episode is None and spent != envelope.max_tokens:
            return f"it is said to have been cut by its length, after {spent} of {envelope.max_tokens} tokens"
        case "length" if ended:
            return "it is said to have been cut by its length, its last token ends the turn"
        case "stop_string" if not any(text in trace.text for text in envelope.stop):
            return "it is said to have met a stop string, and its text holds none of its envelope's"
        case _:
            pass
    for turn in trace.turns:
        own = [token for segment in turn for token in segment.token_ids]
        if not stops.isdisjoint(own[:-1]):
            return "tokens were sampled after the one that ends a turn"
    return ""


def misnamed(trace: Trace, dispatch: Dispatch, parts: tuple[str, str, str]) -> str:
    """How a trajectory contradicts the dispatch that its attempt is named after; empty when it does not."""
    place, task, sample = parts
    if not (place.isdigit() and int(place) < len(dispatch.tasks) and dispatch.tasks[int(place)] == task):
        return "no task was issued in this place"
    if not (sample.isdigit() and int(sample) < dispatch.samples):
        return f"only {dispatch.samples} attempts at the task were issued"
    if trace.task != task or trace.group != trace.attempt.rpartition("/")[0]:
        return f"it is recorded at {trace.task} in group {trace.group}"
    if trace.envelope != dispatch.envelope:
        return f"it was issued under {dispatch.envelope} and sampled under {trace.envelope}"
    return ""


def misplaced(run: RunIndex, envelope: SamplingEnvelope, version: int | None, held: PolicyVersion | None) -> str:
    """How the weights that answered differ from what the envelope asks for; empty when they do not."""
    if held is None:
        return f"version {version} answered, which was not published before"
    if not answers(run, envelope, held):
        return f"version {version} with weights {held.weights[:12]} answered, its envelope asks for {str(envelope.policy)[:12]}"
    return ""


def differing(first: SamplingEnvelope, second: SamplingEnvelope) -> list[str]:
    """The fields besides the policy in which two envelopes differ, with both values."""
    fields = [f.name for f in dataclasses.fields(SamplingEnvelope) if f.name != "policy"]
    return [f"{name} ({getattr(first, name)} and {getattr(second, name)})" for name in fields
            if getattr(first, name) != getattr(second, name)]


def asked(run: RunIndex, envelope: SamplingEnvelope) -> Iterator[tuple[str, Any, Any]]:
    """Name, found and wanted of what an envelope says otherwise than the recipe."""
    if run.recipe is None:
        return
    settings = run.recipe.settings
    wanted: dict[str, Any] = {"seed": settings.run.seed, "max_tokens": settings.tasks.max_tokens,
                              **(UNASKED if settings.environment is None else {})}
    own = settings.stages.get((run.table or "").partition("/")[0])
    if isinstance(own, PolicyGradient) and own.max_tokens is not None:
        wanted["max_tokens"] = own.max_tokens
    sampling = getattr(settings.stages.get(stage_of(run.table or "", settings.stages)), "sampling", None)
    if sampling is not None:
        wanted |= {name: getattr(sampling, name) for name in SAMPLING}
    for name, value in wanted.items():
        if getattr(envelope, name) != value:
            yield name, getattr(envelope, name), value


def stage_of(table: str, stages: Mapping[str, Stage]) -> str:
    """The stage that a trace table belongs to: `eval/after` and `rl/000001` are of the stages `after` and `rl`.

    Example: stage_of("eval/rl/probe/000002", {"rl": ...}) == "rl"
    """
    parts = table.split("/")
    return parts[1] if parts[0] == "eval" and len(parts) > 1 and parts[1] in stages else parts[0]


def _stops(run: RunIndex) -> Set[int | None]:
    return run.tokenizer.stop_ids if run.tokenizer is not None else frozenset()
