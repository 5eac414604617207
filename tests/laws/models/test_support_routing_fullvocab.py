"""Log-probs over the sampled support, gates of recorded experts, sums over the whole vocabulary: values and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rollbook.models.architecture import Architecture
from rollbook.models.decoder import route
from rollbook.models.fullvocab import Head, Teacher, full_vocabulary_entropy, full_vocabulary_kl
from rollbook.models.layout import Tree, pack
from rollbook.models.routing import GateRule, TreeRoutes, pack_routes, replayed_gates
from rollbook.models.support import Support, support_log_softmax, support_logp
from rollbook.records import ModelError

F64 = torch.float64
FEW = settings(max_examples=25, deadline=None)
SEEDS = st.integers(0, 9999)


def randn(seed: int, *shape: int, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# Support


def sampled(seed: int, rows: int = 4, vocab: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, tokens, and supports that hold the tokens."""
    logits_TV = randn(seed, rows, vocab)
    token_T = torch.randint(vocab, (rows,), generator=torch.Generator().manual_seed(seed + 1))
    allowed_TV = randn(seed + 2, rows, vocab) > 0
    return logits_TV, token_T, allowed_TV.scatter(1, token_T[:, None], True)


@given(seed=SEEDS, temperature=st.sampled_from([0.6, 1.0, 1.7]))
@FEW
def test_the_renormalised_log_probability_is_its_equation_and_sums_to_one_on_the_support(seed, temperature):
    logits_TV, token_T, allowed_TV = sampled(seed)
    found_T = support_logp(logits_TV, token_T, allowed_TV, temperature=temperature)
    for row in range(4):
        z = logits_TV[row] / temperature
        expected = z[token_T[row]] - torch.logsumexp(z[allowed_TV[row]], 0)
        torch.testing.assert_close(found_T[row], expected)
    assert bool((found_T <= 1e-12).all())
    p_TV = support_log_softmax(logits_TV, allowed_TV, temperature=temperature).exp()
    torch.testing.assert_close(p_TV.sum(-1), torch.ones(4, dtype=F64))
    assert bool((p_TV[~allowed_TV] == 0).all())


@given(seed=SEEDS, temperature=st.sampled_from([0.5, 1.0]))
@FEW
def test_the_gradient_is_the_indicator_minus_p_on_the_support_and_exactly_zero_off_it(seed, temperature):
    logits_TV, token_T, allowed_TV = sampled(seed)
    logits_TV.requires_grad_()
    found_T = support_logp(logits_TV, token_T, allowed_TV, temperature=temperature)
    (gradient_TV,) = torch.autograd.grad(found_T.sum(), logits_TV)
    p_TV = support_log_softmax(logits_TV.detach(), allowed_TV, temperature=temperature).exp()
    indicator_TV = torch.zeros_like(p_TV).scatter(1, token_T[:, None], 1.0)
    torch.testing.assert_close(gradient_TV, (indicator_TV - p_TV) / temperature)
    assert bool((gradient_TV[~allowed_TV] == 0).all())


@given(seed=SEEDS)
@FEW
def test_a_support_of_the_whole_vocabulary_changes_nothing(seed):
    logits_TV, token_T, _ = sampled(seed)
    found_T = support_logp(logits_TV, token_T, torch.ones(4, 7, dtype=torch.bool), temperature=1.0)
    assert torch.equal(found_T, logits_TV.log_softmax(-1).gather(1, token_T[:, None])[:, 0])


def test_ragged_ids_and_a_mask_are_the_same_support_and_repeats_count_once():
    logits_TV = randn(0, 3, 5)
    token_T = torch.tensor([1, 4, 0])
    mask_TV = torch.tensor([[0, 1, 1, 0, 0], [0, 0, 0, 0, 1], [1, 1, 1, 1, 1]], dtype=torch.bool)
    ragged = Support.of([[2, 1, 2], [4], [0, 1, 2, 3, 4]])
    assert torch.equal(ragged.mask(5), mask_TV)
    found_T = support_logp(logits_TV, token_T, ragged, temperature=0.8)
    assert torch.equal(found_T, support_logp(logits_TV, token_T, mask_TV, temperature=0.8))
    assert found_T[1] == 0


