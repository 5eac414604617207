"""Engines behind HTTP: what a server does wrong is a fault with a code, what it does right is what the trainer computes."""

import copy
import math
import threading
import time

import pytest
import torch
from like_vllm import LikeVllm
from policies import tiny_policy

from rollbook.models.layout import Tree, pack
from rollbook.models.logprobs import action_logprobs, support_logprobs
from rollbook.models.support import recorded_support
from rollbook.models.weights import published_hash
from rollbook.records import Budget, Dispatch, Message, ModelError, RecipeError, Request, Task, Unserved
from rollbook.records.recipe import SamplingSettings, Vllm
from rollbook.rollouts.engines.replies import Manner, asked, read
from rollbook.rollouts.engines.served import ServedEngine
from rollbook.rollouts.in_flight import InFlight
from rollbook.rollouts.solve import Rollouts

POLICY = tiny_policy("llama")
PROMPT = POLICY.tokenizer.prompt((Message(role="user", content="1 + 1 ="),))


def request(key="a", *, new=8, **changes):
    given = {"temperature": 0.8, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": 5} | changes
    return Request(key=key, prompt_ids=PROMPT, max_tokens=new, **given)


def engine_at(server, **changes):
    settings = Vllm(servers=(server.url,), **{"request_s": 5.0, "update_s": 5.0} | changes)
    return ServedEngine(settings, architecture=POLICY.decoder.architecture, stop_ids=POLICY.tokenizer.stop_ids,
                        dtype=torch.float32, text=POLICY.tokenizer.whole)


@pytest.fixture(scope="module")
def server():
    with LikeVllm(POLICY) as running:
        yield running


@pytest.fixture
def engine(server):
    server.spoil, server.delay_s, server.deaf = None, 0.0, set()
    server.calls.clear()
    made = engine_at(server)
    made.load(POLICY.decoder, 0)
    yield made
    made.close()


def scored(decoder, completion, temperature):
    tree = Tree(prompt=PROMPT, continuations=(completion.token_ids,), actions=((True,) * len(completion.token_ids),))
    with torch.no_grad():
        return action_logprobs(decoder, pack([tree]), temperature=temperature, dtype=torch.float32).logp_T


def moved():
    decoder = copy.deepcopy(POLICY.decoder)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return decoder


def test_a_server_gives_ids_whose_log_probs_at_sampling_temperature_are_the_trainers(engine):
    done = engine.sample([request("a"), request("b")])
    assert [one.key for one in done] == ["a", "b"] and all(one.fault is None for one in done)
    for one in done:
        assert one.versions == (0,) * len(one.token_ids) and one.sampled
        torch.testing.assert_close(torch.tensor(one.logps), scored(POLICY.decoder, one, 0.8), atol=1e-4, rtol=0)


def test_a_server_acknowledges_weights_by_the_hash_of_what_it_read_and_the_version_it_holds(engine, server):
    other = moved()
    assert engine.load(other, 3) == published_hash(other, torch.float32) == engine.loaded
    assert server.version == "3" and not server.paused
    done = engine.sample([request()])[0]
    assert set(done.versions) == {3}
    torch.testing.assert_close(torch.tensor(done.logps), scored(other, done, 0.8), atol=1e-4, rtol=0)
    assert engine.logprobs((*PROMPT, *done.token_ids), len(PROMPT)) == pytest.approx(scored(other, done, 1.0).tolist(), abs=1e-4)


def test_a_publication_pauses_keeps_what_is_running_updates_and_resumes_in_this_order(engine, server):
    server.calls.clear()
    engine.load(POLICY.decoder, 1)
    assert [path for path, _, _ in server.calls] == ["/pause", "/start_weight_update", "/update_weights", "/finish_weight_update",
                                                     "/collective_rpc", "/weight_info", "/resume"]
    assert server.calls[0][1] == {"mode": "keep", "clear_cache": "false"}


def test_recomputing_drops_the_keys_of_what_is_running_before_it_resumes(engine, server):
    engine.stream(rows=2, longest_prompt=1, longest_answer=1, on_update="recompute")
    server.calls.clear()
    engine.load(POLICY.decoder, 1)
    assert [(path, query) for path, query, _ in server.calls][-2:] == [
        ("/reset_prefix_cache", {"reset_running_requests": "true"}), ("/resume", {})]


def test_prefix_caches_of_two_versions_never_meet(engine, server):
    engine.sample([request("a")])
    engine.load(POLICY.decoder, 1)
    engine.sample([request("b")])
    salts = [body["cache_salt"] for path, _, body in server.calls if path.endswith("/generate")]
    assert salts == ["version-0", "version-1"]


def test_weights_that_change_while_a_request_is_in_flight_leave_a_version_on_every_token(engine, server):
    made = Rollouts(sampler=engine, tokenizer=POLICY.tokenizer, seed=1, max_tokens=48,
                    sampling=SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0))
    task = Task(raw="r", family="sums", prompt=(Message(role="user", content="1 + 1 ="),), reference="2", canonical="sum:1+1",
                predicate="p", initial_state="prompt", tools=(), budget=Budget(max_tokens=8), termination=("length",))
    issued = Dispatch(scope="rl/g/000000", tasks=(task.id,), samples=2, envelope="SamplingEnvelope:1")
    flying = InFlight(made, engine, rows=2, longest_prompt=64, on_update="keep")
    held = server.engine.stop_ids
    flying.start(issued, task, tuple(attempt for attempt, _ in issued.attempts()))
    while not any(row.tokens for stream in server.streams.values() for row in stream.batch.rows):
        time.sleep(0.001)
    other = moved()
    engine.load(other, 4)
    ended = []
    while flying.busy:
        ended += [trace for _, trace in flying.advance()]
    spans = [[segment.version for segment in trace.policy_segments] for trace in ended]
    assert server.engine.stop_ids == held and [0, 4] in spans and all(one in ([0, 4], [4], [0]) for one in spans)
    assert all(trace.sampled for trace in ended)


