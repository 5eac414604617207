"""The engine's side of a model without a fast path: a private copy of its weights and the same two passes, through transformers.

Between two passes a row's keys and values lie in a `Cache` like any other; for a pass they are laid into transformers' own. What
keeps another state than keys and values has its rows' tokens kept instead, and computes a whole row for each new one.

Legend: B rows, P padded prompt length, M cached positions, K key/value heads, D head size, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rollbook.models.cache import Cache
from rollbook.models.fallback import Fallback, readable
from rollbook.models.working_copy import WorkingCopy
from rollbook.records import ModelError


class FallbackCopy(WorkingCopy):
    """The weights of one policy version as the engine reads them."""

    architecture: Any

    def __init__(self, decoder: Fallback, dtype: torch.dtype):
        self.architecture, self.dtype, self.model = decoder.architecture, dtype, copy.deepcopy(decoder.model)
        self.device = decoder.device
        self.model.requires_grad_(False)
        for name, parameter in self.model.named_parameters():
            parameter.data = parameter.data.to(decoder.held_as(name, dtype))

    def named(self) -> Iterator[tuple[str, Tensor]]:
        return self.model.named_parameters()

    def ordered(self) -> Iterator[tuple[str, Tensor]]:
        yield from sorted(self.named(), key=lambda item: item[0])

    @torch.inference_mode()
    def prefill(self, token_BP: Tensor, length_B: Tensor, prefix: Cache | None = None) -> tuple[Tensor, Cache]:
        """Logits [B, V] after each row's last token, and the rows' cache; `prefix` is the one row that stands before all of them.

        Rows are padded on the right, where causal attention does not look.
        """
        rows, width = token_BP.shape
        before = 0 if prefix is None else int(prefix.length_B)
        cache = Cache.empty(self.architecture, rows, before + width, self.dtype, self.device)
        cache.length_B += length_B + before
        if prefix is not None:
            cache.key[:, :, :, :before] = prefix.key[..., :before, :]
            cache.value[:, :, :, :before] = prefix.value[..., :before, :]
        if self.architecture.keeps_tokens:
            cache.key[0, :, 0, before:, 0] = token_BP.to(self.device).int()
            return self._whole(cache), cache
        seen_B = torch.full((rows,), before)
        logits, held = self._continue(token_BP, length_B, cache, seen_B)
        for index, (key, value) in enumerate(held):
            cache.key[index, :, :, before:, :key.shape[3]] = key[:, :, before:]
            cache.value[index, :, :, before:, :value.shape[3]] = value[:, :, before:]
        return logits, cache

    @torch.inference_mode()
    def decode(self, token_B: Tensor, cache: Cache) -> Tensor:
        """Logits [B, V] after one more token per row; appends it to the cache."""
        row = torch.arange(token_B.shape[0])
        at = cache.length_B.clone()
        if self.architecture.keeps_tokens:
            cache.key[0, row, 0, at, 0] = token_B.to(self.device).int()
            cache.length_B += 1
            return self._whole(cache)
        logits, held = self._continue(token_B[:, None], torch.ones_like(at), cache, at)
        for index, (key, value) in enumerate(held):
            cache.key[index, row, :, at, :key.shape[3]] = key[:, :, -1]
            cache.value[index, row, :, at, :value.shape[3]] = value[:, :, -1]
        cache.length_B += 1
        return logits

    def _continue(self, token_BP: Tensor, length_B: Tensor, cache: Cache,
                  seen_B: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Logits after each row's last token, and every layer's keys and values [B, K, M + P, D], the new ones last.

        The `seen_B` positions of each row are laid against the new ones, so that distances are those within the row.
        """
        from transformers import DynamicCache
        token_BP, length_B, seen_B = (x.to(self.device) for x in (token_BP, length_B, seen_B))
        width = token_BP.shape[1]
        most = int(seen_B.max())
        place_M = torch.arange(most, device=self.device)
        source_BM = (place_M - (most - seen_B)[:, None]).clamp(min=0)
        held = DynamicCache()
        for index, (key_dim, value_dim) in enumerate(self.architecture.layer_dims if most else ()):
            held.update(_laid(cache.key[index, ..., :key_dim], source_BM), _laid(cache.value[index, ..., :value_dim], source_BM),
                        index)
        place_P = torch.arange(width, device=self.device)
        mask = torch.cat([place_M >= (most - seen_B)[:, None], place_P < length_B[:, None]], dim=1).long()
        logits = self._last(token_BP, length_B, attention_mask=mask, position_ids=seen_B[:, None] + place_P, use_cache=True,
                            **{cache_name(self.model): held})
        return logits, [(layer.keys, layer.values) for layer in held.layers]

    def _whole(self, cache: Cache) -> Tensor:
        """Logits after the last token of rows whose tokens are kept."""
        most, length_B = int(cache.length_B.max()), cache.length_B.to(self.device)
        token_BM = cache.key[0, :, 0, :most, 0].long()
        place_M = torch.arange(most, device=self.device)
        return self._last(token_BM, length_B, attention_mask=(place_M < length_B[:, None]).long(),
                          position_ids=place_M.expand_as(token_BM), use_cache=False)

    def _last(self, token_BP: Tensor, length_B: Tensor, **inputs: Any) -> Tensor:
        """fp32 logits [B, V] at each row's last position; no others are computed where the architecture can be told so."""
        last_B = length_B - 1
        wanted, place_B = last_B.unique(return_inverse=True)
        out = self.model(**readable(self.model, {"input_ids": token_BP, "logits_to_keep": wanted, **inputs})).logits
        at_B = last_B if out.shape[1] == token_BP.shape[1] else place_B
        return out[torch.arange(len(last_B), device=self.device), at_B].float()


def _laid(x: Tensor, source_BM: Tensor) -> Tensor:
    """[B, K, M, D] with position m of row b taken from position source_BM[b, m]."""
    return x[torch.arange(x.shape[0], device=x.device)[:, None], :, source_BM].transpose(1, 2)


def cache_name(model: Any) -> str:
    """What the architecture calls the cache it is given."""
    for name in ("cache", "past_key_values"):
        if readable(model, {name: None}):
            return name
    raise ModelError("the architecture takes no cache", got=type(model).__name__)
