"""The Online Merging Optimizer: merges of optimizer updates, masks that every rank and every resumed run draws alike."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rollbook.records import RecipeError
from rollbook.training.online_merging import MergeRule, OnDare, OnlineMerging, OnTies, keep_mask, largest, reference_delta

F64 = torch.float64
FEW = settings(max_examples=25, deadline=None)
SHAPES = {"a.weight": (4, 6), "b.bias": (5,)}


def randn(seed: int, *shape: int, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def start(dtype: torch.dtype = F64) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(randn(i, *shape, dtype=dtype)) for i, (name, shape) in enumerate(SHAPES.items())}


def reference(dtype: torch.dtype = F64) -> dict[str, Tensor]:
    return {name: 0.5 * randn(100 + i, *shape, dtype=dtype) for i, (name, shape) in enumerate(SHAPES.items())}


def adam(parameters: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(list(parameters.values()), lr=0.01, betas=(0.9, 0.98), weight_decay=0.1)


def feed(parameters: dict[str, nn.Parameter], step: int) -> None:
    """Gradients that depend on the step and on the weights."""
    for i, own in enumerate(parameters.values()):
        own.grad = randn(1000 * step + i, *own.shape, dtype=own.dtype) + own.detach()


def merging(rule: MergeRule, dtype: torch.dtype = F64) -> OnlineMerging:
    parameters = start(dtype)
    return OnlineMerging(adam(parameters), parameters, reference(dtype), rule)


def train(optimizer: OnlineMerging, steps: range) -> dict[str, Tensor]:
    for step in steps:
        feed(optimizer.parameters, step)
        optimizer.step()
    return {name: own.detach().clone() for name, own in optimizer.parameters.items()}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in SHAPES)


@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rule", [OnDare(alpha=0.0, keep=1.0, seed=1), OnTies(alpha=0.0, keep=1.0, consensus="weighted")])
def test_alpha_zero_and_keep_one_is_adam_bit_for_bit(rule, dtype):
    parameters = start(dtype)
    plain = adam(parameters)
    for step in range(5):
        feed(parameters, step)
        plain.step()
    assert same(train(merging(rule, dtype), range(5)), {name: own.detach() for name, own in parameters.items()})


@pytest.mark.parametrize("rule", [OnDare(alpha=0.3, keep=1.0, seed=1), OnTies(alpha=0.3, keep=1.0, consensus="weighted"),
                                  OnTies(alpha=0.3, keep=1.0, consensus="unweighted")])
def test_without_an_update_the_weights_drift_by_alpha_tau(rule):
    parameters = start()
    optimizer = OnlineMerging(torch.optim.SGD(list(parameters.values()), lr=0.0), parameters, reference(), rule)
    moved = train(optimizer, range(3))
    for name, before in start().items():
        torch.testing.assert_close(moved[name], before.detach() + 3 * 0.3 * reference()[name])


def test_on_dare_is_its_equation_on_the_optimizers_update_without_rescaling():
    rule = OnDare(alpha=0.2, keep=0.4, seed=5)
    plain = start()
    feed(plain, 0)
    adam(plain).step()
    merged = train(merging(rule), range(1))
    for name, before in start().items():
        masks = {role: keep_mask(rule, step=1, name=name, role=role, places=range(before.numel())).view(before.shape)
                 for role in ("update", "reference")}
        delta = plain[name].detach() - before.detach()
        expected = before.detach() + 0.8 * masks["update"] * delta + 0.2 * masks["reference"] * reference()[name]
        torch.testing.assert_close(merged[name], expected)


def test_on_ties_on_a_case_worked_by_hand():
    """Update (4, -3, 1, -2), tau (-1, -8, 6, 0.5); keep half: update keeps 4, -3, tau keeps -8, 6; then signs are elected."""
    for consensus, alpha, expected in (("weighted", 0.5, [2.0, -5.5, 3.0, 0.0]), ("unweighted", 0.25, [3.0, -4.25, 1.5, 0.0])):
        found = one_step([4.0, -3.0, 1.0, -2.0], [-1.0, -8.0, 6.0, 0.5], OnTies(alpha=alpha, keep=0.5, consensus=consensus))
        assert found == pytest.approx(expected)


def test_a_disagreement_keeps_only_what_has_the_elected_sign():
    """Update (1, -1), tau (-4, 4), alpha .1: weighted elects the update (.9 > .4), unweighted elects tau."""
    assert one_step([1.0, -1.0], [-4.0, 4.0], OnTies(alpha=0.1, keep=1.0, consensus="weighted")) == pytest.approx([0.9, -0.9])
    assert one_step([1.0, -1.0], [-4.0, 4.0], OnTies(alpha=0.1, keep=1.0, consensus="unweighted")) == pytest.approx([-0.4, 0.4])
    assert one_step([1.0], [-1.0], OnTies(alpha=0.1, keep=1.0, consensus="unweighted")) == [0.0]


def one_step(update: list[float], tau: list[float], rule: MergeRule) -> list[float]:
    """Where weights of 0 go when the inner optimizer moves them by `update`."""
    weight = nn.Parameter(torch.zeros(len(update), dtype=F64))
    weight.grad = -torch.tensor(update, dtype=F64)
    OnlineMerging(torch.optim.SGD([weight], lr=1.0), {"w": weight}, {"w": torch.tensor(tau, dtype=F64)}, rule).step()
    return weight.detach().tolist()


def test_adams_moments_see_the_raw_gradient_whatever_is_merged():
    optimizer = merging(OnDare(alpha=0.5, keep=0.3, seed=2))
    feed(optimizer.parameters, 0)
    gradients = {name: own.grad.clone() for name, own in optimizer.parameters.items()}
    optimizer.step()
    for name, own in optimizer.parameters.items():
        torch.testing.assert_close(optimizer.inner.state[own]["exp_avg"], 0.1 * gradients[name])
        torch.testing.assert_close(optimizer.inner.state[own]["exp_avg_sq"], 0.02 * gradients[name] ** 2)
        assert torch.equal(own.grad, gradients[name])


def test_merging_gradients_instead_of_updates_would_move_elsewhere():
    """Adam's first update has the gradient's sign and one size: a merge of gradients cannot give it."""
    plain = start()
    merged = train(merging(OnDare(alpha=0.5, keep=1.0, seed=0)), range(1))
    wrong = start()
    feed(wrong, 0)
    for name, own in wrong.items():
        own.grad = 0.5 * own.grad - 0.5 * reference()[name]
    adam(wrong).step()
    feed(plain, 0)
    adam(plain).step()
    for name, before in start().items():
        expected = before.detach() + 0.5 * (plain[name].detach() - before.detach()) + 0.5 * reference()[name]
        torch.testing.assert_close(merged[name], expected)
        assert not torch.allclose(merged[name], wrong[name].detach())


@given(count=st.integers(1, 200), cut=st.integers(0, 200), keep=st.floats(0.1, 1.0))
@FEW
def test_a_shard_draws_its_slice_of_the_whole_mask(count, cut, keep):
    rule = OnDare(alpha=0.1, keep=keep, seed=3)
    cut = min(cut, count)
    whole = keep_mask(rule, step=4, name="w", role="update", places=range(count))
    parts = [keep_mask(rule, step=4, name="w", role="update", places=places) for places in (range(cut), range(cut, count))]
    assert torch.equal(torch.cat(parts), whole)


def test_a_mask_depends_on_seed_step_parameter_and_role_and_on_no_global_generator():
    def draw(*, seed=1, step=1, name="w", role="update"):
        rule = OnDare(alpha=0.1, keep=0.5, seed=seed)
        return tuple(keep_mask(rule, step=step, name=name, role=role, places=range(64)).tolist())

    variants = {draw(), draw(seed=2), draw(step=2), draw(name="v"), draw(role="reference")}
    torch.manual_seed(99)
    assert len(variants) == 5 and draw() in variants


def test_another_process_draws_the_same_mask():
    program = ("from rollbook.training.online_merging import *\n"
               "print(keep_mask(OnDare(alpha=.1, keep=.5, seed=1), step=7, name='w', role='update', places=range(40)).tolist())")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    rule = OnDare(alpha=0.1, keep=0.5, seed=1)
    assert done.stdout.strip() == str(keep_mask(rule, step=7, name="w", role="update", places=range(40)).tolist())


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9])
def test_the_share_of_kept_entries_is_the_probability(keep):
    mask = keep_mask(OnDare(alpha=0.1, keep=keep, seed=0), step=1, name="w", role="update", places=range(20_000))
    assert abs(float(mask.double().mean()) - keep) < 5 * (keep * (1 - keep) / 20_000) ** 0.5


def test_ranks_and_a_resumed_run_follow_the_same_trajectory():
    rule = OnDare(alpha=0.2, keep=0.5, seed=8)
    torch.manual_seed(1)
    whole = train(merging(rule), range(6))
    torch.manual_seed(2)
    first = merging(rule)
    train(first, range(3))
    second = merging(rule)
    for name, own in second.parameters.items():
        own.data.copy_(first.parameters[name].data)
    second.load_state_dict(first.state_dict())
    assert second.steps == 3 and same(train(second, range(3, 6)), whole)


def test_steps_draw_different_masks():
    optimizer = merging(OnDare(alpha=1.0, keep=0.5, seed=8))
    before = {name: own.detach().clone() for name, own in optimizer.parameters.items()}
    first = train(optimizer, range(1))
    second = train(optimizer, range(1, 2))
    assert any(not torch.equal((first[name] != before[name]), (second[name] != first[name])) for name in SHAPES)


def test_the_largest_share_breaks_ties_towards_lower_places_and_keeps_at_least_one():
    assert largest(torch.tensor([1.0, -3.0, 3.0, 2.0]), 0.5).tolist() == [False, True, True, False]
    assert largest(torch.tensor([2.0, -2.0, 2.0]), 1 / 3).tolist() == [True, False, False]
    assert largest(torch.tensor([1.0, 5.0]), 0.01).tolist() == [False, True]
    assert largest(torch.tensor([[1.0, 5.0], [0.0, 9.0]]), 1.0).all()


def test_tau_is_the_supervised_model_minus_its_base():
    assert reference_delta({"w": torch.tensor([3.0])}, {"w": torch.tensor([1.0])})["w"].tolist() == [2.0]
    with pytest.raises(RecipeError, match="same parameters"):
        reference_delta({"w": torch.zeros(1)}, {"v": torch.zeros(1)})


@pytest.mark.parametrize("build", [
    lambda p: OnlineMerging(adam(p), {"a.weight": p["a.weight"]}, reference(), OnDare(alpha=0.1, keep=0.5, seed=0)),
    lambda p: OnlineMerging(adam(p), p, {"a.weight": reference()["a.weight"]}, OnDare(alpha=0.1, keep=0.5, seed=0)),
    lambda p: OnlineMerging(adam(p), p, {**reference(), "b.bias": torch.zeros(4)}, OnDare(alpha=0.1, keep=0.5, seed=0)),
    lambda p: OnlineMerging(adam(p), p, {**reference(), "b.bias": torch.full((5,), float("nan"))},
                            OnDare(alpha=0.1, keep=0.5, seed=0)),
    lambda p: OnDare(alpha=0.1, keep=0.5, seed=None), lambda p: OnDare(alpha="0.1", keep=0.5, seed=0),
    lambda p: OnDare(alpha=0.1, keep=True, seed=0), lambda p: OnTies(alpha=float("nan"), keep=0.5, consensus="weighted"),
    lambda p: OnDare(alpha=-0.1, keep=0.5, seed=0), lambda p: OnDare(alpha=0.1, keep=0.0, seed=0),
    lambda p: OnTies(alpha=0.1, keep=1.1, consensus="weighted"), lambda p: OnTies(alpha=0.1, keep=0.5, consensus="majority"),
    lambda p: keep_mask(OnDare(alpha=0.1, keep=0.5, seed=0), step=1, name="w", role="update", places=range(0, 8, 2)),
])
def test_settings_and_references_that_do_not_fit_are_refused(build):
    with pytest.raises(RecipeError):
        build(start())