def test_a_cancelled_request_comes_back_with_what_was_sampled_of_it(engine, server):
    stream = engine.stream(rows=1, longest_prompt=64, longest_answer=64)
    stream.submit([request("a", new=60), request("b", new=60)])
    while not any(row.tokens for held in server.streams.values() for row in held.batch.rows):
        time.sleep(0.001)
    cut = {one.key: one for one in stream.cancel(frozenset({"a", "b"}))}
    assert {one.stop_reason for one in cut.values()} == {"cancelled"} and cut["a"].token_ids and not cut["b"].token_ids
    assert not stream.busy


def test_an_answer_that_somebody_else_aborted_is_a_fault(engine, server):
    server.spoil = lambda path, reply: ({"choices": [reply["choices"][0] | {"finish_reason": "abort"}]}
                                        if path.endswith("/generate") else reply)
    assert engine.sample([request()])[0].fault.code == "refused"


SPOILED = {
    "text": lambda one: one | {"text": one["text"] + " and more"},
    "logprobs": lambda one: one | {"logprobs": {"content": one["logprobs"]["content"][:-1]}},
    "logits": lambda one: one | {"logprobs": {"content": [{**row, "logprob": -9999.0} for row in one["logprobs"]["content"]]}},
    "version": lambda one: one | {"weight_versions": [{"version": "9", "start": 0, "end": len(one["token_ids"])}]},
    "malformed": lambda one: one | {"finish_reason": "tool_calls"},
}
FURTHER = {
    "logprobs": lambda one: one | {"logprobs": {"content": [row | {"token": "token_id:1"}
                                                        for row in one["logprobs"]["content"]]}},
    "version": lambda one: one | {"weight_versions": None},
    "malformed": lambda one: {"index": 0},
}


@pytest.mark.parametrize(("code", "spoil"), [*SPOILED.items(), *FURTHER.items()])
def test_a_reply_that_does_not_hold_together_is_a_fault_and_none_of_its_tokens_are_kept(engine, server, code, spoil):
    server.spoil = lambda path, reply: {"choices": [spoil(reply["choices"][0])]} if path.endswith("/generate") else reply
    done = engine.sample([request()])[0]
    assert done.stop_reason == "failed" and done.fault.code == code and done.token_ids == ()


def test_a_reply_that_is_no_json_and_a_refusal_are_faults(engine, server):
    server.spoil = lambda path, reply: b"<html>"
    assert engine.sample([request()])[0].fault.code == "malformed"
    server.spoil = None
    assert engine.sample([request(temperature=-1.0)])[0].fault.code == "bad_sampling"
    engine._servers[0].wire.url += "/nowhere"
    engine._servers[0].wire._base = "/nowhere"
    assert engine.sample([request()])[0].fault.code == "refused"


def test_a_dead_server_and_a_slow_one_are_faults_of_their_own(engine, server):
    server.delay_s = 0.5
    slow = engine_at(server, request_s=0.1)
    slow.load(POLICY.decoder, 0)
    assert slow.sample([request()])[0].fault.code == "timeout"
    assert server.calls[-1][0].endswith(("/abort_requests", "/generate"))
    server.delay_s = 0.0
    with LikeVllm(POLICY) as other:
        gone = engine_at(other)
        gone.load(POLICY.decoder, 0)
    assert gone.sample([request()])[0].fault.code == "unreachable"


def test_a_stream_whose_servers_are_gone_ends_instead_of_failing_every_attempt(server):
    with LikeVllm(POLICY) as other:
        gone = engine_at(other)
        gone.load(POLICY.decoder, 0)
    stream = gone.stream(rows=8, longest_prompt=64, longest_answer=8)
    stream.submit([request(f"k{number}") for number in range(40)])
    with pytest.raises(Unserved, match="no server answers"):
        while stream.busy:
            stream.advance()


def test_a_version_that_is_never_acknowledged_ends_the_publication_with_its_code(engine, server):
    server.deaf = {"/finish_weight_update"}
    late = engine_at(server, update_s=0.2)
    with pytest.raises(Unserved) as caught:
        late.load(POLICY.decoder, 7)
    assert caught.value.code == "unacknowledged" and late.version == -1
    assert server.paused                    # nothing is sampled from half of an update
    server.paused = False


