"""Pruning: what weighs nothing can be left out without a difference, and what is kept is kept as it was."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from small_stages import pipeline

from rollbook.models.decoder import Decoder
from rollbook.models.layout import Tree, pack
from rollbook.models.load import load_policy
from rollbook.models.logprobs import action_logprobs
from rollbook.models.shape import load_shaped
from rollbook.models.weights import weight_hash
from rollbook.records import RecipeError
from rollbook.training.pruning import pruned_weights

TREE = Tree(prompt=(1, 2, 3), continuations=((4, 5, 6),), actions=((True, True, True),))


def three() -> Decoder:
    return load_policy(dataclasses.replace(pipeline().settings.model, layers=3)).decoder


def tensors(decoder: Decoder) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in decoder.named_parameters()}


def logps(decoder: Decoder) -> torch.Tensor:
    with torch.no_grad():
        return action_logprobs(decoder, pack((TREE,), window=None), temperature=1.0, dtype=torch.float32).logp_T


def smaller(given: dict[str, torch.Tensor], **how: object) -> Decoder:
    decoder = three()
    load_shaped(decoder, pruned_weights(given, **how))  # type: ignore[arg-type]
    return decoder


def test_pruning_that_leaves_nothing_out_changes_no_byte() -> None:
    decoder = three()
    kept = pruned_weights(tensors(decoder), layers=(0, 1, 2), intermediate=decoder.architecture.intermediate)
    assert weight_hash(kept.items()) == weight_hash(decoder.named_parameters())


def test_a_layer_that_adds_nothing_and_neurons_that_weigh_nothing_can_be_left_out_without_a_difference() -> None:
    decoder = three()
    given = tensors(decoder)
    for part in ("self_attn.o_proj", "mlp.down_proj"):
        given[f"model.layers.1.{part}.weight"].zero_()
    for layer in range(3):
        given[f"model.layers.{layer}.mlp.gate_proj.weight"][5:9] = 0.0
    load_shaped(decoder, given)
    less = smaller(given, layers=(0, 2), intermediate=decoder.architecture.intermediate - 4)
    assert (less.architecture.layers, less.architecture.intermediate) == (2, decoder.architecture.intermediate - 4)
    assert torch.allclose(logps(decoder), logps(less), atol=1e-5)


def test_the_neurons_that_weigh_most_are_kept_in_their_order() -> None:
    given = tensors(three())
    less = pruned_weights(given, layers=(2,), intermediate=3)
    gate, up, down = (given[f"model.layers.2.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    weigh = [float(gate[j].norm() * up[j].norm() * down[:, j].norm()) for j in range(len(gate))]
    best = sorted(sorted(range(len(weigh)), key=lambda j: -weigh[j])[:3])
    assert torch.equal(less["model.layers.0.mlp.up_proj.weight"], up[best])
    assert torch.equal(less["model.layers.0.mlp.down_proj.weight"], down[:, best])


def test_a_decoder_takes_its_old_shape_again_with_its_old_weights() -> None:
    decoder = three()
    given, before = tensors(decoder), logps(decoder)
    load_shaped(decoder, pruned_weights(given, layers=(1,), intermediate=7))
    assert decoder.architecture.layers == 1 and not torch.allclose(logps(decoder), before)
    load_shaped(decoder, given)
    assert torch.equal(logps(decoder), before)


@pytest.mark.parametrize("how", [{"layers": (0, 3), "intermediate": None}, {"layers": (), "intermediate": None},
                                 {"layers": (1, 0), "intermediate": None}, {"layers": (0, 0), "intermediate": None},
                                 {"layers": (0,), "intermediate": 10**6}, {"layers": (0,), "intermediate": 0}])
def test_layers_and_neurons_that_are_not_there_are_refused(how: dict[str, object]) -> None:
    with pytest.raises(RecipeError, match="pruning keeps"):
        pruned_weights(tensors(three()), **how)  # type: ignore[arg-type]
