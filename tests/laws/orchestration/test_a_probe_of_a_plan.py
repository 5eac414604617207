"""A plan's estimates: what the probe shrinks, what it leaves as it is, and how seconds follow from what was timed."""

import dataclasses

import pytest
from click.testing import CliRunner
from small_stages import LABELS, SAMPLED, SFT, pipeline

from rollbook.cli import main
from rollbook.cli_plan import duration
from rollbook.orchestration.planning import probe
from rollbook.recipes import load, resolve, validate
from rollbook.records import RollbookError, problems
from rollbook.records import recipe as r
from rollbook.records.problems import Problems

TINY = ("magistral-small", "vapo", "instructgpt", "llama-2", "qwen2.5-math", "qwen3", "constitutional-ai", "rlaif", "webgpt",
        "deepseek-v4-opd", "areal", "llama-3.2")
HELD = r.Evaluate(policy="sft", sampling=SAMPLED, trials=2, seed=5)


def estimated(name, seen, **stages):
    settings = pipeline("tasks.heldout=512", "tasks.train=64", **stages).settings
    return probe._estimate(settings, probe.shrunk(settings), name, ({name: seen}, {name: 7}, ""))


@pytest.mark.parametrize("name", TINY)
def test_the_probe_of_every_pipeline_is_a_recipe_that_can_run_and_keeps_what_decides_rates_and_memory(name):
    settings = resolve(load(name), "tiny").settings
    small, found = probe.shrunk(settings), Problems()
    validate.check(small, found)
    assert not found.found, problems.RecipeProblems(name, tuple(found.found))
    assert small.model == settings.model and small.tasks.max_tokens == settings.tasks.max_tokens
    for key, stage in settings.stages.items():
        for same in ("batch", "prompts", "per_task", "groups", "minibatches", "max_batch_tokens", "policy", "objective"):
            if isinstance(stage, r.Sft | r.PolicyGradient | r.Distill | r.RewardModel | r.Preference):
                assert getattr(small.stages[key], same, None) == getattr(stage, same, None)
        assert getattr(small.stages[key], "steps", 0) <= probe.STEPS


def test_steps_are_counted_at_the_pace_of_those_after_the_first_and_what_comes_before_them_once():
    stage = dataclasses.replace(SFT, steps=100)
    one = estimated("sft", probe._Seen(whole=10.0, steps=[5.0, 1.0, 1.0], rollouts=[0.0] * 3), sft=stage)
    assert (one.seconds, one.at_most, one.bytes) == (3.0 + 100 * 1.0, 3.0 + 100 * 1.0, 7)


def test_sampling_is_counted_by_attempts_and_what_is_around_it_once():
    one = estimated("held", probe._Seen(whole=10.0, sampling=4.0, attempts=128, tokens=1280), sft=SFT, held=HELD)
    assert one.seconds == 6.0 + 4.0 * 512 / 64 and one.tokens == 10.0


def test_a_policy_stage_tells_a_range_where_it_may_need_more_waves():
    from small_runs import small_recipe
    stage = next(one for one in small_recipe().settings.stages.values() if isinstance(one, r.PolicyGradient))
    stage = dataclasses.replace(stage, policy="sft", tasks="train", steps=10, prompts=8, groups=8, max_waves=3, probe=0,
                                probe_every=0)
    one = estimated("rl", probe._Seen(whole=6.0, steps=[2.0] * 3, rollouts=[1.5] * 3), sft=SFT, rl=stage)
    assert (one.seconds, one.at_most) == (10 * 2.0, 10 * (0.5 + 3 * 1.5))


def test_what_the_probe_did_not_reach_is_not_estimated(monkeypatch):
    def stopped(recipe, out, watch):
        raise RollbookError("no such luck", got="none")
    monkeypatch.setattr(probe, "run_recipe", stopped)

    class Silent:
        def note(self, text):
            pass
    found = probe.estimates(pipeline(sft=SFT, held=HELD, labels=dataclasses.replace(LABELS, policy="sft")), Silent())
    assert {(one.seconds, one.at_most, one.bytes, one.why) for one in found} == {(None, None, None, "no such luck, got none.")}


def test_rates_of_the_user_are_named_as_such_and_bound_every_stage():
    words = ["plan", "magistral-small", "--scale", "tiny"]
    printed = CliRunner().invoke(main, [*words, "--given", "sampled_tokens_per_s=1000", "--given", "trained_tokens_per_s=1e5"])
    assert printed.exit_code == 0 and "that you gave (1000 tokens sampled and 100000 trained in a second)" in printed.output
    assert "nothing was measured" in printed.output and printed.output.count("at most, by the rates given") == 6
    sampled = ["--given", "sampled_tokens_per_s=1000"]
    for wrong in (sampled, [*sampled, "--given", "trained_tokens_per_s=0"],
                  [*sampled, "--given", "trained_tokens_per_s=1", "--probe"]):
        refused = CliRunner().invoke(main, [*words, *wrong])
        assert refused.exit_code == 2 and "a probe, or both of its rates" in refused.output


@pytest.mark.parametrize(("seconds", "said"), [(0.04, "0.0 s"), (59.9, "59.9 s"), (75, "1.2 min"), (7200, "2.0 h")])
def test_seconds_are_told_in_a_unit_that_can_be_read(seconds, said):
    assert duration(seconds) == said
