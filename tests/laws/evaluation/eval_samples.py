"""A small protocol and settings for tests of evaluations."""

import dataclasses
from types import MappingProxyType

from rollbook.evaluation.differences import Setting
from rollbook.evaluation.heldout import tasks_hash
from rollbook.evaluation.protocols import Bundle
from rollbook.records import Aggregation, Budget, EvaluationProtocol, Message, RawTask, Task, content_id
from rollbook.records.recipe import RewardSettings, SamplingSettings

REWARD = RewardSettings(composition="magistral", format_reward=0.1, correct_reward=0.9, length_penalty=0.1, length_max=64,
                        length_cache=16, language_reward=None, verify_seconds=5.0, verify_workers=1)
SYSTEM = "Think, then answer."


def raw(number):
    return RawTask(source="reasoning-gym/chain_sum", licence="Apache-2.0", acquired_at="2026-11-29", language="en",
                   domain="arithmetic", content=f"{number} + {number + 3} =", sensitive=(), lineage={"generator": "chain_sum"})


def task(number, *, system=SYSTEM, budget=64, tools=()):
    prompt = (Message(role="system", content=system, origin="recipe"),
              Message(role="user", content=f"{number} + {number + 3} =", origin="raw"))
    return Task(raw=content_id(raw(number)), family=("sums", "products")[number % 2], prompt=prompt,
                reference=str(2 * number + 3), canonical=f"c:{number}", predicate="math.equivalent",
                initial_state="prompt", tools=tools, budget=Budget(max_tokens=budget), termination=("end_of_turn", "length"))


def bundle(numbers=range(4), *, tasks=None, **changes):
    held = tuple(task(number) for number in numbers) if tasks is None else tuple(tasks)
    made = EvaluationProtocol(
        name="small", tasks=tasks_hash(held), task_count=len(held), environment="EnvironmentImage:1", verifier="v1",
        reward=REWARD, template="t1", system_prompt=SYSTEM, scaffold="single_turn/1", tools=(), seed=11, trials=4,
        max_tokens=64, max_turns=1,
        sampling=SamplingSettings(temperature=0.7, top_p=1.0, top_k=0, min_p=0.0), max_seconds=None,
        aggregation=Aggregation(rule="mean", k=1, selector=None), extraction="the last box", in_family=True)
    return Bundle(protocol=dataclasses.replace(made, **changes), tasks=held, raws=tuple(raw(number) for number in numbers))


CIRCUMSTANCES = MappingProxyType({"code": "c1", "precision": "float32", "engine": "embedded-0", "package.torch": "2.9"})


def setting(made=None, *, policy="base", weights="aa", circumstances=CIRCUMSTANCES, recipe=None):
    made = bundle() if made is None else made
    return Setting(protocol=made.protocol, policy=policy, weights=weights, problems=tuple(one.raw for one in made.tasks),
                   circumstances=dict(circumstances), recipe=recipe)
