"""A curation as a whole: recorded, resumable, immutable, and clear about what it refuses."""

from __future__ import annotations

import json
import os
import stat
from itertools import pairwise

import pytest
from click.testing import CliRunner

from rollbook.cli import main
from rollbook.records import RecordError, decode
from rollbook.records.curation import CuratedSet, CurationStage
from rollbook.tasks import TaskError
from rollbook.tasks.curation import Helpers, curate, filters, load_pipeline
from rollbook.tasks.curation.pipeline import read_task_set

ROWS = ['{"problem": "What is 4 + 3?", "reference": "7", "grades": {"g": {"passed": [true, false]}}}',
        '{"problem": "WHAT is 4 + 3?", "reference": "7"}', '{"problem": "What is 5 + 3?", "reference": 8}', "broken",
        '{"problem": "", "reference": "1"}', '{"problem": "What is 9 + 9?", "reference": "18", "lineage": {"parent": "x"}}']
FILE = """schema: rollbook.curation/1
name: sums
input: [raw.jsonl]
stages:
  - {kind: Completeness}
  - {kind: ExactDuplicates}
  - {kind: UpsampleHard, grader: g, most: 3}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "raw.jsonl").write_text("\n".join(ROWS) + "\n")
    (tmp_path / "c.yaml").write_text(FILE)
    return tmp_path


def made(folder, told=lambda record: None):
    return curate(load_pipeline(folder / "c.yaml"), Helpers(folder=folder), folder / "out", told)


def test_every_stage_is_recorded_with_counts_that_close_and_hashes_that_join(folder):
    records = []
    task_set = made(folder, records.append)
    assert [(one.kind, one.count_in, one.count_out, dict(one.rejected)) for one in records] == [
        ("Completeness", 5, 4, {"empty problem": 1}), ("ExactDuplicates", 4, 3, {"duplicate": 1}),
        ("UpsampleHard", 3, 1, {"ungraded": 2})]
    assert all(one.after == other.before for one, other in pairwise(records))
    assert task_set.unread == {"not JSON": 1} and task_set.rows == 1
    _, rows = read_task_set(folder / "out")
    assert rows[0]["weight"] == 2 and rows[0]["reference"] == "7"


def test_a_second_run_reads_what_is_done_and_gives_the_same_set(folder, monkeypatch):
    first = made(folder)
    monkeypatch.setattr(filters.Completeness, "apply", lambda *_: pytest.fail("it was run again"))
    again = made(folder)
    assert again == first
    decode(CuratedSet, json.loads((folder / "out" / "taskset.json").read_bytes()))


def test_a_killed_curation_goes_on_at_the_stage_it_was_in(folder, monkeypatch):
    whole = made(folder)
    os.rename(folder / "out", folder / "reference")

    def killed(*_):
        raise KeyboardInterrupt
    with monkeypatch.context() as m:
        m.setattr(filters.ExactDuplicates, "apply", killed)
        with pytest.raises(KeyboardInterrupt):
            made(folder)
    assert (folder / "out" / "stages" / "01-Completeness").is_dir() and not (folder / "out" / "tasks.jsonl").exists()
    assert made(folder) == whole


def test_changed_settings_or_rows_run_what_rests_on_them_again(folder):
    first = made(folder)
    (folder / "c.yaml").write_text(FILE.replace("most: 3", "most: 5"))
    other = made(folder)
    assert other.stages[:2] == first.stages[:2] and other.tasks != first.tasks
    (folder / "raw.jsonl").write_text("\n".join(ROWS[:1]) + "\n")
    assert made(folder).stages[0] != first.stages[0]


def test_a_changed_protocol_runs_decontamination_again(folder):
    (folder / "eval.jsonl").write_text('{"problem": "What is 77 + 1, all in all?"}\n')
    (folder / "c.yaml").write_text(FILE.replace("{kind: ExactDuplicates}", "{kind: Decontaminate, protocols: {e: eval.jsonl}}"))
    records = []
    made(folder, records.append)
    (folder / "eval.jsonl").write_text('{"problem": "What is 4 + 3?"}\n')
    made(folder, records.append)
    assert [dict(one.rejected) for one in records if one.kind == "Decontaminate"] == [{}, {"e: equal": 2}]


def test_the_set_is_read_only_and_a_changed_one_is_refused(folder):
    made(folder)
    file = folder / "out" / "tasks.jsonl"
    assert not file.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP)
    os.chmod(file, 0o644)
    file.write_text(file.read_text().replace("What", "Who"))
    with pytest.raises(TaskError, match="changed after curation"):
        read_task_set(folder / "out")


def test_a_record_whose_counts_do_not_close_cannot_be_made():
    with pytest.raises(RecordError, match="do not close"):
        CurationStage(number=1, kind="x", settings="", before="", after="", count_in=3, count_out=1, rejected={"y": 1}, added=0,
                      changed={}, notes={})


@pytest.mark.parametrize(("text", "words"), [
    ("schema: other/1\n", "no curation"), ("[1]", "no curation"), ("a: [", "readable YAML"),
    (FILE.replace("ExactDuplicates", "ExactDuplicate"), "names no stage"),
    (FILE.replace("most: 3", "most: 3, least: 1"), "unknown key"),
    (FILE.replace("most: 3", "most: x"), "integer"), (FILE.replace("raw.jsonl", "gone.jsonl"), "no such input file"),
    (FILE.replace("name: sums", "title: sums"), "title")])
def test_a_description_that_does_not_fit_is_refused_with_exit_code_2(folder, text, words):
    (folder / "c.yaml").write_text(text)
    result = CliRunner().invoke(main, ["curate", str(folder / "c.yaml"), "--out", str(folder / "out")])
    assert result.exit_code == 2 and words in result.output, result.output


def test_a_folder_of_another_curation_or_of_anything_else_is_left_alone(folder):
    made(folder)
    (folder / "c.yaml").write_text(FILE.replace("name: sums", "name: other"))
    with pytest.raises(TaskError, match="another curation"):
        made(folder)
    os.rename(folder / "out", folder / "kept")
    (folder / "out").mkdir()
    (folder / "out" / "mine.txt").write_text("x")
    with pytest.raises(TaskError, match="not empty"):
        made(folder)


def test_the_command_prints_every_stage_with_its_reasons(folder):
    result = CliRunner().invoke(main, ["curate", str(folder / "c.yaml"), "--out", str(folder / "out")])
    assert result.exit_code == 0, result.output
    assert "duplicate 1" in result.output and "not JSON 1" in result.output and "1 tasks (train 1)" in result.output
