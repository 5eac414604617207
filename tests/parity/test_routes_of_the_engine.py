"""The experts that the engine says a position took are those of the learner's router there, and they can be taken again."""

from dataclasses import replace

import pytest
import torch
from policies import engine_of, prompts, tiny_policy
from policies import request as asked

from rollbook.models.layout import pack
from rollbook.records import Experience, Kept, ModelError, RecordError, RewardVector, Scored, Segment, Trace
from rollbook.rollouts.engines import stream as streaming
from rollbook.training.trees import experience_trees, sampled_routes


def answered(policy, engine, count=3):
    """Experiences of groups of `count` answers to each prompt, more of them than decode at once."""
    wanted = [(f"g{place}/{sample}", prompt) for place, prompt in enumerate(prompts(policy)) for sample in range(count)]
    requests = [replace(asked(key, prompt, max_tokens=5 + index), keep_routes=True) for index, (key, prompt) in enumerate(wanted)]
    found = []
    for (key, prompt), one in zip(wanted, engine.sample(requests), strict=True):
        trace = Trace(attempt=key, task="t", group=key[:2], envelope="e", stop_reason="length", text="",
                      segments=(Segment(owner="user", token_ids=prompt),
                                Segment(owner="policy", token_ids=one.token_ids, logps=one.logps, version=0)),
                      kept=Kept.of(ids=None, routes=one.routes))
        vector = RewardVector(components=(), absent=(), composition="c", composition_digest="d", total=1.0, accuracy=1.0)
        found.append(Experience(trace=trace, verdict=Scored(trace=trace.id, vector=vector)))
    return found


def routes_of(policy, members):
    trees, a = experience_trees(members), policy.decoder.architecture
    kept_LYK = sampled_routes([one.trace for one in members], trees, layers=a.layers, per_token=a.experts_per_token)
    layout = replace(pack(trees, window=a.window), chosen=[])
    with torch.no_grad():
        policy.decoder(layout, torch.float32)
    return trees, layout, kept_LYK, torch.stack(layout.chosen, 1)


@pytest.mark.parametrize("rows", [2, 64])
def test_every_position_that_was_read_took_the_experts_of_the_learners_router(rows):
    policy = tiny_policy("qwen3_moe")
    engine = engine_of(policy)
    engine.max_rows = rows
    trees, layout, kept_LYK, own_LYK = routes_of(policy, answered(policy, engine))
    assert len(trees) == len(prompts(policy))                   # groups share their prompt: it took one route
    last_L = torch.zeros(layout.token_L.numel(), dtype=torch.bool)
    at = sum(len(tree.prompt) for tree in trees)
    for own in (own for tree in trees for own in tree.continuations):
        at += len(own)
        last_L[at - 1] = True                                   # sampled and never read
    assert torch.equal(kept_LYK[~last_L].sort(-1).values, own_LYK[~last_L].sort(-1).values)


def test_prompts_that_took_different_experts_are_no_longer_one_tree():
    policy = tiny_policy("qwen3_moe")
    members = answered(policy, engine_of(policy), count=2)
    kept = members[1].trace.kept
    turned = Kept.of(ids=None, routes=kept.experts[1::-1] + kept.experts[2:])
    other = replace(members[1], trace=replace(members[1].trace, kept=turned))
    assert len(experience_trees(members[:2])) == 1 and len(experience_trees((members[0], other))) == 2


def test_a_trajectory_without_the_experts_of_all_its_positions_is_refused():
    policy = tiny_policy("qwen3_moe")
    member = answered(policy, engine_of(policy), count=1)[0]
    short = replace(member, trace=replace(member.trace, kept=Kept.of(ids=None, routes=member.trace.kept.experts[:-2])))
    for broken in (short, replace(member, trace=replace(member.trace, kept=None))):
        with pytest.raises(RecordError, match="which experts its positions took"):
            routes_of(policy, [broken])


def test_what_was_cancelled_or_failed_half_way_keeps_the_experts_of_what_it_holds_and_no_more(monkeypatch):
    policy = tiny_policy("qwen3_moe")
    per_position = policy.decoder.architecture.layers * policy.decoder.architecture.experts_per_token
    requests = [replace(asked(key, prompt, max_tokens=9), keep_routes=True)
                for key, prompt in zip("ab", prompts(policy), strict=False)]
    whole = {one.key: one.routes for one in engine_of(policy).sample(requests)}
    longest = max(len(one.prompt_ids) for one in requests)
    stream = engine_of(policy).stream(rows=2, longest_prompt=longest, longest_answer=9, on_update="keep")
    stream.submit(requests)
    assert stream.advance() == [] and stream.advance() == []
    cancelled = stream.cancel(frozenset({"a", "b"}))
    drawn, calls = streaming.draw, []

    def damaged(logits, uniform, request):
        calls.append(0)
        found = drawn(logits, uniform, request)
        return replace(found, sound_B=torch.zeros_like(found.sound_B)) if len(calls) == 4 else found

    monkeypatch.setattr(streaming, "draw", damaged)
    failed = engine_of(policy).sample(requests)
    assert {one.stop_reason for one in cancelled} == {"cancelled"} and {one.stop_reason for one in failed} == {"failed"}
    for request in requests:
        for one in (each for each in (*cancelled, *failed) if each.key == request.key):
            held = (len(request.prompt_ids) + len(one.token_ids) - 1) * per_position
            assert 2 <= len(one.token_ids) <= 3 and list(one.routes) == list(whole[request.key][:held])


def test_a_dense_engine_has_no_experts_to_keep():
    policy = tiny_policy("llama")
    with pytest.raises(ModelError, match="experts of an answer's positions are gone"):
        engine_of(policy).sample([replace(asked("a", prompts(policy)[0], max_tokens=3), keep_routes=True)])
