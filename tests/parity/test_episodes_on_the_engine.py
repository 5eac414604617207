"""Episodes on the embedded engine: what was sampled is what the trainer scores, and hundreds run at once."""

import asyncio
import threading

import openai
import pytest
import torch
from policies import engine_of, tiny_policy
from scripted import rollouts, task

from rollbook.environments import load_definition, open_services
from rollbook.environments.calculator import Calculator
from rollbook.environments.replaying import replay
from rollbook.models.layout import pack
from rollbook.models.logprobs import action_logprobs
from rollbook.records import EnvironmentSpec, EpisodeBudget, Experience, FinalState, Grade, RewardVector, Scored
from rollbook.records.recipe import EnvironmentReward, SamplingSettings
from rollbook.rewards import EnvironmentJudge
from rollbook.rollouts.environment import EnvironmentRollouts
from rollbook.rollouts.rules import EpisodeRules
from rollbook.serve.harness import HarnessRollouts
from rollbook.training.trees import experience_trees

SPEC = EnvironmentSpec(name="sums", definition="rollbook.environments.calculator:Calculator",
                       budget=EpisodeBudget(max_tokens=40, max_turns=3, turn_tokens=12))


def environment_rollouts(policy, engine, services, **rules):
    return EnvironmentRollouts(sampler=engine, tokenizer=policy.tokenizer, seed=3, max_tokens=40, spec=SPEC,
                               sampling=SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0),
                               definition=load_definition(SPEC), services=services, context=128,
                               rules=EpisodeRules(dialect="fenced", announces=False, **rules))


def solved(policy, count, per_task, **rules):
    with open_services() as services:
        engine = engine_of(policy)
        made = environment_rollouts(policy, engine, services, **rules)
        tasks = made.definition.tasks(count=count, seed=1).tasks
        return made, tasks, made.solve(tasks, per_task, scope="s", envelope=made.envelope("w"))


def test_the_trainer_scores_what_episodes_sampled_as_the_engine_did():
    policy = tiny_policy("llama")
    _, _, traces = solved(policy, 3, 2)
    vector = RewardVector(components=(), absent=(), composition="", composition_digest="", total=0.0, accuracy=None)
    members = [Experience(trace=trace, verdict=Scored(trace=trace.id, vector=vector)) for trace in traces]
    with torch.no_grad():
        logp_T = action_logprobs(policy.decoder, pack(experience_trees(members), window=None), temperature=1.0,
                                 dtype=torch.float32).logp_T
    recorded = [value for trace in traces for segment in trace.policy_segments for value in segment.logps]
    assert logp_T.tolist() == pytest.approx(recorded, abs=1e-4)


def test_equal_calls_give_equal_episodes_and_replay_gives_what_was_seen():
    policy = tiny_policy("llama")
    made, tasks, traces = solved(policy, 2, 3)
    assert [trace.id for trace in traces] == [trace.id for trace in solved(policy, 2, 3)[2]]
    of = {one.id: one for one in tasks}
    with open_services() as services:
        for trace in traces:
            assert asyncio.run(replay(made.definition, of[trace.task], trace.episode, services=services)) is None


def test_five_hundred_episodes_run_at_once_and_leave_no_thread_behind():
    import os

    def script(name, turn):
        return '<tool_call>{"name": "do", "arguments": {"what": "a"}}</tool_call>' if turn < 2 else "4"

    from scripted import ScriptedSampler
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    sampler = ScriptedSampler(script)
    with open_services() as services:
        made = rollouts(sampler, services)
        traces = made.solve([task(str(n)) for n in range(50)], 10, scope="s", envelope=made.envelope("w"))
    assert len(traces) == 500 and sampler.batches == [500, 500, 500]
    assert {trace.stop_reason for trace in traces} == {"end_of_turn"}
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before


def outside_agent(assignment):
    """An agent that knows nothing of the engine: two calls through the OpenAI SDK, the second goes on from the first."""
    sdk = openai.OpenAI(base_url=assignment.base_url, api_key=assignment.api_key, max_retries=0)
    said = [{"role": "user", "content": assignment.task.prompt[-1].content}]
    for words in ("go on", ""):
        answer = sdk.chat.completions.create(model="policy", messages=said, temperature=0.1).choices[0].message.content or ""
        said += [{"role": "assistant", "content": answer}, {"role": "user", "content": words}]
    return FinalState(facts={"answer": answer, "calls": 0})


def test_the_trainer_scores_what_an_outside_agent_was_answered_as_the_engine_sampled_it():
    policy = tiny_policy("llama")
    made = HarnessRollouts(sampler=engine_of(policy), tokenizer=policy.tokenizer, seed=3, max_tokens=10, agent=outside_agent,
                           sampling=SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0), name="two-calls/1",
                           context=128, rules=EpisodeRules(dialect="hermes", announces=False))
    tasks = load_definition(SPEC).tasks(count=2, seed=1).tasks
    traces = made.solve(tasks, 2, scope="s", envelope=made.envelope("w"))
    vector = RewardVector(components=(), absent=(), composition="", composition_digest="", total=0.0, accuracy=None)
    contexts = [one for trace in traces for one in trace.contexts()]
    members = [Experience(trace=one, verdict=Scored(trace=one.id, vector=vector)) for one in contexts]
    with torch.no_grad():
        logp_T = action_logprobs(policy.decoder, pack(experience_trees(members), window=None), temperature=1.0,
                                 dtype=torch.float32).logp_T
    recorded = [value for one in contexts for segment in one.policy_segments for value in segment.logps]
    assert logp_T.tolist() == pytest.approx(recorded, abs=1e-4) and sum(one.action_count for one in contexts) == len(recorded) > 0


def test_one_task_is_graded_alike_under_two_harnesses_and_differently_by_two_verifiers():
    policy, definition = tiny_policy("llama"), load_definition(SPEC)
    tasks = definition.tasks(count=1, seed=1).tasks
    reward = EnvironmentReward(format_reward=0.0, correct_reward=1.0)

    def right(assignment):
        outside_agent(assignment)                       # an attempt in which the policy said nothing would have no verdict
        return FinalState(facts={"answer": assignment.task.reference, "calls": 9})

    outside = HarnessRollouts(sampler=engine_of(policy), tokenizer=policy.tokenizer, seed=3, max_tokens=10, agent=right,
                              sampling=SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0), name="knows/1",
                              context=128, rules=EpisodeRules(dialect="hermes", announces=False))
    with open_services() as services:
        own = environment_rollouts(policy, engine_of(policy), services)
        traces = [made.solve(tasks, 1, scope=name, envelope=made.envelope("w"))[0] for name, made in (("a", own), ("b", outside))]
        accuracies = []
        for kind in (definition, Frugal()):
            with EnvironmentJudge(reward, kind, kind.image(), services) as judge:
                accuracies.append([verdict.vector.accuracy for verdict in judge.judge(traces, {tasks[0].id: tasks[0]})])
    assert accuracies[0][1] == 1.0 and accuracies[1][1] == 0.0 and accuracies[0][0] == accuracies[1][0] == 0.0
    assert own.envelope("w").scaffold != outside.envelope("w").scaffold


class Frugal(Calculator):
    """Another verifier of the same states: right, and with no more than two calls."""

    def verify(self, task, state, *, services):
        found = Calculator.verify(self, task, state, services=services)
        return found if state.facts["calls"] <= 2 else Grade(accuracy=0.0)
