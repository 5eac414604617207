"""The judge: one verdict per trace, in order; absent, zero and failed kept apart."""

import dataclasses
import subprocess
import sys

import pytest

from rollbook.records import Budget, Message, RewardVector, Scored, Segment, Task, Trace, Unscored, content_id, decode, encode
from rollbook.records.recipe import RewardSettings
from rollbook.rewards import MagistralJudge, RewardError

SLOW = r"\sum_{n=1}^{\infty}\frac{\sin(n^2)}{n^3+\ln n}"      # no verdict within the limit
SETTINGS = RewardSettings(composition="magistral", format_reward=0.1, correct_reward=0.9, length_penalty=0.1, length_max=64,
                          length_cache=16, language_reward=None, verify_seconds=1.0, verify_workers=1)


def task(reference: str = "61") -> Task:
    return Task(raw="RawTask:1", family="sums", prompt=(Message(role="user", content="23 + 38 ="),), reference=reference,
                canonical="sum:+23+38", predicate="math.equivalent", initial_state="prompt", tools=(),
                budget=Budget(max_tokens=64), termination=("end_of_turn", "length"))


def trace(text: str, *, of: Task, tokens: int = 20, stop: str = "end_of_turn") -> Trace:
    return Trace(attempt="a", task=of.id, group="g", envelope="e", text=text, stop_reason=stop, segments=(
        Segment(owner="user", token_ids=(1, 2, 3)),
        Segment(owner="policy", token_ids=(5,) * tokens, logps=(-0.1,) * tokens, version=0)))


@pytest.fixture(scope="module")
def judge():
    with MagistralJudge(SETTINGS) as made:
        yield made


def test_verdicts_come_in_the_order_of_the_traces_whatever_way_each_was_reached(judge):
    sums, empty, broken = task(), task(" "), task(r"\frac{\begin{")
    traces = [trace(r"<think></think>\boxed{60+1}", of=sums), trace(r"<think></think>\boxed{61}", of=sums),
              trace(rf"<think></think>\boxed{{{SLOW}}}", of=sums), trace(r"\boxed{61}", of=sums),
              trace(r"<think></think>\boxed{60+2}", of=sums), trace("", of=sums, stop="cancelled"),
              trace("", of=sums, stop="failed"),
              trace(r"<think></think>\boxed{1}", of=empty), trace(r"<think></think>\boxed{1}", of=broken)]
    verdicts = judge.judge(traces, {one.id: one for one in (sums, empty, broken)})
    assert [verdict.trace for verdict in verdicts] == [one.id for one in traces]
    shown = [v.vector.total if isinstance(v, Scored) else v.code for v in verdicts]
    assert shown == [1.0, 1.0, "timeout", 0.0, 0.1, "not_finished", "not_finished", "no_reference", "unparsable_reference"]


def test_a_trace_without_a_task_is_unscored_for_want_of_a_reference(judge):
    [verdict] = judge.judge([trace("", of=task())], {})
    assert isinstance(verdict, Unscored) and verdict.code == "no_reference"


def test_a_truncated_trace_is_judged_by_the_rules(judge):
    sums = task()
    cut, whole = judge.judge([trace("<think>23+30=53, 53+", of=sums, stop="length", tokens=64),
                              trace(r"<think></think>\boxed{61}", of=sums, stop="length", tokens=64)], {sums.id: sums})
    assert (cut.vector.total, cut.vector.accuracy, cut.vector.value("length")) == (0.0, 0.0, None)
    assert whole.vector.total == pytest.approx(0.9)


def test_length_counts_the_policys_own_tokens_only(judge):
    sums = task()
    [verdict] = judge.judge([trace(r"<think></think>\boxed{61}", of=sums, tokens=48)], {sums.id: sums})
    assert verdict.vector.value("length") == 0.0


def test_plain_numbers_need_no_worker_process():
    sums = task()
    made = MagistralJudge(SETTINGS)
    made.judge([trace(r"<think></think>\boxed{61}", of=sums), trace(r"<think></think>\boxed{1,061}", of=sums)], {sums.id: sums})
    assert made._pool._workers == []
    made.close()


def test_a_verdict_survives_the_codec(judge):
    sums = task()
    [verdict] = judge.judge([trace(r"<think></think>\boxed{61}", of=sums)], {sums.id: sums})
    assert decode(Scored, encode(verdict)) == verdict
    assert decode(RewardVector, encode(verdict.vector)) == verdict.vector


def test_equal_traces_have_equal_verdict_ids(judge):
    sums = task()
    one, other = judge.judge([trace(r"<think></think>\boxed{60+1}", of=sums)] * 2, {sums.id: sums})
    assert content_id(one) == content_id(other)


@pytest.mark.parametrize("change", [{"format_reward": 0.2}, {"correct_reward": 0.8}, {"length_penalty": 0.2}, {"length_max": 65},
                                    {"length_cache": 17}, {"verify_seconds": 2.0}])
def test_the_digest_changes_with_every_setting_that_can_change_a_verdict(judge, change):
    assert MagistralJudge(dataclasses.replace(SETTINGS, **change)).digest != judge.digest


def test_the_digest_does_not_change_with_the_number_of_workers(judge):
    assert MagistralJudge(dataclasses.replace(SETTINGS, verify_workers=7)).digest == judge.digest


@pytest.mark.parametrize("change", [{"language_reward": 0.1}, {"verify_seconds": 0.0}, {"verify_workers": 0}, {"length_cache": 0},
                                    {"length_penalty": -0.1}, {"correct_reward": -0.9}])
def test_settings_that_cannot_be_honoured_are_refused(change):
    with pytest.raises(RewardError):
        MagistralJudge(dataclasses.replace(SETTINGS, **change))


def test_rewards_and_tasks_import_without_heavy_packages():
    code = ("import sys, rollbook.rewards, rollbook.tasks, rollbook.environments; "
            "print([m for m in ('torch', 'transformers', 'sympy', 'math_verify', 'reasoning_gym') if m in sys.modules])")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
