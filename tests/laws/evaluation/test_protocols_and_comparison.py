"""A frozen protocol stays what it was, one difference is named, several refuse, and a gain is divided honestly."""

import dataclasses
import json

import eval_samples
import numpy as np
import pytest
from eval_samples import CIRCUMSTANCES, REWARD, bundle, setting, task

from rollbook.evaluation import protocols
from rollbook.evaluation.comparison import Answered, Side, Training, compared, gain_of, systems
from rollbook.evaluation.differences import ComparisonRefused, Difference, differences, the_one_difference
from rollbook.evaluation.protocols import ProtocolRefused
from rollbook.evaluation.statistics import wilson
from rollbook.orchestration.stages.evaluation import unscored
from rollbook.orchestration.varying import vary
from rollbook.records import Aggregation, EvalReport, EvaluationResult, Interval, RecordError, Spend
from rollbook.records.recipe import EnvironmentReward, EnvironmentSettings, SamplingSettings
from rollbook.tasks import Likeness
from rollbook.tasks import Side as Tasks

LIKENESS = Likeness(ngram=13, jaccard=0.8, boilerplate=0.05)
SAMPLING = SamplingSettings(temperature=0.7, top_p=1.0, top_k=0, min_p=0.0)


def sampled(**changes):
    return bundle(sampling=dataclasses.replace(SAMPLING, **changes))


PLANTED = {
    "verifier": setting(bundle(verifier="v2", environment="EnvironmentImage:2")),
    "reward.correct_reward": setting(bundle(reward=dataclasses.replace(REWARD, correct_reward=1.0), verifier="v2",
                                            environment="EnvironmentImage:2")),
    "environment": setting(bundle(environment="EnvironmentImage:2")),
    "template": setting(bundle(template="t2")),
    "system_prompt": setting(bundle(tasks=[task(n, system="Answer.") for n in range(4)], system_prompt="Answer.")),
    "scaffold": setting(bundle(scaffold="agent/2", environment="EnvironmentImage:2")),
    "tools": setting(bundle(tasks=[task(n, tools=("python",)) for n in range(4)], tools=("python",), environment="E:2")),
    "sampling.temperature": setting(sampled(temperature=1.0)),
    "sampling.top_p": setting(sampled(top_p=0.9)),
    "sampling.top_k": setting(sampled(top_k=20)),
    "sampling.min_p": setting(sampled(min_p=0.05)),
    "seed": setting(bundle(seed=12)),
    "trials": setting(bundle(trials=8)),
    "max_tokens": setting(bundle(tasks=[task(n, budget=128) for n in range(4)], max_tokens=128)),
    "max_turns": setting(bundle(max_turns=4)),
    "max_seconds": setting(bundle(max_seconds=2.0)),
    "aggregation": setting(bundle(aggregation=Aggregation(rule="pass", k=4, selector=None))),
    "extraction": setting(bundle(extraction="the first number")),
    "policy": setting(weights="bb"),
    "code": setting(circumstances={**CIRCUMSTANCES, "code": "c2"}),
    "package.torch": setting(circumstances={**CIRCUMSTANCES, "package.torch": "2.10"}),
    "precision": setting(circumstances={**CIRCUMSTANCES, "precision": "bfloat16"}),
    "engine": setting(circumstances={**CIRCUMSTANCES, "engine": "vllm"}),
    "in_family": setting(bundle(in_family=False)),
}


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_difference_is_named_and_is_the_only_one(name):
    assert [one.name for one in differences(setting(), PLANTED[name])] == [name]
    assert the_one_difference(setting(), PLANTED[name]).name == name


WORLD = EnvironmentSettings(name="calculator", definition="package:World", parameters={"terms": 2}, tools=("calc",),
                            dialect="hermes", reasoning="keep", announce=True, max_turns=4)


def played(world=WORLD, **changes):
    return setting(bundle(**{"world": world, "context": 512, "reward": EnvironmentReward(format_reward=0.1, correct_reward=0.9),
                             "scaffold": "turns/1/a", "max_turns": world.max_turns} | changes))


