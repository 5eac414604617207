"""A learner on several ranks: the loss, gradient and step of one process, whatever each of them has to do."""

import copy
import math
from dataclasses import replace
from typing import get_args

import pytest
import torch
from exposed_ranks import exposed
from policies import engine_of, prompts, tiny_policy
from policies import request as asked
from safetensors.torch import load_file

from rollbook.experience.admission import AdmittedGroup
from rollbook.experience.batches import credited, pack
from rollbook.experience.mixing import mixed
from rollbook.models.weights import load_into
from rollbook.objectives import Grpo, sequence_weight
from rollbook.objectives.core import Aggregate
from rollbook.objectives.credit import GroupNormalized
from rollbook.objectives.settings import from_settings
from rollbook.records import (
    Demonstration,
    Diverged,
    Experience,
    ModelError,
    RecipeError,
    RewardVector,
    Scored,
    Segment,
    Span,
    Trace,
)
from rollbook.records.recipe import Fsdp2, Muon, OptimizerSettings
from rollbook.training import ranked
from rollbook.training.optimizer import Optimizer
from rollbook.training.policy import PolicyLearner
from rollbook.training.ranked import RankedLearner

SETTINGS = OptimizerSettings(learning_rate=0.02, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0, warmup_steps=0,
                             schedule="constant", max_grad_norm=1.0)
OBJECTIVE = Grpo(low=0.2, high=0.2, beta=0.04, credit=GroupNormalized(eps=1e-6, ddof=0))
PTX = from_settings({"kind": "PpoPtx", "low": 0.2, "high": 0.2, "aggregate": "token_mean", "ptx_coefficient": 0.5,
                     "ptx_aggregate": "token_mean", "credit": {"kind": "GroupNormalized", "eps": 1e-6, "ddof": 0}})
NEAR = 1e-6         # of the largest component of a gradient, fp32: the order of a sum


def batch(policy, lengths=(12, 5, 9), *, max_tokens=40, objective=OBJECTIVE):
    engine = engine_of(policy, kv_bytes=1 << 26)
    engine.stop_ids = frozenset()
    groups = []
    for place, (prompt, new) in enumerate(zip(prompts(policy), lengths, strict=False)):
        made = engine.sample([asked(f"g{place}/{sample}", prompt, max_tokens=new) for sample in range(2)])
        members = []
        for sample, one in enumerate(made):
            trace = Trace(attempt=f"g{place}/{sample}", task="t", group=f"g{place}", envelope="e", stop_reason="length", text="",
                          segments=(Segment(owner="user", token_ids=prompt),
                                    Segment(owner="policy", token_ids=one.token_ids, logps=one.logps, version=0)))
            vector = RewardVector(components=(), absent=(), composition="c", composition_digest="d", total=float(sample),
                                  accuracy=float(sample))
            members.append(Experience(trace=trace, verdict=Scored(trace=trace.id, vector=vector)))
        groups.append(AdmittedGroup(id=f"g{place}", members=tuple(members)))
    (credit,) = credited((groups,), objective, "s")
    return pack(groups, credit, objective, max_tokens=max_tokens, max_length=12)


def alone(policy):
    decoder = copy.deepcopy(policy.decoder)
    return PolicyLearner(decoder, Optimizer.of(decoder, SETTINGS, 8), dtype=torch.float32, temperature=1.0)


def gradients(learner):
    return {name: p.grad for name, p in learner.decoder.named_parameters()}


def close(ours, theirs):
    largest = max(float(value.abs().max()) for value in theirs.values())
    off = max(float((ours[name] - value).abs().max()) for name, value in theirs.items())
    assert off <= NEAR * largest, f"{off:.3g} of {largest:.3g}"


def backward(learner, scored, objective=OBJECTIVE):
    """Loss and gradients of one process, no step taken."""
    learner.optimizer.zero()
    work = learner._begin(scored, objective, "here")
    for sequences, layout in zip(work.packed.plan, learner._layouts(work.packed), strict=True):
        learner._micro(work, sequences, layout)
    for places in scored.mixed.plan if scored.mixed else ():
        learner._beside(work, scored.mixed, places)
    return work.loss, gradients(learner)


