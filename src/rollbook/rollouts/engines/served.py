"""Servers that sample: token ids in, ids, log-probs and versions out, over HTTP. The embedded engine's protocol, by vLLM."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rollbook.models.architecture import Architecture
from rollbook.models.decoder import Decoder
from rollbook.records import Completion, Fault, ModelError, Request, Unserved
from rollbook.records.recipe import Vllm
from rollbook.rollouts.engines.offering import Exchange, give
from rollbook.rollouts.engines.refusing import Limits, refusal
from rollbook.rollouts.engines.replies import Manner, asked, cut, failed, read, seed_of, unanswerable, whole
from rollbook.rollouts.engines.served_stream import ServedStream
from rollbook.rollouts.engines.stream import OnUpdate
from rollbook.rollouts.engines.turns import Turns
from rollbook.rollouts.engines.wire import Unanswered, Wire

LOST = 16           # requests in a row without an answer that end the run
ABORT_S = 10.0      # how long a server may take to hear that a request is over
NAME_PREFIX = "generate-tokens-"        # what vLLM puts before a request's name; an abort has to name it whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the servers sample from, as far as the run has to know it."""

    architecture: Architecture


@dataclass(slots=True, eq=False)
class _Server:
    wire: Wire
    open: int = 0


class ServedEngine:
    """Samples on the servers of `settings`, each request on the one that has the fewest.

    A request's seed depends on its key alone; what it is answered depends on the server's batches as well, so that equal calls
    need not give equal tokens. `text` gives the whole text of ids (`ChatTokenizer.whole`).
    Limit: keys and values are the servers' affair; a prompt that waited at a server over an update may find its beginning in the
    cache of the version before.
    """

    def __init__(self, settings: Vllm, *, architecture: Architecture, stop_ids: frozenset[int], dtype: torch.dtype,
                 text: Callable[[Sequence[int]], str]):
        self.settings, self.architecture, self.stop_ids, self.dtype, self.decode = settings, architecture, stop_ids, dtype, text
        self.name = f"vllm x {len(settings.servers)}"
        self.max_rows = settings.rows * len(settings.servers)
        self.loaded = ""
        self.version = -1
        self.on_update: OnUpdate = "keep"
        self.between_tokens = threading.Lock()       # of the embedded engine; a server pauses itself between two tokens
        self.watch: Callable[[Sequence[str], Tensor], None] | None = None
        self._servers = [_Server(Wire(url)) for url in settings.servers]
        self._mutex = threading.Lock()
        self._newest = -1
        self._missed = 0
        self._numbers = itertools.count()
        self._exchange: Exchange | None = None
        self._pool = ThreadPoolExecutor(self.max_rows, thread_name_prefix="rollbook-asking")

    def load(self, decoder: Decoder, version: int) -> str:
        """Gives the weights to every server; returns the hash that all of them report. Raises `Unserved`."""
        self._exchange = self._exchange or Exchange(self.settings.exchange)
        offer = self._exchange.write(decoder, self.dtype, version, self.settings.update_s)
        self._newest = max(self._newest, version)
        with ThreadPoolExecutor(len(self._servers)) as threads:
            hashes = set(threads.map(lambda one: give(one.wire, offer, self.on_update), self._servers))
        if len(hashes) > 1:
            raise Unserved(f"servers took different weights as version {version}", code="unacknowledged", got=", ".join(hashes),
                           why="one of them would sample from other weights than the record says")
        self.version, self.loaded = version, hashes.pop()
        return self.loaded

    def logprobs(self, token_ids: Sequence[int], given: int) -> tuple[float, ...]:
        """Log-probs (nats, temperature 1) of the tokens after the first `given`, as the first server gives them for a prompt."""
        wire = self._servers[0].wire
        body = {"request_id": self._name("probe"), "token_ids": list(token_ids), "cache_salt": f"probe-{self.version}",
                "sampling_params": {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}}
        try:
            rows = wire.post("/inference/v1/generate", body, seconds=self.settings.request_s)["prompt_logprobs"]
            return tuple(float(rows[place][str(token)]["logprob"]) for place, token in enumerate(token_ids) if place >= given)
        except (Unanswered, KeyError, IndexError, TypeError, ValueError) as error:
            code = error.code if isinstance(error, Unanswered) else "malformed"
            raise Unserved(f"{wire.url} did not show the log-probs of a probe", code=code, got=f"{error}"[:200],
                           why="without them nobody could tell which weights it holds") from error

    def ready(self) -> Served:
        """What is sampled from; refuses before the first publication."""
        if self.version < 0:
            raise ModelError("the engine has no weights", why="sampling before the first publication", fix="call load first")
        return Served(architecture=self.architecture)

    def sample(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request, in order; what was not answered comes back as failed, with the reason."""
        return self._answers([(request, 0) for request in requests])

    def open(self, request: Request) -> Turns:
        """An attempt of several turns; its beginning stands in the prefix cache of the server that answered last."""
        return Turns(request, self.sample_turns)

    def sample_turns(self, several: Sequence[Turns]) -> list[Completion]:
        """The next turn of each attempt."""
        context = self.ready().architecture.context
        for turns in several:
            turns.take(self.loaded)
        requests = [replace(turns.request, max_tokens=max(1, min(turns.request.max_tokens, context - len(turns.token_ids))))
                    for turns in several]
        done = self._answers([(request, turns.drawn) for request, turns in zip(requests, several, strict=True)])
        for place, (turns, completion) in enumerate(zip(several, done, strict=True)):
            done[place] = cut(completion, requests[place], turns.opened.max_tokens)
            turns.said(done[place])
        return done

    def stream(self, *, rows: int, longest_prompt: int, longest_answer: int, on_update: OnUpdate = "keep") -> ServedStream:
        """An open stream of requests into which new weights may come at any time (`load`), at most `rows` of them at a time."""
        self.ready()
        self.on_update = on_update
        return ServedStream(self, rows=min(rows, self.max_rows))

    def rows_that_fit(self, rows: int, context: int, longest_prompt: int) -> int:
        """At most `rows`; what fits the memory of a server is the server's affair."""
        return max(1, min(rows, self.max_rows))

    def close(self) -> None:
        """Gives the exchange folder back and waits for no one."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._exchange is not None:
            self._exchange.close()

    # one request

    def refused(self, request: Request) -> Fault | None:
        """Why a request cannot be asked at all; None where it can."""
        a = self.architecture
        return refusal(request, Limits(context=a.context, vocab=a.vocab, budget=0, position=0, text=True))

    def submit(self, request: Request, drawn: int) -> tuple[Future[Completion], Callable[[], None]]:
        """The answer to come, and what ends it before its time: the server is told, what it had sampled is the answer."""
        with self._mutex:
            server = min(self._servers, key=lambda one: one.open)
            server.open += 1
        name = self._name(f"{seed_of(request, drawn):x}")
        future = self._pool.submit(self._ask, server, request, name, drawn)
        return future, lambda: self._abort(server, name)

    def check_alive(self) -> None:
        """Raises `Unserved` where no request has been answered for a while."""
        if self._missed >= LOST:
            raise Unserved(f"no server answers: {', '.join(one.wire.url for one in self._servers)}", code="unreachable",
                           got=f"{self._missed} requests in a row without an answer",
                           why="every further one would end the same way",
                           fix="start the servers again, then `rollbook resume RUN`")

    def _answers(self, several: Sequence[tuple[Request, int]]) -> list[Completion]:
        self.ready()
        if len({request.key for request, _ in several}) < len(several):
            raise ModelError("two requests carry one key", got=f"{len(several)} requests",
                             why="they would draw the same, and their samples could not be told apart")
        found: list[Completion | Future[Completion]] = []
        for request, drawn in several:
            fault = self.refused(request)
            found.append(self.submit(request, drawn)[0] if fault is None else unanswerable(request, fault))
        done = [one if isinstance(one, Completion) else whole(one.result()) for one in found]
        lost = [one.fault for one in done if one.fault is not None and one.fault.code in ("unreachable", "timeout")]
        if len(lost) == len(done) > 1:
            raise Unserved(f"not one of {len(done)} requests was answered", code=lost[0].code, got=lost[0].detail,
                           why="every further one would end the same way",
                           fix="start the servers again, then `rollbook resume RUN`")
        return done

    def _ask(self, server: _Server, request: Request, name: str, drawn: int) -> Completion:
        manner = Manner(stop_ids=self.stop_ids, text=self.decode if self.settings.check_text else None, shown=self.settings.shown)
        body = asked(request, manner, name=name, salt=f"version-{self.version}", drawn=drawn)
        began = time.monotonic()
        try:
            reply = server.wire.post("/inference/v1/generate", body, seconds=self.settings.request_s)
        except Unanswered as error:
            self._missed += error.code in ("unreachable", "timeout")
            if error.code == "timeout":
                self._abort(server, name)
            return failed(request, error.code, "was not answered", str(error), latency_s=time.monotonic() - began)
        finally:
            with self._mutex:
                server.open -= 1
        self._missed = 0
        return read(request, reply, manner, latency_s=time.monotonic() - began, newest=self._newest)

    def _abort(self, server: _Server, name: str) -> None:
        try:
            server.wire.post("/inference/v1/abort_requests", {"request_ids": [NAME_PREFIX + name]}, seconds=ABORT_S)
        except Unanswered:
            return                  # it does not answer: its requests end by their own time limit

    def _name(self, stem: str) -> str:
        return f"rollbook-{stem}-{next(self._numbers)}"
