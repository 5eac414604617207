"""Which requests an engine cannot answer at all, with the numbers that say why."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rollbook.records import Fault, FaultCode, ModelError, Request
from rollbook.rollouts.engines.memory import needed
from rollbook.rollouts.engines.stopping import unusable


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the engine has: context in tokens, vocabulary, bytes for keys and values, bytes of one position, whether text."""

    context: int
    vocab: int
    budget: int
    position: int
    text: bool


def refusal(request: Request, limits: Limits) -> Fault | None:
    """The first fault of a request; None where it can be answered."""
    return next(_refusals(request, limits), None)


def fault(code: FaultCode, request: Request, what: str, got: str, *, why: str | None = None, fix: str | None = None) -> Fault:
    """A fault that names its request."""
    return Fault(code=code, detail=str(ModelError(f"request {request.key} {what}", got=got, why=why, fix=fix)))


def _refusals(r: Request, limits: Limits) -> Iterator[Fault]:
    prompt = len(r.prompt_ids)
    unknown = [one for one in r.stop_ids if not 0 <= one < limits.vocab]
    if not prompt or r.max_tokens < 1:
        yield fault("empty_request", r, "asks for nothing", f"{prompt} prompt tokens, {r.max_tokens} new tokens")
    if not (0.0 <= r.temperature < math.inf and 0.0 < r.top_p <= 1.0 and r.top_k >= 0 and 0.0 <= r.min_p <= 1.0):
        yield fault("bad_sampling", r, "cannot be sampled as it says",
                    f"temperature {r.temperature}, top_p {r.top_p}, top_k {r.top_k}, min_p {r.min_p}",
                    fix="temperature >= 0, 0 < top_p <= 1, top_k >= 0, 0 <= min_p <= 1")
    if prompt + r.max_tokens > limits.context:
        yield fault("context", r, "does not fit the model's context",
                    f"{prompt} prompt + {r.max_tokens} new tokens for {limits.context}",
                    fix="shorten the prompt or lower max_tokens")
    if unknown:
        yield fault("stop_id", r, "would stop at ids that the model does not have",
                    f"{', '.join(map(str, unknown))} for a vocabulary of {limits.vocab}", fix="use ids of the model's tokenizer")
    if r.stop and not limits.text:
        yield fault("stop_string", r, "has stop strings, and the engine has no text to seek them in", repr(r.stop),
                    fix="build the engine with the tokenizer's decode")
    if (wrong := unusable(r.stop)) is not None:
        yield fault("stop_string", r, "has a stop string that cannot be sought", repr(r.stop), why=wrong)
    if needed(r) * limits.position > limits.budget:
        yield fault("kv_budget", r, "needs more keys and values than the budget holds",
                    f"2 x {prompt} prompt + {r.max_tokens} new tokens of {limits.position} bytes = "
                    f"{needed(r) * limits.position} bytes for {limits.budget}",
                    why="the prompt stands in the row and, while it is computed, beside it",
                    fix="raise kv_bytes, shorten the prompt or lower max_tokens")
