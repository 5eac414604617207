"""Where packages on one level meet: what a sampler, verifier, scorer, sandbox or weight sink must do."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rollbook.records.errors import RecordError
from rollbook.records.reward import FailureCode, Verdict, VerifierStamp
from rollbook.records.rollout import StopReason, Trace
from rollbook.records.tasks import Message, Task, TaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sampling request. `key` names the attempt: with the run's seed it fixes the uniforms that are drawn.

    It ends after the first token that ends a turn, that is in `stop_ids`, or with which its text holds a string of `stop`.
    `keep_routes` asks for the experts of every position.

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
    stop_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    keep_routes: bool = False


FAULT_NOTE = "fault/"        # in a failed trace's observations stands what ended it, e.g. fault/logits
# The second row is of engines that are asked over a network; `logits` there: a log-prob that is none.
FaultCode = Literal["empty_request", "bad_sampling", "context", "kv_budget", "stop_id", "stop_string", "logits",
                    "unreachable", "timeout", "refused", "malformed", "text", "logprobs", "version", "support"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a request was not answered, or not to its end; `detail` names the request and its numbers.

    Example: Fault(code="context", detail="request a does not fit the model's context, got 120 prompt + 64 new tokens for 128.")
    """

    code: FaultCode
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledSupport:
    """The ids that each token was drawn from, one token's after the other's, `counts` of them per token.

    `log_mass` is, per token, the log of the probability that they held together before renormalisation (nats); None where the
    engine does not tell it.

    Example: SampledSupport(ids=array("i", [3, 17, 2]), counts=(2, 1), log_mass=(-0.11, -0.02))
    """

    ids: array[int]
    counts: tuple[int, ...]
    log_mass: tuple[float, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What the engine returned: exact ids, log-probs at sampling temperature (nats), version per token, why it stopped.

    `stopped_by` is the id or string that ended it. A failed one has a `fault` and the tokens that were sampled before it.
    `sampled` is the engine's own `sampled_hash` of these tokens; None without tokens, or from an engine that makes none.
    `support` is None where the whole vocabulary was sampled from; else the log-probs are over it. `routes` are the experts of
    every position whose keys and values the engine holds, int16, where the request asks for them (`Kept`).
    """

    key: str
    token_ids: tuple[int, ...]
    logps: tuple[float, ...]
    versions: tuple[int, ...]
    stop_reason: StopReason
    latency_s: float
    sampled: str | None = None
    stopped_by: int | str | None = None
    support: SampledSupport | None = None
    routes: array[int] | None = None
    fault: Fault | None = None

    def __post_init__(self) -> None:
        if (self.stop_reason == "failed") != (self.fault is not None):
            raise RecordError("a completion is failed exactly where it has a fault", got=f"{self.stop_reason}, {self.fault}")


class Sampler(Protocol):
    """Token ids in, token ids and log-probs out: one completion per request, in order; a fault ends its own request only."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rated:
    """A scorer's number for one response, in the scorer's own unit; `confidence` is in 0 .. 1.

    Example: Rated(value=0.7, detail="4 of 5 criteria")
    """

    value: float
    confidence: float = 1.0
    detail: str = ""

    def __post_init__(self) -> None:
        if not math.isfinite(self.value) or not 0.0 <= self.confidence <= 1.0:
            raise RecordError("a rating is a finite number with a confidence in 0 .. 1", got=f"{self.value}, {self.confidence}",
                              why="a scorer without a verdict says Unrated, not NaN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrated:
    """Why a scorer has no number for a response: it is not 0.0.

    Example: Unrated(code="malformed", detail="the judge answered 'maybe'")
    """

    code: FailureCode
    detail: str


class Scorer(Protocol):
    """A reward model or judge: one rating per finished trace, in order. `stamp` covers weights, prompts and settings."""

    stamp: VerifierStamp

    def score(self, traces: Sequence[Trace], tasks: Mapping[TaskId, Task]) -> Sequence[Rated | Unrated]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a chat model is asked: messages, and a key that fixes the randomness of its answer.

    Example: Question(key="rubric/Trace:1f", messages=(Message(role="user", content="Which is better, A or B?"),))
    """

    key: str
    messages: tuple[Message, ...]


class ChatModel(Protocol):
    """A model that is asked in words: the embedded one, or a server. `digest` names model, template and sampling.

    `answer` gives one text per question; `option_logps` the log-probs (nats) that the answer begins with each option, comparable
    among the options of one question.
    """

    name: str
    digest: str

    def answer(self, questions: Sequence[Question], *, max_tokens: int) -> Sequence[str | Unrated]: ...

    def option_logps(self, questions: Sequence[Question], options: Sequence[str]) -> Sequence[tuple[float, ...] | Unrated]: ...


class Tokenizer(Protocol):
    """What the rest of the house needs of a tokenizer: ids for messages, text for ids, what ends a turn."""

    stop_ids: frozenset[int]
    digest: str
    template_digest: str

    def prompt(self, messages: Sequence[Any]) -> tuple[int, ...]: ...

    def encode(self, text: str) -> tuple[int, ...]: ...

    def encode_plain(self, text: str) -> tuple[int, ...]: ...

    def decode(self, ids: Sequence[int]) -> str: ...