def test_a_support_on_only_one_of_two_log_probabilities_moves_an_on_policy_ratio_off_one():
    logits_TV, token_T, _ = sampled(5)
    every_TV = torch.ones(4, 7, dtype=torch.bool)
    allowed_TV = every_TV.scatter(1, (token_T[:, None] + 1) % 7, False)
    anchor_T = support_logp(logits_TV, token_T, allowed_TV, temperature=1.0)
    assert torch.equal(support_logp(logits_TV, token_T, allowed_TV, temperature=1.0) - anchor_T, torch.zeros(4, dtype=F64))
    assert bool((support_logp(logits_TV, token_T, every_TV, temperature=1.0) - anchor_T < 0).all())


@pytest.mark.parametrize(("token", "allowed", "temperature", "words"), [
    (0, Support.of([[1, 2]]), 1.0, "in its own support"),
    (0, torch.tensor([[False, True, True]]), 1.0, "in its own support"),
    (0, Support.of([[0, 3]]), 1.0, "0 .. 2"),
    (0, Support.of([[]]), 1.0, "empty"),
    (0, Support.of([[0], [1]]), 1.0, "one boolean per logit"),
    (0, Support.of([[0]]), 0.0, "temperature"),
    (0, Support.of([[0]]), float("inf"), "temperature"),
])
def test_a_support_without_the_sampled_token_or_of_other_tokens_is_refused(token, allowed, temperature, words):
    with pytest.raises(ModelError, match=words):
        support_logp(randn(0, 1, 3), torch.tensor([token]), allowed, temperature=temperature)


# Routing


def architecture(*, renormalize: bool) -> Architecture:
    return Architecture(kind="qwen3_moe", layers=1, hidden=8, heads=2, kv_heads=1, head_dim=4, intermediate=8, vocab=16,
                        context=32, rope_theta=1e4, norm_eps=1e-6, tied=True, qkv_bias=False, qk_norm=True, window=None,
                        experts=6, experts_per_token=2, renormalize_experts=renormalize, eos=0, bos=0)


def test_negative_support_counts_that_happen_to_add_up_are_refused():
    with pytest.raises(ModelError, match="must be >= 0"):
        Support(id_N=torch.tensor([1, 2]), count_T=torch.tensor([3, -1]))


@pytest.mark.parametrize("renormalize", [True, False])
def test_replaying_todays_choice_is_the_models_own_routing_to_the_last_bit(renormalize):
    a, logits_LE = architecture(renormalize=renormalize), randn(1, 5, 6, dtype=torch.float32)
    weight_LK, chosen_LK = route(a, logits_LE)
    assert torch.equal(replayed_gates(logits_LE, chosen_LK, GateRule.of(a)), weight_LK)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_recorded_experts_whose_scores_all_underflow_keep_their_quotient(score: str) -> None:
    logits_LE = torch.tensor([[-2000.0, -2000.0, -2001.0, 0.0]], requires_grad=True)
    found_LK = replayed_gates(logits_LE, torch.tensor([[0, 2]]), GateRule(score=score, renormalize=True))
    expected_LK = torch.tensor([[0.0, -1.0]]).softmax(-1)
    torch.testing.assert_close(found_LK, expected_LK)
    (found_LE,) = torch.autograd.grad(found_LK[0, 0], logits_LE)
    slope = float(expected_LK[0, 0] * expected_LK[0, 1])
    torch.testing.assert_close(found_LE, torch.tensor([[slope, 0.0, -slope, 0.0]]))


