"""Causal language models without a fast path, in the decoder's place: transformers computes them, as exactly and more slowly.

Master weights are fp32; a forward pass sees them in the compute dtype. Dropout is off, in training too, so that sampling and
scoring are one function.

Legend: S continuations, L packed positions, W longest row, H width, V vocabulary, X either H or V.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rollbook.models.decoder import Decoder
from rollbook.models.layout import Layout
from rollbook.records import ModelError

BENDS = ("none", "softcap", "multiplied", "divided")       # what architectures do to the logits of the output matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackArchitecture:
    """What the rest of the house asks of an architecture. Attention windows and experts are transformers' affair, so `window`
    is None and `experts` 0.

    A cache holds `layers` x `kv_heads` x `head_dim` numbers a position, keys and values each, of which layer y fills
    `layer_dims[y]` (keys, values); with `keeps_tokens` it holds the position's token and nothing else.
    """

    kind: str
    vocab: int
    context: int
    window: None = None
    keeps_tokens: bool = True
    layers: int = 1
    kv_heads: int = 1
    head_dim: int = 1
    layer_dims: tuple[tuple[int, int], ...] = ()
    experts: int = 0
    experts_per_token: int = 0


class Fallback(Decoder):
    """A transformers model that plays the decoder's part; parameters keep transformers' names, tied ones once.

    `bend` says how logits follow from the last hidden states, None where that is not known and the model's own logits are taken.
    It is found out by `fallback_check.settle`, and so is what a cache holds.
    Limit: a prompt is computed once for every continuation.
    """

    architecture: Any
    model: Any

    def __init__(self, model: Any, config: Mapping[str, Any]):
        nn.Module.__init__(self)
        self.model = model
        self.document = dict(config)
        self.architecture = _architecture(model.config)
        self.bend: str | None = None
        self.fp32 = frozenset(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
        self.train(False)

    def train(self, mode: bool = True) -> Fallback:
        """Stays in evaluation mode: dropout would make the trained log-probs others than the sampled ones."""
        super().train(False)
        return self

    def named_parameters(self, prefix: str = "", recurse: bool = True,
                         remove_duplicate: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
        return self.model.named_parameters(prefix, recurse, remove_duplicate)

    def held_as(self, name: str, dtype: torch.dtype) -> torch.dtype:
        """The compute dtype, but fp32 for what the architecture insists on."""
        return torch.float32 if any(re.search(rf"(^|\.){key}(\.|$)", name) for key in self.fp32) else dtype

    def forward(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        """Last hidden states or logits, [L, X], of the packed positions; `readout` makes logits of them.

        Every continuation is a row with its prompt, padded on the right, where causal attention does not look.
        """
        token_SW, mask_SW, pick_L = unfold(layout.to(self.device))
        inputs = {"input_ids": token_SW, "attention_mask": mask_SW, "use_cache": False,
                  "position_ids": torch.arange(token_SW.shape[1], device=self.device).expand_as(token_SW)}
        if self.bend is None:
            found_SWX = self._in(self.model, dtype, inputs).logits
        else:
            found_SWX = self._in(self.model.base_model, dtype, inputs).last_hidden_state
        return found_SWX.flatten(0, 1)[pick_L]

    def readout(self, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        """The function from what `forward` gives, [*, X], to fp32 logits [*, V]."""
        if self.bend is None:
            return lambda logits: logits.float()
        head = self.model.get_output_embeddings()
        weight = head.weight.to(dtype)
        bias = None if head.bias is None else head.bias.to(dtype)
        return lambda hidden: self._bent(F.linear(hidden.to(dtype), weight, bias)).float()

    def _bent(self, logits: Tensor) -> Tensor:
        config = self.model.config.get_text_config()
        match self.bend:
            case "softcap":
                return torch.tanh(logits / config.final_logit_softcapping) * config.final_logit_softcapping
            case "multiplied":
                return logits * config.logit_scale
            case "divided":
                return logits / config.logits_scaling
            case _:
                return logits

    def _in(self, module: nn.Module, dtype: torch.dtype, inputs: Mapping[str, Any]) -> Any:
        """The module's output with its parameters in the compute dtype; their gradient arrives in fp32."""
        inputs = readable(module, inputs)
        held = {name: p.to(self.held_as(name, dtype)) for name, p in module.named_parameters()}
        if all(held[name] is p for name, p in module.named_parameters()):
            return module(**inputs)
        return torch.func.functional_call(module, held, kwargs=inputs)

    def write(self, folder: Path) -> None:
        """Weights as transformers saves this architecture, and the configuration it came with."""
        with quiet():
            self.model.save_pretrained(folder, max_shard_size="1TB")
        document = {**self.document, "torch_dtype": "float32", "dtype": "float32",
                    "architectures": [type(self.model).__name__]}
        (folder / "config.json").write_text(json.dumps(document, indent=1, sort_keys=True))


