"""A curated set as a source of tasks: its sides stay apart, what cannot be judged is counted, another set is refused."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace

import pytest

from rollbook.records import CuratedSet
from rollbook.records.recipe import TaskSettings
from rollbook.tasks import Likeness, TaskError
from rollbook.tasks.curated import curated, read_curated, rows_in
from rollbook.tasks.curation import Candidate, Helpers, curate, load_pipeline
from rollbook.tasks.curation.asking import shown

LIKENESS = Likeness(ngram=13, jaccard=0.8, boilerplate=0.05)
WANTED = TaskSettings(train=6, heldout=2, seed=1, system_prompt="Box the answer.", max_tokens=32, curated="tasks/sums")
FILE = "schema: rollbook.curation/1\nname: sums\ninput: [raw.jsonl]\nstages:\n  - {kind: Completeness}\n" \
       "  - {kind: Split, heldout: 3, seed: 1}\n"


def row(problem, reference="7", **more):
    return {"problem": problem, "reference": reference, "lineage": {"generator": "mine"}, **more}


def made(folder, rows):
    folder.mkdir(exist_ok=True)
    (folder / "raw.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    (folder / "c.yaml").write_text(FILE)
    curate(load_pipeline(folder / "c.yaml"), Helpers(folder=folder), folder / "set", lambda _: None)
    return read_curated(folder / "set", None)


def tasks_of(stored, **changed):
    return curated(stored.made, stored.data, replace(WANTED, **changed), likeness=LIKENESS)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return made(tmp_path_factory.mktemp("curated"), [row(f"What is {n} plus {n * 7 % 31}?",
                                                         str(n + n * 7 % 31)) for n in range(20)])


def test_the_sides_of_the_set_stay_as_they_were_cut_and_the_draw_depends_on_the_seed_alone(stored):
    acquired, sides = tasks_of(stored)
    held = {one.problem for one in rows_in(stored.data) if one.more["side"] == "heldout"}
    assert {task.prompt[-1].content for task in sides.heldout} <= held and len(sides.heldout) == 2 and len(sides.train) == 6
    assert not {task.prompt[-1].content for task in sides.train} & held
    assert tasks_of(stored) == (acquired, sides) and tasks_of(stored, seed=2)[1] != sides
    assert len(acquired.raw) == 20 and sides.train[0].prompt[0].content == "Box the answer."


def test_weights_are_those_of_the_training_rows_that_are_drawn_and_not_of_the_held_out_ones(tmp_path):
    stored = made(tmp_path, [row(f"What is {n} plus {n}?", str(2 * n), weight=1 + n % 3) for n in range(12)])
    _, sides = tasks_of(stored)
    assert dict(sides.weights) == {task.id: 1 + int(task.reference) // 2 % 3 for task in sides.train
                                   if int(task.reference) // 2 % 3} and sides.weights


def test_a_side_with_too_few_rows_is_refused_with_what_there_is(stored):
    with pytest.raises(TaskError, match=r"not enough rows for tasks.heldout = 4") as caught:
        tasks_of(stored, heldout=4)
    assert "heldout 3, train 17" in str(caught.value)
    with pytest.raises(TaskError, match=r"not enough rows for tasks\.train"):
        tasks_of(stored, train=18)


def test_rows_that_decide_nothing_are_left_out_and_counted(tmp_path):
    rows = [row(f"What is {n} plus {n}?", str(2 * n)) for n in range(12)] + [
        row("Print the sum.", None, kind="code", tests=[{"input": "1\n"}]), row("Choose one of these.", "E", kind="choice",
                                                                                options=["1", "2"]),
        row("What is 3 plus 3?", "6", source="twice")]
    acquired, _ = tasks_of(made(tmp_path, rows), heldout=1)
    assert acquired.rejected == {"choice/no option is right": 1, "code/no complete tests": 1, "twice/stands twice": 1}


def test_a_training_row_that_is_the_problem_of_a_held_out_one_is_never_trained_on(tmp_path):
    same = [row("What is 5 + 9?", "14", side="heldout", lineage={"generator": "chain_sum"}),
            row("What is 9 + 5?", "14", lineage={"generator": "chain_sum"})]
    stored = made(tmp_path, [row(f"What is {n} plus {n}?", str(2 * n)) for n in range(12)])
    data = stored.data + b"".join(json.dumps(one).encode() + b"\n" for one in same)
    held = data.replace(b'"side":"heldout"', b'"side":"train"')
    acquired, sides = curated(stored.made, held, replace(WANTED, heldout=1, train=12), likeness=LIKENESS)
    assert sides.heldout[0].prompt[-1].content == "What is 5 + 9?" and acquired.rejected == {
        "shares its unit with a held-out task": 1}


def test_code_rows_carry_their_tests_and_language_and_choices_show_their_options(tmp_path):
    rows = [row(f"Print {n} times the input.", None, kind="code", language="cpp", tests=[{"input": "1\n", "output": f"{n}\n",
                                                                                          "note": 1}])
            for n in range(12)]
    _, sides = tasks_of(made(tmp_path, rows), heldout=1)
    reference = json.loads(sides.train[0].reference)
    assert set(reference) == {"tests", "language"} and reference["language"] == "cpp" and set(reference["tests"][0]) == {"input",
                                                                                                                         "output"}
    choice = shown(Candidate(number=1, problem="2 + 2 is", reference="B", kind="choice", more={"options": ["3", "4"]}))
    assert choice == "2 + 2 is\n\nA. 3\nB. 4"


def test_another_set_a_changed_file_and_a_lost_record_are_refused(tmp_path):
    stored = made(tmp_path, [row(f"What is {n} plus {n}?", str(2 * n)) for n in range(12)])
    with pytest.raises(TaskError, match="holds another set than the recipe names"):
        read_curated(tmp_path / "set", "0" * 64)
    assert isinstance(stored.made, CuratedSet) and read_curated(tmp_path / "set", stored.made.tasks) == stored
    lost = tmp_path / "lost"
    shutil.copytree(tmp_path / "set", lost)
    shutil.rmtree(lost / "stages" / "01-Completeness")
    with pytest.raises(TaskError, match="lacks the records of 1 of its 2 stages"):
        read_curated(lost, None)
    os.chmod(tmp_path / "set" / "tasks.jsonl", 0o644)
    (tmp_path / "set" / "tasks.jsonl").write_bytes(stored.data + b"{}\n")
    with pytest.raises(TaskError, match="were changed after curation"):
        read_curated(tmp_path / "set", None)