@given(seed=SEEDS, renormalize=st.booleans(), score=st.sampled_from(["softmax", "sigmoid"]))
@FEW
def test_gates_are_recomputed_from_current_logits_at_the_recorded_experts(seed, renormalize, score):
    logits_LE = randn(seed, 4, 6)
    expert_LK = randn(seed + 1, 4, 6).topk(3).indices
    found_LK = replayed_gates(logits_LE, expert_LK, GateRule(score=score, renormalize=renormalize))
    score_LE = logits_LE.softmax(-1) if score == "softmax" else torch.sigmoid(logits_LE)
    for row in range(4):
        own = torch.stack([score_LE[row, e] for e in expert_LK[row].tolist()])
        torch.testing.assert_close(found_LK[row], own / own.sum() if renormalize else own)
    moved_LK = replayed_gates(logits_LE + randn(seed + 2, 4, 6), expert_LK, GateRule(score=score, renormalize=renormalize))
    assert not torch.allclose(moved_LK, found_LK)


@given(seed=SEEDS)
@FEW
def test_a_logit_that_was_not_selected_gets_gradient_only_through_a_plain_softmaxs_normaliser(seed):
    expert_LK = randn(seed, 4, 6).topk(2).indices
    other_LE = torch.ones(4, 6, dtype=torch.bool).scatter(1, expert_LK, False)
    for score, renormalize, reached in (("softmax", True, False), ("sigmoid", True, False), ("sigmoid", False, False),
                                        ("softmax", False, True)):
        logits_LE = randn(seed + 1, 4, 6).requires_grad_()
        found_LK = replayed_gates(logits_LE, expert_LK, GateRule(score=score, renormalize=renormalize))
        (gradient_LE,) = torch.autograd.grad((found_LK * randn(seed + 2, 4, 2)).sum(), logits_LE)
        assert bool(gradient_LE[~other_LE].abs().max() > 1e-6)
        assert bool(gradient_LE[other_LE].abs().max() > 1e-9) is reached


def test_renormalised_softmax_is_a_softmax_over_the_selected_logits():
    logits_LE, expert_LK = randn(3, 4, 6), randn(4, 4, 6).topk(3).indices
    found_LK = replayed_gates(logits_LE, expert_LK, GateRule(score="softmax", renormalize=True))
    torch.testing.assert_close(found_LK, logits_LE.gather(1, expert_LK).softmax(-1))


def test_packed_routes_stay_with_their_tokens():
    """Each recorded expert names its token, so that any misalignment shows."""
    trees = [Tree(prompt=(10, 11, 12), continuations=((13, 14), (15,)), actions=((True, True), (True,))),
             Tree(prompt=(20,), continuations=((21, 22, 23),), actions=((True, False, True),))]
    routes = [TreeRoutes(prompt_PYK=named(tree.prompt), continuations=tuple(named(own) for own in tree.continuations))
              for tree in trees]
    packed_LYK = pack_routes(trees, routes)
    token_L = pack(trees).token_L
    for layer in range(2):
        assert torch.equal(packed_LYK[:, layer, 0], 2 * token_L + layer)
        assert torch.equal(packed_LYK[:, layer, 1], 1000 + token_L)


def named(tokens: tuple[int, ...]) -> Tensor:
    token = torch.tensor(tokens)
    return torch.stack([torch.stack([2 * token + layer, 1000 + token], -1) for layer in range(2)], 1)


def test_a_missing_route_is_refused_instead_of_shifting_the_others():
    tree = Tree(prompt=(1, 2), continuations=((3,),), actions=((True,),))
    with pytest.raises(ModelError, match="route for each of its tokens"):
        pack_routes([tree], [TreeRoutes(prompt_PYK=named((1,)), continuations=(named((3,)),))])
    with pytest.raises(ModelError, match="every tree"):
        pack_routes([tree, tree], [TreeRoutes(prompt_PYK=named((1, 2)), continuations=(named((3,)),))])


