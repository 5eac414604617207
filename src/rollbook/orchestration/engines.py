"""What a run samples with: an engine in its own process, or servers that it is given or starts."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import assert_never

import torch

from rollbook.models.load import Policy
from rollbook.models.weights import save_checkpoint
from rollbook.records import RecipeError
from rollbook.records.recipe import Embedded, PolicyGradient, Settings, Vllm
from rollbook.rollouts.engines.embedded import EmbeddedEngine
from rollbook.rollouts.engines.kinds import Engine
from rollbook.rollouts.engines.served import ServedEngine
from rollbook.rollouts.engines.serving import Offered, started


@contextlib.contextmanager
def engine_of(settings: Settings, policy: Policy, dtype: torch.dtype) -> Iterator[Engine]:
    """The engine of every stage, without weights; a server of the run's own ends with it."""
    tokenizer = policy.tokenizer
    match settings.run.engine:
        case Embedded():
            yield EmbeddedEngine(stop_ids=tokenizer.stop_ids, dtype=dtype, decode=tokenizer.decode, device=policy.decoder.device)
        case Vllm() as how:
            with _servers(how, settings, policy, dtype) as there:
                engine = ServedEngine(there, architecture=policy.decoder.architecture, stop_ids=tokenizer.stop_ids, dtype=dtype,
                                      text=tokenizer.whole)
                try:
                    yield engine
                finally:
                    engine.close()
        case _:
            assert_never(settings.run.engine)


@contextlib.contextmanager
def _servers(how: Vllm, settings: Settings, policy: Policy, dtype: torch.dtype) -> Iterator[Vllm]:
    """The settings with addresses: those given, or that of a server which begins with the run's own model."""
    if how.servers:
        yield how
        return
    context = min(settings.model.context, policy.decoder.architecture.context)
    with tempfile.TemporaryDirectory(prefix="rollbook-model-") as root:
        folder = Path(root) / "model"
        save_checkpoint(folder, policy.decoder, policy.tokenizer)
        with started(how, Offered(folder=folder, dtype=dtype, context=context)) as url:
            yield replace(how, servers=(url,), python=None)


def check_engine(settings: Settings) -> None:
    """Refuses generators with engines of their own beside servers that sample for the whole run."""
    if isinstance(settings.run.engine, Embedded):
        return
    for name, stage in settings.stages.items():
        how = stage.asynchrony if isinstance(stage, PolicyGradient) else None
        if how is not None and how.runtime != "threads":
            raise RecipeError(f"stages.{name}.asynchrony.runtime must be threads where servers sample", got=how.runtime,
                              why="other runtimes build engines of their own; servers are processes already",
                              fix=f"--set stages.{name}.asynchrony.runtime=threads, and more addresses in run.engine.servers")
