"""The optimizer keeps small updates, counts optimizer steps, and refuses a step that is not finite."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from rollbook.records import Diverged
from rollbook.records.recipe import Muon, OptimizerSettings
from rollbook.training.optimizer import Optimizer, rate


def settings(**changes):
    values = {"learning_rate": 1e-5, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "warmup_steps": 0,
              "schedule": "constant", "max_grad_norm": 1e9}
    return OptimizerSettings(**{**values, **changes})


def test_a_thousand_updates_below_half_a_bf16_step_are_not_lost():
    weight = nn.Parameter(torch.ones(1))
    optimizer = Optimizer([weight], settings(), 1000)
    for _ in range(1000):
        weight.grad = torch.ones(1)
        optimizer.step("a step")
    assert float(weight.detach()) == pytest.approx(0.990, abs=1e-4)
    assert float(weight.detach().bfloat16()) == pytest.approx(0.98828125, abs=4e-3)


def test_warm_up_is_linear_to_the_peak_and_a_cosine_ends_at_zero():
    warm = settings(learning_rate=1e-3, warmup_steps=10)
    assert [rate(warm, step, 40) for step in (1, 5, 10, 11, 40)] == pytest.approx([1e-4, 5e-4, 1e-3, 1e-3, 1e-3])
    falling = settings(learning_rate=1e-3, warmup_steps=10, schedule="cosine")
    assert rate(falling, 40, 40) == pytest.approx(0.0, abs=1e-12)
    assert rate(falling, 25, 40) == pytest.approx(5e-4)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_leaves_weights_and_clock_alone(bad):
    weight = nn.Parameter(torch.ones(2))
    optimizer = Optimizer([weight], settings(), 10)
    weight.grad = torch.tensor([1.0, bad])
    with pytest.raises(Diverged, match="not finite"):
        optimizer.step("step 1")
    assert weight.tolist() == [1.0, 1.0] and optimizer.steps == 0


def test_a_restored_optimizer_continues_bit_for_bit():
    torch.manual_seed(1)
    gradients = [torch.randn(5) for _ in range(6)]

    def run(stop):
        weight = nn.Parameter(torch.zeros(5))
        optimizer = Optimizer([weight], settings(learning_rate=1e-2, warmup_steps=4), 6)
        for step, gradient in enumerate(gradients):
            if step == stop:
                held = {name: value.clone() for name, value in optimizer.state().items()}
                optimizer = Optimizer([weight], settings(learning_rate=1e-2, warmup_steps=4), 6)
                optimizer.load(held)
            weight.grad = gradient.clone()
            optimizer.step("a step")
        return weight.detach()
    assert torch.equal(run(stop=3), run(stop=-1))


def stepped(optimizer, module, *steps):
    """Takes the optimizer's steps with gradients that depend on the step's number alone; the last one's learning rate."""
    for step in steps:
        torch.manual_seed(step)
        for parameter in module.parameters():
            parameter.grad = torch.randn_like(parameter)
        last = optimizer.step("a step").learning_rate
    return last


@pytest.mark.parametrize("muon", [None, Muon(learning_rate=1e-2, momentum=0.9, weight_decay=0.0)], ids=["adam", "muon"])
def test_an_optimizer_that_forgot_steps_as_a_new_one_and_its_schedule_counts_on(muon):
    warm = settings(learning_rate=1e-2, warmup_steps=4, muon=muon)
    at_three = settings(learning_rate=0.75e-2, muon=None if muon is None else replace(muon, learning_rate=0.75e-2))
    torch.manual_seed(1)
    old, new = nn.Linear(3, 2), nn.Linear(3, 2)
    optimizer = Optimizer.of(old, warm, 6)
    stepped(optimizer, old, 1, 2)
    optimizer.forget()
    assert set(optimizer.state()) == {"steps"} and optimizer.steps == 2
    new.load_state_dict(old.state_dict())
    assert stepped(optimizer, old, 3) == pytest.approx(0.75e-2) and optimizer.steps == 3
    assert stepped(Optimizer.of(new, at_three, 6), new, 3) == pytest.approx(0.75e-2)
    assert all(torch.equal(one, other) for one, other in zip(old.parameters(), new.parameters(), strict=True))
