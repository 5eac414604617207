"""A grid finds the effects that were planted, names what no cell can be, and refuses what is not the factor's."""

import dataclasses
import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from eval_samples import CIRCUMSTANCES, REWARD, bundle, setting, task

from rollbook.environments import load_definition
from rollbook.evaluation import protocols
from rollbook.evaluation.differences import ComparisonRefused, differences
from rollbook.evaluation.grid import Cell, dependences, effects, steps
from rollbook.evaluation.protocols import ProtocolRefused, reward_name
from rollbook.orchestration import grid_sides, grids
from rollbook.orchestration.evaluating import measured
from rollbook.orchestration.grids import GridRefused
from rollbook.orchestration.surroundings import spec_of
from rollbook.orchestration.varying import vary
from rollbook.records import ModelError
from rollbook.records.composition import ComposedReward, Part
from rollbook.records.recipe import EnvironmentReward, EnvironmentSettings, JudgeSettings

FACTORS = {"policy": ("before", "after"), "tool": ("with", "without"), "budget": ("whole", "half")}
WORLD = EnvironmentSettings(name="calculator", definition="rollbook.environments.calculator:Calculator",
                            parameters={"terms": 2, "tool": "calc"}, tools=(), dialect="hermes", reasoning="keep", announce=True,
                            max_turns=4)
GRADED = EnvironmentReward(format_reward=0.1, correct_reward=0.9)


def cells(chance, *, count=600, seed=3, left_out=()):
    """A grid whose problems are solved with these chances; equal uniforms in every cell, as a protocol gives them."""
    drawn = np.random.default_rng(seed).random(count)
    found = []
    for chosen in itertools.product(*FACTORS.values()):
        levels = dict(zip(FACTORS, chosen, strict=True))
        if levels not in left_out:
            found.append(Cell(levels=levels, values={str(n): float(u < chance(levels)) for n, u in enumerate(drawn)}))
    return found, {str(n): f"family{n % 40}" for n in range(count)}


def only_with_the_tool(levels):
    return 0.3 + 0.3 * (levels["policy"] == "after") * (levels["tool"] == "with")


def test_a_gain_that_is_there_only_with_the_tool_is_called_the_tools():
    made, families = cells(only_with_the_tool)
    found = {one.step: one for one in effects(made, FACTORS, families)}
    assert {step: one.gain.claim for step, one in found.items()} == {
        "policy: before to after": "gain", "tool: with to without": "loss", "budget: whole to half": "none"}
    assert abs(found["policy: before to after"].gain.gain.estimate - 0.15) < 0.03
    assert {one.contexts for one in found.values()} == {4}
    depends = {(one.effect, one.factor): one.gain for one in dependences(made, FACTORS, families)}
    assert depends["policy: before to after", "tool"].claim == "loss"
    assert abs(depends["policy: before to after", "tool"].gain.estimate + 0.3) < 0.05
    assert depends["policy: before to after", "budget"].claim == depends["tool: with to without", "budget"].claim == "none"
    each = {(one.step, one.gain.of): one.gain.claim for one in steps(made, FACTORS, families)}
    assert len(each) == 12 and each["policy: before to after", "tool without, budget half"] == "none"
    assert each["policy: before to after", "tool with, budget half"] == "gain"


def test_a_cell_that_was_left_out_leaves_the_contexts_that_have_both_sides():
    hole = {"policy": "after", "tool": "without", "budget": "half"}
    made, families = cells(only_with_the_tool, left_out=(hole,))
    assert [(one.factor, one.contexts) for one in effects(made, FACTORS, families)] == [("policy", 3), ("tool", 3), ("budget", 3)]
    assert len(dependences(made, FACTORS, families)) == 3      # over the contexts that have all four sides


def test_an_unscored_problem_is_left_out_of_the_contexts_it_was_not_scored_in():
    made, families = cells(only_with_the_tool, count=60)
    holed = [dataclasses.replace(cell, values={**cell.values, "0": None}) if at == 0 else cell for at, cell in enumerate(made)]
    everywhere = [dataclasses.replace(cell, values={**cell.values, "0": None}) for cell in made]
    assert [effects(made, FACTORS, families)[0].gain.gain.count for made in (holed, everywhere)] == [60, 59]


# other environments, tools, judges, harnesses

