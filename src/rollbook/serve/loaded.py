"""A model folder as a gateway."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rollbook.models.load import Policy, load_policy
from rollbook.records import Dialect
from rollbook.records.recipe import Pretrained, SamplingSettings
from rollbook.rollouts.dialects import dialect
from rollbook.rollouts.engines.embedded import EmbeddedEngine
from rollbook.rollouts.rendering import Renderer
from rollbook.serve.gateway import Allowed, Gateway

LONGEST = 1_000_000     # tokens: the model's own context is the shorter one


def gateway_of(model: str, spoken: str, sampling: SamplingSettings, *, max_tokens: int, fixed: bool, keep: int,
               told: Callable[[dict[str, object]], None] | None) -> Gateway:
    """The model's weights as version 0 behind a gateway."""
    policy = load_policy(Pretrained(path=model, context=LONGEST))
    return gateway_over(policy, spoken, sampling, max_tokens=max_tokens, fixed=fixed, keep=keep, told=told)


def gateway_over(policy: Policy, spoken: str, sampling: SamplingSettings, *, max_tokens: int, fixed: bool, keep: int,
                 told: Callable[[dict[str, object]], None] | None) -> Gateway:
    """A policy that is already loaded, as version 0 behind a gateway that holds `keep` conversations."""
    dtype = torch.bfloat16 if policy.decoder.device.type == "cuda" else torch.float32
    engine = EmbeddedEngine(stop_ids=policy.tokenizer.stop_ids, dtype=dtype, decode=policy.tokenizer.decode)
    engine.load(policy.decoder, 0)
    name: Dialect = spoken  # type: ignore[assignment]
    return Gateway(engine, Renderer(policy.tokenizer, dialect(name), announces=True), sampling,
                   Allowed(context=policy.decoder.architecture.context, max_tokens=max_tokens, fixed=fixed, keep=keep), told=told)
