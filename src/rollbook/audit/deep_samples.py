"""Stage 6 done again: attempts sampled once more from stored weights, under the envelope, seed and names on record.

An attempt's uniforms hang on seed and name alone, so that on the same machine it has one outcome: whoever drew again until it was
a better one, or drew with other uniforms, at another temperature or from other weights, is found out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rollbook.audit.deep import DeepFinding, Work, failed, not_executed, passed
from rollbook.ledger import Event
from rollbook.records import Dispatch, SamplingEnvelope, Task, Trace
from rollbook.records.recipe import Embedded, SamplingSettings
from rollbook.rollouts.engines.embedded import EmbeddedEngine
from rollbook.rollouts.solve import SCAFFOLD, Rollouts

WHOLE = 8           # a dispatch of up to so many times the sample is made again whole, and then bit for bit
PART = 0.3          # of the attempts of a part may differ: other rows beside them round otherwise
REDRAWN = "these are not the attempts that were issued: sample again, once each, and drop what was trained on them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A dispatch with the trajectories that it led to, all by one version whose weights are stored."""

    dispatch: Dispatch
    envelope: SamplingEnvelope
    version: int
    table: Event
    traces: dict[str, Trace]


def samples_again(work: Work, sample: int) -> list[DeepFinding]:
    """One dispatch for each version whose weights are stored."""
    if not work.exact:
        return [not_executed(6, "attempts were not sampled again: another machine rounds otherwise")]
    if not isinstance(work.recipe.settings.run.engine, Embedded):
        return [not_executed(6, "attempts were not sampled again: servers drew them, whose batches decide what a seed gives")]
    tasks = {task.id: task for task in work.ledger.records(Task)}
    told: list[str] = []
    for drawn in _drawn(work):
        work.load(work.versions[drawn.version])
        again, differ = _again(work, drawn, tasks, sample)
        whole = len(again) == len(drawn.traces)
        if len(differ) > (0 if whole else PART * len(again)):
            first = drawn.traces[differ[0]]
            return [failed(6, first.id, f"sampled again from version {drawn.version}, {len(differ)} of {len(again)} attempts of "
                           f"{drawn.dispatch.scope} come out otherwise, first {differ[0]}", REDRAWN)]
        told.append(f"{len(again)} attempts of {drawn.dispatch.scope} from version {drawn.version}"
                    + ("" if whole else f" (a part: {len(differ)} differ)"))
    if not told:
        return [not_executed(6, "no attempt was sampled from weights that are stored")]
    return [passed(6, f"sampled again, the same tokens: {'; '.join(told)}")]


def _again(work: Work, drawn: Drawn, tasks: dict[str, Task], sample: int) -> tuple[list[str], list[str]]:
    """The attempts that were made again, and those of them that came out otherwise."""
    one, issued = drawn.envelope, drawn.dispatch
    names = issued.tasks
    if len(drawn.traces) > WHOLE * sample:
        names = names[:max(1, sample // issued.samples)]
    engine = EmbeddedEngine(stop_ids=work.tokenizer.stop_ids, dtype=work.dtype, decode=work.tokenizer.decode)
    engine.load(work.decoder, drawn.version)
    sampling = SamplingSettings(temperature=one.temperature, top_p=one.top_p, top_k=one.top_k, min_p=one.min_p)
    rollouts = Rollouts(sampler=engine, tokenizer=work.tokenizer, sampling=sampling, seed=one.seed, max_tokens=one.max_tokens,
                        stop=one.stop)
    made = rollouts.solve([tasks[name] for name in names], issued.samples, scope=issued.scope, envelope=one)
    return [trace.attempt for trace in made], [
        trace.attempt for trace in made if trace.attempt not in drawn.traces
        or trace.token_ids != drawn.traces[trace.attempt].token_ids]


def _drawn(work: Work) -> Iterator[Drawn]:
    """For each version whose weights are stored the first dispatch that it answered alone."""
    envelopes, issued = work.sample.envelopes, {}
    left = {index for index, version in work.versions.items() if version.id in work.stored}
    for event in work.ledger.events():
        if event.kind == "Dispatch":
            issued[str(event.body["scope"])] = event.record()
        elif event.kind == "TraceTable" and left:
            found = _of_table(work, event, issued)
            if found is not None and found[1] in left and (envelope := envelopes.get(found[0].envelope or "")) is not None and \
                    envelope.scaffold == SCAFFOLD:
                left.discard(found[1])
                yield Drawn(dispatch=found[0], envelope=envelope, version=found[1], table=event, traces=found[2])


def _of_table(work: Work, event: Event, issued: dict[str, Dispatch]) -> tuple[Dispatch, int, dict[str, Trace]] | None:
    """The first dispatch of a table with its version and trajectories; None where several versions answered."""
    scope, versions, traces = "", set[int | None](), dict[str, Trace]()
    for _, (trace, _, _) in work.ledger.rows(event):
        here = trace.attempt.rsplit("/", 3)[0]
        scope = scope or here
        if here == scope:
            traces[trace.attempt] = trace
            versions |= {segment.version for segment in trace.policy_segments}
        if len(versions) > 1:
            return None
    version = next(iter(versions), None)
    return None if scope not in issued or version is None else (issued[scope], version, traces)
