"""Weights on another device give what they give here, and no operation there meets a tensor from here.

The device is pretended (`other_device`): this shows where every tensor lies, not what an accelerator's kernels compute.
"""


import pytest
import torch
from other_device import ELSEWHERE, Elsewhere, Mixed, pretending
from policies import engine_of, prompts, request, tiny_policy

from rollbook.experience.admission import AdmittedGroup
from rollbook.experience.batches import credited, pack
from rollbook.models import logprobs
from rollbook.models.fullvocab import Head, Teacher, full_vocabulary_kl
from rollbook.models.layout import Tree
from rollbook.models.layout import pack as lay_out
from rollbook.models.load import placed
from rollbook.models.native import ops
from rollbook.models.scalar import on_body
from rollbook.models.shape import load_shaped
from rollbook.models.support import Support
from rollbook.models.weights import published_hash, weight_hash
from rollbook.objectives import Grpo
from rollbook.objectives.credit import GroupNormalized
from rollbook.records import Experience, RewardVector, Scored, Segment, Trace
from rollbook.training.optimizer import Stepped
from rollbook.training.policy import PolicyLearner, frozen_copy

ARCHITECTURES = ("llama", "mistral", "qwen3_moe")
OBJECTIVE = Grpo(low=0.2, high=0.2, beta=0.1, credit=GroupNormalized(eps=1e-6, ddof=0))


@pytest.fixture(params=ARCHITECTURES)
def policies(request):
    """One policy twice: its weights here, and elsewhere."""
    here = tiny_policy(request.param)
    with pretending():
        yield here, placed(tiny_policy(request.param), ELSEWHERE)


def layout_of(policy):
    trees = [Tree(prompt=prompt, continuations=((65, 66, 67), (70, 71)), actions=((True,) * 3, (True, False)))
             for prompt in prompts(policy)]
    return lay_out(trees, window=policy.decoder.architecture.window)


def learned(policy, logp_T):
    """The gradient of a weighted sum, by parameter, brought here."""
    (logp_T * torch.linspace(-1, 2, logp_T.numel())).sum().backward()
    return {name: p.grad.cpu() for name, p in policy.decoder.named_parameters() if p.grad is not None}


def test_a_pretended_device_refuses_to_be_mixed_with_this_one():
    with pretending():
        there = torch.ones(3).to(ELSEWHERE)
        assert isinstance(there, Elsewhere)
        assert (there * torch.full((3,), 2.0, device=ELSEWHERE)).cpu().tolist() == [2.0, 2.0, 2.0]
        with pytest.raises(Mixed):
            there + torch.ones(3)


@pytest.mark.parametrize("explored", [False, True])
def test_log_probs_entropies_and_gradients_are_the_same(policies, explored):
    here, there = policies
    found = [logprobs.action_logprobs(one.decoder, layout_of(one), temperature=0.7, dtype=torch.float32,
                                      entropy_gradient=explored) for one in (here, there)]
    assert torch.equal(found[0].logp_T, found[1].logp_T)
    assert torch.equal(found[0].entropy_T, found[1].entropy_T)
    ours, theirs = learned(here, found[0].logp_T), learned(there, found[1].logp_T)
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(theirs[name], gradient, rtol=1e-5, atol=1e-6)


def test_log_probs_over_a_support_and_over_all_ids_are_the_same(policies):
    layout = layout_of(policies[0])
    support = Support.of([[int(token), 80, 90] for token in layout.target_T])
    ours, theirs = (logprobs.support_logprobs(one.decoder, layout, support, temperature=1.0, dtype=torch.float32).logp_T
                    for one in policies)
    assert torch.equal(ours, theirs)
    for mine, other in zip(*(logprobs.full_logprobs(one.decoder, layout, temperature=1.0, dtype=torch.float32)
                             for one in policies), strict=True):
        assert torch.equal(mine, other)
        assert torch.is_grad_enabled()


def test_numbers_of_a_scalar_model_are_the_same(policies):
    layout = layout_of(policies[0])
    weights = {name: p.detach() for name, p in policies[0].decoder.named_parameters()}
    models = [on_body(one.decoder, weights, layers=2, seed=1) for one in policies]
    for model in models:
        torch.nn.init.constant_(model.head.weight, 0.1)
    for read in ("answers", "tokens"):
        ours, theirs = (getattr(model, read)(layout, torch.float32) for model in models)
        torch.testing.assert_close(theirs, ours)