@pytest.mark.parametrize("expert_LK", [torch.tensor([[0, 1]]), torch.tensor([[0, -1], [0, 1]]), torch.tensor([[0, 6], [0, 1]]),
                                       torch.tensor([[2, 2], [0, 1]]), torch.tensor([[0, 1], [0, 1]], dtype=torch.int32)])
def test_routes_of_other_positions_or_experts_are_refused(expert_LK):
    with pytest.raises(ModelError):
        replayed_gates(randn(0, 2, 6), expert_LK, GateRule(score="softmax", renormalize=True))


# Full vocabulary

T, H, V, PADDED = 5, 3, 7, 9


def models(seed: int, dtype: torch.dtype = F64) -> tuple[Tensor, Tensor, Teacher]:
    """Student hidden states and padded head with gradient, and a teacher of another width, padded otherwise."""
    hidden_TH, weight_RH = randn(seed, T, H, dtype=dtype), randn(seed + 1, PADDED, H, dtype=dtype)
    weight_RH[V:] = 50.0   # padding that would take all probability
    teacher_RH = randn(seed + 3, V + 1, 4, dtype=dtype)
    teacher_RH[V:] = 50.0
    teacher = Teacher(hidden_TH=randn(seed + 2, T, 4, dtype=dtype), head=Head(weight_RH=teacher_RH, real_vocab=V, vocabulary="v"))
    return hidden_TH.requires_grad_(), weight_RH.requires_grad_(), teacher


def head(weight_RH: Tensor, vocabulary: str = "v") -> Head:
    return Head(weight_RH=weight_RH, real_vocab=V, vocabulary=vocabulary)


def plain_kl(hidden_TH: Tensor, weight_RH: Tensor, teacher: Teacher, direction: str, temperature: float) -> Tensor:
    log_p = (hidden_TH @ weight_RH[:V].T / temperature).log_softmax(-1)
    log_q = (teacher.hidden_TH @ teacher.head.weight_RH[:V].T / temperature).log_softmax(-1)
    first, second = (log_p, log_q) if direction == "reverse" else (log_q, log_p)
    return (first.exp() * (first - second)).sum(-1)


def plain_entropy(hidden_TH: Tensor, weight_RH: Tensor, temperature: float) -> Tensor:
    log_p = (hidden_TH @ weight_RH[:V].T / temperature).log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize("what", ["reverse", "forward", "entropy"])
@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("chunk", [1, 2, 256])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_chunked_sums_and_gradients_are_the_plain_ones(what, dtype, chunk, temperature):
    hidden_TH, weight_RH, teacher = models(11, dtype)
    if what == "entropy":
        found_T = full_vocabulary_entropy(hidden_TH, head(weight_RH), temperature=temperature, chunk=chunk)
        plain_T = plain_entropy(hidden_TH, weight_RH, temperature)
    else:
        found_T = full_vocabulary_kl(hidden_TH, head(weight_RH), teacher, direction=what, temperature=temperature, chunk=chunk)
        plain_T = plain_kl(hidden_TH, weight_RH, teacher, what, temperature)
    tolerance = {"atol": 1e-12, "rtol": 1e-10} if dtype == F64 else {"atol": 2e-5, "rtol": 2e-5}
    torch.testing.assert_close(found_T, plain_T, **tolerance)
    weight_T = randn(9, T, dtype=dtype)
    found = torch.autograd.grad((weight_T * found_T).sum(), (hidden_TH, weight_RH))
    plain = torch.autograd.grad((weight_T * plain_T).sum(), (hidden_TH, weight_RH))
    for ours, theirs in zip(found, plain, strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)
    assert bool((found[1][V:] == 0).all())


