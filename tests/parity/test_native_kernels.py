"""The processor's own kernels compute what torch's operations do, alone and inside the model; nothing needs them."""

import os
import re
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from policies import ARCHITECTURES, completions, engine_of, prompts, request, tiny_policy

from rollbook.models import attention, working_copy
from rollbook.models.cache import Cache
from rollbook.models.layout import Tree, pack
from rollbook.models.logprobs import action_logprobs
from rollbook.models.native import ops
from rollbook.models.native.attention import LONGEST
from rollbook.models.native.build import HERE, SOURCES, built
from rollbook.models.runtime import named
from rollbook.models.working_copy import WorkingCopy

CPU, HALF = torch.device("cpu"), torch.bfloat16
STEP = 2.0 ** -8        # relative distance of neighbouring bf16 numbers


@pytest.fixture
def native() -> ops.Kernels:
    found = ops.kernels(HALF, CPU)
    if found is None:
        pytest.skip(f"no kernels here: {built().why}")
    return found


@pytest.fixture
def both(monkeypatch):
    """Computes something with the kernels and with torch's operations."""
    def of(what):
        ours = what()
        with monkeypatch.context() as patch:
            patch.setattr(ops, "_HELD", [None])
            return ours, what()
    return of


def close(ours, theirs, *, steps=1.0):
    """Within so many bf16 steps of the largest number."""
    assert ours.shape == theirs.shape
    assert (ours.float() - theirs.float()).abs().max() <= steps * STEP * theirs.float().abs().max()


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (130, 48), (7, 576), (3, 37)])
def test_a_norm_and_its_gradients_are_torchs(native, rows, width):
    torch.manual_seed(rows)
    residual, delta, weight = torch.randn(rows, width), torch.randn(rows, width).to(HALF), torch.rand(width) + 0.5
    total = (residual + delta.float()).requires_grad_()
    own = weight.clone().requires_grad_()
    expected = F.rms_norm(total, (width,), own, 1e-5)
    grad, beside, scale = torch.randn(rows, width).to(HALF), torch.randn(rows, width), torch.empty(rows)
    into = torch.empty_like(residual)
    close(native.norm(residual, delta, weight, 1e-5, into=into, scale=scale), expected.detach())
    assert torch.equal(into, total.detach())
    (expected * grad.float()).sum().backward()
    found, half, of_weight = native.norm_backward(into, weight, scale, grad, beside, True)
    torch.testing.assert_close(found, total.grad + beside, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(of_weight, own.grad, rtol=1e-5, atol=1e-5)
    assert torch.equal(half, found.to(HALF))


@pytest.mark.parametrize("width", [16, 53])
def test_the_activation_and_its_gradient_are_torchs(native, width):
    gate_up = torch.randn(5, 2 * width).mul(4).to(HALF)
    x = gate_up.float().requires_grad_()
    expected = F.silu(x[:, :width]) * x[:, width:]
    grad = torch.randn(5, width).to(HALF)
    (expected * grad.float()).sum().backward()
    close(native.swiglu(gate_up), expected.detach())
    close(native.swiglu_backward(gate_up, grad), x.grad)


@pytest.mark.parametrize("vocab", [7, 1000, 4099])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_softmax_and_its_slope_are_torchs(native, vocab, temperature):
    logits = torch.randn(6, vocab).mul(3).to(HALF)
    target = torch.randint(0, vocab, (6,))
    x = logits.float().requires_grad_()
    logp = (x / temperature).log_softmax(-1)
    entropy, own = -(logp.exp() * logp).sum(-1), logp.gather(1, target[:, None])[:, 0]
    found = tuple(torch.empty(6) for _ in range(3))
    native.softmax(logits, target, temperature, found)
    for mine, theirs in zip(found, (own, entropy, (x / temperature).logsumexp(-1)), strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-5, atol=1e-5)
    scale, toward = torch.randn(6), torch.randn(6)
    (own * scale + entropy * toward).sum().backward()
    slope = native.softmax_backward(logits.clone(), target, temperature, found[2], scale / temperature,
                                    (found[1], toward / temperature))
    close(slope, x.grad)


@pytest.mark.parametrize("vocab", [5, 256, 1031])
def test_a_draw_is_the_inverse_of_the_cumulative_mass(native, vocab):
    logits = torch.randn(64, vocab).mul(2).to(HALF)
    uniform = torch.rand(64, dtype=torch.float64)
    token, logp, sound = native.draw(logits, uniform, 1.0)
    mass = logits.double().softmax(-1)
    assert torch.equal(token, torch.searchsorted(mass.cumsum(-1), uniform[:, None], right=True)[:, 0])
    torch.testing.assert_close(logp.double(), mass.gather(1, token[:, None])[:, 0].log(), rtol=1e-5, atol=1e-5)
    assert bool(sound.all())
    best, _, _ = native.draw(logits, uniform, 0.0)
    assert torch.equal(best, logits.float().argmax(-1))


def test_a_row_whose_logits_are_damaged_is_named_and_no_other(native):
    logits = torch.randn(4, 300).to(HALF)
    logits[1, 299], logits[2, 0], logits[3, 7] = float("nan"), float("inf"), float("-inf")
    token, logp, sound = native.draw(logits, torch.full((4,), 1.0 - 1e-12, dtype=torch.float64), 1.0)
    assert sound.tolist() == [True, False, False, True]
    assert bool(logp[sound].isfinite().all()) and int(token[3]) != 7


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_has_the_log_probs_and_gradients_it_has_by_torchs_operations(native, both, architecture):
    policy = tiny_policy(architecture)
    asked = prompts(policy)
    trees = [Tree(prompt=prompt, continuations=tuple(c.token_ids for c in answers),
                  actions=tuple((True,) * len(c.token_ids) for c in answers))
             for prompt, answers in zip(asked, completions(policy, asked, per_prompt=2, temperature=1.0), strict=True)]
    layout = pack(trees, window=policy.decoder.architecture.window)

    def learnt():
        policy.decoder.zero_grad()
        scores = action_logprobs(policy.decoder, layout, temperature=0.9, dtype=HALF, entropy_gradient=True)
        (scores.logp_T.sum() + 0.1 * scores.entropy_T.sum()).backward()
        grads = {name: p.grad.clone() for name, p in policy.decoder.named_parameters() if p.grad is not None}
        return scores.logp_T.detach(), grads
    (logp, ours), (expected, theirs) = both(learnt)
    assert (logp - expected).abs().max() < 0.1
    assert ours.keys() == theirs.keys()
    apart = sum(float((ours[name] - theirs[name]).square().sum()) for name in ours)
    share = 0.1 if policy.decoder.architecture.experts else 0.03        # a rounding may send a token to another expert
    assert apart <= share ** 2 * sum(float(one.square().sum()) for one in theirs.values())


@pytest.mark.parametrize("rolls", [True, False])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_decoding_continues_what_prefill_computes(native, architecture, rolls):
    policy = tiny_policy(architecture)
    a = policy.decoder.architecture
    weights = WorkingCopy(policy.decoder, HALF)
    ids = torch.arange(3, 3 + 24) % a.vocab
    whole = weights.prefill(ids[None], torch.tensor([24]))[0]
    first, held = weights.prefill(ids[None, :6], torch.tensor([6]))
    arena = Cache.empty(a, 1, min(24, a.window) if rolls and a.window is not None else 24, HALF)
    arena.put(0, held, torch.tensor([0]))
    for token in ids[6:]:
        first = weights.decode(token[None], arena)
    assert (first.float() - whole.float()).abs().max() < 0.05 * whole.float().abs().max()


def test_how_many_threads_there_are_changes_no_bit(native):
    logits, residual = torch.randn(70, 777).to(HALF), torch.randn(200, 96)
    found, threads = [], torch.get_num_threads()
    try:
        for several in (1, 2, 3):
            torch.set_num_threads(several)
            scale = torch.empty(200)
            out = native.norm(residual.clone(), None, torch.ones(96), 1e-5, scale=scale)
            back = native.norm_backward(residual, torch.ones(96), scale, out, None, False)
            found.append((out, back[0], back[2], *native.draw(logits, torch.linspace(0, 0.99, 70, dtype=torch.float64), 1.0)))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(*pair) for pair in zip(found[0], other, strict=True))


