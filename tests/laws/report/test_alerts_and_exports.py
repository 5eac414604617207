"""Every alert fires where its fault is planted and nowhere else; numbers are handed on as they were recorded."""

import dataclasses
import sys

import pytest
from inspected_run import begin, whole_run

from rollbook.records import EvalReport, Interval, PolicyVersion, StepReport
from rollbook.report.alerts import alerts
from rollbook.report.exports import inspect_log, mlflow, opentelemetry, tensorboard, trackio, wandb
from rollbook.report.exports.series import ExportRefused, handed
from rollbook.report.facts import Facts, Logged, read_facts

HEALTHY = {"policy/entropy_nats": 0.6, "update/kl_to_start_nats": 0.01, "rollout/length_mean": 40.0, "reward/total_mean": 0.3,
           "policy/mismatch_k3_nats": 1e-5, "admission/informative_rate": 0.5, "rollout/truncated_rate": 0.1}


def facts(series, *, reports=(), versions=()):
    """A run with these metrics step by step."""
    steps = [StepReport(stage="rl", step=at, policy=f"P{at - 1}", published=f"P{at}", census="Census:1", batches=(), updates=(),
                        metrics={**HEALTHY, **values}) for at, values in enumerate(series, start=1)]
    logged = {"StepReport": tuple(Logged(seq=at, id=f"StepReport:{at}", record=one) for at, one in enumerate(steps, start=1)),
              "EvalReport": tuple(Logged(seq=100 + at, id=f"EvalReport:{at}", record=one) for at, one in enumerate(reports)),
              "PolicyVersion": tuple(versions)}
    return Facts(ledger=None, logged=logged, events=0, began=None, seen=None, faults=())


PLANTED = {
    "entropy collapse": ("policy/entropy_nats", 0.1), "KL explosion": ("update/kl_to_start_nats", 5.0),
    "length drift": ("rollout/length_mean", 90.0), "engine mismatch growth": ("policy/mismatch_k3_nats", 0.01),
    "uniform groups": ("admission/informative_rate", 0.05)}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_fault_raises_its_alert_at_its_step_with_the_numbers(kind):
    name, value = PLANTED[kind]
    found = alerts(facts([{}] * 8 + [{name: value}] * 4))
    assert [one.kind for one in found] == [kind]
    wanted = 11 if kind == "uniform groups" else 9          # groups: three steps in a row
    assert found[0].step == wanted and found[0].record == f"StepReport:{wanted}" and found[0].evidence and found[0].rule


def test_a_healthy_run_a_short_one_and_one_that_measures_nothing_raise_none():
    assert alerts(facts([{}] * 30)) == () and alerts(facts([{"policy/entropy_nats": 0.01}])) == () and alerts(facts([])) == ()
    bare = facts([{}] * 12)
    steps = tuple(dataclasses.replace(one, record=dataclasses.replace(one.record, metrics={}))
                  for one in bare.logged["StepReport"])
    assert alerts(dataclasses.replace(bare, logged={**bare.logged, "StepReport": steps})) == ()


def test_noise_within_the_rules_raises_nothing():
    series = [{"policy/entropy_nats": 0.6 + 0.2 * (-1) ** at, "rollout/length_mean": 40 + 15 * (at % 3),
               "update/kl_to_start_nats": 0.01 * (1 + at % 4), "admission/informative_rate": 0.05 if at % 3 else 0.5}
              for at in range(60)]
    assert alerts(facts(series)) == ()


@pytest.mark.parametrize(("reward", "accuracy", "raised"), [(0.4, 0.2, True), (0.0, 0.2, False), (0.4, 0.55, False)])
def test_reward_that_rises_while_held_out_accuracy_falls_is_raised(reward, accuracy, raised):
    version = PolicyVersion(index=0, stage="rl", weights="w", published="w", parent=None, updates=1, optimizer=None, window=(),
                            healthy=True, acknowledged=(), probe=None)
    names = {f"P{at}": dataclasses.replace(version, index=at) for at in range(11)}
    before, after = (report(policy, value) for policy, value in (("P0", 0.5), ("P10", accuracy)))
    series = [{"reward/total_mean": 0.2 + reward * at / 10} for at in range(10)]
    held = facts(series, reports=(before, after),
                 versions=[Logged(seq=at, id=name, record=one) for at, (name, one) in enumerate(names.items())])
    assert [one.kind for one in alerts(held)] == (["reward-gold divergence"] if raised else [])


def report(policy, accuracy):
    value = Interval(estimate=accuracy, low=accuracy - 0.05, high=accuracy + 0.05, level=0.95, method="wilson", count=400)
    return EvalReport(protocol="P", stage="rl/probe/1", policy=policy, weights="w", accuracy=value, format_rate=1.0, unscored=0,
                      in_family=True, outcomes={}, by_family={}, mean_tokens=1.0)


def test_numbers_are_handed_on_with_their_steps_and_times(tmp_path):
    whole_run(tmp_path / "run")
    run = handed(tmp_path / "run")
    rewards = [(row.step, row.values["reward/total_mean"]) for row in run.rows if "reward/total_mean" in row.values]
    assert rewards == [(2, 0.5), (3, 0.5)] and run.status == "completed" and run.settings["recipe"] == "magistral-small"
    assert {row.stage for row in run.rows} == {"start_eval", "cold_start", "cold_eval", "rl", "rl/probe/000001", "final_eval"}
    assert [row.time_s for row in run.rows] == sorted(row.time_s for row in run.rows)
    assert [row.values["eval/probe_accuracy"] for row in run.rows if "eval/probe_accuracy" in row.values] == [0.5]


def test_a_run_without_a_number_is_refused_instead_of_drawn_as_zeros(tmp_path):
    begin(tmp_path / "run").ledger.close()
    with pytest.raises(ExportRefused, match="nothing to hand on"):
        handed(tmp_path / "run")
    with pytest.raises(ExportRefused, match="no finished evaluation"):
        inspect_log.write(tmp_path / "run", tmp_path / "out")


@pytest.mark.parametrize("tool", [tensorboard, mlflow, wandb, trackio, opentelemetry],
                         ids=lambda tool: tool.__name__.split(".")[-1])
def test_a_tool_that_is_not_installed_is_named(tmp_path, tool, monkeypatch):
    whole_run(tmp_path / "run")
    run = handed(tmp_path / "run")
    name = tool.__name__.rpartition(".")[2]
    for loaded in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ExportRefused, match="not installed"):
        tool.write(run, tmp_path / "out")


def test_facts_read_from_disk_raise_the_same_alerts(tmp_path):
    writer = begin(tmp_path / "run")
    for number in range(1, 4):
        writer.step(number)
    writer.ledger.close()
    assert alerts(read_facts(tmp_path / "run")) == ()
