"""Impossible combinations are refused before anything runs, all at once."""

from __future__ import annotations

import dataclasses

import pytest
from small_recipe import names

from rollbook.recipes import load, resolve
from rollbook.recipes.validate import check
from rollbook.records import RecipeError, ResolvedRecipe, graph
from rollbook.records.problems import Problems, RecipeProblems
from rollbook.records.recipe import Evaluate, RewardSettings, SamplingSettings

LAB = {  # the numbers that the cases below depend on, whatever the built-in recipe is tuned to
    "tasks.train": 1500, "tasks.heldout": 512, "tasks.max_tokens": 64, "tasks.families.add_sub.parameters.max_terms": 2,
    "reward.length_max": 64, "reward.length_cache": 16, "model.context": 2048,
    "stages.cold_eval.sampling.temperature": 0.7, "stages.start_eval.sampling.temperature": 0.7,
    "stages.final_eval.sampling.temperature": 0.7, "tasks.system_prompt": "think",
    "stages.rl.steps": 40, "stages.rl.prompts": 16, "stages.rl.per_task": 8, "stages.rl.groups": 16, "stages.rl.max_waves": 2,
    "stages.rl.minibatches": 2, "stages.rl.probe": 128, "stages.rl.probe_every": 10,
}
TINY = {**LAB, "model.context": 256, "model.hidden": 128, "model.heads": 4, "model.kv_heads": 2, "stages.select.samples": 8,
        "stages.select.low": 2, "stages.select.high": 6, "stages.select.candidates": 256}


def resolved_with(scale: str, overrides: list[str]) -> ResolvedRecipe:
    base = LAB if scale == "lab" else TINY
    own = {override.partition("=")[0] for override in overrides}
    return resolve(load("magistral-small"), scale, [*(f"{path}={value}" for path, value in base.items() if path not in own),
                                                    *overrides])


GROUP_OF_ONE = """\
stages.rl.objective.kind = "Magistral" needs at least 2 rollouts per task, got stages.rl.per_task = 1.
  why: the baseline is the mean of the rollouts of the same task; of one rollout it is its own reward.
  fix: set stages.rl.per_task >= 2."""


def test_a_group_of_one_has_no_group_baseline_and_the_message_has_its_four_parts() -> None:
    with pytest.raises(RecipeError) as caught:
        resolve(load("magistral-small"), "lab", ["stages.rl.per_task=1"])
    assert str(caught.value) == GROUP_OF_ONE