def test_a_row_is_sampled_the_same_whatever_stands_beside_it(native):
    policy = tiny_policy("llama")
    engine = engine_of(policy, dtype=HALF)
    asked = [request(f"one/{i}", prompt, max_tokens=8) for i, prompt in enumerate(prompts(policy))]
    together = engine.sample(asked)
    assert [engine.sample([one])[0].token_ids for one in asked] == [one.token_ids for one in together]


def told(**variables: str) -> tuple[int, str]:
    code = "from rollbook.models.native.build import built; b = built(); print(b.name, b.library is None, b.why)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False,
                          env={**os.environ, **variables})
    return done.returncode, done.stdout + done.stderr


def test_without_a_compiler_torch_computes_and_says_why():
    assert told(ROLLBOOK_KERNELS="torch") == (0, "torch True ROLLBOOK_KERNELS=torch\n")
    code, words = told(CXX="/nowhere/g++")
    assert code == 0 and words.startswith("torch True") and "/nowhere/g++" in words


def test_kernels_that_are_asked_for_and_cannot_be_built_are_an_error():
    code, words = told(CXX="/nowhere/g++", ROLLBOOK_KERNELS="native")
    assert code != 0 and "the processor's kernels cannot be built" in words and "install g++" in words
    code, words = told(ROLLBOOK_KERNELS="fast")
    assert code != 0 and "ROLLBOOK_KERNELS names no kernels" in words and "auto, native, torch" in words


