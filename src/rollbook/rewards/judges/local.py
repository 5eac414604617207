"""A chat model in this process: any engine that samples token ids and knows the log-probs of given ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rollbook.records import FAULT_NOTE, Completion, Question, Request, Sampler, Tokenizer, Unrated, canonical, digest


class Engine(Sampler, Protocol):
    """Samples, and gives the log-probs (nats) of the tokens after the first `given`."""

    def logprobs(self, token_ids: Sequence[int], given: int) -> tuple[float, ...]: ...


class LocalChat:
    """Asks an engine through a chat template. `weights` is the hash of what the engine samples from.

    Temperature 0 by default: a judge that is asked again says the same. `context` bounds prompt and answer together.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer, *, name: str, weights: str, context: int, temperature: float = 0.0,
                 seed: int = 0):
        self.engine, self.tokenizer, self.name, self.context = engine, tokenizer, name, context
        self.temperature, self.seed = temperature, seed
        self.digest = digest(canonical({"weights": weights, "tokenizer": tokenizer.digest, "template": tokenizer.template_digest,
                                        "temperature": temperature, "seed": seed}))

    def answer(self, questions: Sequence[Question], *, max_tokens: int) -> list[str | Unrated]:
        """One text per question; a question that does not fit the context has none."""
        found: dict[int, str | Unrated] = {}
        requests: dict[int, Request] = {}
        for place, question in enumerate(questions):
            prompt = self.tokenizer.prompt(question.messages)
            if len(prompt) + max_tokens > self.context:
                found[place] = _too_long(len(prompt), max_tokens, self.context)
                continue
            requests[place] = Request(key=f"{question.key}#{place}", prompt_ids=prompt, max_tokens=max_tokens,
                                      temperature=self.temperature, top_p=1.0, top_k=0, min_p=0.0, seed=self.seed)
        for place, done in zip(requests, self.engine.sample(list(requests.values())) if requests else (), strict=True):
            found[place] = self._said(done)
        return [found[place] for place in range(len(questions))]

    def option_logps(self, questions: Sequence[Question], options: Sequence[str]) -> list[tuple[float, ...] | Unrated]:
        """Log-probs that the answer begins with each option: the sum over the option's own tokens."""
        encoded = [self.tokenizer.encode(option) for option in options]
        found: list[tuple[float, ...] | Unrated] = []
        for question in questions:
            prompt = self.tokenizer.prompt(question.messages)
            longest = max(map(len, encoded))
            if len(prompt) + longest > self.context:
                found.append(_too_long(len(prompt), longest, self.context))
                continue
            found.append(tuple(sum(self.engine.logprobs((*prompt, *option), len(prompt))) for option in encoded))
        return found

    def _said(self, done: Completion) -> str | Unrated:
        if done.fault is not None:
            return Unrated(code="unavailable", detail=f"{FAULT_NOTE}{done.fault.code}: {done.fault.detail}"[:200])
        return self.tokenizer.decode(done.token_ids)


def _too_long(prompt: int, more: int, context: int) -> Unrated:
    return Unrated(code="unavailable", detail=f"{prompt} tokens asked and {more} to answer, the context has {context}")
