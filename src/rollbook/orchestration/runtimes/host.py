"""One generator away from the learner: its own copy of the model, its own engine, its own environments."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from rollbook.models.load import load_policy, placed
from rollbook.models.runtime import device_of
from rollbook.models.shape import load_shaped
from rollbook.orchestration.surroundings import rollouts_of, surroundings
from rollbook.records import AttemptId, Dispatch, ModelError, Task, Trace
from rollbook.records.recipe import SamplingSettings, Settings
from rollbook.rollouts.engines.embedded import EmbeddedEngine
from rollbook.rollouts.engines.kinds import Engine
from rollbook.rollouts.engines.stream import OnUpdate
from rollbook.rollouts.environment import EnvironmentRollouts
from rollbook.rollouts.episodes_in_flight import EpisodesInFlight
from rollbook.rollouts.in_flight import InFlight
from rollbook.rollouts.solve import Rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """All that a generator needs to be built anywhere. `rows` decode at a time; `dtype` is torch's name of a precision."""

    settings: Settings
    sampling: SamplingSettings
    rows: int
    longest_prompt: int
    on_update: OnUpdate
    dtype: str
    threads: int


def attempts_of(rollouts: Rollouts, engine: Engine, *, rows: int, longest_prompt: int,
                on_update: OnUpdate) -> InFlight | EpisodesInFlight:
    """Attempts in flight on this engine, with an environment where the rollouts have one."""
    if isinstance(rollouts, EnvironmentRollouts):
        return EpisodesInFlight(rollouts, engine, rows=rows, on_update=on_update)
    return InFlight(rollouts, engine, rows=rows, longest_prompt=longest_prompt, on_update=on_update)


class Host:
    """Attempts on a model of its own. The first weights must be loaded before anything is started."""

    def __init__(self, spec: HostSpec):
        torch.set_flush_denormal(True)
        torch.set_num_threads(spec.threads)
        self.spec = spec
        self.policy = placed(load_policy(spec.settings.model), device_of(spec.settings.run.device))
        self._open = contextlib.ExitStack()
        around = self._open.enter_context(surroundings(spec.settings.environment, spec.settings.tasks.max_tokens))
        self.engine = EmbeddedEngine(stop_ids=self.policy.tokenizer.stop_ids, dtype=getattr(torch, spec.dtype),
                                     decode=self.policy.tokenizer.decode, device=self.policy.decoder.device)
        self.rollouts = rollouts_of(spec.settings, self.policy, self.engine, around, spec.sampling)
        self._attempts: InFlight | EpisodesInFlight | None = None

    @property
    def busy(self) -> bool:
        return self._attempts is not None and self._attempts.busy

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> str:
        """Takes weights in between two tokens; the hash of what it samples from now."""
        load_shaped(self.policy.decoder, weights)
        taken = self.engine.load(self.policy.decoder, version)
        if self._attempts is None:
            spec = self.spec
            self._attempts = attempts_of(self.rollouts, self.engine, rows=spec.rows, longest_prompt=spec.longest_prompt,
                                         on_update=spec.on_update)
        return taken

    def start(self, dispatch: Dispatch, task: Task, attempts: Sequence[AttemptId]) -> None:
        self._ready.start(dispatch, task, attempts)

    def advance(self) -> list[tuple[str, Trace]]:
        with torch.no_grad():
            return self._ready.advance()

    def cancel(self, scope: str) -> list[tuple[str, Trace]]:
        return self._ready.cancel(scope)

    def close(self) -> None:
        if self._attempts is not None:
            self._attempts.close()
        self._open.close()

    @property
    def _ready(self) -> InFlight | EpisodesInFlight:
        if self._attempts is None:
            raise ModelError("a generator has no weights", why="sampling before the first publication", fix="load weights first")
        return self._attempts
