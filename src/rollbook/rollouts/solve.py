"""Single-turn rollouts: tasks in, traces out, with the envelope they were sampled under."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rollbook.records import (
    AttemptId,
    Completion,
    Dispatch,
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
    """What a stage samples with. `seed` is the run's; with the attempt's name it fixes every uniform."""

    sampler: Sampler
    tokenizer: Tokenizer
    sampling: SamplingSettings
    seed: int
    max_tokens: int

    def envelope(self, weights: str) -> SamplingEnvelope:
        """The request as it is made to the policy with this weight hash."""
        s = self.sampling
        return SamplingEnvelope(policy=weights, temperature=s.temperature, top_p=s.top_p, top_k=s.top_k, min_p=s.min_p,
                                seed=self.seed, max_tokens=self.max_tokens, max_turns=1, max_seconds=None, stop=(),
                                template=self.tokenizer.template_digest, scaffold=SCAFFOLD)

    def dispatch(self, tasks: Sequence[Task], per_task: int, *, scope: str, envelope: SamplingEnvelope) -> Dispatch:
        """What `solve` will issue, to be recorded before it does."""
        return Dispatch(scope=scope, tasks=tuple(task.id for task in tasks), samples=per_task, envelope=content_id(envelope))

    def solve(self, tasks: Sequence[Task], per_task: int, *, scope: str, envelope: SamplingEnvelope) -> list[Trace]:
        """`per_task` attempts at each task, in order; a task's attempts form one group, named by scope, place and task."""
        s = self.sampling
        asked = [(name, group_name(scope, place, name), self.tokenizer.prompt(task.prompt))
                 for place, (name, task) in enumerate((task.id, task) for task in tasks)]
        named = [(task, group, prompt, sample) for task, group, prompt in asked for sample in range(per_task)]
        requests = [Request(key=f"{group}/{sample}", prompt_ids=prompt, max_tokens=self.max_tokens, temperature=s.temperature,
                            top_p=s.top_p, top_k=s.top_k, min_p=s.min_p, seed=self.seed) for _, group, prompt, sample in named]
        completions = self.sampler.sample(requests)
        name = content_id(envelope)
        return [self._trace(task, group, (request, completion), name)
                for (task, group, _, _), request, completion in zip(named, requests, completions, strict=True)]

    def complete(self, prompts: Sequence[tuple[int, ...]], *, scope: str) -> list[Completion]:
        """One completion per prompt, in order; for text that is not an attempt at a task."""
        s = self.sampling
        return self.sampler.sample([
            Request(key=f"{scope}/{index}", prompt_ids=prompt, max_tokens=self.max_tokens, temperature=s.temperature,
                    top_p=s.top_p, top_k=s.top_k, min_p=s.min_p, seed=self.seed) for index, prompt in enumerate(prompts)])

    def _trace(self, task: TaskId, group: str, answered: tuple[Request, Completion], envelope: str) -> Trace:
        request, completion = answered
        prompt = Segment(owner="user", token_ids=request.prompt_ids)
        return Trace(attempt=AttemptId(request.key), task=task, group=group, envelope=envelope,
                     segments=(prompt, *segments(completion)), stop_reason=completion.stop_reason,
                     text=self.tokenizer.decode(completion.token_ids),
                     sampled=() if completion.sampled is None else (completion.sampled,),
                     observed={"latency_s": completion.latency_s})


def segments(completion: Completion) -> tuple[Segment, ...]:
    """The sampled tokens cut where the policy version changes."""
    parts: list[Segment] = []
    rows = zip(completion.versions, completion.token_ids, completion.logps, strict=True)
    for version, run in groupby(rows, key=lambda row: row[0]):
        held = list(run)
        parts.append(Segment(owner="policy", token_ids=tuple(token for _, token, _ in held),
                             logps=tuple(logp for _, _, logp in held), version=version))
    return tuple(parts)


