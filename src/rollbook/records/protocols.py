"""Where packages on one level meet: what a sampler, verifier, scorer, sandbox or weight sink must do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rollbook.records.reward import Verdict, VerifierStamp
from rollbook.records.rollout import StopReason, Trace
from rollbook.records.tasks import Task, TaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sampling request. `key` names the attempt: with the run's seed it fixes the uniforms that are drawn.

    Example: Request(key="rl/000001/0/Task:1f/2", prompt_ids=(1, 5), max_tokens=64, temperature=1.0, top_p=1.0, top_k=0,
        min_p=0.0, seed=1)
    """

    key: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What the engine returned: exact ids, log-probs at sampling temperature (nats), version per token, why it stopped.

    `sampled` is the engine's own `sampled_hash` of these tokens; None from an engine that makes none.
    """

    key: str
    token_ids: tuple[int, ...]
    logps: tuple[float, ...]
    versions: tuple[int, ...]
    stop_reason: StopReason
    latency_s: float
    sampled: str | None = None


class Sampler(Protocol):
    """Token ids in, token ids and log-probs out."""

    def sample(self, requests: Sequence[Request]) -> list[Completion]: ...


class WeightSink(Protocol):
    """A consumer of published weights; returns the hash of what it will sample from."""

    name: str

    def load(self, weights: Mapping[str, Any], version: int) -> str: ...


class Judge(Protocol):
    """Turns finished traces into verdicts, in order, one each; a failure is `Unscored`, never a zero."""

    def judge(self, traces: Sequence[Trace], tasks: Mapping[TaskId, Task]) -> list[Verdict]: ...


class Verifier(Protocol):
    """Says whether an answer equals the reference."""

    stamp: VerifierStamp

    def close(self) -> None: ...


class Tokenizer(Protocol):
    """What the rest of the house needs of a tokenizer: ids for messages, text for ids, what ends a turn."""

    stop_ids: frozenset[int]
    digest: str
    template_digest: str

    def prompt(self, messages: Sequence[Any]) -> tuple[int, ...]: ...

    def encode(self, text: str) -> tuple[int, ...]: ...

    def decode(self, ids: Sequence[int]) -> str: ...