def test_a_kl_to_a_teacher_is_the_same(policies):
    layout, found = layout_of(policies[0]), []
    for one in policies:
        hidden = one.decoder(layout, torch.float32)[layout.predictor_T]
        head = Head(weight_RH=one.decoder.head, real_vocab=one.decoder.architecture.vocab, vocabulary="v")
        taught = Teacher(hidden_TH=hidden.detach() * 1.5, head=head)
        found.append(full_vocabulary_kl(hidden, head, taught, direction="reverse", temperature=1.0).cpu())
        found[-1].sum().backward()
    assert torch.equal(*found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("limits", [{}, {"top_k": 5}, {"top_p": 0.8, "temperature": 0.6}, {"temperature": 0.0}])
def test_an_engine_samples_the_same_tokens(policies, limits, dtype, monkeypatch):
    monkeypatch.setattr(ops, "_HELD", [None])       # the processor's own kernels round otherwise
    found = []
    for one in policies:
        engine = engine_of(one, dtype=dtype, device=one.decoder.device, kv_bytes=1 << 24, prefix_bytes=1 << 20)
        asked = [request(f"{place}/{sample}", prompt, max_tokens=12, keep_routes=bool(one.decoder.architecture.experts), **limits)
                 for place, prompt in enumerate(prompts(one)) for sample in range(3)]
        found.append([(made.token_ids, made.logps, made.routes, made.support)
                      for made in (*engine.sample(asked), *engine.sample(asked))])
    ours, theirs = found
    assert [one[0] for one in ours] == [one[0] for one in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine[1] == pytest.approx(other[1], abs=0.05 if dtype == torch.bfloat16 else 1e-5)
        assert mine[2:] == other[2:] or dtype == torch.bfloat16 or mine[3] is not None


def test_the_hash_of_weights_does_not_depend_on_where_they_are(policies):
    here, there = policies
    assert weight_hash(there.decoder.named_parameters()) == weight_hash(here.decoder.named_parameters())
    assert published_hash(there.decoder, torch.bfloat16) == published_hash(here.decoder, torch.bfloat16)


def test_layers_that_are_made_anew_are_where_the_others_are(policies):
    here, there = policies
    fewer = {name: p.detach() for name, p in here.decoder.named_parameters() if ".layers.1." not in name}
    load_shaped(there.decoder, fewer)
    assert {p.device for p in there.decoder.parameters()} == {ELSEWHERE}


class NoSteps:
    """An optimizer that leaves the weights alone: the fused one knows no pretended device."""

    def __init__(self, decoder):
        self.decoder, self.steps = decoder, 0

    def zero(self):
        self.decoder.zero_grad()

    def step(self, where):
        return Stepped(grad_norm=0.0, clipped=False, learning_rate=0.0)


def batch(policy):
    groups = []
    for place, prompt in enumerate(prompts(policy)):
        members = []
        for sample in range(2):
            trace = Trace(attempt=f"g{place}/{sample}", task="t", group=f"g{place}", envelope="e", stop_reason="length", text="",
                          segments=(Segment(owner="user", token_ids=prompt),
                                    Segment(owner="policy", token_ids=(65 + sample, 66, 67), logps=(-1.0, -2.0, -3.0),
                                            version=0)))
            vector = RewardVector(components=(), absent=(), composition="c", composition_digest="d", total=float(sample),
                                  accuracy=float(sample))
            members.append(Experience(trace=trace, verdict=Scored(trace=trace.id, vector=vector)))
        groups.append(AdmittedGroup(id=f"g{place}", members=tuple(members)))
    (credit,) = credited((groups,), OBJECTIVE, "s")
    return pack(groups, credit, OBJECTIVE, max_tokens=60, max_length=12)


def test_an_update_finds_the_same_gradients_with_anchor_reference_and_replayed_routes(policies):
    found = []
    for one in policies:
        learner = PolicyLearner(one.decoder, NoSteps(one.decoder), dtype=torch.float32, temperature=1.0,
                                start=frozen_copy(one.decoder, torch.float32))
        if one.decoder.architecture.experts:
            learner.routing = "replayed"
        learner.hold_anchor(OBJECTIVE)
        packed = learner.score(batch(one), OBJECTIVE)
        measured = learner.update(packed, OBJECTIVE, where="here")
        learner.kl_to_start(packed, measured.logp_T)
        found.append((measured, {name: p.grad.cpu() for name, p in one.decoder.named_parameters() if p.grad is not None}))
    (ours, ours_by_name), (theirs, theirs_by_name) = found
    for name in ("logp_T", "entropy_T", "gradient_T", "clipped_T"):
        torch.testing.assert_close(getattr(theirs, name), getattr(ours, name))
    assert ours_by_name.keys() == theirs_by_name.keys()
    for name, gradient in ours_by_name.items():
        torch.testing.assert_close(theirs_by_name[name], gradient, rtol=1e-5, atol=1e-6)
