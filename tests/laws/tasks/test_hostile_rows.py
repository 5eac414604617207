"""Rows as nobody should send them: each is counted for its reason, the rest goes on; what a stage left behind is believed whole
or not at all."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollbook.orchestration import curation
from rollbook.records import Fault
from rollbook.tasks import TaskError
from rollbook.tasks.curation import Candidate, Helpers, curate, filters, load_pipeline, read_candidates
from rollbook.tasks.curation.consensus import CodeConsensus
from rollbook.tasks.curation.filters import Decontaminate
from rollbook.tasks.curation.grading import Grade, MajorityDisagrees, PassRate, ScoreVariance
from rollbook.tasks.curation.rewriting import ChoiceToStatement, CodeLanguages, MixGeneral
from rollbook.tasks.curation.rows import candidate_of

HERE = Helpers(folder=Path("."))
GRADED = {"g": {"answers": ["B"], "passed": [True]}}


def read(file):
    unread = Counter()
    return [row.problem for row in read_candidates([file], unread)], dict(unread)


@pytest.mark.parametrize(("more", "why"), [
    ({"grades": {"g": {"answers": 5}}}, "grades of another type"),
    ({"grades": {"g": {"passed": -3, "of": 8}}}, "grades of another type"),
    ({"grades": {"g": {"passed": 9, "of": 8}}}, "grades of another type"),
    ({"grades": {"g": {"passed": "x"}}}, "grades of another type"),
    ({"lineage": {"parent": {"a": 1}}}, "lineage of another type"), ({"options": ["3", None]}, "options of another type"),
    ({"options": ["x"] * 27}, "more than 26 options"), ({"side": "sideways"}, "a side that is neither train nor heldout")])
def test_a_field_that_no_stage_could_use_is_counted_where_the_row_is_read(more, why):
    assert candidate_of(json.dumps({"problem": "What is it?", "reference": "4", **more}).encode(), 1) == why


def test_a_field_that_stands_twice_in_a_row_is_counted():
    for line in (b'{"problem": "a", "problem": "b"}', b'{"problem": "a", "lineage": {"parent": "x", "parent": "y"}}',
                 b'{"problem": "a", "tests": [{"input": "1", "input": "2"}]}'):
        assert candidate_of(line, 1) == "a field twice"


def test_a_lineage_that_names_nothing_joins_nothing():
    row = candidate_of(b'{"problem": "a", "lineage": {"parent": null, "template": 3}}', 1)
    assert row.lineage == {"template": "3"}


def test_a_json_list_and_a_parquet_file_are_read_row_by_row(tmp_path):
    rows = [{"problem": "What is 4 + 3?", "reference": "7"}, {"problem": 5}, {"reference": "7"}, {"problem": "x", "weight": 0}]
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf " + json.dumps([*rows, 3]).encode())
    assert read(tmp_path / "a.json") == (["What is 4 + 3?"], {"no problem": 2, "not an object": 1,
                                                              "a weight that is no whole number from 1 to 100": 1})
    (tmp_path / "lines.json").write_bytes(b"\n".join(json.dumps(row).encode() for row in rows))
    assert read(tmp_path / "lines.json")[0] == ["What is 4 + 3?"]
    (tmp_path / "torn.json").write_bytes(json.dumps(rows).encode()[:-9])
    with pytest.raises(TaskError, match="begins as a JSON list"):
        read(tmp_path / "torn.json")
    latin = pa.Array.from_buffers(pa.string(), 1, pa.array([b"caf\xe9"], pa.binary()).buffers())
    table = pa.table({"problem": pa.concat_arrays([pa.array(["What is 4 + 3?", None, "b", "c"]), latin]),
                      "reference": ["7", "1", "2", "3", "4"], "blob": pa.array([None, None, b"\x00", None, None], pa.binary()),
                      "day": pa.array([None, None, None, datetime.date(2024, 3, 3), None])})
    pq.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == (["What is 4 + 3?"], {"no problem": 1, "bytes is not JSON": 1, "date is not JSON": 1,
                                                                 "a value that has no text form": 1})
    (tmp_path / "torn.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    with pytest.raises(TaskError, match="no whole Parquet file"):
        read(tmp_path / "torn.parquet")


def test_rows_of_a_protocol_or_of_general_data_that_cannot_be_read_are_noted_for_their_reasons(tmp_path):
    (tmp_path / "e.jsonl").write_bytes(b'{"problem": "Who is it?"}\nbroken\n\xff\xfe\n')
    helpers = Helpers(folder=tmp_path)
    given = [Candidate(number=1, problem="What is 4 + 3?", reference="7", kind="math")]
    noted = Decontaminate(protocols={"e": "e.jsonl"}, registered=False).apply(given, helpers).notes
    assert noted == {"e items": 1, "e unreadable: not JSON": 1, "e unreadable: not UTF-8": 1}
    assert MixGeneral(file="e.jsonl", share=0.5, seed=1).apply(given, helpers).notes == {
        "general rows": 1, "unreadable: not JSON": 1, "unreadable: not UTF-8": 1}


def test_scores_that_are_no_numbers_are_a_reason_and_a_null_is_a_sample_without_a_score():
    given = [Candidate(number=number, problem="p", reference="7", kind="math", more={"scores": scores})
             for number, scores in enumerate([[10 ** 400, 1], [1e308, -1e308], ["a", 1, 2], [True, 0], [None, 1, 2],
                                              [None, 1]], 1)]
    done = ScoreVariance().apply(given, HERE)
    assert done.rejected == dict.fromkeys((1, 2, 3, 4), "a score that is no number") | {6: "fewer than two scores"}
    assert [row.number for row in done.kept] == [5]


def test_a_grade_without_answers_has_no_majority():
    row = Candidate(number=1, problem="p", reference="7", kind="math", grades={"g": {"answers": None, "passed": 2, "of": 8}})
    assert MajorityDisagrees(grader="g").apply([row], replace(HERE, equal=lambda pairs: [])).kept == [row]


def test_as_many_answers_for_the_reference_as_against_it_condemn_nothing():
    rows = [Candidate(number=number, problem="p", reference="7", kind="math",
                      grades={"g": {"answers": ["7"] * right + ["8"] * 4}})
            for number, right in enumerate((4, 3), 1)]
    helpers = replace(HERE, equal=lambda pairs: [one == other for one, other in pairs])
    assert MajorityDisagrees(grader="g").apply(rows, helpers).rejected == {2: "majority disagrees with the reference"}


def test_what_an_engine_cannot_answer_is_no_wrong_answer_and_is_asked_again(tmp_path):
    (tmp_path / "c.yaml").write_text("schema: rollbook.curation/1\nname: n\ninput: [r]\ngraders: {g: {model: m, max_tokens: 4}}\n"
                                     "stages: [{kind: Grade, grader: g, samples: 2}]\n")
    tools = curation.Tools(load_pipeline(tmp_path / "c.yaml"), tmp_path / "out")
    tools.model = lambda *_: SimpleNamespace(weights="w")
    asked = []
    refused = Fault(code="context", detail="too long")
    tools._answers = lambda settings, model, rows, samples: asked.extend(rows) or [
        [refused, refused] if "long" in row.problem else ["7", None] for row in rows]
    rows = [Candidate(number=n, problem=p, reference="7", kind="math") for n, p in enumerate(("long", "short"), 1)]
    for _ in range(2):
        done = Grade(grader="g", samples=2).apply(rows, replace(HERE, solve=tools.solve))
        assert [row.grades["g"]["passed"] for row in done.kept] == [[None, None], [True, False]]
        assert done.changed["samples without a verdict: fault: context"] == 2
        assert PassRate(grader="g", low=0, high=0, of=2).apply(done.kept, HERE).rejected == {1: "unscored sample", 2: "too easy"}
    assert [row.number for row in asked] == [1, 2, 1]


def test_what_was_measured_of_a_row_does_not_outlive_its_rewriting():
    class Writer:
        def answer(self, questions, *, max_tokens):
            return ["yes" if question.key.startswith("judge") else "What is 4 + 3?" for question in questions]
    measured = {"scores": [0, 1], "traces": [{"text": "\\boxed{B}"}]}
    choice = Candidate(number=1, problem="4 + 3 = ?", reference="B", kind="choice", grades=GRADED,
                       more={"options": ["1", "7"], "source_page": 3, **measured})
    [statement] = ChoiceToStatement().apply([choice], replace(HERE, chat=Writer())).kept
    assert statement.grades == {} and statement.more == {"source_page": 3, "rewritten_from": "4 + 3 = ?"}
    code = Candidate(number=1, problem="Twice.", reference=None, kind="code", grades=GRADED,
                     more={"tests": [{"input": "3", "output": "7"}], "solutions": ["a", "b", "c", None], **measured})
    own, other = CodeLanguages(ask={"python": "Python.", "cpp": "C++."}).apply([code], HERE).kept
    assert own.grades == GRADED and own.more["traces"] and other.grades == {} and not {"traces", "scores"} & set(other.more)
    runner = SimpleNamespace(attempt=lambda solution, inputs: [SimpleNamespace(answer="6")] * len(inputs))
    done = CodeConsensus().apply([code], replace(HERE, runner=runner))
    assert done.rejected == {1: "no test left"} and done.changed["left out: a solution that is no text"] == 1


PIPELINE = ("schema: rollbook.curation/1\nname: n\ninput: [raw.jsonl]\nstages:\n  - {kind: Completeness}\n"
            "  - {kind: UpsampleHard, grader: g, most: 3}\n")
ROW = '{"problem": "What is 4 + 3?", "reference": "7", "grades": {"g": {"passed": [true, false]}}}\n'


def made(folder):
    return curate(load_pipeline(folder / "c.yaml"), Helpers(folder=folder), folder / "out", lambda record: None)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "c.yaml").write_text(PIPELINE)
    (tmp_path / "raw.jsonl").write_text(ROW + ROW.replace("4 + 3", "5 + 2"))
    return tmp_path


@pytest.mark.parametrize("damage", [
    lambda stage: (stage / "rows.jsonl").write_text((stage / "rows.jsonl").read_text().replace('"weight":2', '"weight":3')),
    lambda stage: (stage / "rows.jsonl").write_text((stage / "rows.jsonl").read_text()[:30]),
    lambda stage: (stage / "rows.jsonl").unlink(), lambda stage: (stage / "kept.npy").unlink(),
    lambda stage: (stage / "kept.npy").write_bytes(b"\x93NUMPY"), lambda stage: (stage / "rejected.jsonl").unlink(),
    lambda stage: (stage / "record.json").write_text("{")])
def test_a_stage_whose_files_do_not_give_what_its_record_says_runs_again(folder, damage):
    first = made(folder)
    damage(folder / "out" / "stages" / "02-UpsampleHard")
    again = made(folder)
    assert (again.tasks, again.stages) == (first.tasks, first.stages)


def test_a_curation_killed_while_it_claims_its_folder_or_ends_can_go_on(folder):
    first = made(folder)
    (folder / "out" / "pipeline.json").rename(folder / "out" / "pipeline.json.part")
    for name in ("stages", "tasks.jsonl", "taskset.json"):
        (folder / "out" / name).rename(folder / name)
    assert made(folder) == first
    (folder / "out" / "tasks.jsonl").rename(folder / "out" / "tasks.jsonl.part")
    assert made(folder) == first
    (folder / "out" / "pipeline.json").write_text("{")
    with pytest.raises(TaskError, match=r"pipeline\.json cannot be read"):
        made(folder)


def test_input_without_a_readable_row_is_refused_with_the_reasons(folder, monkeypatch):
    (folder / "raw.jsonl").write_text("broken\n[1]\n")
    monkeypatch.setattr(filters.Completeness, "apply", lambda *_: pytest.fail("it ran"))
    with pytest.raises(TaskError, match="no row of the input can be read, got not JSON 1, not an object 1"):
        made(folder)
