"""What a model without a fast path can do, found out by computing: it is asked in every way it will be used, before it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rollbook.models.cache import Cache
from rollbook.models.fallback import BENDS, Fallback, FallbackArchitecture, readable
from rollbook.models.fallback_copy import FallbackCopy, cache_name
from rollbook.models.layout import Tree, pack
from rollbook.models.logprobs import action_logprobs
from rollbook.records import ModelError

AGREE = 1e-3        # nats per token in fp32 between two ways of computing one log-prob
SAME = 1e-5         # what a later token may change: nothing, by another order of summation
LONGEST = 96        # probed tokens at most: past the windows of small models, not of large ones
_found: dict[str, tuple[str | None, FallbackArchitecture]] = {}      # by configuration: it decides, and runs load a model often
STRIDE = 7919       # spreads the probed tokens over the vocabulary


def settle(decoder: Fallback) -> None:
    """Sets `bend` and what a cache holds to what gives the numbers of a plain forward pass; refuses a model where none does."""
    key = json.dumps(decoder.document, sort_keys=True)
    if key in _found:
        decoder.bend, decoder.architecture = _found[key]
        return
    try:
        _settle(decoder)
        _found[key] = decoder.bend, decoder.architecture
    except ModelError:
        raise
    except Exception as error:              # whatever the library's code raises for this architecture
        got = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ModelError(f"transformers fails on this model of kind {decoder.architecture.kind}", got=got,
                         why="a few tokens could not be scored or decoded", fix="use another model") from error


def _settle(decoder: Fallback) -> None:
    texts = _texts(decoder)
    with torch.no_grad():
        plain = [_plain(decoder, text) for text in texts]
        _require(decoder, "told another last token", _off(plain[0][:-1], _plain(decoder, (*texts[0][:-1], 0))[:-1]), SAME)
        decoder.bend = next((bend for bend in BENDS if _reads_out(decoder, bend, texts[0], plain[0])), None)
        each = [logp_PV[:-1].gather(1, torch.tensor(text[1:])[:, None])[:, 0] for text, logp_PV in zip(texts, plain, strict=True)]
        _require(decoder, "scored in a padded batch", _off(torch.cat(each), _scored(decoder, texts)))
        wanted = torch.cat([logp_T[row + 1:] for row, logp_T in enumerate(each)])
        tokens_kept = decoder.architecture
        try:
            decoder.architecture = _with_keys(decoder, texts[0])
            agrees = _off(wanted, _decoded(decoder, texts)) < AGREE
        except Exception:                   # states that are not keys and values fail in many ways
            agrees = False
        if not agrees:
            decoder.architecture = tokens_kept
            _require(decoder, "decoded token by token", _off(wanted, _decoded(decoder, texts)))


def _with_keys(decoder: Fallback, text: Sequence[int]) -> FallbackArchitecture:
    """The architecture with a cache of keys and values, in the sizes in which its layers fill one."""
    from transformers import DynamicCache
    cache = DynamicCache()
    decoder.model(**readable(decoder.model, {"input_ids": torch.tensor([text]), "use_cache": True,
                                             cache_name(decoder.model): cache}))
    heads = {part.shape[1] for layer in cache.layers for part in (layer.keys, layer.values)}
    if len(heads) != 1:
        raise ModelError("its layers keep states of different shapes", got=f"{heads} heads")
    dims = tuple((layer.keys.shape[3], layer.values.shape[3]) for layer in cache.layers)
    return replace(decoder.architecture, keeps_tokens=False, layers=len(dims), kv_heads=heads.pop(),
                   head_dim=max(max(both) for both in dims), layer_dims=dims)


def _texts(decoder: Fallback) -> list[tuple[int, ...]]:
    limits = decoder.architecture
    window = getattr(decoder.model.config.get_text_config(), "sliding_window", None) or 0
    longest = min(max(12, window + 8), LONGEST, limits.context)
    return [(1, *(1 + (STRIDE * (place + 5 * row)) % (limits.vocab - 1) for place in range(1, longest - 2 * row)))
            for row in range(3)]


def _plain(decoder: Fallback, text: Sequence[int]) -> Tensor:
    """Log-probs [P, V] at every position of one unpadded sequence."""
    logits: Tensor = decoder.model(input_ids=torch.tensor([text])).logits
    return logits[0].float().log_softmax(-1)


def _reads_out(decoder: Fallback, bend: str, text: Sequence[int], plain_PV: Tensor) -> bool:
    """Whether the last hidden states, the output matrix and this bend give the model's own log-probs."""
    body = decoder.model.base_model
    if body is decoder.model or not isinstance(decoder.model.get_output_embeddings(), torch.nn.Linear):
        return False
    hidden = getattr(body(input_ids=torch.tensor([text])), "last_hidden_state", None)
    decoder.bend = bend
    try:
        return hidden is not None and _off(plain_PV, decoder.readout(torch.float32)(hidden[0]).log_softmax(-1)) < AGREE
    except (AttributeError, TypeError, RuntimeError):       # no such number in its configuration, or another width
        return False


def _scored(decoder: Fallback, texts: Sequence[tuple[int, ...]]) -> Tensor:
    trees = [Tree(prompt=text[:1], continuations=(text[1:],), actions=((True,) * (len(text) - 1),)) for text in texts]
    return action_logprobs(decoder, pack(trees), temperature=1.0, dtype=torch.float32).logp_T


def _decoded(decoder: Fallback, texts: Sequence[tuple[int, ...]]) -> Tensor:
    """Log-probs of what follows prompts of 2, 3, 4 tokens, as an engine computes them: the first token of all prompts once, the
    prompts together, then one token per row at a time, while rows leave.
    """
    weights = FallbackCopy(decoder, torch.float32)
    rest = torch.arange(1, len(texts) + 1)
    token = torch.tensor([text[1:1 + len(texts)] for text in texts])
    _, shared = weights.prefill(torch.tensor([texts[0][:1]]), torch.ones(1, dtype=torch.long))
    logits, rows = weights.prefill(token, rest, shared)
    arena = Cache.empty(decoder.architecture, len(texts), LONGEST, torch.float32)
    arena.put(0, rows, torch.arange(len(texts)))
    at = (rest + 1).tolist()
    found: list[list[Tensor]] = [[] for _ in texts]
    while live := [row for row, text in enumerate(texts) if at[row] < len(text)]:       # the last rows leave first
        for row in live:
            found[row].append(logits[row].log_softmax(-1)[texts[row][at[row]]])
        logits = weights.decode(torch.tensor([texts[row][at[row]] for row in live]), arena.first(len(live)))
        at = [place + 1 for place in at]
    return torch.cat([torch.stack(values) for values in found])


def _off(wanted: Tensor, found: Tensor) -> float:
    """The largest difference; infinite where one is no number."""
    off = float((wanted - found).abs().max())
    return off if off == off else float("inf")


def _require(decoder: Fallback, how: str, off: float, limit: float = AGREE) -> None:
    if not off < limit:
        raise ModelError(f"a model of kind {decoder.architecture.kind} gives other log-probs when it is {how}",
                         got=f"{off:.2g} nats off a plain forward pass of the same tokens",
                         why="it may look at later tokens, or count positions or padding in its own way: what it samples could "
                         "not be trained on", fix="use another model")
