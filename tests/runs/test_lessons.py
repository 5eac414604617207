"""Lessons that programs write of criticising, revising and choosing: run, audit, learnt from, refused."""

import dataclasses

import pytest
from small_stages import SAMPLED, SFT, pipeline, run

from rollbook.audit.index import RunIndex
from rollbook.audit.passage import audit_run
from rollbook.audit.taught import Taught
from rollbook.ledger import Ledger
from rollbook.recipes import validate
from rollbook.records import Demonstration, Question, RecipeError, problems
from rollbook.records import recipe as r
from rollbook.records.demonstrating import Principle
from rollbook.rewards.judges import Constitution, Pair
from rollbook.rewards.judges.lessons import RIGHT, WRONG, Told, lessons

PRINCIPLES = {"right": r.Principle(critique="Is it right?", revision="Say it right.", choice="Which is right?")}
LESSONS = r.Lessons(policy="sft", tasks="train", prompts=12, principles=PRINCIPLES, style="direct", sampling=SAMPLED)
STAGES = {"sft": dataclasses.replace(SFT, steps=60), "lessons": LESSONS,
          "taught": dataclasses.replace(SFT, policy="sft", traces={"direct": 1.0}, data={"lessons": 1.0}, steps=2, batch=4)}
PLAIN = [Principle(critique="Is it right?", revision="Say it right.", choice="Which is right?")]
GOOD, BAD = Told(text="5", worth=1.0, right=True), Told(text="6", worth=0.1, right=False)


def recipe(**changes):
    made = pipeline(**{**STAGES, **changes})
    return dataclasses.replace(made, settings=dataclasses.replace(made.settings, model=dataclasses.replace(
        made.settings.model, context=384)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(recipe(), tmp_path_factory.mktemp("lessons") / "run")


def test_a_pipeline_with_lessons_passes_its_audit(whole):
    assert not [(row.name, row.record, row.evidence) for row in audit_run(whole).rows if row.result == "fail"]
    with Ledger.open(whole, write=False) as ledger:
        kinds = {one.task.split(":")[1] for one in ledger.records(Demonstration) if one.task.startswith("lesson:")}
    assert {"critique", "revision"} <= kinds <= {"critique", "revision", "choice"}


def test_the_audit_finds_a_lesson_that_says_something_else_and_one_that_is_left_out(whole):
    with Ledger.open(whole, write=False) as ledger:
        made = [one for one in ledger.records(Demonstration) if one.task.startswith("lesson:")]
        index = RunIndex(ledger)
        index.recipe = recipe()
    taught = Taught(due={"lessons": [(one.task, one.messages[0].content, one.messages[-1].content) for one in made]})
    said = made[0].messages[-1]
    other = dataclasses.replace(made[0], messages=(*made[0].messages[:-1], dataclasses.replace(said, content="It is fine.")))
    assert list(taught.demonstrated(index, "lessons", other)) and not list(taught.demonstrated(index, "lessons", made[1]))
    assert list(taught.over(index, "lessons"))


def test_a_wrong_answer_is_called_wrong_and_revised_to_the_solution_and_a_right_one_to_itself():
    made = lessons("2 + 3 =", [GOOD, BAD], "five", PLAIN, seed=1)
    assert [(one.kind, one.answer) for one in made] == [
        ("critique", RIGHT), ("revision", "5"), ("critique", WRONG), ("revision", "five"), ("choice", "A"), ("choice", "B")]
    assert not [one for one in lessons("2 + 3 =", [BAD, BAD], "five", PLAIN, seed=1) if one.kind == "choice"]


def test_only_what_is_to_be_taught_is_written_and_choices_are_between_the_first_two_the_next_two_and_so_on():
    one, other, last = (dataclasses.replace(BAD, text=text) for text in ("7", "8", "9"))
    made = lessons("2 + 3 =", [GOOD, BAD, one, other, GOOD, last, BAD], "five", PLAIN, seed=1, teach=("choice",))
    assert [(one.kind, one.answer) for one in made] == [("choice", "A"), ("choice", "B")] * 2
    assert {one.kind for one in lessons("2 + 3 =", [GOOD, BAD], "five", PLAIN, seed=1, teach=("critique", "choice"))} == {
        "critique", "choice"}


def test_a_stage_that_teaches_choosing_alone_writes_choices_of_all_its_answers_and_passes_its_audit(tmp_path):
    made = run(recipe(lessons=dataclasses.replace(LESSONS, answers=4, teach=("choice",), prompts=24)), tmp_path / "run")
    assert not [(row.name, row.record, row.evidence) for row in audit_run(made).rows if row.result == "fail"]
    with Ledger.open(made, write=False) as ledger:
        taught = [one for one in ledger.records(Demonstration) if one.task.startswith("lesson:")]
    assert taught and {one.task.split(":")[1] for one in taught} == {"choice"}
    assert {one.messages[-1].content for one in taught} == {"A", "B"}


def test_lessons_ask_in_the_words_in_which_a_constitution_will_ask():
    heard = []

    class Chat:
        name, digest = "chat", "none"

        def answer(self, questions: list[Question], *, max_tokens: int):
            heard.extend(one.messages[0].content for one in questions)
            return [WRONG for _ in questions]

        def option_logps(self, questions: list[Question], options: tuple[str, str]):
            heard.extend(one.messages[0].content for one in questions)
            return [[-0.69 for _ in options] for _ in questions]
    asked = Constitution(Chat(), PLAIN)
    asked.revise("2 + 3 =", "6", seed=1, rounds=1)
    asked.label(Pair(task="2 + 3 =", one="5", other="6"))
    taught = {one.question for one in lessons("2 + 3 =", [GOOD, BAD], "five", PLAIN, seed=1)}
    assert len(heard) == 4 and set(heard) <= taught


@pytest.mark.parametrize("wrong", [dataclasses.replace(LESSONS, answers=1), dataclasses.replace(LESSONS, teach=()),
                                   dataclasses.replace(LESSONS, teach=("choice", "choice")),
                                   dataclasses.replace(LESSONS, principles={}), dataclasses.replace(LESSONS, prompts=0),
                                   dataclasses.replace(LESSONS, policy="nobody"), dataclasses.replace(
                                       LESSONS, sampling=dataclasses.replace(SAMPLED, temperature=0.0))])
def test_lessons_that_could_not_be_written_are_refused_before_anything_starts(wrong):
    found = problems.Problems()
    validate.check(recipe(lessons=wrong).settings, found)
    with pytest.raises(RecipeError):
        found.raise_any("this recipe")
