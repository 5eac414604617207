"""Rows as they come, functions that raise, and what a stamp depends on."""

import json
import os
from pathlib import Path

import pytest

from rollbook.rewards import Failure, RewardError
from rollbook.rewards.verifiers import Judged, Row, Verifier, VerifierSpec, judge_rows, read_rows
from rollbook.rewards.verifiers.base import judged
from rollbook.rewards.verifiers.text import EXACT, PATTERN


@pytest.fixture
def fake_path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))


def lines(file, *rows):
    file.write_bytes(b"\n".join(row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows) + b"\n")
    return file


def test_a_broken_row_is_counted_by_its_reason_and_the_rest_is_judged(tmp_path):
    file = lines(tmp_path / "rows.jsonl", {"response": "a", "reference": "a"}, b"{", b"\xff\xfe not text", {"response": "b"},
                 {"reference": "a"}, {"response": 7, "reference": "a"}, b"[]", {"response": "b", "reference": "a"},
                 {"response": "a", "reference": " "}, {"response": "a", "reference": None}, b"",
                 {"response": "a", "reference": 3},
                 {"response": "half \ud83d", "reference": "a"})
    with Verifier(EXACT) as verifier:
        report = judge_rows(verifier, read_rows(file))
    assert report.counts == {"passed": 1, "refused": 1, "malformed": 6, "no_reference": 3, "unparsable_reference": 1}
    assert report.reasons["malformed: no JSON"] == 1
    assert report.reasons["malformed: not UTF-8: invalid start byte"] == 1
    assert sum(report.counts.values()) == len(report.judgements) == 12
    assert report.pass_rate == 0.5


def test_a_row_in_another_encoding_spoils_no_other_row(tmp_path):
    latin = '{"response": "caf\u00e9", "reference": "caf\u00e9"}'.encode("latin-1")
    file = lines(tmp_path / "rows.jsonl", {"response": "café", "reference": "café"}, latin,
                 {"response": "café", "reference": "cafe\u0301"})
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    with Verifier(EXACT) as verifier:
        report = judge_rows(verifier, read_rows(file))
    assert report.counts == {"passed": 2, "malformed": 1}


def test_no_judged_row_means_no_rate_and_not_zero(tmp_path):
    with Verifier(EXACT) as verifier:
        report = judge_rows(verifier, read_rows(lines(tmp_path / "rows.jsonl", b"{")))
    assert report.pass_rate is None


def test_a_reward_function_that_raises_fails_for_its_row_alone(fake_path):
    spec = VerifierSpec(name="picky", version="1", work="verifier_work:picky", sources=())
    rows = [Row(number=1, response="a", reference="a"), Row(number=2, response="bad", reference="a"),
            Row(number=3, response="b", reference="a")]
    with Verifier(spec) as verifier:
        report = judge_rows(verifier, rows)
    assert report.counts == {"passed": 1, "refused": 1, "crash": 1}
    assert report.reasons == {"crash: ValueError: a bad response": 1}


@pytest.mark.parametrize("work", ["nonsense", "beyond"])
def test_a_reward_function_that_returns_no_verdict_is_a_crash_and_no_zero(fake_path, work):
    with Verifier(VerifierSpec(name=work, version="1", work=f"verifier_work:{work}", sources=())) as verifier:
        [found] = verifier.judge([("a", "a")])
    assert isinstance(found, Failure) and found.code == "crash"


@pytest.mark.parametrize("found",
                         [None, 1, "yes", {}, {"passed": 1}, {"passed": True, "score": -0.1},
                          {"passed": True, "score": float("nan")},
                                   {"passed": True, "score": True}])
def test_only_a_verdict_is_a_verdict(found):
    assert isinstance(judged(found), Failure)
    assert judged(True) == Judged(passed=True, score=1.0, detail="")
    assert judged({"passed": False, "score": 0.25, "detail": "x"}) == Judged(passed=False, score=0.25, detail="x")


def test_a_stamp_changes_with_settings_limits_and_code_and_with_nothing_else():
    assert EXACT.stamp() == EXACT.stamp()
    changed = [EXACT.with_settings(ignore_case=True), PATTERN,
               *(VerifierSpec(**{"name": "exact", "version": "1", "work": EXACT.work, "sources": EXACT.sources,
                                 "settings": EXACT.settings} | change)
                 for change in ({"seconds": 3.0}, {"memory_bytes": 10 ** 9}, {"version": "2"}, {"sources": ()}, {"work": "a:b"},
                                {"packages": ("sympy",)}))]
    digests = {spec.stamp().digest for spec in changed}
    assert len(digests) == len(changed) and EXACT.stamp().digest not in digests


def test_a_setting_that_a_verifier_does_not_have_is_an_error():
    with pytest.raises(RewardError, match="no such setting"):
        EXACT.with_settings(ignore_spelling=True)


def test_what_comes_out_of_order_goes_back_in_order():
    with Verifier(EXACT, workers=2) as verifier:
        found = verifier.judge([("a", "a"), (None, "a"), ("b", "a"), ("a", ""), ("a", "a")])
    outcomes = [one.passed if isinstance(one, Judged) else one.code for one in found]
    assert outcomes == [True, "malformed", False, "no_reference", True]