FOLLOWING = {"scaffold": "turns/1/b", "environment": "EnvironmentImage:2", "verifier": "v2"}     # hashes over its settings
PLAYED = {
    "world.max_turns": played(dataclasses.replace(WORLD, max_turns=8), **FOLLOWING),
    "world.dialect": played(dataclasses.replace(WORLD, dialect="llama3"), **FOLLOWING),
    "world.call_seconds": played(dataclasses.replace(WORLD, call_seconds=5.0), **FOLLOWING),
    "world.compaction": played(dataclasses.replace(WORLD, compaction="summary"), **FOLLOWING),
    "max_tokens": played(tasks=[task(n, budget=128) for n in range(4)], max_tokens=128, scaffold="turns/1/b"),
    "context": played(context=1024),
    "scaffold": played(scaffold="turns/2/a"),
}


@pytest.mark.parametrize("name", sorted(PLAYED))
def test_a_planted_difference_between_episodes_is_named_and_is_the_only_one(name):
    assert [one.name for one in differences(played(), PLAYED[name])] == [name]


def test_episodes_come_with_their_environment_and_its_context():
    for missing in ({"world": None}, {"context": None}, {"world": None, "context": None}):
        with pytest.raises(RecordError, match="episodes come with their environment"):
            bundle(**({"world": WORLD, "context": 512, "reward": EnvironmentReward(format_reward=0.1, correct_reward=1.0)}
                      | missing))


def test_every_pair_of_planted_differences_is_refused_with_both_names():
    other = dataclasses.replace(PLANTED["seed"], weights="bb")
    with pytest.raises(ComparisonRefused, match="2 things differ") as caught:
        the_one_difference(setting(), other)
    assert "seed (11 against 12)" in str(caught.value) and "policy" in str(caught.value)


def test_equal_evaluations_have_nothing_to_compare_and_other_tasks_cannot_be_paired():
    with pytest.raises(ComparisonRefused, match="nothing differs"):
        the_one_difference(setting(), setting())
    with pytest.raises(ComparisonRefused, match="different tasks"):
        the_one_difference(setting(), setting(bundle(range(1, 5))))
    with pytest.raises(ComparisonRefused, match="different tasks"):
        the_one_difference(setting(), setting(bundle(range(5))))


def test_two_runs_that_differ_in_one_recipe_value_name_it_and_in_two_refuse_unless_taken_as_one():
    one = {"stages.rl.steps": 20, "stages.rl.objective.kind": "Magistral"}
    before = setting(weights="aa", recipe=one)
    gspo = setting(weights="bb", recipe={**one, "stages.rl.objective.kind": "Gspo"})
    both = setting(weights="bb", recipe={"stages.rl.steps": 40, "stages.rl.objective.kind": "Gspo"})
    assert the_one_difference(before, gspo).name == "recipe.stages.rl.objective.kind"
    with pytest.raises(ComparisonRefused, match=r"recipe\.stages\.rl\.steps"):
        the_one_difference(before, both)
    assert the_one_difference(before, both, policy_as_one=True).name == "policy"
    assert the_one_difference(before, setting(weights="bb", recipe=one)).name == "policy"


# one value changed

VARIED = {"sampling.temperature": "1", "sampling.top_p": "0.9", "sampling.top_k": "20", "sampling.min_p": "0.05", "seed": "12",
          "trials": "8", "aggregation": "pass@4", "max_tokens": "128", "system_prompt": "Answer."}


@pytest.mark.parametrize("name", sorted(VARIED))
def test_a_varied_protocol_differs_in_what_was_varied_and_in_nothing_else(name):
    made = vary(bundle(), {name: VARIED[name]}, name="other")
    assert [one.name for one in differences(setting(), setting(made))] == [name] and made.protocol.name == "other"
    assert vary(made, {name: VARIED[name]}, name="other") == made and made.raws == bundle().raws


@pytest.mark.parametrize(("name", "value", "words"), [
    ("tools", "python", "cannot be varied"), ("world.max_turns", "2", "cannot be varied"), ("sampling.top_p", "2", "sampled"),
    ("sampling.temperature", "nan", "no protocol|sampled"), ("trials", "two", "no protocol"), ("trials", "0", "no protocol"),
    ("seed", "1.5", "no protocol"), ("max_tokens", "0", "no protocol")])
