"""Routing replay in the learner: the experts of the step's beginning, gate weights and gradients of today."""

from dataclasses import replace

import pytest
import torch
from policies import engine_of, prompts, tiny_policy
from policies import request as asked

from rollbook.experience.admission import AdmittedGroup
from rollbook.experience.batches import credited, pack
from rollbook.models.decoder import Experts
from rollbook.objectives import Grpo
from rollbook.objectives.credit import GroupNormalized
from rollbook.records import Experience, RecordError, RewardVector, Scored, Segment, Trace
from rollbook.records.recipe import OptimizerSettings
from rollbook.training.optimizer import Optimizer
from rollbook.training.policy import PolicyLearner

SETTINGS = OptimizerSettings(learning_rate=0.02, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0, warmup_steps=0,
                             schedule="constant", max_grad_norm=1.0)
OBJECTIVE = Grpo(low=0.2, high=0.2, beta=0.0, credit=GroupNormalized(eps=1e-6, ddof=0))


def batch(policy):
    engine = engine_of(policy)
    groups = []
    for place, prompt in enumerate(prompts(policy)):
        made = engine.sample([asked(f"g{place}/{sample}", prompt, max_tokens=12) for sample in range(2)])
        members = []
        for sample, one in enumerate(made):
            trace = Trace(attempt=f"g{place}/{sample}", task="t", group=f"g{place}", envelope="e", stop_reason="length", text="",
                          segments=(Segment(owner="user", token_ids=prompt),
                                    Segment(owner="policy", token_ids=one.token_ids, logps=one.logps, version=0)))
            vector = RewardVector(components=(), absent=(), composition="c", composition_digest="d", total=float(sample),
                                  accuracy=float(sample))
            members.append(Experience(trace=trace, verdict=Scored(trace=trace.id, vector=vector)))
        groups.append(AdmittedGroup(id=f"g{place}", members=tuple(members)))
    (credit,) = credited((groups,), OBJECTIVE, "s")
    return pack(groups, credit, OBJECTIVE, max_tokens=60, max_length=12)


@pytest.fixture
def learner():
    policy = tiny_policy("qwen3_moe")
    made = PolicyLearner(policy.decoder, Optimizer.of(policy.decoder, SETTINGS, 4), dtype=torch.float32, temperature=1.0)
    made.routing = "replayed"
    return policy, made


def gradients(learner, packed):
    before = {name: p.detach().clone() for name, p in learner.decoder.named_parameters()}
    measured = learner.update(packed, OBJECTIVE, where="here")
    moved = {name: p.detach() - before[name] for name, p in learner.decoder.named_parameters()}
    with torch.no_grad():
        for name, p in learner.decoder.named_parameters():
            p.copy_(before[name])
    return measured, moved


def test_replayed_routes_of_the_same_weights_change_nothing(learner):
    policy, made = learner
    scored = made.score(batch(policy), OBJECTIVE)
    assert len(scored.plan) > 1 and scored.routes_LYK.shape[1:] == (2, 2)
    free = replace(scored, routes_LYK=None)
    with torch.no_grad():
        made.optimizer.zero()
    first, _ = gradients(made, scored)
    again = PolicyLearner(policy.decoder, Optimizer.of(policy.decoder, SETTINGS, 4), dtype=torch.float32, temperature=1.0)
    second, _ = gradients(again, free)
    assert torch.equal(first.logp_T, second.logp_T)
    assert torch.allclose(first.gradient_T, second.gradient_T)


def test_after_the_routers_moved_the_experts_stay_and_the_gate_weights_do_not(learner):
    policy, made = learner
    scored = made.score(batch(policy), OBJECTIVE)
    with torch.no_grad():
        for module in policy.decoder.modules():
            if isinstance(module, Experts):
                module.gate.weight += torch.randn(module.gate.weight.shape, generator=torch.Generator().manual_seed(2))
    chosen = {}
    hooks = [module.register_forward_hook(lambda m, given, out: chosen.setdefault(id(m), []).append(given[1]))
             for module in policy.decoder.modules() if isinstance(module, Experts)]
    replayed, _ = gradients(made, scored)
    for hook in hooks:
        hook.remove()
    layers = [torch.cat(parts) for parts in chosen.values()]
    assert torch.equal(torch.stack(layers, 1), scored.routes_LYK.long())
    free, _ = gradients(made, replace(scored, routes_LYK=None))
    assert not torch.allclose(replayed.logp_T, free.logp_T)
    assert not torch.allclose(replayed.logp_T, scored.anchor_T)


def test_the_minibatch_before_any_update_needs_no_routes(learner):
    policy, made = learner
    assert made.score(batch(policy), OBJECTIVE, next_up=True).routes_LYK is None


def test_routes_of_another_batch_are_refused(learner):
    policy, made = learner
    scored = made.score(batch(policy), OBJECTIVE)
    with pytest.raises(RecordError, match="not those of its tokens"):
        made.update(replace(scored, routes_LYK=torch.cat([scored.routes_LYK, scored.routes_LYK[:1]])), OBJECTIVE, where="here")


def test_a_dense_model_has_no_routes_to_replay():
    policy = tiny_policy("llama")
    made = PolicyLearner(policy.decoder, Optimizer.of(policy.decoder, SETTINGS, 4), dtype=torch.float32, temperature=1.0)
    made.routing = "replayed"
    with pytest.raises(RecordError, match="model with experts"):
        made.score(batch(policy), OBJECTIVE)


def test_recomputing_layers_in_backward_reads_the_same_routes(learner):
    policy, made = learner
    scored = made.score(batch(policy), OBJECTIVE)
    with torch.no_grad():
        for module in policy.decoder.modules():
            if isinstance(module, Experts):
                module.gate.weight.mul_(-1)
    plain, moved = gradients(made, scored)
    policy.decoder.checkpointing = True
    again = PolicyLearner(policy.decoder, Optimizer.of(policy.decoder, SETTINGS, 4), dtype=torch.float32, temperature=1.0)
    other, same = gradients(again, scored)
    assert torch.equal(plain.logp_T, other.logp_T)
    assert all(torch.allclose(moved[name], same[name], atol=1e-6) for name in moved)