class Ranked:
    """Two ranks for the whole module, put back to the same weights before each test."""

    def __init__(self, size, policy):
        self.policy, self.size = policy, size
        self.learner = RankedLearner(copy.deepcopy(policy.decoder), SETTINGS, 8, how=Fsdp2(ranks=size, patience_s=60.0),
                                     dtype=torch.float32, temperature=1.0)
        self.begun = {name: p.detach().clone() for name, p in policy.decoder.named_parameters()}
        self.learner.ranks.call("write_weights", str(self.learner.ranks.folder / "begun.safetensors"))

    def reset(self):
        self.learner.ranks.call("read_weights", str(self.learner.ranks.folder / "begun.safetensors"))
        load_into(self.learner.decoder, self.begun)

    def backward(self, scored, objective=OBJECTIVE):
        losses = self.learner.ranks.call("passes", scored, objective)
        path = self.learner.ranks.folder / "gradients.safetensors"
        self.learner.ranks.call("write_gradients", str(path))
        return {name: sum(one[name] for one in losses) for name in losses[0]}, load_file(str(path))


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.soak)])
def ranks(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranked, "rank_of", exposed)
        made = Ranked(request.param, tiny_policy("llama"))
    yield made
    made.learner.close()


@pytest.fixture
def both(ranks):
    ranks.reset()
    return ranks, alone(ranks.policy)


def test_every_rank_holds_some_rows_and_together_they_hold_all(ranks):
    held = ranks.learner.ranks.call("rows")
    for name, parameter in ranks.policy.decoder.named_parameters():
        assert sum(one[name][0] for one in held) == parameter.shape[0]


@pytest.mark.parametrize("how", get_args(Aggregate))
def test_loss_and_gradient_are_those_of_one_process_under_every_aggregate(both, how):
    ranks, one = both
    scored = one.score(batch(ranks.policy), OBJECTIVE)
    weight_T = sequence_weight(how, scored.length_S, scored.group_S, max_length=12)[scored.seq_T]
    scored = replace(scored, weight_KT=torch.stack([weight_T] * len(scored.terms)))
    loss, theirs = backward(one, scored)
    found, ours = ranks.backward(scored)
    assert found == pytest.approx(loss, rel=1e-6, abs=1e-9)
    close(ours, theirs)


@pytest.mark.parametrize(("lengths", "max_tokens"), [((12,), 999), ((12, 1, 1), 30), ((1, 1, 12), 999), ((12, 5, 9), 30)])
def test_uneven_batches_and_ranks_without_tokens_change_nothing(both, lengths, max_tokens):
    ranks, one = both
    scored = one.score(batch(ranks.policy, lengths, max_tokens=max_tokens), OBJECTIVE)
    loss, theirs = backward(one, scored)
    found, ours = ranks.backward(scored)
    assert found == pytest.approx(loss, rel=1e-6, abs=1e-9)
    close(ours, theirs)


def shown(policy, text):
    ids = policy.tokenizer.encode(text)
    return Demonstration(task="t", messages=(), token_ids=ids, owners=(Span(owner="user", length=3),
                         Span(owner="policy", length=len(ids) - 3)), tokenizer="t", template="t", author="a", validation="v")


def test_pretraining_data_beside_the_batch_is_shared_by_the_ranks_too(both):
    ranks, one = both
    scored = one.score(batch(ranks.policy, objective=PTX), PTX)
    demonstrations = [shown(ranks.policy, text) for text in ("one and two", "three", "a longer line than the others")]
    scored = replace(scored, mixed=mixed(demonstrations, PTX, max_tokens=14, max_length=None))
    assert len(scored.mixed.plan) > 1
    loss, theirs = backward(one, scored, PTX)
    found, ours = ranks.backward(scored, PTX)
    assert loss["ptx"] and found == pytest.approx(loss, rel=1e-6, abs=1e-9)
    close(ours, theirs)


def test_a_step_of_plain_descent_leads_to_the_same_weights(both):
    ranks, one = both
    scored = one.score(batch(ranks.policy), OBJECTIVE)
    _, theirs = backward(one, scored)
    ranks.backward(scored)
    ranks.learner.ranks.call("descend", 0.5)
    ranks.learner._gather()
    moved = {name: p.detach() - ranks.begun[name] for name, p in ranks.learner.decoder.named_parameters()}
    largest = max(float(value.abs().max()) for value in theirs.values())
    for name, value in theirs.items():
        assert float((moved[name] + 0.5 * value).abs().max()) <= NEAR * largest + 1e-6 * float(ranks.begun[name].abs().max())


def test_an_update_measures_and_publishes_what_one_process_does(both):
    ranks, one = both
    packed = batch(ranks.policy)
    scored, same = one.score(packed, OBJECTIVE, next_up=True), ranks.learner.score(packed, OBJECTIVE, next_up=True)
    torch.testing.assert_close(same.reference_T, scored.reference_T, atol=1e-5, rtol=0)
    theirs, ours = one.update(scored, OBJECTIVE, where="here"), ranks.learner.update(same, OBJECTIVE, where="here")
    assert ours.stepped.grad_norm == pytest.approx(theirs.stepped.grad_norm, rel=1e-5)
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-5, abs=1e-7)
    for name in ("logp_T", "entropy_T", "gradient_T"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), atol=1e-5, rtol=0)
    path = ranks.learner.ranks.folder / "now.safetensors"
    ranks.learner.ranks.call("write_weights", str(path))
    held = load_file(str(path))
    assert all(torch.equal(held[name], p) for name, p in ranks.learner.decoder.named_parameters())
    assert any(not torch.equal(held[name], value) for name, value in ranks.begun.items())
    assert ranks.learner.kl_to_start(same, ours.logp_T) == pytest.approx(one.kl_to_start(scored, theirs.logp_T), abs=1e-6)