@pytest.mark.parametrize("what", ["reverse", "forward", "entropy"])
def test_the_gradients_equal_finite_differences(what):
    hidden_TH, weight_RH, teacher = models(21)

    def value(hidden_TH: Tensor, weight_RH: Tensor) -> Tensor:
        if what == "entropy":
            return full_vocabulary_entropy(hidden_TH, head(weight_RH), temperature=0.9, chunk=2)
        return full_vocabulary_kl(hidden_TH, head(weight_RH), teacher, direction=what, temperature=0.9, chunk=2)

    weight_RH = (weight_RH.detach() * torch.where(torch.arange(PADDED) < V, 1.0, 0.01)[:, None]).requires_grad_()
    assert torch.autograd.gradcheck(value, (hidden_TH, weight_RH))


@given(seed=SEEDS)
@FEW
def test_the_kl_is_never_negative_and_a_teacher_equal_to_the_student_gives_zero_value_and_gradient(seed):
    hidden_TH, weight_RH, teacher = models(seed)
    for direction in ("reverse", "forward"):
        assert bool((full_vocabulary_kl(hidden_TH, head(weight_RH), teacher, direction=direction, temperature=1.0) >= 0).all())
        same = Teacher(hidden_TH=hidden_TH.detach().clone(), head=head(weight_RH.detach().clone()))
        kl_T = full_vocabulary_kl(hidden_TH, head(weight_RH), same, direction=direction, temperature=1.0)
        gradients = torch.autograd.grad(kl_T.sum(), (hidden_TH, weight_RH))
        assert bool((kl_T == 0).all()) and all(bool((gradient == 0).all()) for gradient in gradients)


@given(seed=SEEDS)
@FEW
def test_swapping_student_and_teacher_swaps_the_directions(seed):
    hidden_TH, weight_RH, teacher = models(seed)
    swapped = Teacher(hidden_TH=hidden_TH.detach(), head=head(weight_RH.detach()))
    reverse_T = full_vocabulary_kl(hidden_TH, head(weight_RH), teacher, direction="reverse", temperature=1.0)
    forward_T = full_vocabulary_kl(teacher.hidden_TH, teacher.head, swapped, direction="forward", temperature=1.0)
    torch.testing.assert_close(reverse_T.detach(), forward_T)
    other_T = full_vocabulary_kl(hidden_TH, head(weight_RH), teacher, direction="forward", temperature=1.0)
    assert not torch.allclose(reverse_T, other_T)


def test_the_reverse_kls_gradient_is_the_expected_gradient_of_sampled_token_distillation():
    """Enumerating the vocabulary: sum_v p_v (log p_v - log q_v) d log p_v, the sampled advantage held constant."""
    hidden_TH, weight_RH, teacher = models(31)
    kl_T = full_vocabulary_kl(hidden_TH, head(weight_RH), teacher, direction="reverse", temperature=1.0)
    (found_TH,) = torch.autograd.grad(kl_T.sum(), hidden_TH)
    log_p_TV = (hidden_TH @ weight_RH[:V].T).log_softmax(-1)
    log_q_TV = (teacher.hidden_TH @ teacher.head.weight_RH[:V].T).log_softmax(-1)
    advantage_TV = (log_q_TV - log_p_TV).detach()
    (sampled_TH,) = torch.autograd.grad(-(log_p_TV.detach().exp() * advantage_TV * log_p_TV).sum(), hidden_TH)
    torch.testing.assert_close(found_TH, sampled_TH)


class Largest(TorchDispatchMode):
    """The largest tensor that any operation returned, in elements."""

    def __init__(self) -> None:
        super().__init__()
        self.elements, self.calls = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, Tensor):
                self.elements, self.calls = max(self.elements, each.numel()), self.calls + 1
        return result


