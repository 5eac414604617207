"""A number in place of a next token: reward models read it after an answer, critics before every action token.

Legend: S continuations, T action tokens, L packed positions, H width.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rollbook.models.decoder import Decoder
from rollbook.models.fallback import Fallback
from rollbook.models.layout import Layout
from rollbook.models.shape import load_shaped
from rollbook.models.tokenizer import ChatTokenizer
from rollbook.models.weights import load_into, put_in_place, read_tensors, saving
from rollbook.records import ModelError

HEAD = "head.safetensors"


class ScalarModel(nn.Module):
    """A decoder's body with a scalar head of one or two linear layers (GELU between them [I]); the language head is not used.

    The last layer starts at zero, so that an untrained model says 0 of everything; with two, the first starts as a random
    projection with deviation 1 / sqrt(H).
    """

    def __init__(self, body: Decoder, *, layers: int, seed: int):
        super().__init__()
        if isinstance(body, Fallback):
            raise ModelError("a scalar head needs a model on the fast path", got=str(body.architecture.kind),
                             why="the hidden states of the others are not read here")
        if layers not in (1, 2):
            raise ModelError("a scalar head has one or two layers", got=str(layers))
        width = body.architecture.hidden
        self.body = body
        self.inner = nn.Linear(width, width, bias=False) if layers == 2 else None
        self.head = nn.Linear(width, 1)
        with torch.no_grad():
            if self.inner is not None:
                generator = torch.Generator().manual_seed(seed)
                self.inner.weight.copy_(torch.randn(width, width, generator=generator) * width ** -0.5)
            self.head.weight.zero_()
            self.head.bias.zero_()

    @property
    def layers(self) -> int:
        """How many linear layers the head has."""
        return 1 if self.inner is None else 2

    def read(self, hidden: Tensor) -> Tensor:
        """The number at each of some hidden states, fp32."""
        hidden = hidden.float()
        if self.inner is not None:
            hidden = F.gelu(self.inner(hidden))
        return self.head(hidden)[:, 0]

    def answers(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        """One number per continuation, [S], read at its last token."""
        layout = layout.to(self.body.device)
        return self.read(self.body(layout, dtype)[layout.own_slots_SC.amax(1)]).cpu()

    def tokens(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        """One number per action token, [T], read before it: at the position that predicts it."""
        layout = layout.to(self.body.device)
        return self.read(self.body(layout, dtype)[layout.predictor_T]).cpu()


def on_body(policy: Decoder, weights: Mapping[str, Tensor], *, layers: int, seed: int) -> ScalarModel:
    """A new scalar model whose body has these weights; `policy` gives the architecture."""
    body = copy.deepcopy(policy).requires_grad_(True)
    load_shaped(body, weights)
    if hasattr(body, "lm_head"):
        body.lm_head.requires_grad_(False)
    return ScalarModel(body, layers=layers, seed=seed).to(body.device)


def save_scalar(folder: Path, model: ScalarModel, tokenizer: ChatTokenizer) -> None:
    """The body as a complete model folder and the head beside it, written beside and renamed into place."""
    part = folder.with_name(folder.name + ".part")
    with saving(folder):
        part.mkdir(parents=True, exist_ok=True)
        model.body.write(part)
        save_file({name: p.detach().cpu().contiguous() for name, p in model.named_parameters() if not name.startswith("body.")},
                  str(part / HEAD), metadata={"format": "pt"})
        tokenizer.save(part)
        put_in_place(part, folder)


def read_scalar(folder: Path, policy: Decoder) -> ScalarModel:
    """The scalar model of a folder; its body has the architecture of `policy`, and the shape of its own weights."""
    head = load_file(str(folder / HEAD))
    model = on_body(policy, read_tensors(folder), layers=2 if "inner.weight" in head else 1, seed=0)
    load_into(model, {**{f"body.{name}": value.detach() for name, value in model.body.named_parameters()}, **head})  # type: ignore[arg-type]
    return model