@pytest.fixture(scope="module")
def played():
    """A protocol of episodes as freezing measures it."""
    made = load_definition(spec_of(WORLD, 64)).tasks(count=4, seed=5)
    found = measured(GRADED, {}, WORLD, 64)
    plain = bundle(tasks=made.tasks, world=WORLD, context=256, reward=GRADED, verifier=found.verifier, scaffold=found.scaffold,
                   environment=found.environment, extraction=reward_name(GRADED), max_turns=4, tools=("calc",), system_prompt="")
    return protocols.Bundle(protocol=plain.protocol, tasks=plain.tasks, raws=made.raw)


@pytest.fixture(scope="module")
def single():
    """A protocol of single turns before a judge that is measured."""
    reward = ComposedReward(name="sums", parts={"right": Part(measure="exact")}, accuracy="right", verify_seconds=2.0,
                            verify_workers=1)
    found = measured(reward, {}, None, 64)
    return bundle(reward=reward, verifier=found.verifier, environment=found.environment, extraction=reward_name(reward))


HARNESSES = {"world.dialect": "llama3", "world.reasoning": "strip", "world.announce": "false", "world.no_tools": "true",
             "world.tools": '["calc"]', "world.max_turns": "2", "world.turn_tokens": "16", "world.max_calls": "3",
             "world.max_seconds": "2", "world.subagents": "1", "world.parameters.shortcut": "true", "max_tokens": "32",
             "context": "128", "reward.format_reward": "0"}


@pytest.mark.parametrize("path", sorted(HARNESSES))
def test_another_harness_tool_environment_or_budget_of_episodes_is_one_difference_with_its_name(played, path):
    made = vary(played, {path: HARNESSES[path]}, name="small")
    assert [one.name for one in differences(setting(played), setting(made))] == [path]
    assert made.tasks == played.tasks and made.protocol.name == played.protocol.name


@pytest.mark.parametrize(("changes", "words"), [
    ({"world.tools": '["python"]'}, "offers no tool 'python'"), ({"world.parameters.terms": "3"}, "other tasks"),
    ({"world.parameters.tool": "sum"}, "other tasks"), ({"world.parameters.nothing": "3"}, "these parameters"),
    ({"world.definition": "rollbook.environments.builtin.math:Nothing"}, "names nothing"),
    ({"world.name": "x"}, "cannot be varied"),
    ({"world.compaction": "discard"}, "compact_at"), ({"world.dialect": "klingon"}, "no protocol"),
    ({"world.max_turns": "0"}, "positive"), ({"world.turn_tokens": "65"}, "no episode"),
    ({"world.subagents": "-1"}, "no episode"), ({"context": "0"}, "no episode"),
    ({"world.misfit_penalty": "1"}, "in training alone"),
    ({"world.no_tools": "true", "world.tools": '["calc"]'}, "no protocol"), ({"system_prompt": "x"}, "the environment writes"),
    ({"reward.format": "1"}, "there is no format"), ({"world.dialect": "hermes"}, "nothing would change"),
    ({"judges.x.method": "text"}, "there is no judges"), ({"world.tool": "1"}, "cannot be varied"),
    ({"reward": {"kind": "ComposedReward", "name": "x", "parts": {"right": {"measure": "exact"}}, "accuracy": "right",
                 "verify_seconds": 2.0, "verify_workers": 1}}, "graded by their environment")])
def test_what_no_episode_of_these_tasks_could_be_is_refused_by_name(played, changes, words):
    with pytest.raises(Exception, match=words):
        vary(played, changes, name="small")


def test_another_judge_of_single_turns_is_one_difference_and_its_verifier_is_measured_again(single):
    other = {"kind": "ComposedReward", "name": "numbers", "parts": {"right": {"measure": "math"}}, "accuracy": "right",
             "verify_seconds": 2.0, "verify_workers": 1}
    made = vary(single, {"reward": other}, name="small")
    assert [one.name for one in differences(setting(single), setting(made))] == ["reward"]
    assert made.protocol.verifier != single.protocol.verifier and made.protocol.extraction != single.protocol.extraction
    softer = vary(single, {"reward.parts.right.failed": "-1"}, name="small")
    assert [one.name for one in differences(setting(single), setting(softer))] == ["reward.parts.right.failed"]
    part = vary(single, {"reward.parts.right": "{measure: exact, passed: 1.0, failed: -1.0}"}, name="small")
    assert part.protocol.reward == softer.protocol.reward
    for changes, words in (({"reward": {"kind": "EnvironmentReward", "format_reward": 0.0, "correct_reward": 1.0}}, "graded by"),
                           ({"reward.parts.right.measure": "judge:strict"}, "judge:strict"),
                           ({"judges": {"strict": {"form": "pairwise", "model": "m"}}}, "not asked"),
                           ({"aggregation": "majority@2", "reward.verify_seconds": 1.0}, "as text"),
                           ({"world.max_turns": 2}, "single turns")):
        with pytest.raises(ProtocolRefused, match=words):
            vary(single, changes, name="small")


