"""The queue: a plan before the runs, every run once, an interruption anywhere, and what may not be changed.

The runs are stand-ins: folders that hold the records which a run of `rollbook` leaves.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from small_experiment import TEXT

from rollbook.cli import main
from rollbook.evidence.errors import EvidenceError
from rollbook.experiments import queue
from rollbook.experiments.definition import Definition, read
from rollbook.experiments.verdict import judge
from rollbook.ledger import Ledger
from rollbook.recipes import load, resolve
from rollbook.records import Batch, Census, EvalReport, Interval, RunEnd, StepReport
from rollbook.records.recipe import PolicyGradient

DEFINITION = read(TEXT, "small.yaml")
RATE = {1: 0.75, 2: 0.25}           # share of the eight held-out tasks solved, by minibatches


class Machine:
    """Stands where processes of `rollbook` stand: makes run folders, stops where it is told to, and remembers its calls."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.calls: list[Sequence[str]] = []
        self.stop_at = stop_at

    def __call__(self, words: Sequence[str], log: Path) -> int:
        self.calls.append(words)
        if words[0] == "resume":
            with Ledger.open(words[1]) as ledger:
                ledger.append(RunEnd(status="completed", detail=""))
            return 0
        out = Path(words[words.index("--out") + 1])
        sets = [words[index + 1] for index, word in enumerate(words) if word == "--set"]
        recipe = resolve(load(words[1]), words[words.index("--scale") + 1], sets)
        stage = recipe.settings.stages["rl"]
        assert isinstance(stage, PolicyGradient)
        right = int(8 * RATE[stage.minibatches])
        outcomes = {f"Task:{index}": float(index < right) for index in range(8)}
        with Ledger.create(out, {"made": "by a test"}) as ledger:
            ledger.append(recipe)
            ledger.append(Census(scope="rl/000001", issued={"sums": 8}, outcomes={"sums": {"accepted": 8}}, in_flight={}))
            ledger.append(Batch(scope="rl/000001/0", traces=(), tensors="0", objective={}, terms=(), plan=(), action_tokens=40,
                                groups=2, max_age=0, max_length=None, threads=1, deterministic=True, compute_dtype="float32"))
            ledger.append(StepReport(stage="rl", step=1, policy="p", published="p", census="c", batches=(), updates=(),
                                     metrics={"rollout/tokens": 50.0}))
            accuracy = Interval(estimate=right / 8, low=0.0, high=1.0, level=0.95, method="exact", count=8)
            ledger.append(EvalReport(protocol="p", stage="final_eval", policy="p", weights="w", accuracy=accuracy,
                                     format_rate=None, unscored=0, in_family=True, outcomes=outcomes, by_family={},
                                     mean_tokens=3.0))
            if len(self.calls) == self.stop_at:
                return 130
            ledger.append(RunEnd(status="completed", detail=""))
        return 0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an experiment that was limited to three runs, then stopped in its fifth, then finished."""
    out = tmp_path_factory.mktemp("experiment") / "small"
    queue.commit(out, DEFINITION)
    machine = Machine(stop_at=5)
    assert not queue.work(out, DEFINITION, machine, most=3, say=print)
    assert len(list(queue.finished(out, DEFINITION))) == 3
    with pytest.raises(EvidenceError, match="the run one-seed3 stopped, got exit code 130"):
        queue.work(out, DEFINITION, machine, say=print)
    assert len(list(queue.finished(out, DEFINITION))) == 4
    assert queue.work(out, DEFINITION, machine, say=print)
    assert [words[0] for words in machine.calls].count("resume") == 1 and len(machine.calls) == 11
    return out


def test_an_interrupted_queue_makes_every_run_once_and_ends_with_a_verdict(place: Path) -> None:
    outcomes = list(queue.finished(place, DEFINITION))
    assert [(one.level, one.seed) for one in outcomes] == list(DEFINITION.runs)
    assert len({one.run for one in outcomes}) == len(outcomes)
    assert outcomes[0].spent == {"tokens generated": 50.0, "tokens trained": 40.0, "attempts": 8.0}
    verdict = judge(DEFINITION, outcomes)
    assert verdict.word == "confirmed" and verdict.effect is not None and verdict.effect.estimate == pytest.approx(-0.5)


def test_the_command_shows_every_level_and_writes_result_and_claim(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(TEXT, encoding="utf-8")
    result = CliRunner().invoke(main, ["evidence", "rerun", str(file), "--out", str(place)])
    assert result.exit_code == 0, result.output
    for words in ("10 of 10 runs are over", "one  0.7500 (0.7500 to 0.7500), 5 seeds", "tokens trained 40", "attempts 8",
                  "two less one: -0.5000", "confirmed: the interval lies below zero"):
        assert words in result.output
    kept = json.loads((place / "result.json").read_text(encoding="utf-8"))
    assert len(kept["runs"]) == 10 and all(len(run["run"]) == 64 for run in kept["runs"])
    assert kept["plan"] == json.loads((place / "plan.json").read_text(encoding="utf-8"))["hash"]
    assert kept["left_out"] == ["more: a larger batch"]
    assert "label: R" in (place / "claim.yaml").read_text(encoding="utf-8")


def test_without_a_name_the_experiments_are_listed_with_what_they_take() -> None:
    listed = CliRunner().invoke(main, ["evidence", "rerun"]).output
    assert "minibatches: mistral.magistral.minibatch_limit" in listed and "20 runs, about 30 minutes" in listed


@pytest.mark.parametrize(("old", "new"), [("margin: 0.1", "margin: 0.2"), ("expects: lower", "expects: higher"),
                                          ("metric: final_eval", "metric: cold_eval"), ("end lower", "end higher"),
                                          ("seeds: [1, 2, 3, 4, 5]", "seeds: [1, 2, 3, 4, 6]")])
def test_nothing_of_a_plan_is_changed_once_it_is_committed(place: Path, old: str, new: str) -> None:
    changed: Definition = read(TEXT.replace(old, new), "small.yaml")
    with pytest.raises(EvidenceError, match="is another plan"):
        queue.commit(place, changed)


def test_runs_that_came_before_their_plan_decide_nothing(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "runs" / "one-seed1", tmp_path / "x" / "runs" / "one-seed1")
    with pytest.raises(EvidenceError, match="has runs and no plan"):
        queue.commit(tmp_path / "x", DEFINITION)


def test_a_run_of_another_recipe_in_a_planned_place_is_refused(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "runs" / "two-seed1", tmp_path / "runs" / "one-seed1")
    with pytest.raises(EvidenceError, match="is not the run that was planned"):
        list(queue.finished(tmp_path, DEFINITION))


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(main, ["evidence", "rerun", "minibatches", "--out", str(tmp_path / "file"), "--runs", "0"])
    assert result.exit_code == 2 and "the plan could not be written" in result.stderr