def test_weights_that_were_not_all_taken_are_not_acknowledged(engine, server):
    server.spoil = lambda path, reply: ({"results": ['{"hash": "x", "missing": ["lm_head.weight"]}']}
                                        if path == "/collective_rpc" else reply)
    with pytest.raises(Unserved) as caught:
        engine.load(POLICY.decoder, 1)
    assert caught.value.code == "refused"
    server.paused = False


def test_nan_weights_are_offered_to_no_server(engine, server):
    broken = copy.deepcopy(POLICY.decoder)
    with torch.no_grad():
        next(broken.parameters()).view(-1)[0] = math.nan
    server.calls.clear()
    with pytest.raises(Unserved) as caught:
        engine.load(broken, 1)
    assert caught.value.code == "not_finite" and server.calls == []


def test_log_probs_under_top_k_are_over_the_recorded_support(engine):
    done = engine.sample([request(top_k=5, temperature=1.0)])[0]
    assert set(done.support.counts) == {5} and done.support.log_mass is None
    tree = Tree(prompt=PROMPT, continuations=(done.token_ids,), actions=((True,) * len(done.token_ids),))
    with torch.no_grad():
        found = support_logprobs(POLICY.decoder, pack([tree]), recorded_support([done.support]), temperature=1.0,
                                 dtype=torch.float32).logp_T
    torch.testing.assert_close(torch.tensor(done.logps), found, atol=1e-4, rtol=0)


def listed(*rows):
    """A reply of one token for each row of (id, probability), the first the sampled one; lists in place of masks."""
    content = [{"token": f"token_id:{row[0][0]}", "logprob": math.log(row[0][1]),
                "top_logprobs": [{"token": f"token_id:{token}", "logprob": math.log(p) if p else -9999.0} for token, p in row]}
               for row in rows]
    return {"choices": [{"token_ids": [row[0][0] for row in rows], "finish_reason": "length", "logprobs": {"content": content},
                         "weight_versions": [{"version": "0", "start": 0, "end": len(rows)}]}]}


def test_a_list_that_holds_all_of_the_probability_is_the_support_and_one_that_does_not_is_a_fault():
    manner = Manner(stop_ids=frozenset(), text=None, shown=3)
    nucleus = request(new=2, top_p=0.9)
    whole = read(nucleus, listed([(7, 0.25), (3, 0.75), (9, 0.0)], [(4, 1.0), (2, 0.0)]), manner, latency_s=0.0, newest=0)
    assert list(whole.support.ids) == [3, 7, 4] and whole.support.counts == (2, 1)
    cut = read(nucleus, listed([(7, 0.25), (3, 0.5), (9, 0.1)], [(4, 1.0)]), manner, latency_s=0.0, newest=0)
    assert cut.fault.code == "support"
    many = read(request(new=1, top_k=1), listed([(7, 0.25), (3, 0.75)]), manner, latency_s=0.0, newest=0)
    assert many.fault.code == "support"


def test_seeds_differ_by_attempt_and_by_turn_and_by_nothing_else():
    manner = Manner(stop_ids=frozenset({2}), text=None, shown=3)
    bodies = [asked(one, manner, name="n", salt="s", drawn=drawn)["sampling_params"]["seed"]
              for one, drawn in [(request("a"), 0), (request("a"), 0), (request("b"), 0), (request("a"), 4)]]
    assert bodies[0] == bodies[1] and len(set(bodies)) == 3


def test_turns_of_an_attempt_continue_on_the_server_and_end_at_the_context(engine):
    with engine.open(request("a", new=6)) as turns:
        first = turns.sample()
        turns.append((5, 6))
        second = turns.sample()
        assert turns.token_ids == (*PROMPT, *first.token_ids, 5, 6, *second.token_ids)
        turns.append((5,) * (POLICY.decoder.architecture.context - len(turns.token_ids) - 3))
        last = turns.sample()
    assert last.stop_reason in ("context_full", "end_of_turn") and len(last.token_ids) <= 3


def test_requests_go_to_the_server_that_has_the_fewest():
    with LikeVllm(POLICY, delay_s=0.05) as one, LikeVllm(POLICY, delay_s=0.05) as two:
        settings = Vllm(servers=(one.url, two.url), request_s=5.0, update_s=5.0)
        engine = ServedEngine(settings, architecture=POLICY.decoder.architecture, stop_ids=frozenset(), dtype=torch.float32,
                              text=POLICY.tokenizer.whole)
        engine.load(POLICY.decoder, 0)
        engine.sample([request(f"k{number}", new=2) for number in range(6)])
        asked_of = [sum(path.endswith("/generate") for path, _, _ in server.calls) for server in (one, two)]
    assert asked_of == [3, 3] and engine.name == "vllm x 2"


def test_a_recipe_names_servers_or_what_starts_one_and_not_both():
    for wrong in ({}, {"servers": ("http://a",), "python": "python"}, {"servers": ("ftp://a",)}):
        with pytest.raises(RecipeError):
            Vllm(**wrong)


def test_sampling_before_the_first_publication_is_refused(server):
    with pytest.raises(ModelError, match="no weights"):
        engine_at(server).sample([request()])
    assert threading.active_count() < 200
