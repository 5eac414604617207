"""Suites of abilities: every task has a right answer that its verifier takes, and none that costs nothing."""

import itertools
import json
import random
import re

import pytest

from rollbook.cli_abilities import ABILITIES as TOLD
from rollbook.rewards.composed.judge import checked
from rollbook.rewards.verifiers.instructions import follows, instruction_following
from rollbook.rewards.verifiers.schema import JSON_SCHEMA, json_schema
from rollbook.rewards.verifiers.text import PATTERN, pattern
from rollbook.tasks import GENERAL_PROMPTS, TaskError
from rollbook.tasks.abilities import ABILITIES, INSTRUCTIONS, ability_tasks, reward_of
from rollbook.tasks.surface import derived

# an answer to every instruction that the suite gives; {a} .. stand for its arguments
FOLLOWED = {"keywords:existence": "the {0} and the {1}", "keywords:forbidden_words": "something else",
            "length_constraints:number_words": "few words", "length_constraints:number_sentences": "One. Two. Three. Four.",
            "detectable_format:title": "<<a day>> text", "detectable_content:number_placeholders": "[a] [b] [c]",
            "detectable_content:postscript": "text\nP.S. more", "change_case:english_capital": "THE WEATHER IS VERY GOOD TODAY",
            "change_case:english_lowercase": "the weather is very good today", "punctuation:no_comma": "none here"}


def drawn(ability, count=48, seed=3):
    return ability_tasks(ability, count=count, seed=seed, max_tokens=64)


def judged(ability, response, task):
    part = reward_of(ability).parts["right"]
    reference = task.reference if part.measure == "pattern" else json.loads(task.reference)
    if part.measure == "instructions":
        return instruction_following(response, reference, {"relaxed": False})["passed"]
    work, spec = (pattern, PATTERN) if part.measure == "pattern" else (json_schema, JSON_SCHEMA)
    return work(response, reference, {**spec.settings, **part.settings})["passed"]


def gold(ability, task):
    if ability == "chat":
        return f"It is {re.sub(r'[?]', '', task.reference.split('(?:')[1].split(')')[0].split('|')[0])}."
    values = {key: one["const"] for key, one in json.loads(task.reference)["properties"].items()}
    return json.dumps(values) if ability == "format" else f"<tool_call>\n{json.dumps(values)}\n</tool_call>"


@pytest.mark.parametrize("ability", ABILITIES)
def test_the_tasks_are_different_and_depend_on_the_seed_alone(ability):
    (raws, tasks), again, other = drawn(ability), drawn(ability), drawn(ability, seed=4)
    assert (raws, tasks) == again and {task.id for task in tasks} != {task.id for task in other[1]}
    assert len({task.prompt for task in tasks}) == len({task.canonical for task in tasks}) == 48
    assert len({task.family for task in tasks}) > 2


def test_a_suite_that_is_too_small_says_how_many_tasks_it_has():
    with pytest.raises(TaskError, match="the suite chat has no 2000 different tasks"):
        drawn("chat", count=2000)


@pytest.mark.parametrize("ability", ABILITIES)
def test_no_prompt_shows_more_than_its_raw_task_and_none_is_a_general_prompt_that_is_trained(ability):
    for raw, task in zip(*drawn(ability), strict=True):
        shown = "\n".join(message.content for message in task.prompt)
        assert shown == raw.content and not derived(task.reference, shown, raw.content)
        assert not any(general in shown for general in GENERAL_PROMPTS)


@pytest.mark.parametrize("ability", ["format", "chat", "tools"])
def test_the_right_answer_is_taken_and_nothing_and_another_tasks_answer_are_not(ability):
    tasks = drawn(ability)[1]
    for task, other in itertools.pairwise(tasks):
        assert judged(ability, gold(ability, task), task), (task.prompt, task.reference)
        assert not judged(ability, "", task) and not judged(ability, task.prompt[-1].content, task)
        assert gold(ability, task) == gold(ability, other) or not judged(ability, gold(ability, other), task)


def test_a_tool_is_called_with_arguments_of_its_own_types():
    kinds = {type(value).__name__ for task in drawn("tools")[1]
             for value in json.loads(gold("tools", task)[12:-13])["arguments"].values()}
    assert kinds == {"str", "int", "float", "bool", "list"}


def test_every_instruction_can_be_followed_and_not_followed():
    for one in INSTRUCTIONS:
        _, name, arguments = one(random.Random(1))
        written = "* x\n" * arguments.get("num_bullets", 0) or arguments.get("end_phrase", "")
        answer = FOLLOWED.get(name, written)
        answer = answer.format(*arguments.get("keywords", ()))
        assert follows(answer, name, arguments) and not follows("", name, arguments), name
    assert all(judged("instructions", "", task) is False for task in drawn("instructions")[1])


def test_every_suite_has_a_reward_that_can_be_computed_and_the_command_knows_them_all():
    assert all(checked(reward_of(ability)).accuracy == "right" for ability in ABILITIES) and TOLD == ABILITIES
