"""Stage 6 done again: attempts sampled once more from stored weights, under the envelope, seed and names on record.

An attempt's uniforms hang on seed and name alone, so that on the same machine it has one outcome: whoever drew again until it was
a better one, or drew with other uniforms, at another temperature or from other weights, is found out. A small dispatch is made
again whole, bit for bit. Of a large one some attempts are held against their uniforms: in another batch the same numbers are
rounded in another way, one token may fall to its neighbour, and all after it are others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from rollbook.audit.deep import DeepFinding, Work, failed, not_executed, passed
from rollbook.ledger import Event
from rollbook.models.layout import Tree, pack
from rollbook.models.logprobs import full_logprobs
from rollbook.records import Dispatch, Request, SamplingEnvelope, Task, Trace
from rollbook.records.recipe import Embedded, SamplingSettings
from rollbook.rollouts.engines.embedded import EmbeddedEngine
from rollbook.rollouts.engines.sampling import support, uniforms
from rollbook.rollouts.solve import SCAFFOLD, Rollouts

WHOLE = 8           # a dispatch of up to so many times the sample is made again whole, and then bit for bit
STRAYED = 0.25      # of how far tokens would lie from their uniforms if these had nothing to do with them; 0.03 seen in bfloat16
LEAST = 0.05        # of mean distance by chance: an answer of sure tokens alone tells nothing
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
        if len(drawn.traces) > WHOLE * sample:
            strayed = {trace.attempt: astray(work, trace, drawn.envelope) for trace in islice(drawn.traces.values(), sample)}
            again, differ = list(strayed), [name for name, share in strayed.items() if share > STRAYED]
            how = f"held against their uniforms, {max(strayed.values()):.2g} of chance at most (limit {STRAYED:g})"
        else:
            again, differ = _again(work, drawn, tasks)
            how = "sampled again, the same tokens"
        if differ:
            first = drawn.traces[differ[0]]
            return [failed(6, first.id, f"sampled again from version {drawn.version}, {len(differ)} of {len(again)} attempts of "
                           f"{drawn.dispatch.scope} come out otherwise, first {differ[0]}", REDRAWN)]
        told.append(f"{len(again)} attempts of {drawn.dispatch.scope} from version {drawn.version} {how}")
    if not told:
        return [not_executed(6, "no attempt was sampled from weights that are stored")]
    return [passed(6, "; ".join(told))]


def astray(work: Work, trace: Trace, envelope: SamplingEnvelope) -> float:
    """How far an answer's tokens lie from where its uniforms point, as a share of how far chance would put them; 0 to about 1.

    A token is drawn where its uniform u falls into [a, b), the cumulative probabilities before and after it. Its distance is
    that of u from the interval; for a uniform that has nothing to do with it the mean is (a^2 + (1 - b)^2) / 2.
    """
    token_T = torch.tensor([token for segment in trace.policy_segments for token in segment.token_ids])
    if not token_T.numel() or envelope.temperature == 0.0:
        return 0.0
    u_T = torch.from_numpy(uniforms(envelope.seed, trace.attempt, token_T.numel()))
    tree = Tree(prompt=trace.prompt_ids, continuations=(tuple(token_T.tolist()),), actions=((True,) * token_T.numel(),))
    layout = pack((tree,), window=work.decoder.architecture.window)
    distance = chance = 0.0
    at = 0
    for logp_CV in full_logprobs(work.decoder, layout, temperature=envelope.temperature, dtype=work.dtype):
        here = slice(at, at + logp_CV.shape[0])
        low_C, high_C = _interval(logp_CV, token_T[here], envelope)
        distance += float(torch.maximum(low_C - u_T[here], u_T[here] - high_C).clamp(min=0.0).sum())
        chance += float((low_C**2 + (1 - high_C)**2).sum()) / 2
        at = here.stop
    return distance / chance if chance > LEAST else 0.0


def _interval(logp_CV: Tensor, token_C: Tensor, envelope: SamplingEnvelope) -> tuple[Tensor, Tensor]:
    """Cumulative probabilities before and after each token, over the ids it could be drawn from in ascending order."""
    request = Request(key="", prompt_ids=(), max_tokens=1, temperature=1.0, top_p=envelope.top_p, top_k=envelope.top_k,
                      min_p=envelope.min_p, seed=0)
    if not (request.top_k or request.top_p < 1.0 or request.min_p > 0.0):
        mass_CV, place_C1 = logp_CV.double().exp(), token_C[:, None]
        high_C = mass_CV.cumsum(-1).gather(1, place_C1)[:, 0]
        return high_C - mass_CV.gather(1, place_C1)[:, 0], high_C
    kept = support(logp_CV, request)
    mass_CK = kept.logits_BC.double().softmax(-1)
    before_CK = (kept.id_BC < token_C[:, None]) & torch.isfinite(kept.logits_BC)
    own_CK = (kept.id_BC == token_C[:, None]) & torch.isfinite(kept.logits_BC)
    low_C = (mass_CK * before_CK).sum(-1)
    return low_C, low_C + (mass_CK * own_CK).sum(-1)


def _again(work: Work, drawn: Drawn, tasks: dict[str, Task]) -> tuple[list[str], list[str]]:
    """The attempts that were made again, and those of them that came out otherwise."""
    one, issued = drawn.envelope, drawn.dispatch
    engine = EmbeddedEngine(stop_ids=work.tokenizer.stop_ids, dtype=work.dtype, decode=work.tokenizer.decode)
    engine.load(work.decoder, drawn.version)
    sampling = SamplingSettings(temperature=one.temperature, top_p=one.top_p, top_k=one.top_k, min_p=one.min_p)
    rollouts = Rollouts(sampler=engine, tokenizer=work.tokenizer, sampling=sampling, seed=one.seed, max_tokens=one.max_tokens,
                        stop=one.stop)
    made = rollouts.solve([tasks[name] for name in issued.tasks], issued.samples, scope=issued.scope, envelope=one)
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