@pytest.mark.parametrize(("scale", "overrides", "words"), [
    ("lab", ["stages.rl.groups=15"], ["stages.rl.groups = 15 is not divisible into minibatches", "stages.rl.minibatches = 2"]),
    ("lab", ["stages.rl.minibatches=32"], ["is not divisible into minibatches"]),
    ("lab", ["stages.rl.groups=64"], ["can never be reached", "16 x 2 = 32"]),
    ("lab", ["tasks.max_tokens=2048"], ["model.context = 2048 is too short", "at least 1 + 2048 = 2049 tokens"]),
    ("tiny", ["tasks.system_prompt=" + "x" * 250], ["model.context = 256 is too short"]),
    ("lab", ["stages.rl.max_batch_tokens=32"], ["stages.rl.max_batch_tokens is too small for one sequence"]),
    ("lab", ["stages.rl.policy=cold_strat"], ["stages.rl.policy names no earlier stage", "nearest names: cold_start"]),
    ("tiny", ["stages.rl.policy=select"], ["stages.rl.policy names a stage of another kind", "PassRate"]),
    ("lab", ["stages.rl.tasks=cold_start"], ["stages.rl.tasks names a stage of another kind"]),
    ("lab", ["stages.final_eval.compare_to=rl"], ["stages.final_eval.compare_to names a stage of another kind"]),
    ("tiny", ["stages.cold_start=null"], ["stages.rl.policy names no earlier stage", "stages.select.policy"]),
    ("lab", ["stages.cold_start.policy=rl"], ["in a cycle", "->"]),
    ("tiny", ["stages.select.low=7"], ["stages.select.low must not be above stages.select.high = 6", "got 7"]),
    ("tiny", ["stages.select.high=9"], ["stages.select.high must be at most stages.select.samples = 8"]),
    ("tiny", ["stages.select.candidates=5000"], ["stages.select.candidates must be at most tasks.train = 1500"]),
    ("lab", ["stages.rl.sampling.temperature=0"], ["stages.rl.sampling.temperature must be > 0"]),
    ("lab", ["stages.rl.probe=4096"], ["stages.rl.probe must be at most tasks.heldout = 512"]),
    ("lab", ["stages.rl.probe=0"], ["stages.rl.probe_every needs a probe"]),
    ("lab", ["stages.rl.optimizer.warmup_steps=1000"], ["at most the 80 optimizer steps of the stage", "got 1000"]),
    ("lab", ["stages.cold_eval.sampling.temperature=1.0"], ["stages.cold_eval.compare_to needs the protocol of stages.start_eval",
                                                            "sampling.temperature 1.0 and 0.7"]),
    ("lab", ["reward.length_cache=65"], ["reward.length_cache must be at most reward.length_max = 64"]),
    ("lab", ["tasks.max_tokens=48"], ["tasks.max_tokens = 48 ends before the length penalty begins"]),
    ("lab", ["tasks.families.add_sub.parameters.min_terms=3"], ["parameters.min_terms must not be above max_terms", "3 > 2"]),
    ("lab", ["tasks.families.add_sub=null"], ["tasks.families must name at least one family"]),
    ("lab", ["tasks.families.add_sub.weight=0"], ["tasks.families.add_sub.weight must be > 0"]),
    ("lab", ["run.device='tpu'"], ["run.device must be cpu, cuda or cuda:N"]),
    ("lab", ["run.device='cpu:3'"], ["run.device must be cpu, cuda or cuda:N"]),
    ("lab", ["run.device='cuda:01'"], ["run.device must be cpu, cuda or cuda:N"]),
    ("lab", ["run.device='cuda:'"], ["run.device must be cpu, cuda or cuda:N"]),
    ("lab", ["run.device='CPU'"], ["run.device must be cpu, cuda or cuda:N"]),
    ("lab", ["run.device='mps'"], ["run.device must be cpu, cuda or cuda:N"]),
    ("lab", ["stages.cold_start.traces={}"], ["stages.cold_start.traces is given as an empty mapping", "it would keep direct",
                                              "stages.cold_start.traces: null"]),
    ("lab", ["stages.cold_start.traces=null"], ["stages.cold_start has nothing to learn from"]),
    ("lab", ["run.seed=-1"], ["run.seed must be >= 0"]),
    ("lab", ["stages.rl.steps=0"], ["stages.rl.steps must be >= 1"]),
    ("lab", ["stages.rl.sampling.top_p=1.5"], ["stages.rl.sampling.top_p must be > 0 and <= 1", "got 1.5"]),
    ("lab", ["stages.cold_start.general_share=1"], ["stages.cold_start.general_share must be >= 0 and < 1"]),
    ("lab", ["stages.rl.optimizer.beta2=1"], ["stages.rl.optimizer.beta2 must be >= 0 and < 1"]),
    ("lab", ["stages.rl.optimizer.learning_rate=0"], ["stages.rl.optimizer.learning_rate must be > 0"]),
    ("tiny", ["model.heads=3"], ["model.hidden = 128 must be a multiple of 2 x model.heads", "model.heads = 3 must be"]),
    ("tiny", ["model.experts=4"], ["does not go with its number of experts"]),
    ("tiny", ["model.architecture=qwen3_moe", "model.experts=4", "model.experts_per_token=5"],
     ["model.experts_per_token must be"]),
    ("tiny", ["model.window=64"], ['model.window needs model.architecture = "mistral"']),
])
def test_an_impossible_combination_is_refused(scale: str, overrides: list[str], words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        resolved_with(scale, overrides)
    assert names(caught.value, words)


@pytest.mark.parametrize("scale", ["lab", "tiny"])
def test_the_numbers_of_these_cases_are_possible_together(scale: str) -> None:
    assert resolved_with(scale, []).scale == scale


def test_every_problem_is_listed_not_only_the_first() -> None:
    with pytest.raises(RecipeProblems) as caught:
        resolved_with("tiny", ["stages.rl.per_task=1", "stages.rl.groups=15", "stages.select.low=7", "run.seed=-1"])
    assert len(caught.value.problems) == 4


def evaluation(policy: str, compare_to: str | None = None) -> Evaluate:
    return Evaluate(policy=policy, sampling=SamplingSettings(temperature=0.7, top_p=1.0, top_k=0, min_p=0.0), trials=1, seed=1,
                    compare_to=compare_to)


def test_the_order_of_stages_depends_on_the_graph_and_not_on_the_document() -> None:
    stages = resolve(load("magistral-small"), "tiny").settings.stages
    expected = ("start_eval", "cold_start", "cold_eval", "select", "rl", "final_eval")
    assert tuple(stages) == graph.order(stages) == expected
    assert graph.order(dict(sorted(stages.items()))) == expected
    assert graph.order(dict(reversed(stages.items()))) == expected


def test_a_stage_that_compares_itself_to_itself_is_a_cycle() -> None:
    stages = {"a": evaluation("start", "b"), "b": evaluation("start", "a"), "c": evaluation("start", "a")}
    assert graph.order(stages) == ()
    assert graph.cycles(stages) == (("a", "b", "a"),)


def test_evaluations_that_are_compared_are_judged_by_one_reward():
    settings = resolved_with("lab", []).settings
    other = dataclasses.replace(settings.reward, correct_reward=0.8)

    def found(**rewards: RewardSettings) -> list[str]:
        stage = dataclasses.replace(settings.stages["final_eval"], reward="other")
        problems = Problems()
        check(dataclasses.replace(settings, rewards=rewards, stages={**settings.stages, "final_eval": stage}), problems)
        return [str(problem) for problem in problems.found]

    assert any("compare_to needs the protocol" in one and "reward other and the run's" in one for one in found(other=other))
    assert not any("compare_to" in one for one in found(other=settings.reward))