def test_a_frozen_policy_is_scored_by_the_ranks_as_by_one_process(both):
    ranks, one = both
    packed = batch(ranks.policy)
    other = copy.deepcopy(ranks.policy.decoder).requires_grad_(False)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
    torch.testing.assert_close(ranks.learner._frozen(other, packed), one._frozen(other, packed), atol=1e-5, rtol=0)
    some = ranks.learner._frozen(other, packed, {0, 3})
    assert torch.equal(some.isnan(), ~torch.isin(packed.seq_T, torch.tensor([0, 3])))


def test_the_optimizers_state_is_whole_and_goes_on_in_one_process_or_on_other_ranks(both):
    ranks, one = both
    scored = one.score(batch(ranks.policy), OBJECTIVE)
    one.update(scored, OBJECTIVE, where="here")
    ranks.learner.optimizer.load(one.optimizer.state())
    state = ranks.learner.optimizer.state()
    assert {name: tuple(value.shape) for name, value in state.items()} == {
        name: tuple(value.shape) for name, value in one.optimizer.state().items()}
    assert all(torch.equal(value, state[name]) for name, value in one.optimizer.state().items())
    assert ranks.learner.optimizer.steps == 1
    before = ranks.learner.optimizer.digest()
    ranks.learner.optimizer.forget()
    assert set(ranks.learner.optimizer.state()) == {"steps"} and ranks.learner.optimizer.digest() != before


def test_sharded_checkpoints_load_on_another_number_of_ranks(both, tmp_path):
    import torch.distributed.checkpoint as dcp
    ranks, one = both
    scored = one.score(batch(ranks.policy), OBJECTIVE)
    ranks.learner.update(scored, OBJECTIVE, where="here")
    ranks.learner.save_shards(tmp_path / "shards")
    whole = {f"weights.{name}": torch.zeros_like(p) for name, p in ranks.learner.decoder.named_parameters()}
    dcp.load(whole, checkpoint_id=str(tmp_path / "shards"), no_dist=True)           # on none
    assert all(torch.equal(whole[f"weights.{name}"], p) for name, p in ranks.learner.decoder.named_parameters())
    before, state = ranks.learner.optimizer.steps, ranks.learner.optimizer.state()
    ranks.reset()
    ranks.learner.update(scored, OBJECTIVE, where="here")
    ranks.learner.load_shards(tmp_path / "shards")
    assert ranks.learner.optimizer.steps == before
    assert all(torch.equal(whole[f"weights.{name}"], p) for name, p in ranks.learner.decoder.named_parameters())
    assert all(torch.equal(value, state[name]) for name, value in ranks.learner.optimizer.state().items())


def test_a_loss_that_is_not_finite_on_one_rank_moves_nothing_on_any(both):
    ranks, one = both
    scored = one.score(batch(ranks.policy), OBJECTIVE)
    infinite, heavy = scored.advantage_T.clone(), scored.weight_KT.clone()
    infinite[0], heavy[0, 0] = math.inf, math.inf
    with pytest.raises(ModelError, match="finite advantage_T"):
        ranks.learner.update(replace(scored, advantage_T=infinite), OBJECTIVE, where="here")
    with pytest.raises(Diverged):
        ranks.learner.update(replace(scored, weight_KT=heavy), OBJECTIVE, where="here")
    path = ranks.learner.ranks.folder / "now.safetensors"
    ranks.learner.ranks.call("write_weights", str(path))
    assert all(torch.equal(value, ranks.begun[name]) for name, value in load_file(str(path)).items())
    close(ranks.backward(scored)[1], backward(one, scored)[1])            # and they go on


def test_what_was_built_for_one_process_is_refused(ranks):
    with pytest.raises(RecipeError, match="Muon"):
        RankedLearner(ranks.policy.decoder, replace(SETTINGS, muon=Muon(learning_rate=0.1, momentum=0.9, weight_decay=0.0)), 8,
                      how=Fsdp2(ranks=2), dtype=torch.float32, temperature=1.0)


def test_a_rank_that_dies_ends_the_learner_with_its_name_and_not_with_a_hang(ranks):
    """The last one: the ranks are gone after it."""
    with pytest.raises(ModelError, match="rank 1 of the learner died"):
        ranks.learner.ranks.call("die", 1)
