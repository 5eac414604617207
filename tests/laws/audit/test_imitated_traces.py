"""Traces of a curated set as demonstrations: which can be imitated, why the others cannot, and what an audit finds."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rollbook.audit.copied import TABLE, copied_faults, times_shown
from rollbook.models.tokenizer import byte_tokenizer
from rollbook.orchestration.supported import check_curated_families, check_weights
from rollbook.recipes import graph_check, load, resolve
from rollbook.records import Budget, Message, RawTask, RecipeError, Task, content_id
from rollbook.records.curriculum import Curriculum
from rollbook.records.graph import CURATED, inputs, learns_curated
from rollbook.records.problems import Problems, RecipeProblems
from rollbook.rewards.boxed import answers_rightly
from rollbook.tasks.imitating import imitated

TOKENIZER = byte_tokenizer()
GOOD = "<think>\n4+3=7\n</think>\n\\boxed{7}"


def task_of(row, **changed):
    raw = RawTask(source="s", licence="l", acquired_at="d", content="4 + 3 =", language="en", domain="math", sensitive=(),
                  lineage={"row": row})
    given = {"raw": content_id(raw), "family": "f", "prompt": (Message(role="user", content="4 + 3 =", origin="raw"),),
             "reference": "7", "canonical": f"u{row}", "predicate": "math.equivalent", "initial_state": "prompt", "tools": (),
             "budget": Budget(max_tokens=64), "termination": ("end_of_turn", "length")} | changed
    return raw, Task(**given)


def found(traces, row="1", **changed):
    raw, task = task_of(row, **changed)
    data = json.dumps({"problem": "4 + 3 =", "reference": "7", "traces": traces}).encode() + b"\n"
    return data, task, imitated(data, ([task], {task.raw: raw}), TOKENIZER, answers_rightly), raw


def test_a_sound_trace_is_the_answer_of_its_task_token_for_token():
    _, task, made, _ = found([{"text": GOOD, "author": "teacher", "passed": True, "step": 3}])
    [one] = made.shown
    prompt = TOKENIZER.prompt(task.prompt)
    assert one.token_ids == (*prompt, *TOKENIZER.encode(GOOD), min(TOKENIZER.stop_ids)) and made.left_out == {}
    assert (one.task, one.author, one.validation) == (task.id, "curated:teacher", "verified")
    assert one.messages == (*task.prompt, Message(role="assistant", content=GOOD, origin="raw"))


@pytest.mark.parametrize(("trace", "why"), [
    (7, "cannot be read"), ({}, "cannot be read"), ({"text": " "}, "cannot be read"), ({"text": ["a"]}, "cannot be read"),
    ({"text": GOOD, "author": 3}, "cannot be read"), ({"text": GOOD, "passed": False}, "did not pass"),
    ({"text": "\\boxed{8}"}, "states another answer than the reference"),
    ({"text": "<|im_end|>\\boxed{7}"}, "spells a control token"), ({"text": "x" * 64}, "longer than the task's budget")])
def test_a_trace_that_cannot_be_imitated_is_left_out_by_its_reason_and_the_others_stay(trace, why):
    _, _, made, _ = found([trace, {"text": GOOD}, {"text": GOOD}])
    assert len(made.shown) == 1 and made.left_out == {why: 1, "stands twice": 1}


def test_the_longest_trace_fills_the_budget_with_its_end_of_turn():
    assert len(found([{"text": "x" * 63}])[2].shown) == 1


def test_a_task_of_no_row_or_of_a_row_without_traces_gives_none():
    assert found([{"text": GOOD}], row="2")[2].shown == () and found(None)[2].shown == ()


def test_only_a_number_or_a_letter_in_a_box_is_called_right_or_wrong():
    _, math = task_of("1")
    _, choice = task_of("1", predicate="choice.letter", reference="B")
    _, text = task_of("1", predicate="text.exact")
    assert answers_rightly("\\boxed{7.0}", math) is True and answers_rightly("\\boxed{x+1}", math) is None
    assert answers_rightly("seven", math) is None and answers_rightly("\\boxed{8}", text) is None
    assert answers_rightly("\\boxed{(b)}", choice) is True and answers_rightly("\\boxed{A}", choice) is False


def audited(traces, **changed):
    data, task, made, raw = found(traces)
    held = {"kept_set": (None, data), "tokenizer": TOKENIZER, "train": (task.id,), "tasks": {task.id: task},
            "raws": {task.raw: raw}, "weights": {task.id: 3}, "table": TABLE}
    return made, SimpleNamespace(**held | changed)


def test_the_audit_finds_a_trace_that_is_not_of_the_set_one_left_out_and_a_set_that_is_gone():
    made, run = audited([{"text": GOOD}, {"text": "So \\boxed{7}"}])
    ids = [content_id(one) for one in made.shown]
    assert list(copied_faults(run, ids)) == []
    assert "1 are left out" in next(copied_faults(run, ids[:1]))[1]
    assert next(copied_faults(run, [*ids, "Demonstration:other"]))[0] == "Demonstration:other"
    assert "0 are left out" in next(copied_faults(run, ids[::-1]))[1]
    assert "no set or no tokenizer" in next(copied_faults(audited([{"text": GOOD}], kept_set=None)[1], ids))[1]
    assert "cannot be read again" in next(copied_faults(audited([{"text": GOOD}], kept_set=(None, b"{"))[1], ids))[1]


def test_a_trace_is_shown_as_often_as_its_row_weighs_and_what_stages_wrote_once():
    made, run = audited([{"text": GOOD}])
    assert times_shown(run, made.shown[0]) == 3
    run.table = "cold_start/demonstrations"
    assert times_shown(run, made.shown[0]) == 1


LEARN = ("stages.cold_start.data={curated: 1.0}", "stages.cold_start.traces=null")


def test_a_stage_that_learns_from_the_curated_set_waits_for_no_stage():
    settings = resolve(load("dapo"), "tiny", ("tasks.families=null", "tasks.curated=x", *LEARN)).settings
    stage = settings.stages["cold_start"]
    assert learns_curated(stage) and CURATED not in inputs(stage).values() and not stage.traces
    check_weights(settings, SimpleNamespace(weights={"Task:1": 2}, train=(1,)))


def test_traces_of_a_curated_set_need_one_and_no_stage_takes_their_name():
    with pytest.raises(RecipeError, match="learns from the traces of a curated set, and the recipe names none"):
        resolve(load("dapo"), "tiny", LEARN)
    stages = dict(resolve(load("instructgpt"), "tiny").settings.stages)
    problems = Problems()
    graph_check.check({**stages, "rm": replace(stages["rm"], data={CURATED: 1.0}), CURATED: stages["sft"]}, problems)
    said = "\n".join(map(str, problems.found))
    assert "stages.rm.data.curated names a stage of another kind" in said and "stages.curated is a reserved name" in said


def test_a_family_of_a_curated_set_is_known_when_the_set_is_read():
    named = ("tasks.families=null", "tasks.curated=x", "stages.rl.tasks=family:sums")
    settings = resolve(load("dapo"), "tiny", named).settings
    check_curated_families(settings, SimpleNamespace(train=(SimpleNamespace(family="sums"),)))
    with pytest.raises(RecipeError, match=r"stages\.rl\.tasks names no family of the curated set's training tasks, got sums"):
        check_curated_families(settings, SimpleNamespace(train=(SimpleNamespace(family="products"),)))
    with pytest.raises(RecipeError, match=r"stages\.rl\.tasks names no family of tasks"):
        resolve(load("dapo"), "tiny", ("stages.rl.tasks=family:nothing",))


def test_every_stage_that_does_not_go_with_the_curated_set_is_named():
    named = ("tasks.families=null", "tasks.curated=x", "stages.rl.tasks=family:sums", "stages.cold_start.tasks=family:powers")
    settings = resolve(load("dapo"), "tiny", named).settings
    drawn = Curriculum(low=0.1, high=0.9, renew=20, explore=0.3, easy=0.0, hard=0.1, report=5)
    rl = replace(settings.stages["rl"], curriculum=drawn)
    settings = replace(settings, stages={**settings.stages, "rl": rl, "more": rl})
    sides = SimpleNamespace(train=(SimpleNamespace(family="products"),), weights={"Task:1": 2})
    with pytest.raises(RecipeProblems) as told:
        check_curated_families(settings, sides)
    assert all(f"stages.{name}.tasks names no family" in str(told.value) for name in ("cold_start", "rl", "more"))
    with pytest.raises(RecipeProblems) as told:
        check_weights(settings, sides)
    assert all(f"--set stages.{name}.curriculum=null" in str(told.value) for name in ("rl", "more"))
