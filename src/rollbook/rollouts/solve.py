"""Single-turn rollouts: tasks in, traces out, with the envelope they were sampled under."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rollbook.records import (
    FAULT_NOTE,
    AttemptId,
    Completion,
    Dispatch,
    Kept,
    ModelError,
    Request,
    Sampler,
    SamplingEnvelope,
    Segment,
    Task,
    TaskId,
    Tokenizer,
    Trace,
    content_id,
    group_name,
)
from rollbook.records.recipe import SamplingSettings

SCAFFOLD = "single_turn/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """What a stage samples with. `seed` is the run's; with the attempt's name it fixes every uniform.

    `stop` holds strings that end an answer once its text has one of them. `keep_support` and `keep_routes`: what tokens were
    drawn from, and which experts their positions took, goes into their trace for the learner.
    """

    sampler: Sampler
    tokenizer: Tokenizer
    sampling: SamplingSettings
    seed: int
    max_tokens: int
    stop: tuple[str, ...] = ()
    keep_support: bool = False
    keep_routes: bool = False

    def envelope(self, weights: str) -> SamplingEnvelope:
        """The request as it is made to the policy with this weight hash."""
        s = self.sampling
        return SamplingEnvelope(policy=weights, temperature=s.temperature, top_p=s.top_p, top_k=s.top_k, min_p=s.min_p,
                                seed=self.seed, max_tokens=self.max_tokens, max_turns=1, max_seconds=None, stop=self.stop,
                                template=self.tokenizer.template_digest, scaffold=SCAFFOLD)

    def dispatch(self, tasks: Sequence[Task], per_task: int, *, scope: str, envelope: SamplingEnvelope) -> Dispatch:
        """What `solve` will issue, to be recorded before it does."""
        return Dispatch(scope=scope, tasks=tuple(task.id for task in tasks), samples=per_task, envelope=content_id(envelope))

    def solve(self, tasks: Sequence[Task], per_task: int, *, scope: str, envelope: SamplingEnvelope) -> list[Trace]:
        """`per_task` attempts at each task, in order; a task's attempts form one group, named by scope, place and task.

        An attempt that the engine could not answer is a trace that stopped as failed; its kind stands in `observed`.
        """
        asked = [(name, group_name(scope, place, name), self.tokenizer.prompt(task.prompt))
                 for place, (name, task) in enumerate((task.id, task) for task in tasks)]
        named = [(task, group, prompt, sample) for task, group, prompt in asked for sample in range(per_task)]
        requests = [self.request(f"{group}/{sample}", prompt) for _, group, prompt, sample in named]
        completions = self.sampler.sample(requests)
        _check_answered(requests, completions)
        name = content_id(envelope)
        return [self.trace(task, group, (request, completion), name)
                for (task, group, _, _), request, completion in zip(named, requests, completions, strict=True)]

    def complete(self, prompts: Sequence[tuple[int, ...]], *, scope: str) -> list[Completion]:
        """One completion per prompt, in order; for text that is not an attempt, where one that fails has no census to go to."""
        done = self.sampler.sample([self.request(f"{scope}/{index}", prompt) for index, prompt in enumerate(prompts)])
        for one in done:
            if one.fault is not None:
                raise ModelError(f"{scope} could not be written", got=one.fault.detail,
                                 why="it needs an answer to every one of its prompts")
        return done

    def request(self, key: str, prompt: tuple[int, ...]) -> Request:
        """An attempt of this name at a prompt, as the sampler is asked."""
        s = self.sampling
        return Request(key=key, prompt_ids=prompt, max_tokens=self.max_tokens, temperature=s.temperature, top_p=s.top_p,
                       top_k=s.top_k, min_p=s.min_p, seed=self.seed, stop=self.stop, keep_routes=self.keep_routes)

    def trace(self, task: TaskId, group: str, answered: tuple[Request, Completion], envelope: str) -> Trace:
        """The trajectory of a request and what it was answered; `envelope` is the id of the one it was asked under."""
        request, completion = answered
        prompt = Segment(owner="user", token_ids=request.prompt_ids)
        return Trace(attempt=AttemptId(request.key), task=task, group=group, envelope=envelope,
                     segments=(prompt, *segments(completion)), stop_reason=completion.stop_reason,
                     text=self.tokenizer.decode(completion.token_ids),
                     sampled=() if completion.sampled is None else (completion.sampled,), kept=self._kept(completion),
                     observed={"latency_s": completion.latency_s} | _why(completion))

    def _kept(self, completion: Completion) -> Kept | None:
        support = completion.support if self.keep_support else None
        if support is None and completion.routes is None:
            return None
        return Kept.of(ids=None if support is None else support.ids, counts=() if support is None else support.counts,
                       routes=completion.routes)


def _why(completion: Completion) -> dict[str, float]:
    return {} if completion.fault is None else {f"{FAULT_NOTE}{completion.fault.code}": 1.0}


def _check_answered(requests: Sequence[Request], completions: Sequence[Completion]) -> None:
    """Refuses a call that answered none of several prompts: the fault is then not a task's but the model's or the recipe's."""
    faults = [one.fault for one in completions if one.fault is not None]
    if faults and len(faults) == len(completions) and len({one.prompt_ids for one in requests}) > 1:
        raise ModelError(f"not one of {len(faults)} attempts could be sampled", got=faults[0].detail,
                         why="every further step would end the same way",
                         fix="mend what the first of them says, then go on with `rollbook resume RUN`")


def segments(completion: Completion) -> tuple[Segment, ...]:
    """The sampled tokens cut where the policy version changes."""
    parts: list[Segment] = []
    rows = zip(completion.versions, completion.token_ids, completion.logps, strict=True)
    for version, run in groupby(rows, key=lambda row: row[0]):
        held = list(run)
        parts.append(Segment(owner="policy", token_ids=tuple(token for _, token, _ in held),
                             logps=tuple(logp for _, _, logp in held), version=version))
    return tuple(parts)


