"""An endpoint that answers in text: OpenAI's chat completions. What it does not show is not made up.

Such an endpoint says what it answered, how it ended and how many tokens it read and sampled: not which tokens, not their
log-probs, not which weights sampled them or under which template. Those stay hidden in the record.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rollbook.records import (
    FAULT_NOTE,
    AttemptId,
    Dispatch,
    FaultCode,
    Message,
    ModelError,
    NotExposed,
    SamplingEnvelope,
    Segment,
    Task,
    Trace,
    content_id,
    digest,
    group_name,
)
from rollbook.records.recipe import SamplingSettings
from rollbook.records.rollout import StopReason
from rollbook.rollouts.engines.wire import Unanswered, Wire
from rollbook.rollouts.solve import SCAFFOLD

UNSEEN = "not shown"                # of the template: an envelope says what it knows
MAX_BYTES = 16 * 2**20              # of a reply
AGAIN_S = (0.5, 2.0, 8.0)           # waits before a call is made again
TRANSIENT = (408, 409, 425, 429, 500, 502, 503, 504)
ENDS: Mapping[str, StopReason] = {"stop": "end_of_turn", "length": "length"}
SEEDS = 2**31                       # servers hold seeds in 32 bits
THINKING = ("reasoning_content", "reasoning")
Answer = TypeVar("Answer", bound="Said")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a model answers. `key_variable` names the environment variable that holds the key; None: none is sent.

    Example: Endpoint(url="http://127.0.0.1:8000/v1", model="policy", key_variable=None, workers=8, seconds=120.0)
    """

    url: str
    model: str
    key_variable: str | None
    workers: int
    seconds: float

    def wire(self) -> Wire:
        """The connection to it; refuses a key that is not there, and an address that holds one."""
        parts = urlsplit(self.url)
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ModelError("the address of an endpoint is a host and a path", got=f"{parts.scheme}://{parts.hostname}/...",
                             why="it stands in the record, where no key belongs",
                             fix="leave out user, query and fragment; name a variable with --key-variable")
        key = None if self.key_variable is None else os.environ.get(self.key_variable)
        if self.key_variable is not None and not key:
            raise ModelError("the key of the endpoint is not set", got=f"{self.key_variable} is empty or absent",
                             fix=f"export {self.key_variable}=...")
        return Wire(self.url, key=key or "", max_bytes=MAX_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """An answer in text, with the numbers that came with it. `put_together`: reasoning and answer came apart; `content` is the
    answer without it, as it is sent back."""

    text: str
    ended: StopReason
    read: int
    sampled: int
    model: str
    fingerprint: str
    put_together: bool
    content: str


def models_of(wire: Wire, seconds: float) -> tuple[str, ...]:
    """The names that an endpoint answers to; refuses one that cannot be reached or lists none."""
    try:
        document = wire.get("/models", seconds=seconds)
    except Unanswered as error:
        raise ModelError("the endpoint does not say which models it has", got=str(error),
                         why="an evaluation is of one named model",
                         fix="check address and key, or name it with --model") from error
    listed = document.get("data") if isinstance(document, dict) else None
    names = tuple(str(one["id"]) for one in listed if isinstance(one, dict) and "id" in one) if isinstance(listed, list) else ()
    if not names:
        raise ModelError("the endpoint lists no model", got=str(document)[:120], fix="name it with --model")
    return names


def check_listens(wire: Wire, seconds: float) -> None:
    """Refuses an address at which nothing can be reached, before every attempt at it is made again and again."""
    try:
        wire.get("/models", seconds=seconds)
    except Unanswered as error:
        if error.code == "unreachable":
            raise ModelError("nothing answers at the endpoint's address", got=str(error), why="no attempt could be made",
                             fix="check the address, or start the server") from error


class EndpointRollouts:
    """Single turns asked of an endpoint. `heard` collects how it named itself: (model, fingerprint) of every answer."""

    def __init__(self, endpoint: Endpoint, sampling: SamplingSettings, *, seed: int, max_tokens: int):
        if sampling.top_k or sampling.min_p:
            raise ModelError("an endpoint cannot be asked to sample as the protocol says",
                             got=f"top_k {sampling.top_k}, min_p {sampling.min_p}",
                             why="chat completions know temperature and top_p; whether others are heeded cannot be seen",
                             fix="freeze a protocol whose sampling has top_k 0 and min_p 0")
        self.endpoint, self.sampling, self.seed, self.max_tokens = endpoint, sampling, seed, max_tokens
        self.heard: set[tuple[str, str]] = set()
        self._wire = endpoint.wire()

    def envelope(self, weights: str | None) -> SamplingEnvelope:
        """What the endpoint is asked for; its weights and template are not seen."""
        s = self.sampling
        return SamplingEnvelope(policy=weights, temperature=s.temperature, top_p=s.top_p, top_k=0, min_p=0.0, seed=self.seed,
                                max_tokens=self.max_tokens, max_turns=1, max_seconds=None, stop=(), template=UNSEEN,
                                scaffold=SCAFFOLD)

    def dispatch(self, tasks: Sequence[Task], per_task: int, *, scope: str, envelope: SamplingEnvelope) -> Dispatch:
        """What `solve` will issue, to be recorded before it does."""
        return Dispatch(scope=scope, tasks=tuple(task.id for task in tasks), samples=per_task, envelope=content_id(envelope))

    def solve(self, tasks: Sequence[Task], per_task: int, *, scope: str, envelope: SamplingEnvelope) -> list[Trace]:
        """`per_task` attempts at each task, in order. One that stays unanswered is a trace that failed, with its kind in
        `observed`; refuses where not one is answered."""
        named = [(task, group_name(scope, place, task.id), sample)
                 for place, task in enumerate(tasks) for sample in range(per_task)]
        identity = content_id(envelope)
        with ThreadPoolExecutor(self.endpoint.workers, thread_name_prefix="asking") as threads:
            done = list(threads.map(lambda one: self._attempt(one[0], one[1], one[2], identity), named))
        faults = [fault for _, fault in done if fault is not None]
        if done and len(faults) == len(done):
            raise ModelError(f"not one of {len(faults)} attempts was answered", got=str(faults[0]),
                             why="every further one would end the same way",
                             fix="mend what the first of them says, then give the same command again")
        return [trace for trace, _ in done]

    def _attempt(self, task: Task, group: str, sample: int, envelope: str) -> tuple[Trace, Unanswered | None]:
        key, began = f"{group}/{sample}", time.monotonic()
        failed = Trace(attempt=AttemptId(key), task=task.id, group=group, envelope=envelope,
                       segments=(Segment(owner="user", token_ids=()),), stop_reason="failed", text="")
        said, tries = self.call(self.body(key, [message_of(message) for message in task.prompt], self.max_tokens), read)
        told = {"latency_s": time.monotonic() - began} | noted(said, tries)
        if isinstance(said, Unanswered):
            return replace(failed, observed=told), said
        return replace(failed, stop_reason=said.ended, text=said.text, observed=told, segments=counted(said)), None

    def call(self, body: Mapping[str, Any], understood: Callable[[Any], Answer]) -> tuple[Answer | Unanswered, int]:
        """What is answered, or why nothing is, and how often it was asked: what passes is asked again. Blocks."""
        tries = 0
        while True:
            tries += 1
            try:
                document = self._wire.post("/chat/completions", body, seconds=self.endpoint.seconds)
                said = understood(document)
                if said.sampled > body["max_tokens"]:
                    raise Unanswered("malformed", f"{said.sampled} tokens were sampled, {body['max_tokens']} were asked for")
                self.heard.add((said.model, said.fingerprint))
                return said, tries
            except Unanswered as error:
                if tries > len(AGAIN_S) or not passing(error):
                    return error, tries
                time.sleep(AGAIN_S[tries - 1])

    def body(self, key: str, messages: Sequence[Mapping[str, Any]], max_tokens: int) -> dict[str, Any]:
        """A call under this name: it decides the seed."""
        s = self.sampling
        return {"model": self.endpoint.model, "temperature": s.temperature, "top_p": s.top_p, "max_tokens": max_tokens,
                "seed": int(digest(f"{self.seed}\0{key}".encode())[:12], 16) % SEEDS, "messages": list(messages)}


def message_of(message: Message) -> dict[str, Any]:
    """A message as chat completions take it."""
    return {"role": message.role, "content": message.content}


def counted(said: Said) -> tuple[Segment, ...]:
    """What was read and what was sampled, of which nothing but the numbers is known."""
    own = (Segment(owner="policy", token_ids=(), logps=NotExposed(), hidden=said.sampled),) if said.sampled else ()
    return (Segment(owner="user", token_ids=(), hidden=said.read), *own)


def noted(said: Said | Unanswered, tries: int) -> dict[str, float]:
    """How a call went, for `observed`."""
    if isinstance(said, Unanswered):
        return {f"{FAULT_NOTE}{said.code}": 1.0, "tries": float(tries)}
    return ({"tries": float(tries)} if tries > 1 else {}) | ({"put_together": 1.0} if said.put_together else {})


def passing(error: Unanswered) -> bool:
    """Whether the same call may be answered later."""
    return error.code in ("unreachable", "timeout") or error.status in TRANSIENT


def read(document: Any) -> Said:
    """The answer in a reply; Unanswered with what is wrong with one that holds none."""
    return read_choice(document, ENDS)


def read_choice(document: Any, ends: Mapping[str, StopReason]) -> Said:
    """The same, where an answer may end in these ways."""
    try:
        choice, usage = document["choices"][0], document["usage"]
        message, finish = choice["message"], choice["finish_reason"]
        text, thought = _text(message.get("content") or message.get("refusal")), _thought(message)
        numbers = [usage["prompt_tokens"], usage["completion_tokens"]]
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise malformed(f"it lacks {error}", document) from error
    if not all(type(one) is int and 0 <= one < 2**31 for one in numbers):
        raise malformed(f"it counts {numbers[0]!r} and {numbers[1]!r} tokens", document)
    if not isinstance(finish, str) or finish not in ends:
        code: FaultCode = "refused" if finish == "content_filter" else "malformed"
        raise Unanswered(code, f"the answer ended as {finish!r}")
    return Said(text=readable(_joined(thought, text)), ended=ends[finish], read=numbers[0], sampled=numbers[1],
                model=_name(document.get("model")), fingerprint=_name(document.get("system_fingerprint")),
                put_together=bool(thought), content=readable(text))


def _name(value: Any) -> str:
    """A name as it can be printed."""
    return "".join(letter for letter in str(value or "") if letter.isprintable())[:200] or UNSEEN


def malformed(what: str, document: Any) -> Unanswered:
    """A reply that cannot be read."""
    return Unanswered("malformed", f"the reply cannot be read: {what[:120]}, in {str(document)[:120]}")


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content)
    if content is None or isinstance(content, str):
        return content or ""
    raise TypeError("a text")


def _thought(message: Mapping[str, Any]) -> str:
    """What a server that takes the reasoning out of the answer hands over beside it."""
    return next((_text(message[name]) for name in THINKING if message.get(name)), "")


def _joined(thought: str, text: str) -> str:
    """Reasoning and answer as one text in the usual tags; the white space between them is not known."""
    if not thought:
        return text
    held = thought.strip() if "</think>" in thought else f"<think>\n{thought.strip()}\n</think>"
    return f"{held}\n{text}"


def readable(text: str) -> str:
    """Half characters, which JSON can write and no file can hold, as the sign for what is no character."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
