"""The verdict follows from the runs by the rule that was fixed before them, and from nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_experiment import definition, outcome, outcomes

from rollbook.evidence import reading
from rollbook.evidence.errors import EvidenceError
from rollbook.evidence.registry import Registry, builtin, read_folder
from rollbook.experiments.definition import Decision
from rollbook.experiments.queue import document
from rollbook.experiments.record import claims_text, keep, known_runs, run_id
from rollbook.experiments.verdict import decide, interquartile_mean, judge
from rollbook.records import Interval

HIGH = [[1.0] * 8 + [0.0] * 2] * 5
LOW = [[1.0] * 3 + [0.0] * 7] * 5


def interval(low: float, high: float) -> Interval:
    return Interval(estimate=(low + high) / 2, low=low, high=high, level=0.95, method="m", count=10)


@pytest.mark.parametrize(("expects", "low", "high", "word"), [
    ("lower", -0.3, -0.1, "confirmed"), ("lower", -0.05, 0.2, "not confirmed at this scale"),
    ("lower", -0.3, 0.1, "inconclusive"), ("lower", 0.1, 0.3, "not confirmed at this scale"),
    ("higher", 0.01, 0.3, "confirmed"), ("higher", -0.2, 0.05, "not confirmed at this scale"),
    ("higher", -0.2, 0.3, "inconclusive"), ("higher", -0.3, -0.1, "not confirmed at this scale"),
    ("same", -0.05, 0.05, "confirmed"), ("same", 0.02, 0.05, "confirmed"), ("same", 0.05, 0.3, "not confirmed at this scale"),
    ("same", -0.3, 0.05, "inconclusive"), ("lower", -0.1, 0.1, "inconclusive"), ("higher", 0.0, 0.3, "inconclusive"),
])
def test_the_word_follows_from_the_interval_and_the_margin(expects: str, low: float, high: float, word: str) -> None:
    rule = Decision(expects=expects, margin=0.1)  # type: ignore[arg-type]
    assert decide(rule, interval(low, high))[0] == word


def test_a_clear_loss_is_confirmed_where_a_loss_is_expected_and_not_where_a_gain_is() -> None:
    assert judge(definition(), outcomes(HIGH, LOW)).word == "confirmed"
    assert judge(definition("expects: lower", "expects: higher"), outcomes(HIGH, LOW)).word == "not confirmed at this scale"
    effect = judge(definition(), outcomes(HIGH, LOW)).effect
    assert effect is not None and effect.estimate == pytest.approx(-0.5)


def test_runs_that_do_not_differ_confirm_sameness_and_disprove_a_loss() -> None:
    assert judge(definition(), outcomes(HIGH, HIGH)).word == "not confirmed at this scale"
    assert judge(definition("expects: lower", "expects: same"), outcomes(HIGH, HIGH)).word == "confirmed"


def test_the_order_of_the_runs_changes_nothing() -> None:
    held = outcomes(HIGH, LOW)
    assert judge(definition(), held) == judge(definition(), held[::-1])


def test_levels_that_did_not_spend_alike_decide_nothing() -> None:
    verdict = judge(definition(), outcomes(HIGH, LOW, attempts=150.0))
    assert verdict.word == "inconclusive"
    assert "attempts one 100, two 150, more than 10% apart" in verdict.why


def test_a_run_that_diverged_decides_nothing_unless_its_score_was_fixed_before() -> None:
    held = [*outcomes(HIGH, HIGH)[:-1], outcome("two", 5, (), diverged=True)]
    verdict = judge(definition(), held)
    assert verdict.word == "inconclusive" and "two seed 5" in verdict.why and verdict.effect is None
    fixed = definition("margin: 0.1}", "margin: 0.1, if_diverged: 0.0}")
    every = [*outcomes(HIGH, HIGH)[:5], *(outcome("two", seed, (), diverged=True) for seed in range(1, 6))]
    verdict = judge(fixed, every)
    assert verdict.word == "confirmed" and verdict.levels["two"].diverged == (1, 2, 3, 4, 5)
    assert verdict.effect is not None and verdict.effect.estimate == pytest.approx(-0.8)


@pytest.mark.parametrize("count", [3, 5])
def test_what_diverged_runs_did_not_come_to_spend_does_not_make_the_levels_unlike(count: int) -> None:
    fixed = definition("margin: 0.1}", "margin: 0.1, if_diverged: 0.0}")
    gone = [outcome("two", seed, (), diverged=True, attempts=20.0) for seed in range(1, count + 1)]
    assert judge(fixed, [*outcomes(HIGH, LOW)[:5], *gone, *outcomes(HIGH, LOW)[5 + count:]]).word == "confirmed"


def test_a_missing_run_has_no_verdict() -> None:
    with pytest.raises(EvidenceError, match="1 runs missing: two seed 5"):
        judge(definition(), outcomes(HIGH, LOW)[:-1])


def test_each_level_reports_what_it_spent_and_its_interquartile_mean() -> None:
    level = judge(definition(), outcomes(HIGH, LOW)).levels["one"]
    assert level.spent == {"tokens generated": 100, "tokens trained": 100, "attempts": 100}
    assert level.iqm is not None and level.iqm.estimate == pytest.approx(0.8)


@pytest.mark.parametrize(("values", "mean"), [
    ([0, 1, 2, 3, 100], 2.0), ([1, 2, 3, 4], 2.5), ([5], 5.0), ([0, 0, 10, 10, 10, 90, 90, 90], 30.0),
])
def test_the_interquartile_mean_is_of_the_middle_half(values: list[float], mean: float) -> None:
    assert interquartile_mean(values) == pytest.approx(mean)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12), st.floats(-10, 10))
def test_the_interquartile_mean_moves_with_its_values_and_lies_among_them(values: list[float], by: float) -> None:
    assert interquartile_mean([one + by for one in values]) == pytest.approx(interquartile_mean(values) + by, abs=1e-6)
    assert min(values) - 1e-6 <= interquartile_mean(values) <= max(values) + 1e-6


def test_a_result_becomes_claims_that_are_read_and_name_a_run_that_exists(tmp_path) -> None:
    found, held = definition(), outcomes(HIGH, LOW)
    result = document(found, held, judge(found, held), "plan")
    (tmp_path / "claims").mkdir()
    file = keep(result, tmp_path / "results", tmp_path / "claims")
    problems: list[EvidenceError] = []
    laboratory = reading.read(file.read_text(encoding="utf-8"), file.name, problems)
    assert not problems, problems
    registry = Registry(laboratory.releases, laboratory.claims)
    verdict, effect = registry.claim("rollbook.small.verdict"), registry.claim("rollbook.small.effect")
    assert (verdict.label, verdict.value, effect.value, effect.unit) == ("R", "confirmed", -50.0, "points")
    assert "mistral.magistral.minibatch_limit" in str(verdict.note)
    registry.check_runs(known_runs(tmp_path / "results").__contains__)
    changed = {**result, "runs": [{**result["runs"][0], "run": "another"}, *result["runs"][1:]]}
    assert run_id(changed) != run_id(result)
    with pytest.raises(EvidenceError, match="not in the ledger"):
        registry.check_runs({run_id(changed)}.__contains__)


def test_results_of_two_experiments_stand_beside_each_other(tmp_path) -> None:
    results = []
    for name, treated in (("one", LOW), ("another-one", HIGH)):
        found, held = definition(), outcomes(HIGH, treated)
        results.append({**document(found, held, judge(found, held), "plan"), "name": name})
    (tmp_path / "rollbook.yaml").write_text(claims_text(results), encoding="utf-8")
    assert len(read_folder(tmp_path).ids) == 4              # a quantity that both name would contradict itself


def test_every_reproduced_claim_of_the_package_names_a_result_that_is_kept() -> None:
    builtin().check_runs(known_runs().__contains__)


def test_a_claim_that_does_not_come_out_is_reported_as_such() -> None:
    found, held = definition(), outcomes(HIGH, HIGH)
    text = claims_text([document(found, held, judge(found, held), "plan")])
    assert '"not confirmed at this scale"' in text
