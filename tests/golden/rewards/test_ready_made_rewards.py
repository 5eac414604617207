"""The papers' rewards on responses worked by hand."""

from __future__ import annotations

import math

import pytest
from answered import Told, task, trace

from rollbook.records import Scored, Unscored
from rollbook.records.composition import Decoupled
from rollbook.records.ready_made import NamedReward
from rollbook.rewards.composed import ComposedJudge
from rollbook.rewards.composed.measures import Sources

SEVEN = task()
RIGHT, WRONG = r"\boxed{7}", r"\boxed{8}"


def totals(named: NamedReward, answers, scorers=None, of=SEVEN):
    """The scalar of each (text, tokens), or the failure's code."""
    traces = [trace(text, of, tokens=tokens, sample=place) for place, (text, tokens) in enumerate(answers)]
    with ComposedJudge(named, Sources(scorers=scorers or {})) as judge:
        verdicts = judge.judge(traces, {of.id: of})
    return [verdict.vector.total if isinstance(verdict, Scored) else verdict.code for verdict in verdicts]


def named(composition, measures, numbers=None, **more):
    return NamedReward(composition=composition, measures=measures, numbers=numbers or {}, verify_seconds=5.0, verify_workers=1,
                       **more)


def test_dapo_pays_plus_or_minus_one_and_the_overlong_penalty():
    given = named("dapo", {"correctness": "math"}, {"length_max": 20, "length_cache": 4})
    assert totals(given, [(RIGHT, 16), (RIGHT, 18), (WRONG, 20), (WRONG, 25)]) == [1.0, 0.5, -2.0, -2.0]


def test_qwen25_math_puts_any_right_answer_above_any_wrong_one():
    given = named("qwen25_math", {"correctness": "choice", "preference": "model:rm"})
    found = totals(given, [("The answer is (B). -9", 1), ("The answer is (A). 9", 1)], {"model:rm": Told()}, task("B"))
    assert found == pytest.approx([1 / (1 + math.exp(4.5)), 1 / (1 + math.exp(-4.5)) - 1])
    assert found[0] > found[1]


def test_llama2_takes_the_safety_score_below_the_threshold_and_whitens_the_logits_of_all():
    given = named("llama2", {"safe": "model:safe", "helpful": "model:helpful"}, {"clamp": 0.0, "ddof": 0})

    class Safe(Told):
        def _one(self, text):
            return super()._one("0.1" if text.startswith("rude") else "0.9")

    found = totals(given, [("rude 0.8", 1), ("kind 0.5", 1)], {"model:safe": Safe("safe"), "model:helpful": Told("helpful")})
    assert found == pytest.approx([-1.0, 1.0])           # logit(.1) = -2.197 by the gate, logit(.5) = 0; whitened: -1 and 1


def test_instructgpt_shifts_the_score_so_that_demonstrations_average_zero():
    given = named("instructgpt", {"preference": "model:rm"}, {"demonstration_mean": 2.5})
    assert totals(given, [("x 3", 1), ("y 2", 1)], {"model:rm": Told()}) == [0.5, -0.5]


def test_kimi_k15_pays_short_right_answers_and_never_short_wrong_ones():
    given = named("kimi_k15", {"correctness": "math"}, {"weight": 1.0, "start_step": 0})
    assert totals(given, [(RIGHT, 10), (RIGHT, 30), (WRONG, 10), (WRONG, 30)]) == [1.5, 0.5, 0.0, -0.5]


def test_kimi_k15_waits_for_its_start_step():
    given = named("kimi_k15", {"correctness": "math"}, {"weight": 1.0, "start_step": 1})
    assert totals(given, [(RIGHT, 10), (RIGHT, 30)]) == [1.0, 1.0]


def test_muse_takes_its_share_of_the_thinking_time_from_right_answers():
    given = named("muse", {"correctness": "math"}, {"coefficient": 0.4, "free_tokens": 10, "full_tokens": 30, "only_right": True})
    assert totals(given, [(RIGHT, 10), (RIGHT, 20), (RIGHT, 99), (WRONG, 99)]) == pytest.approx([1.0, 0.8, 0.6, 0.0])


def test_rstar2_pays_correctness_alone():
    assert totals(named("rstar2", {"correctness": "math"}), [(RIGHT, 1), (WRONG, 9)]) == [1.0, 0.0]


def test_magistral_grades_nothing_behind_its_gate_and_pays_the_language():
    asked = task(prompt="Combien font quatre et trois, et pourquoi le pensez-vous ?")
    given = named("magistral", {"format": "magistral_format", "correctness": "math", "language": "language_consistency"},
                  {"length_max": 100, "length_cache": 10})
    french = "<think>Quatre et trois font toujours sept, comme chacun le sait depuis l'école.</think>"
    english = "<think>Four and three have always made seven, as everybody knows from school.</think>"
    found = totals(given, [(french + RIGHT, 5), (english + RIGHT, 5), (english + WRONG, 95), (RIGHT, 5)], of=asked)
    assert found == pytest.approx([1.1, 1.0, 0.1 - 0.05, 0.0])


def test_decoupled_normalisation_keeps_the_raw_parts_and_sums_the_normalised_ones():
    given = named("qwen25_math", {"correctness": "math", "preference": "model:rm"}, decoupled=Decoupled(eps=0.0, ddof=0))
    answers = [(RIGHT + " 0", 1), (WRONG + " 0", 1), (RIGHT + " 2", 1), (WRONG + " 2", 1)]
    assert totals(given, answers, {"model:rm": Told()}) == pytest.approx([0.0, -2.0, 2.0, 0.0])


def test_a_scorer_without_a_number_leaves_the_response_unscored_and_the_others_scored():
    given = named("instructgpt", {"preference": "model:rm"}, {"demonstration_mean": 0.0})
    assert totals(given, [("x 3", 1), ("nonsense", 1)], {"model:rm": Told()}) == [3.0, "malformed"]


def test_the_vector_says_what_a_gate_kept_from_being_computed():
    given = named("magistral", {"format": "magistral_format", "correctness": "math", "language": "language_consistency"},
                  {"length_max": 100, "length_cache": 10})
    with ComposedJudge(given) as judge:
        [verdict] = judge.judge([trace(RIGHT, SEVEN)], {SEVEN.id: SEVEN})
    assert isinstance(verdict, Scored) and not isinstance(verdict, Unscored)
    assert [(part.name, part.value) for part in verdict.vector.components] == [("format", 0.0)]
    assert {absent.name for absent in verdict.vector.absent} == {"correctness", "language_consistency", "length"}
    assert all("no_opening_tag" in absent.reason for absent in verdict.vector.absent)
    assert verdict.vector.accuracy == 0.0