def unfold(layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of prompt and continuation, [S, W] ids and mask, and where each packed position lies in the flattened rows.

    A position of a shared prompt is taken from one of its rows; a prompt without a continuation predicts nothing and lies at 0.
    """
    prompt_GP, own_SC = (_valid(slots, flat) for slots, flat in ((layout.prompt_slots_GP, layout.prompt_flat_L),
                                                                 (layout.own_slots_SC, layout.own_flat_L)))
    slots = [torch.cat([layout.prompt_slots_GP[g][prompt_GP[g]], layout.own_slots_SC[s][own_SC[s]]])
             for s, g in enumerate(layout.group_S.tolist())]
    width = max(map(len, slots))
    token_SW = torch.zeros(len(slots), width, dtype=torch.long, device=layout.token_L.device)
    mask_SW = torch.zeros_like(token_SW)
    pick_L = torch.zeros_like(layout.token_L)
    for row, own in enumerate(slots):
        token_SW[row, :len(own)] = layout.token_L[own]
        mask_SW[row, :len(own)] = 1
        pick_L[own] = row * width + torch.arange(len(own), device=own.device)
    return token_SW, mask_SW, pick_L


def _valid(slots: Tensor, flat: Tensor) -> Tensor:
    valid = torch.zeros(slots.numel(), dtype=torch.bool, device=slots.device)
    valid[flat] = True
    return valid.view(slots.shape)


def readable(module: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Those inputs that the module's forward names; some architectures count positions themselves."""
    named = inspect.signature(module.forward).parameters
    return {name: value for name, value in inputs.items() if name in named}


def load_fallback(folder: Path) -> Fallback:
    """The model of a folder, in fp32; refuses what transformers could not load whole or what is no causal language model."""
    config = json.loads((folder / "config.json").read_text())
    _refuse(config, folder)
    return Fallback(_load(folder), config)


def _load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM, GenerationConfig
    try:
        with quiet():
            model, report = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, trust_remote_code=False, local_files_only=True, output_loading_info=True)
    except Exception as error:              # the loader raises many kinds; all mean: not to be loaded from here
        got = f"{folder}: {type(error).__name__}: {error}".splitlines()[0]
        raise ModelError("transformers could not load this model", got=got,
                         fix="give a folder with config.json and safetensors that from_pretrained loads") from error
    missing = sorted(map(str, report["missing_keys"])) + sorted(map(str, report["mismatched_keys"]))
    if missing:
        raise ModelError("the checkpoint does not fit its architecture", got=f"{len(missing)} weights missing or of another "
                         f"shape, first {missing[0]}", why="the library would fill them with random numbers")
    model.generation_config = GenerationConfig()            # ours is written beside; a bad one of theirs must not stop a save
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()
    return model


def _refuse(config: Mapping[str, Any], folder: Path) -> None:
    """Says why a configuration cannot be trained here, before anything is loaded."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    kind = config.get("model_type")
    got = f"model_type {kind!r} in {folder}"
    if kind not in CONFIG_MAPPING_NAMES and "auto_map" in config:
        raise ModelError("the model needs code from its own repository, which is not run here", got=got,
                         why="remote code could do anything, and no record could say what", fix="use a model transformers knows")
    if kind not in CONFIG_MAPPING_NAMES:
        raise ModelError("the installed transformers does not know this architecture", got=got, fix="upgrade transformers")
    if config.get("is_encoder_decoder") or kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelError("the model is no decoder-only causal language model", got=got,
                         why="a policy predicts each token from the ones before it, prompt and answer in one sequence",
                         fix="use a model that AutoModelForCausalLM loads and that has no encoder")
    if config.get("quantization_config"):
        raise ModelError("the model's weights are quantised", got=got, why="training needs fp32 master weights",
                         fix="use the checkpoint it was quantised from")


def _architecture(config: Any) -> FallbackArchitecture:
    text = config.get_text_config(decoder=True)
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    context = next((value for name in names if isinstance(value := getattr(text, name, None), int)), 2**31)
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":     # beyond it, angles depend on the longest row of a batch
        context = min(context, rope.get("original_max_position_embeddings") or context)
    return FallbackArchitecture(kind=config.model_type, vocab=text.vocab_size, context=context)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps the library's progress bars and warnings off the terminal."""
    from transformers.utils import logging
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(level)