def test_what_cannot_be_varied_is_refused(name, value, words):
    with pytest.raises(ProtocolRefused, match=words):
        vary(bundle(), {name: value}, name="other")


# files

def test_a_protocol_file_reads_back_and_refuses_every_edit(tmp_path):
    made = bundle()
    path = protocols.write(made, tmp_path / "small.protocol.json")
    assert protocols.load(path) == made and protocols.write(made, path) == path
    document = json.loads(path.read_text())
    edits = [("protocol", {**document["protocol"], "trials": 8}), ("protocol", {**document["protocol"], "extra": 1}),
             ("tasks", document["tasks"][:3]), ("id", "0" * 64), ("raws", []), ("tasks", None)]
    for key, value in edits:
        path.write_text(json.dumps({**document, key: value}))
        with pytest.raises(ProtocolRefused, match="changed after it was frozen"):
            protocols.load(path)
    for text in ("", "[]", "{}", "\x00", "[" * 10_000, json.dumps({**document, "format": 2})):
        path.write_text(text)
        with pytest.raises(ProtocolRefused, match="no protocol file"):
            protocols.load(path)


@pytest.mark.parametrize("name", ["pass@2", "a b", "ö", "..", "a/b", "", "x\n"])
def test_a_protocol_that_evaluations_could_not_be_named_after_is_not_written(tmp_path, name):
    with pytest.raises(ProtocolRefused, match="name of a protocol"):
        protocols.write(bundle(name=name), tmp_path / "p.json")
    assert not list(tmp_path.iterdir())


def test_a_frozen_protocol_is_never_overwritten(tmp_path):
    protocols.write(bundle(), tmp_path / "p.json")
    with pytest.raises(ProtocolRefused, match="never overwritten"):
        protocols.write(bundle(seed=12), tmp_path / "p.json")


