"""LoRA: the step is PEFT's own, the weights that others see are merged, and nothing else moves."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from small_stages import ADAM, LABELS, SFT, pipeline

from rollbook.models.decoder import Decoder
from rollbook.models.load import load_policy
from rollbook.models.weights import weight_hash
from rollbook.recipes import validate
from rollbook.records import RecipeError, problems
from rollbook.records import recipe as r
from rollbook.training.optimizer import Optimizer

LORA = r.Lora(rank=2, alpha=6.0, targets=("*q_proj.weight", "*down_proj.weight"), seed=4)
SETTINGS = dataclasses.replace(ADAM, warmup_steps=0, max_grad_norm=0.5, weight_decay=0.1, lora=LORA)


def small() -> Decoder:
    return load_policy(pipeline().settings.model).decoder


def gradients(decoder: Decoder, seed: int) -> None:
    """A gradient of its own for every parameter that wants one."""
    drawn = torch.Generator().manual_seed(seed)
    for parameter in decoder.parameters():
        noise = torch.randn(parameter.shape, generator=drawn)
        if parameter.requires_grad:
            parameter.grad = noise


def stepped(decoder: Decoder, optimizer: Optimizer, seeds: range) -> None:
    for seed in seeds:
        optimizer.zero()
        gradients(decoder, seed)
        optimizer.step(f"step {seed}")


def test_before_the_first_step_the_weights_are_those_of_the_start() -> None:
    decoder = small()
    before = weight_hash(decoder.named_parameters())
    Optimizer.of(decoder, SETTINGS, 4)
    assert weight_hash(decoder.named_parameters()) == before


def test_no_byte_moves_but_those_of_the_targets_and_these_move_by_a_low_rank() -> None:
    decoder = small()
    start = {name: p.detach().clone() for name, p in decoder.named_parameters()}
    optimizer = Optimizer.of(decoder, SETTINGS, 4)
    stepped(decoder, optimizer, range(3))
    moved = {name for name, p in decoder.named_parameters() if not torch.equal(p, start[name])}
    assert moved == {name for name in start if name.endswith(("q_proj.weight", "down_proj.weight"))}
    for name in moved:
        difference = dict(decoder.named_parameters())[name].detach() - start[name]
        assert torch.linalg.matrix_rank(difference.double(), rtol=1e-4) == LORA.rank
    assert optimizer.check_standing(decoder) is not None


def test_a_step_is_the_step_that_peft_itself_takes() -> None:
    from peft import LoraConfig, inject_adapter_in_model
    decoder, other = small(), small()
    optimizer = Optimizer.of(decoder, SETTINGS, 4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(LORA.seed)
        inject_adapter_in_model(LoraConfig(r=2, lora_alpha=6.0, lora_dropout=0.0, target_modules=["q_proj", "down_proj"]), other)
    layers = {name: module for name, module in other.named_modules() if hasattr(module, "lora_A")}
    adam = torch.optim.AdamW([p for layer in layers.values() for p in (layer.lora_A.default.weight, layer.lora_B.default.weight)],
                             lr=SETTINGS.learning_rate, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    assert optimizer.lora is not None
    mine = dict(zip(optimizer.lora.weights, zip(*[iter(optimizer.lora.factors())] * 2, strict=True), strict=True))
    with torch.no_grad():       # the two draw their factors in another order
        for name, layer in layers.items():
            layer.lora_A.default.weight.copy_(mine[f"{name}.weight"][0])
    x = {name: torch.randn(5, layer.base_layer.in_features, generator=torch.Generator().manual_seed(9))
         for name, layer in layers.items()}
    weights = dict(decoder.named_parameters())
    for _ in range(3):
        adam.zero_grad()
        optimizer.zero()
        sum(layer(x[name]).square().mean() for name, layer in layers.items()).backward()
        sum((x[name] @ weights[f"{name}.weight"].T).square().mean() for name in layers).backward()
        norm = torch.nn.utils.clip_grad_norm_(adam.param_groups[0]["params"], SETTINGS.max_grad_norm)
        adam.step()
        assert optimizer.step("a step").grad_norm == pytest.approx(float(norm), rel=1e-5)
    for name, layer in layers.items():
        merged = layer.base_layer.weight + layer.get_delta_weight("default")
        assert torch.allclose(weights[f"{name}.weight"], merged, atol=1e-6), name


def test_factors_that_are_restored_go_on_bit_for_bit() -> None:
    whole, first = small(), small()
    stepped(whole, Optimizer.of(whole, SETTINGS, 4), range(4))
    begun = Optimizer.of(first, SETTINGS, 4)
    stepped(first, begun, range(2))
    held = {name: value.clone() for name, value in begun.state().items()}
    again = small()
    with torch.no_grad():
        for parameter, value in zip(again.parameters(), first.parameters(), strict=True):
            parameter.copy_(value)
    resumed = Optimizer.of(again, SETTINGS, 4)
    resumed.load(held)
    stepped(again, resumed, range(2, 4))
    assert weight_hash(again.named_parameters()) == weight_hash(whole.named_parameters())


@pytest.mark.parametrize("wrong", [{"targets": ("*no_such*",)}, {"targets": ("model.norm.weight",)}, {"rank": 32}])
def test_a_target_that_is_no_matrix_and_a_rank_that_is_not_low_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(RecipeError, match=r"optimizer\.lora"):
        Optimizer.of(small(), dataclasses.replace(SETTINGS, lora=dataclasses.replace(LORA, **wrong)), 1)


def test_factors_beside_frozen_parameters_muon_or_a_new_head_are_refused_before_anything_starts() -> None:
    muon = r.Muon(learning_rate=0.01, momentum=0.9, weight_decay=0.0)
    both = dataclasses.replace(SETTINGS, frozen=("model.norm.*",), muon=muon)
    sft = dataclasses.replace(SFT, optimizer=both)
    rm = r.RewardModel(policy="sft", data={"labels": 1.0}, loss="ranked", head_layers=1, steps=2, batch=2, max_batch_tokens=512,
                       optimizer=SETTINGS)
    found = problems.Problems()
    validate.check(pipeline(sft=sft, labels=LABELS, rm=rm).settings, found)
    with pytest.raises(RecipeError, match=r"sft\.optimizer\.lora stands alone[\s\S]*frozen, muon[\s\S]*rm\.optimizer\.lora"):
        found.raise_any("this recipe")
