"""Critique and revision, and labels from a model: run, audit, learnt from, refused."""

import dataclasses
import functools
import math

import pytest
from small_stages import ADAM, SAMPLED, SFT, pipeline, run

from rollbook.audit.curation import Curations
from rollbook.audit.passage import audit_run
from rollbook.ledger import Ledger
from rollbook.recipes import validate
from rollbook.records import Demonstration, Ranking, RecipeError, Revised, problems
from rollbook.records import recipe as r
from rollbook.rewards.judges import constitutional

PRINCIPLES = {"short": r.Principle(critique="Is it short?", revision="Say it shorter.", choice="Which is shorter?"),
              "right": r.Principle(critique="Is it right?", revision="Say it right.", choice="Which is right?")}
REVISE = r.Revise(policy="sft", tasks="train", prompts=10, rounds=2, principles=PRINCIPLES, sampling=SAMPLED, max_tokens=12)
LABELS = r.Comparisons(policy="sft", tasks="train", prompts=10, per_task=2, sampling=SAMPLED, apart=0.2,
                       labeler=r.Feedback(policy="start", principles=PRINCIPLES))
RM = r.RewardModel(policy="sft", data={"labels": 1.0}, loss="soft_label", head_layers=1, steps=2, batch=3, max_batch_tokens=512,
                   optimizer=ADAM)
STAGES = {"sft": dataclasses.replace(SFT, steps=30), "revised": REVISE, "labels": LABELS, "rm": RM,
          "sl": dataclasses.replace(SFT, policy="sft", traces={}, data={"revised": 1.0}, steps=2, batch=4)}


def recipe(**changes):
    made = pipeline(**{**STAGES, **changes})
    return dataclasses.replace(made, settings=dataclasses.replace(made.settings, model=dataclasses.replace(
        made.settings.model, context=384)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    with pytest.MonkeyPatch.context() as m:       # a model from scratch gives its options less than is asked of a judge
        m.setattr(constitutional, "probabilities", functools.partial(constitutional.probabilities, least_mass=0.0))
        return run(recipe(), tmp_path_factory.mktemp("constitution") / "run")


def test_a_model_that_answers_with_no_option_labels_nothing_and_the_run_says_so(tmp_path):
    short = {**STAGES, "sft": dataclasses.replace(STAGES["sft"], steps=2)}
    with pytest.raises(RecipeError, match=r"no prompt with two labelled answers[\s\S]*one letter"):
        run(recipe(**{name: short[name] for name in ("sft",)}), tmp_path / "run")


def test_a_pipeline_that_revises_and_labels_itself_passes_its_audit(whole):
    assert not [(row.name, row.record, row.evidence) for row in audit_run(whole).rows if row.result == "fail"]


def test_what_is_learnt_is_what_the_last_round_left_for_the_prompt_alone(whole):
    with Ledger.open(whole, write=False) as ledger:
        revised = list(ledger.records(Revised))
        shown = [one for one in ledger.records(Demonstration) if one.author == "revised:sft"]
    assert revised and [one.final for one in revised] == [one.messages[-1].content for one in shown]
    for one, demonstration in zip(revised, shown, strict=True):
        assert len(one.rounds) == 2 and {each.principle for each in one.rounds} <= {"short", "right"}
        assert demonstration.task == one.task and len(demonstration.messages) == 1 + len([
            message for message in demonstration.messages if message.role != "assistant"])
        assert not any("Critique" in message.content for message in demonstration.messages)


def test_a_models_label_is_a_probability_of_two_answers_and_names_the_model(whole):
    with Ledger.open(whole, write=False) as ledger:
        rankings = list(ledger.records(Ranking))
    for one in rankings:
        assert one.labeler.startswith("model:start:") and len(one.candidates) == 2 and one.candidates[1].score == 0.0
        assert math.isfinite(one.candidates[0].score) and all(each.truth is None for each in one.candidates)


def test_the_audit_finds_a_revision_by_a_principle_that_the_recipe_does_not_name(whole):
    with Ledger.open(whole, write=False) as ledger:
        one = next(ledger.records(Revised))

    class Run:
        pass
    index = Run()
    index.recipe, index.table = recipe(), "revised/revisions"
    found = Curations()
    other = dataclasses.replace(one, rounds=(dataclasses.replace(one.rounds[0], principle="mine"), *one.rounds[1:]))
    evidence = " ".join(fault[0] for fault in found.revised(index, other))
    assert "did not sample" in evidence and "mine" in evidence
    assert not [fault for fault in found.revised(index, one) if "rounds" in fault[0]]


@pytest.mark.parametrize("changed", [
    {"revised": dataclasses.replace(REVISE, principles={})},
    {"revised": dataclasses.replace(REVISE, rounds=0)},
    {"revised": dataclasses.replace(REVISE, policy="nobody")},
    {"labels": dataclasses.replace(LABELS, per_task=3)},
    {"labels": dataclasses.replace(LABELS, labeler=r.Feedback(policy="labels", principles=PRINCIPLES))},
])
def test_what_could_not_revise_or_label_is_refused_before_anything_starts(changed):
    found = problems.Problems()
    validate.check(recipe(**changed).settings, found)
    with pytest.raises(RecipeError):
        found.raise_any("this recipe")