def test_a_cache_that_cannot_be_written_is_no_hindrance(native, tmp_path):
    (tmp_path / "file").write_text("")
    code, words = told(XDG_CACHE_HOME=str(tmp_path / "file"), TMPDIR=str(tmp_path))
    assert code == 0 and words.startswith("native-")
    (tmp_path / f"rollbook-kernels-{os.getuid()}").chmod(0o777)
    code, words = told(XDG_CACHE_HOME=str(tmp_path / "file"), TMPDIR=str(tmp_path))
    assert code == 0 and words.startswith("torch True") and "open to others" in words


def test_a_run_in_bf16_records_which_kernels_computed_it():
    assert named(CPU, HALF) == {"kernels": built().name}
    assert named(CPU, torch.float32) == {}


@pytest.mark.parametrize("trees", [
    [Tree(prompt=(2,), continuations=((3, 4, 5),), actions=((False, True, True),))],
    [Tree(prompt=(3, 4, 5), continuations=(), actions=()), Tree(prompt=(6,), continuations=((7,),), actions=((True,),))],
    [Tree(prompt=tuple(range(3, 40)), continuations=(tuple(range(5, 30)), (9,)), actions=((True,) * 25, (True,)))],
], ids=["one token", "no continuation", "uneven"])
@pytest.mark.parametrize("architecture", ["llama", "mistral"])
def test_trees_of_every_shape_are_attended_as_by_torchs_operations(native, both, trees, architecture):
    policy = tiny_policy(architecture)
    layout = pack(trees, window=policy.decoder.architecture.window)

    def hidden():
        policy.decoder.zero_grad()
        found = policy.decoder(layout, HALF).float()
        toward = torch.randn(found.shape, generator=torch.Generator().manual_seed(5))
        (found * toward).sum().backward()
        return found.detach(), policy.decoder.model.layers[0].self_attn.k_proj.weight.grad.clone()
    (ours, slope), (theirs, expected) = both(hidden)
    close(ours, theirs, steps=6)
    assert (slope - expected).norm() <= 0.05 * expected.norm()


def test_sizes_that_both_languages_name_are_the_same():
    text = "".join((HERE / name).read_text() for name in SOURCES)
    here = {"int LANES": attention.LANES, "int64_t ROWS": ops.ROWS, "int64_t BLOCK": ops.BLOCK}
    assert {name: int(re.search(rf"constexpr {name} = (\d+);", text)[1]) for name in here} == here
    assert f"float e[{LONGEST}]" in text and f"float sums[{attention.WIDEST}]" in text
    assert attention.LANES == working_copy.LANES
    assert all(f"case {size}:" in text for size in ops.HEADS)
