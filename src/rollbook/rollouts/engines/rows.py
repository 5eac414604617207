"""One request being answered, token by token, and what it becomes when it is over."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from rollbook.records import Completion, Fault, Request, SampledSupport, sampled_hash
from rollbook.records.rollout import StopReason
from rollbook.rollouts.engines.sampling import Kept
from rollbook.rollouts.engines.stopping import Stops
from rollbook.rollouts.engines.turns import Turns


@dataclass(slots=True)
class Drawn:
    """What a row's tokens were drawn from, as it grows."""

    ids: array[int] = field(default_factory=lambda: array("i"))
    counts: list[int] = field(default_factory=list)
    log_mass: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Row:
    """A request with what was sampled for it; `uniform` is its own stream of uniforms, one a token."""

    request: Request
    stops: Stops
    uniform: np.ndarray
    turns: Turns | None
    started: float = field(default_factory=time.monotonic)
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    support: Drawn | None = None
    fault: Fault | None = None

    def said(self, token: int, logp: float, version: int) -> None:
        """Writes a token down."""
        self.tokens.append(token)
        self.logps.append(logp)
        self.versions.append(version)

    def ended(self) -> tuple[StopReason, int | str | None] | None:
        """Why it is over and what stopped it; None while it goes on."""
        if self.fault is not None:
            return "failed", None
        by = self.stops.met(self.tokens)
        if by is not None:
            return ("end_of_turn" if isinstance(by, int) else "stop_string"), by
        if len(self.tokens) < self.request.max_tokens:
            return None
        cut = self.turns is not None and self.request.max_tokens < self.turns.opened.max_tokens
        return ("context_full" if cut else "length"), None

    def completion(self, reason: StopReason, by: int | str | None = None, routes: array[int] | None = None) -> Completion:
        """What the request was answered, for this reason; `routes` are the experts of its positions."""
        held, versions = self.support, tuple(self.versions)
        support = None if held is None else SampledSupport(ids=held.ids, counts=tuple(held.counts), log_mass=tuple(held.log_mass))
        return Completion(key=self.request.key, token_ids=tuple(self.tokens), logps=tuple(self.logps), versions=versions,
                          stop_reason=reason, latency_s=time.monotonic() - self.started, stopped_by=by, support=support,
                          routes=routes, fault=self.fault,
                          sampled=sampled_hash(self.tokens, self.logps, versions) if self.tokens else None)


def note_support(rows: Sequence[Row], kept: Kept) -> None:
    """Adds to each row what its last token was drawn from."""
    id_BC = kept.id_BC.to(torch.int32).cpu().numpy()
    for index, (row, count, mass) in enumerate(zip(rows, kept.count_B.tolist(), kept.log_mass_B.tolist(), strict=True)):
        if row.fault is None:
            row.support = row.support or Drawn()
            row.support.ids.frombytes(id_BC[index, :count].tobytes())
            row.support.counts.append(count)
            row.support.log_mass.append(mass)