@pytest.mark.parametrize("what", ["reverse", "forward", "entropy"])
def test_positions_times_vocabulary_is_never_held_forward_or_backward(what):
    positions, vocab, chunk = 64, 50, 4
    hidden_TH, weight_VH = randn(0, positions, 2).requires_grad_(), randn(1, vocab, 2).requires_grad_()
    own = Head(weight_RH=weight_VH, real_vocab=vocab, vocabulary="v")
    teacher = Teacher(hidden_TH=randn(2, positions, 2), head=Head(weight_RH=randn(3, vocab, 2), real_vocab=vocab, vocabulary="v"))
    with Largest() as forward:
        if what == "entropy":
            value_T = full_vocabulary_entropy(hidden_TH, own, temperature=1.0, chunk=chunk)
        else:
            value_T = full_vocabulary_kl(hidden_TH, own, teacher, direction=what, temperature=1.0, chunk=chunk)
    with Largest() as backward:
        value_T.sum().backward()
    for phase in (forward, backward):
        assert phase.calls > positions // chunk and phase.elements <= chunk * vocab


def test_a_frozen_head_gets_no_gradient_and_a_teacher_never_does():
    hidden_TH, weight_RH, teacher = models(41)
    learning = Teacher(hidden_TH=teacher.hidden_TH.requires_grad_(), head=teacher.head)
    kl_T = full_vocabulary_kl(hidden_TH, head(weight_RH.detach()), learning, direction="reverse", temperature=1.0)
    kl_T.sum().backward()
    assert hidden_TH.grad is not None and weight_RH.grad is None and teacher.hidden_TH.grad is None


def test_no_positions_give_no_values_and_extreme_logits_stay_finite():
    hidden_TH, weight_RH, teacher = models(51, torch.float32)
    nothing = Teacher(hidden_TH=teacher.hidden_TH[:0], head=teacher.head)
    assert full_vocabulary_kl(hidden_TH[:0], head(weight_RH), nothing, direction="reverse", temperature=1.0).shape == (0,)
    for direction in ("reverse", "forward"):
        kl_T = full_vocabulary_kl(hidden_TH * 1e4, head(weight_RH), teacher, direction=direction, temperature=1.0)
        assert bool(kl_T.isfinite().all())
    entropy_T = full_vocabulary_entropy(hidden_TH * 1e4, head(weight_RH), temperature=1.0)
    gradients = torch.autograd.grad(entropy_T.sum(), (hidden_TH, weight_RH))
    assert bool(entropy_T.isfinite().all()) and all(bool(gradient.isfinite().all()) for gradient in gradients)


def test_bf16_hidden_states_are_summed_in_fp32():
    hidden_TH, weight_RH, teacher = models(61, torch.bfloat16)
    kl_T = full_vocabulary_kl(hidden_TH, head(weight_RH), teacher, direction="reverse", temperature=1.0)
    kl_T.sum().backward()
    assert kl_T.dtype == torch.float32 and hidden_TH.grad.dtype == weight_RH.grad.dtype == torch.bfloat16


def test_a_teacher_with_another_vocabulary_or_other_positions_is_refused():
    hidden_TH, weight_RH, teacher = models(71)
    cases = [(head(weight_RH, "other"), teacher, 1.0, "share the vocabulary"),
             (Head(weight_RH=weight_RH, real_vocab=V + 1, vocabulary="v"), teacher, 1.0, "share the vocabulary"),
             (head(weight_RH), Teacher(hidden_TH=teacher.hidden_TH[1:], head=teacher.head), 1.0, "each position"),
             (head(weight_RH), teacher, 0.0, "temperature"),
             (head(weight_RH), teacher, float("inf"), "temperature"),
             (head(weight_RH[:, 1:]), teacher, 1.0, "width")]
    for own, other, temperature, words in cases:
        with pytest.raises(ModelError, match=words):
            full_vocabulary_kl(hidden_TH, own, other, direction="reverse", temperature=temperature)
    with pytest.raises(ModelError, match="direction"):
        full_vocabulary_kl(hidden_TH, head(weight_RH), teacher, direction="backward", temperature=1.0)
    with pytest.raises(ModelError, match="real_vocab"):
        Head(weight_RH=weight_RH, real_vocab=PADDED + 1, vocabulary="v")
