"""A chat model behind an OpenAI-compatible server, by the standard library. A key comes from the environment, never on record."""

from __future__ import annotations

import http.client
import json
import math
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from rollbook.records import Question, Unrated, canonical, digest
from rollbook.records.reward import FailureCode
from rollbook.rewards.errors import RewardError
from rollbook.rewards.pool import writable

T = TypeVar("T")
MAX_BYTES = 16 * 2**20
BLOCK = 2**16
TOP = 20                    # log-probs a server shows at a place, by the interface's own limit


class ServerChat:
    """Asks `POST {url}/chat/completions`. Limit: the server's word is all there is on which weights answer.

    A question that is not answered in `seconds`, or with something that is no answer, is Unrated; the others go on.
    """

    def __init__(self, url: str, model: str, *, seconds: float = 60.0, parallel: int = 4, key_variable: str = "OPENAI_API_KEY",
                 temperature: float = 0.0):
        if not url.startswith(("http://", "https://")):
            raise RewardError("a judge's server is an http or https address", got=url, fix="for example http://localhost:8000/v1")
        self.url, self.model, self.seconds, self.parallel = url.rstrip("/"), model, seconds, parallel
        self.key_variable, self.temperature = key_variable, temperature
        self.name = f"server:{model}"
        self.digest = digest(canonical({"server": True, "model": model, "temperature": temperature}))

    def answer(self, questions: Sequence[Question], *, max_tokens: int) -> list[str | Unrated]:
        """One text per question."""
        return self._all(partial(self._answer, max_tokens=max_tokens), questions)

    def option_logps(self, questions: Sequence[Question], options: Sequence[str]) -> list[tuple[float, ...] | Unrated]:
        """Log-probs of the options among the 20 likeliest first tokens; an option that is not among them has minus infinity."""
        return self._all(partial(self._options, options=tuple(options)), questions)

    def _all(self, ask: Callable[[Question], T], questions: Sequence[Question]) -> list[T]:
        if not questions:
            return []
        with ThreadPoolExecutor(max_workers=min(self.parallel, len(questions))) as threads:
            return list(threads.map(ask, questions))

    def _answer(self, question: Question, *, max_tokens: int) -> str | Unrated:
        choice = self._choice(question, {"max_tokens": max_tokens})
        if isinstance(choice, Unrated):
            return choice
        message = choice.get("message")
        text = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(text, str):
            return _malformed("the answer has no text")
        return text if writable(text) == text else _malformed("the answer holds half a surrogate pair")

    def _options(self, question: Question, *, options: Sequence[str]) -> tuple[float, ...] | Unrated:
        choice = self._choice(question, {"max_tokens": 1, "logprobs": True, "top_logprobs": TOP})
        if isinstance(choice, Unrated):
            return choice
        try:
            shown = choice["logprobs"]["content"][0]["top_logprobs"]
            mass = dict.fromkeys(options, 0.0)
            for one in shown:
                token = str(one["token"]).strip()
                if token in mass:
                    mass[token] += math.exp(min(float(one["logprob"]), 0.0))
        except (KeyError, IndexError, TypeError, ValueError, OverflowError):
            return _malformed("the answer has no log-probs of its first token")
        return tuple(math.log(mass[option]) if mass[option] else -math.inf for option in options)

    def _choice(self, question: Question, more: Mapping[str, Any]) -> Mapping[str, Any] | Unrated:
        body = {"model": self.model, "temperature": self.temperature, **more,
                "messages": [{"role": message.role, "content": message.content} for message in question.messages]}
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(self.key_variable):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(f"{self.url}/chat/completions", canonical(body), headers)
        try:
            document = json.loads(self._read(request))
        except urllib.error.HTTPError as error:
            return Unrated(code="unavailable", detail=f"the server answered {error.code} {error.reason}"[:200])
        except TimeoutError:
            return Unrated(code="timeout", detail=f"no answer in {self.seconds:g} s")
        except (urllib.error.URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            code: FailureCode = "timeout" if isinstance(reason, TimeoutError) else "unavailable"
            return Unrated(code=code, detail=f"{self.url}: {reason}"[:200])
        except http.client.HTTPException as error:      # half an answer, or none that is HTTP
            return Unrated(code="unavailable", detail=f"{self.url}: {type(error).__name__} {error}"[:200])
        except (ValueError, RecursionError):
            return _malformed("the answer is no JSON")
        choices = document.get("choices") if isinstance(document, Mapping) else None
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
            return _malformed("the answer has no choices")
        return choices[0]


    def _read(self, request: urllib.request.Request) -> bytes:
        """The body, all of it within the limit; TimeoutError of a server that sends it byte by byte."""
        ends = time.monotonic() + self.seconds
        found = bytearray()
        with urllib.request.urlopen(request, timeout=self.seconds) as reply:
            while (part := reply.read1(BLOCK)) and len(found) <= MAX_BYTES:
                found += part
                if time.monotonic() > ends:
                    raise TimeoutError
            if reply.length:
                raise http.client.IncompleteRead(bytes(part), reply.length)
        return bytes(found[:MAX_BYTES])


def _malformed(detail: str) -> Unrated:
    return Unrated(code="malformed", detail=detail)