def test_a_judge_is_not_varied_where_this_program_judges_otherwise_than_the_one_that_froze_it(single):
    stale = dataclasses.replace(single, protocol=dataclasses.replace(single.protocol, verifier="old"))
    with pytest.raises(ProtocolRefused, match="judges differently"):
        vary(stale, {"reward.parts.right.failed": -1.0}, name="small")


def test_rewards_of_two_kinds_and_a_judge_that_comes_with_one_are_one_difference():
    judge = JudgeSettings(form="pairwise", model="m")
    before = setting(bundle(reward=REWARD))
    part = ComposedReward(name="x", parts={"right": Part(measure="judge:strict")}, accuracy="right", verify_seconds=1.0,
                          verify_workers=1)
    after = setting(bundle(reward=part, judges={"strict": judge}, verifier="v2", environment="E:2", extraction="x"))
    assert [one.name for one in differences(before, after)] == ["reward"]
    asked = setting(bundle(reward=part, judges={"strict": dataclasses.replace(judge, method="text")}, verifier="v3"))
    same = setting(bundle(reward=part, judges={"strict": judge}, verifier="v2"))
    assert [one.name for one in differences(same, asked)] == ["judges.strict.method"]


# the file

GOOD = {"protocol": "p.protocol.json", "policies": {"before": "a", "after": "b"},
        "factors": {"budget": {"whole": {}, "half": {"max_tokens": 32}},
                    "sampling": {"warm": {}, "cold": {"sampling.top_p": 0.5}}}}


def read(tmp_path, document):
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(document, sort_keys=False) if not isinstance(document, str) else document)
    return grids.read(tmp_path / "grid.yaml")


def test_a_grid_is_every_combination_but_those_left_out(tmp_path):
    made = read(tmp_path, GOOD | {"except": [{"policy": "before", "sampling": "cold"}]})
    assert len(made.combinations()) == 6 and list(made.levels) == ["policy", "budget", "sampling"]
    assert grids.cell_name(made.combinations()[0]) == "before.whole.warm"


@pytest.mark.parametrize(("changed", "words"), [
    ({"policy": {}}, "a key that no grid has"), ({"policies": None}, "lacks policies"), ({"policies": ["a"]}, "no mapping"),
    ({"policies": {"../x": "a", "b": "b"}}, "name that folders cannot have"), ({"policies": {"a": 3, "b": "b"}}, "no policy"),
    ({"policies": {"a": {"url": "u", "token": "t"}}}, "no policy"), ({"factors": {"policy": {"x": {}}}}, "called policy"),
    ({"factors": {"a": {"x": {"max_tokens": 1}}, "b": {"y": {"max_tokens": 2}}}}, "change the same value"),
    ({"factors": {"a": {"x": {"reward": 1}}, "b": {"y": {"reward.format_reward": 2}}}}, "change the same value"),
    ({"factors": {"a": {"x": 3}}}, "says nothing"), ({"except": [{"tool": "x"}]}, "does not have"), ({"except": {}}, None),
    ({"except": [{"budget": "third"}]}, "does not have"), ({"except": "x"}, "no list"),
    ({"policies": {"a": "a"}, "factors": {}}, "1 cells")])
def test_a_grid_that_cannot_be_read_is_refused_with_what_is_wrong(tmp_path, changed, words):
    if words is None:
        assert read(tmp_path, GOOD | changed).excepted == ()
        return
    with pytest.raises(GridRefused, match=words):
        read(tmp_path, GOOD | changed)


@pytest.mark.parametrize("text", ["", "[", "- a", "\x00", "a: *b"])
def test_what_is_no_mapping_is_no_grid(tmp_path, text):
    with pytest.raises(GridRefused, match="is no grid"):
        read(tmp_path, text)


def planned(tmp_path, monkeypatch, document, fits):
    """The plan of a grid over the small protocol, its policies fitting where `fits(told, protocol)` says nothing."""
    protocols.write(bundle(), tmp_path / "p.protocol.json")

    def check(bundle, policy):
        if why := fits(policy, bundle.protocol):
            raise ModelError(why)

    monkeypatch.setattr(grids, "check_fits", check)
    return grids.plan(read(tmp_path, document), lambda told, base: SimpleNamespace(policy=told, folder=None))


