"""A grader's answers are sampled from a real model, judged, and kept row by row: a killed grading does not begin anew."""

import json

from click.testing import CliRunner
from small_runs import small_recipe

from rollbook.cli import main
from rollbook.models.load import load_policy
from rollbook.models.weights import save_checkpoint
from rollbook.orchestration import curation
from rollbook.tasks.curation import Candidate, load_pipeline

FILE = """schema: rollbook.curation/1
name: graded
input: [raw.jsonl]
graders:
  small: {model: MODEL, max_tokens: 8, context: 256, system_prompt: ""}
stages:
  - {kind: Grade, grader: small, samples: 3}
  - {kind: PassRate, grader: small, low: 0, high: 0, of: 3}
"""


def test_answers_are_graded_kept_and_not_asked_for_again(tmp_path, monkeypatch):
    policy = load_policy(small_recipe().settings.model)
    save_checkpoint(tmp_path / "model", policy.decoder, policy.tokenizer)
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps({"problem": f"{n} + 1 =", "reference": str(n + 1)}) + "\n"
                                                for n in range(3)))
    (tmp_path / "c.yaml").write_text(FILE.replace("MODEL", str(tmp_path / "model")))
    result = CliRunner().invoke(main, ["curate", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "graded 3" in result.output and "3 tasks" in result.output
    [kept] = (tmp_path / "out" / "grades").iterdir()
    lines = kept.read_bytes().splitlines(keepends=True)
    assert len(lines) == 3
    kept.write_bytes(lines[0] + lines[1][:10])          # killed while it wrote the second row
    tools = curation.Tools(load_pipeline(tmp_path / "c.yaml"), tmp_path / "out")
    asked = []
    real = tools._answers
    monkeypatch.setattr(tools, "_answers", lambda settings, model, rows,
                        samples: asked.extend(rows) or real(settings, model, rows, samples))
    rows = list(curation_rows(tmp_path))
    again = tools.solve("small", rows, 3)
    assert [row.number for row in asked] == [2, 3]
    assert kept.read_bytes().splitlines(keepends=True) == lines and all(one["passed"] == [False] * 3 for one in again)


def curation_rows(folder):
    from collections import Counter

    from rollbook.tasks.curation import read_candidates
    return read_candidates([folder / "raw.jsonl"], Counter())


def test_a_grader_of_code_runs_the_tests_and_a_choice_is_held_against_its_letter(tmp_path):
    (tmp_path / "c.yaml").write_text(FILE.replace("MODEL", str(tmp_path / "model")))
    tools = curation.Tools(load_pipeline(tmp_path / "c.yaml"), tmp_path / "out")
    tests = [{"input": "3\n", "output": "6\n"}]
    code = Candidate(number=1, problem="Twice.", reference=None, kind="code", more={"tests": tests})
    choice = Candidate(number=2, problem="Which?", reference="b", kind="choice", more={"options": ["3", "4"]})
    try:
        graded = tools._graded(code, ["print(2 * int(input()))", "print(7)", None])
        assert graded["passed"] == [True, False, False]
        undecided = Candidate(number=3, problem="Twice.", reference=None, kind="code", more={"tests": [{"input": "3\n"}]})
        assert tools._graded(undecided, ["print(6)"])["passed"] == [None]
        assert tools._graded(choice, ["B", "A", None])["passed"] == [True, False, False]
        assert curation._stated(code, "So:\n```python\nprint(1)\n```") == "print(1)\n"
        assert curation._stated(code, "\\boxed{1}") is None
    finally:
        tools.close()
