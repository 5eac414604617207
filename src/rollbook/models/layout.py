"""Packed sequences without padding: prompts computed once per group, continuations attending to prompt and themselves.

Legend: G prompts, S continuations, L packed positions (all prompts first, then all continuations), T action tokens,
P longest prompt, C longest continuation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """One prompt and the continuations that share it. `actions` marks, per continuation token, what the policy sampled."""

    prompt: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]
    actions: tuple[tuple[bool, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where every token of a micro-batch sits; built once, read by each layer.

    `prompt_slots_GP` and `own_slots_SC` index L (0 where padded); the masks are True where a key may be seen.
    `predictor_T` indexes the position whose hidden state predicts action token T; `target_T` is that token's id.
    `routes_LYK` are the experts that a replay takes instead of the router's choice (see `routing`); `chosen` collects the experts
    of each layer, [L, K], where it is a list.
    """

    token_L: Tensor
    position_L: Tensor
    prompt_slots_GP: Tensor
    own_slots_SC: Tensor
    group_S: Tensor
    prompt_mask_GPP: Tensor
    own_mask_SCK: Tensor
    prompt_flat_L: Tensor
    own_flat_L: Tensor
    predictor_T: Tensor
    target_T: Tensor
    seq_T: Tensor
    routes_LYK: Tensor | None = None
    chosen: list[Tensor] | None = None

    def to(self, device: torch.device) -> Layout:
        """The same layout on a device; itself where it is there. `chosen` stays the one list."""
        if self.token_L.device == device:
            return self
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: one.to(device) for name, one in held.items() if isinstance(one, Tensor)})


def pack(trees: Sequence[Tree], *, window: int | None = None) -> Layout:
    """The layout of some trees; sequences are numbered in order of appearance over all trees."""
    prompts = [tree.prompt for tree in trees]
    owns = [own for tree in trees for own in tree.continuations]
    group_S = torch.tensor([g for g, tree in enumerate(trees) for _ in tree.continuations], dtype=torch.long)
    prompt_length_G = torch.tensor([len(p) for p in prompts])
    own_length_S = torch.tensor([len(o) for o in owns])
    prompt_total = int(prompt_length_G.sum())
    prompt_slots_GP, prompt_valid_GP = _slots(prompt_length_G, 0)
    own_slots_SC, own_valid_SC = _slots(own_length_S, prompt_total)
    start_S = prompt_length_G[group_S]
    position = [torch.arange(len(p)) for p in prompts]
    position += [torch.arange(len(o)) + int(s) for o, s in zip(owns, start_S, strict=True)]
    place_P = torch.arange(prompt_slots_GP.shape[1])
    place_C = torch.arange(own_slots_SC.shape[1])
    prompt_mask = (place_P[:, None] >= place_P[None, :])[None] & prompt_valid_GP[:, None, :]
    causal_C = (place_C[:, None] >= place_C[None, :])[None] & own_valid_SC[:, None, :]
    seen_prompt = prompt_valid_GP[group_S][:, None, :].expand(-1, place_C.numel(), -1)
    if window is not None:
        prompt_mask = prompt_mask & (place_P[:, None] - place_P[None, :] < window)[None]
        causal_C = causal_C & (place_C[:, None] - place_C[None, :] < window)[None]
        distance = (start_S[:, None] + place_C[None, :])[:, :, None] - place_P[None, None, :]
        seen_prompt = seen_prompt & (distance < window)
    own_mask = torch.cat([seen_prompt, causal_C], dim=2)
    own_mask[~own_valid_SC] = True                      # padded queries see something, so that their softmax is finite
    prompt_mask = prompt_mask | ~prompt_valid_GP[:, :, None]
    predictor, target, seq = _actions(trees, prompt_length_G, prompt_total)
    return Layout(
        token_L=torch.tensor([t for p in prompts for t in p] + [t for o in owns for t in o], dtype=torch.long),
        position_L=torch.cat(position), prompt_slots_GP=prompt_slots_GP, own_slots_SC=own_slots_SC, group_S=group_S,
        prompt_mask_GPP=prompt_mask, own_mask_SCK=own_mask,
        prompt_flat_L=prompt_valid_GP.flatten().nonzero()[:, 0], own_flat_L=own_valid_SC.flatten().nonzero()[:, 0],
        predictor_T=predictor, target_T=target, seq_T=seq)


def _slots(length: Tensor, offset: int) -> tuple[Tensor, Tensor]:
    place = torch.arange(int(length.max()) if length.numel() else 0)
    valid = place[None, :] < length[:, None]
    start = torch.cumsum(length, 0) - length + offset
    return torch.where(valid, start[:, None] + place[None, :], 0), valid


def _actions(trees: Sequence[Tree], prompt_length_G: Tensor, prompt_total: int) -> tuple[Tensor, Tensor, Tensor]:
    prompt_end = (torch.cumsum(prompt_length_G, 0) - 1).tolist()
    predictor: list[int] = []
    target: list[int] = []
    seq: list[int] = []
    start, index = prompt_total, 0
    for end, tree in zip(prompt_end, trees, strict=True):
        for own, acts in zip(tree.continuations, tree.actions, strict=True):
            for place, (token, act) in enumerate(zip(own, acts, strict=True)):
                if act:
                    predictor.append(end if place == 0 else start + place - 1)
                    target.append(token)
                    seq.append(index)
            start += len(own)
            index += 1
    return (torch.tensor(predictor, dtype=torch.long), torch.tensor(target, dtype=torch.long),
            torch.tensor(seq, dtype=torch.long))
