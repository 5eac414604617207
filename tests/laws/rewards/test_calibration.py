"""Calibration of a scorer and the watch on its over-optimisation, on numbers worked by hand."""

from __future__ import annotations

import json
import math
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from rollbook.cli import main
from rollbook.orchestration.calibrating import Labelled, compared
from rollbook.rewards import RewardError
from rollbook.rewards.calibration import Compared, Moment, calibration, watch
from rollbook.rewards.judges import Preferred


def pair(margin, first_better=True, lengths=(10, 10), source="s"):
    return Compared(margin=margin, first_better=first_better, lengths=lengths, source=source)


def test_a_scorer_that_is_right_as_often_as_it_says_has_no_error_and_an_overconfident_one_has():
    three = math.log(3.0)                    # sigma = .75
    fair = [pair(three)] * 3 + [pair(three, False)]
    found = calibration(fair)
    assert found.accuracy == 0.75 and found.error == pytest.approx(0.0) and len(found.curve) == 1
    assert found.brier == pytest.approx(0.75 * 0.0625 + 0.25 * 0.5625)
    sure = calibration([pair(20.0)] * 3 + [pair(20.0, False)])
    assert sure.error == pytest.approx(0.25, abs=1e-6)


def test_a_pair_shown_the_other_way_round_changes_nothing():
    pairs = [pair(0.4, True, (9, 5)), pair(-1.2, True, (3, 8)), pair(0.0, False, (4, 4))]
    turned = [pair(-one.margin, not one.first_better, one.lengths[::-1]) for one in pairs]
    one, other = calibration(pairs), calibration(turned)
    assert (one.accuracy, one.by_source, one.longer_scored, one.longer_labelled) == (
        other.accuracy, other.by_source, other.longer_scored, other.longer_labelled)
    assert (one.brier, one.error) == pytest.approx((other.brier, other.error))


def test_a_taste_for_length_is_seen_beside_what_the_labels_prefer():
    pairs = [pair(1.0, True, (20, 10)), pair(1.0, False, (20, 10)), pair(-1.0, True, (10, 20)), pair(1.0, True, (5, 5))]
    found = calibration(pairs)
    assert (found.longer_scored, found.longer_labelled) == (1.0, pytest.approx(1 / 3))
    assert found.length_bias == pytest.approx(2 / 3)
    assert calibration([pair(1.0)]).length_bias is None


def test_accuracy_is_reported_per_source_with_its_interval():
    found = calibration([pair(1.0, source="a"), pair(1.0, False, source="a"), pair(1.0, source="b")])
    assert found.by_source["a"][:2] == (2, 0.5) and found.by_source["b"][:2] == (1, 1.0)
    assert found.by_source["a"][2] < 0.5 < found.by_source["a"][3]


def test_no_pairs_and_margins_that_are_no_numbers_are_refused():
    for pairs in ([], [pair(float("nan"))], [pair(math.inf)]):
        with pytest.raises(RewardError):
            calibration(pairs)


def moments(golds, proxies=None):
    return [Moment(step=n, kl_nats=float(n * n), proxy=(proxies or golds)[n] if proxies else float(n), gold=gold)
            for n, gold in enumerate(golds)]


def test_gold_that_falls_while_proxy_rises_is_over_optimisation_and_both_rising_is_not():
    found = watch(moments([0.0, 1.0, 2.0, 1.0, 0.0]), tolerance=0.5, window=1)
    assert found.over_optimised and found.peak.step == 2 and (found.gold_lost, found.proxy_won) == (2.0, 2.0)
    assert not watch(moments([0.0, 1.0, 2.0, 3.0]), tolerance=0.5, window=1).over_optimised
    assert not watch(moments([0.0, 2.0, 1.8]), tolerance=0.5, window=1).over_optimised
    assert not watch(moments([0.0, 2.0, 0.0], proxies=[0.0, 2.0, 0.0]), tolerance=0.5, window=1).over_optimised


def test_the_fit_recovers_the_curve_of_gold_over_the_root_of_the_kl():
    found = watch([Moment(step=n, kl_nats=float(n * n), proxy=float(n), gold=5.0 + n * (2.0 - 0.25 * n)) for n in range(6)],
                  tolerance=0.0, window=1)
    assert (found.alpha, found.beta) == (pytest.approx(2.0), pytest.approx(0.25))
    assert watch([Moment(step=n, kl_nats=0.0, proxy=0.0, gold=1.0) for n in range(3)], tolerance=0.0).alpha is None


def test_a_gold_that_has_nothing_to_lose_shows_nothing():
    rising = [0.0, 1.0, 2.0, 3.0]
    assert not watch(moments([0.0, 0.01, 0.0, 0.01], proxies=rising), tolerance=0.02).visible
    assert not watch(moments([0.5] * 4, proxies=rising), tolerance=0.02).visible
    assert watch(moments([0.5, 0.5, 0.6, 0.6], proxies=rising), tolerance=0.02).visible
    assert watch(moments([-0.5, -0.5, -0.6, -0.6], proxies=rising), tolerance=0.02).visible


def test_one_moment_is_no_watch():
    with pytest.raises(RewardError):
        watch(moments([1.0]), tolerance=0.1)


def test_the_command_reports_what_can_be_read_and_counts_the_rest(tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"margin": 0.7, "first_better": true, "lengths": [120, 80], "source": "maths"}\n'
                    '{"margin": "x", "first_better": true, "lengths": [1, 2]}\nnope\n[]\n')
    result = CliRunner().invoke(main, ["rewards", "calibration", str(file)])
    assert result.exit_code == 0, result.output
    assert "not JSON 1" in result.output and "not an object 1" in result.output and "margin must be a number 1" in result.output
    assert "1 pairs, accuracy 100.0%" in result.output and "maths: 100.0% of 1" in result.output
    file.write_text("nope\n")
    assert CliRunner().invoke(main, ["rewards", "calibration", str(file)]).exit_code != 0


def test_the_picture_of_a_calibration_holds_every_band_and_every_source_and_no_name_breaks_it(tmp_path):
    rows = [{"margin": margin, "first_better": better, "lengths": [3, 2], "source": source}
            for margin, better, source in ((2.0, True, "<maths> & more"), (0.1, False, ""), (-1.0, False, "code"))]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    command = ["rewards", "calibration", str(tmp_path / "pairs.jsonl"), "--svg"]
    result = CliRunner().invoke(main, [*command, str(tmp_path / "curve.svg")])
    assert result.exit_code == 0, result.output
    drawn = ElementTree.parse(tmp_path / "curve.svg").getroot()
    said = [node.text for node in drawn.iter() if node.text]
    assert sum("says" in text for text in said) == 3
    assert {"<maths> & more", "no source", "code"} <= set(said)
    assert CliRunner().invoke(main, [*command, str(tmp_path / "nowhere" / "curve.svg")]).exit_code == 2


def test_a_judge_whose_two_orders_cancel_out_is_half_right_also_where_the_mean_is_rounded():
    row = Labelled(task="5 + 5", one="10", other="11", better="one")
    rounded = Preferred(one_first=0.7310585786300049, one_second=0.2689414213699951, probability=0.49999999999999994)
    assert calibration([compared(row, rounded)]).accuracy == 0.5