def test_registered_protocols_are_protected_from_training(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLBOOK_PROTOCOLS", str(tmp_path))
    assert list(protocols.registered()) == []
    protocols.register(bundle())
    assert list(protocols.registered()) == [bundle()]
    apart = Tasks(tasks=tuple(task(n) for n in range(10, 14)), raws=tuple(eval_samples.raw(n) for n in range(10, 14)))
    done = protocols.protect(apart, protocols.registered(), likeness=LIKENESS)
    assert [one.found for one in done] == [()] and done[0].protected_count == 4
    inside = Tasks(tasks=(*apart.tasks, task(2)), raws=(*apart.raws, eval_samples.raw(2)))
    with pytest.raises(ProtocolRefused, match="1 training tasks stand in registered evaluation protocols"):
        protocols.protect(inside, protocols.registered(), likeness=LIKENESS)


def test_what_no_result_can_come_from_is_refused():
    with pytest.raises(RecordError, match="needs at least 8 trials"):
        bundle(aggregation=Aggregation(rule="pass", k=8, selector=None))
    with pytest.raises(RecordError, match="budget"):
        bundle(trials=0)
    with pytest.raises(RecordError, match="names its selector"):
        Aggregation(rule="best", k=4, selector=None)
    for text in ("pass", "pass@", "pass@x", "mean@2", "best@4", "majority@²", "top@3"):
        with pytest.raises(RecordError):
            protocols.parse_aggregation(text)
    assert str(protocols.parse_aggregation("best@4:logp")) == "best@4 by logp"


# the gain

def side(values, *, attempts=None, training=None, unscored=0):
    result = EvaluationResult(
        protocol="P", policy="p", weights="w", value=Interval(estimate=0.0, low=0.0, high=1.0, level=0.95, method="m", count=1),
        unscored_tasks=0, unscored_attempts=unscored, outcomes=values, by_family={}, observed={"seconds": 2.0},
        spend=Spend(tokens=10, prompt_tokens=20, attempts=len(values), environment_attempts=len(values)))
    held = attempts or {name: [Answered(accuracy=value, tokens=10 + 10 * (at % 4))]
                        for at, (name, value) in enumerate(values.items())}
    return Side(result=result, values=values, attempts=held, families={name: "ab"[int(name) % 2] for name in values},
                prompt_tokens={name: 5 + int(name) % 7 for name in values}, training=training)


CHANGED = Difference(name="policy", before="aa", after="bb")


def test_a_real_gain_is_claimed_and_lies_where_it_was_planted():
    rng = np.random.default_rng(4)
    before = {str(n): float(rng.random() < 0.3) for n in range(400)}
    after = {n: 1.0 if int(n) % 2 and rng.random() < 0.5 else value for n, value in before.items()}
    made = compared(side(before), side(after), CHANGED)
    assert made.whole.claim == "gain" and made.whole.gain.low > 0
    claims = {one.of: one.claim for one in made.tables["family"]}
    assert claims == {"a": "none", "b": "gain"}
    assert "2 task families" in made.notes[0]


def test_unscored_problems_leave_the_pairs_and_are_counted_on_both_sides():
    before = {str(n): None if n < 3 else float(n % 2) for n in range(20)}
    after = {str(n): None if n == 10 else float(n % 3 == 0) for n in range(20)}
    made = compared(side(before, unscored=3), side(after, unscored=1), CHANGED)
    assert made.left_out == 4 and made.whole.gain.count == 16
    assert any("3 before, 1 after" in note for note in made.notes)
    with pytest.raises(ComparisonRefused, match="fewer than two"):
        compared(side(dict.fromkeys(before)), side(after), CHANGED)
    with pytest.raises(ComparisonRefused, match="different problems"):
        compared(side(before), side({**after, "99": 1.0}), CHANGED)


def test_dividing_by_difficulty_finds_no_gain_in_a_policy_against_itself():
    rng = np.random.default_rng(8)
    solve = rng.random(3000)
    before, after = ({str(n): float(rng.random() < p) for n, p in enumerate(solve)} for _ in range(2))
    made = compared(side(before), side(after), CHANGED)
    assert all(one.claim == "none" for rows in made.tables.values() for one in rows)


def test_the_token_budget_table_counts_an_answer_only_when_it_was_done_in_time():
    before = {str(n): 1.0 for n in range(40)}
    attempts = {name: [Answered(accuracy=1.0, tokens=10 if int(name) < 20 else 40)] for name in before}
    shorter = {name: [Answered(accuracy=1.0, tokens=10)] for name in before}
    made = compared(side(before, attempts=attempts), side(before, attempts=shorter), CHANGED)
    rows = {one.of: (one.before, one.after) for one in made.tables["token budget"]}
    assert rows["at most 10 tokens"] == (0.5, 1.0) and rows["at most 40 tokens"] == (1.0, 1.0)


def test_a_larger_training_budget_is_said_and_an_equal_one_separates_the_system():
    spent = Training(tokens_generated=1000, tokens_trained=800, attempts=64, updates=4, seconds=9.0)
    more = dataclasses.replace(spent, tokens_trained=1600)
    faster = dataclasses.replace(spent, seconds=3.0)
    values = {"1": 1.0, "2": 0.0}
    assert "tokens trained on: 2.00 times" in systems(side(values, training=spent), side(values, training=more))[1]
    assert systems(side(values, training=spent), side(values, training=faster))[1].startswith("equal tokens generated")
    assert "not on record" in systems(side(values), side(values, training=spent))[1]


def test_a_gain_that_is_the_same_for_every_problem_is_tested_by_its_signs_and_not_called_no_difference():
    families = {str(n): "one" for n in range(8)}
    few = gain_of("all", {str(n): (0.0, 0.5) for n in range(4)}, families)
    many = gain_of("all", {str(n): (0.0, 0.5) for n in range(8)}, families)
    assert (few.p_value, few.claim, many.p_value, many.claim) == (0.125, "none", 2.0 ** -7, "gain")
    assert gain_of("all", {str(n): (0.5, 0.5) for n in range(8)}, families).p_value is None


def test_an_evaluation_says_of_how_many_tasks_its_accuracy_is_where_some_have_no_verdict():
    accuracy = wilson(1, 2)
    made = EvalReport(protocol="P", stage="e", policy="V", weights="w", accuracy=accuracy, format_rate=None, unscored=6,
                      in_family=True, outcomes={"a": 1.0, "b": 0.0, "c": None, "d": None}, by_family={}, mean_tokens=1.0)
    assert unscored("e", made) == "e: attempts without a verdict, in no mean: 6; the accuracy is of 2 of 4 tasks"