def test_every_impossible_combination_is_named_before_anything_is_evaluated(tmp_path, monkeypatch):
    document = GOOD | {"factors": GOOD["factors"] | {"tool": {"as_frozen": {}, "none": {"world.no_tools": True}}}}
    made = planned(tmp_path, monkeypatch, document,
                   lambda told, protocol: "too long" if told == "b" and protocol.max_tokens == 64 else None)
    assert len(made.impossible) == 4 + 2 and len(made.bundles) == 4
    with pytest.raises(GridRefused, match="6 combinations") as refused:
        grids.check_possible(made)
    for words in ("budget whole, sampling warm, tool none: world.no_tools cannot be varied", "single turns",
                  "policy after, budget whole, sampling cold, tool as_frozen: too long", "except"):
        assert words in str(refused.value)
    with pytest.raises(GridRefused, match="6 combinations"):
        grids.run(made, tmp_path / "out", None, None, dtype="auto")
    assert not (tmp_path / "out").exists()
    left = planned(tmp_path, monkeypatch, document | {"except": [{"tool": "none"}, {"policy": "after", "budget": "whole"}]},
                   lambda told, protocol: None)
    assert not left.impossible


def test_two_levels_that_are_one_protocol_are_refused(tmp_path, monkeypatch):
    document = GOOD | {"factors": {"budget": {"whole": {}, "same": {"max_tokens": 64}}}}
    with pytest.raises(GridRefused, match="one and the same protocol"):
        planned(tmp_path, monkeypatch, document, lambda told, protocol: None)


def test_a_folder_of_another_grid_is_refused_and_that_of_the_same_goes_on(tmp_path, monkeypatch):
    made = planned(tmp_path, monkeypatch, GOOD, lambda told, protocol: None)
    grids._open(made, tmp_path / "out")
    grids._open(made, tmp_path / "out")
    assert len(list((tmp_path / "out" / "protocols").iterdir())) == 4
    other = planned(tmp_path, monkeypatch, GOOD | {"policies": {"before": "a", "after": "c"}}, lambda told, protocol: None)
    with pytest.raises(Exception, match="another grid"):
        grids._open(other, tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").touch()
    with pytest.raises(Exception, match="must be new"):
        grids._open(made, tmp_path / "mine")
    with pytest.raises(ComparisonRefused, match="8 of 8 cells of the grid are not finished"):
        grid_sides.grid_result(tmp_path / "out")
    document = json.loads((tmp_path / "out" / "grid.json").read_text())
    assert document["changes"]["budget"] == {"whole": [], "half": ["max_tokens"]}
    (tmp_path / "out" / "grid.json").write_text("{")
    with pytest.raises(Exception, match="no grid that can be read"):
        grid_sides.grid_result(tmp_path / "out")


def side(levels, held):
    return levels, SimpleNamespace(setting=held)


def test_a_step_that_moves_more_than_its_factor_says_is_refused_with_the_name():
    levels = {"policy": ("before", "after"), "budget": ("whole", "half")}
    permitted = {"policy": (), "budget": ("max_tokens",)}
    half = bundle(tasks=[task(n, budget=32) for n in range(4)], max_tokens=32)
    good = [side({"policy": "before", "budget": "whole"}, setting()), side({"policy": "before", "budget": "half"}, setting(half)),
            side({"policy": "after", "budget": "whole"}, setting(policy="b", weights="bb"))]
    assert grid_sides._moved(good, levels, permitted) == {"policy": ["policy"], "budget": ["max_tokens"]}
    with pytest.raises(ComparisonRefused, match=r"one step of budget apart differ in code"):
        strange = setting(half, circumstances={**CIRCUMSTANCES, "code": "c2"})
        grid_sides._moved([good[0], side({"policy": "before", "budget": "half"}, strange)], levels, permitted)
    with pytest.raises(ComparisonRefused, match=r"one step of budget apart differ in policy"):
        grid_sides._moved([good[0], side({"policy": "before", "budget": "half"}, setting(half, weights="cc"))], levels, permitted)
    with pytest.raises(ComparisonRefused, match=r"one step of policy apart differ in nothing"):
        grid_sides._moved([good[0], side({"policy": "after", "budget": "whole"}, setting())], levels, permitted)
