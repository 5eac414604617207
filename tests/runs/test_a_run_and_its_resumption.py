"""A run leaves a whole chain; interrupted anywhere, it ends as if it had not been."""

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from small_runs import Quiet, small_recipe

from rollbook.ledger import Ledger
from rollbook.models.weights import weight_hash
from rollbook.orchestration import stages
from rollbook.orchestration.run import resume_run, run_recipe
from rollbook.records import (
    Batch,
    Census,
    Diverged,
    PolicyVersion,
    RunEnd,
    StageEnd,
    StepReport,
    Stopped,
    Trace,
    Update,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert run_recipe(small_recipe(), folder, Quiet()) == 0
    return folder


def ended(folder):
    with Ledger.open(folder, write=False) as ledger:
        assert ledger.verify().holds
        versions = list(ledger.records(PolicyVersion))
        return ledger.semantic_hash(), versions[-1].weights, [census.outcomes for census in ledger.records(Census)]


def test_a_run_writes_every_record_of_its_chain(whole):
    with Ledger.open(whole, write=False) as ledger:
        kinds = {event.kind for event in ledger.events()}
        updates, batches = list(ledger.records(Update)), {batch.id: batch for batch in ledger.records(Batch)}
        traces = {trace.id: trace for trace in ledger.records(Trace)}
    assert {"ResolvedRecipe", "SplitManifest", "EnvironmentImage", "SamplingEnvelope", "TraceTable", "Census", "Credit",
            "Batch", "Update", "PolicyVersion", "EvalReport", "Comparison", "GateDecision", "StageEnd", "RunEnd"} <= kinds
    for update in updates:
        assert sum(traces[name].action_count for name in batches[update.batch].traces) == batches[update.batch].action_tokens
    for before, after in pairwise(updates):
        assert before.weights_after == after.weights_before


def test_the_census_closes_over_every_step(whole):
    with Ledger.open(whole, write=False) as ledger:
        for census in ledger.records(Census):
            assert census.total == sum(sum(codes.values()) for codes in census.outcomes.values())


def test_the_checkpoint_is_the_published_policy_and_transformers_loads_it(whole):
    from transformers import AutoModelForCausalLM, AutoTokenizer
    model = AutoModelForCausalLM.from_pretrained(whole / "checkpoints" / "rl")
    tokenizer = AutoTokenizer.from_pretrained(whole / "checkpoints" / "rl")
    assert tokenizer.chat_template
    names = {name for name, _ in model.named_parameters()}
    with Ledger.open(whole, write=False) as ledger:
        last = list(ledger.records(PolicyVersion))[-1]
    assert weight_hash((n, p) for n, p in model.named_parameters() if n in names) == last.weights


def test_a_second_run_with_the_same_seed_is_the_same_run(whole, tmp_path):
    assert run_recipe(small_recipe(), tmp_path / "again", Quiet()) == 0
    assert ended(tmp_path / "again") == ended(whole)


def test_another_seed_is_another_run(whole, tmp_path):
    assert run_recipe(small_recipe("run.seed=2"), tmp_path / "other", Quiet()) == 0
    assert ended(tmp_path / "other")[1] != ended(whole)[1]


@pytest.mark.parametrize(("stage", "step"), [("rl", 1), *(pytest.param(*one, marks=pytest.mark.soak)
                                                          for one in (("cold_start", 3), ("rl", 3)))])
def test_a_run_stopped_at_a_boundary_and_resumed_ends_like_an_undisturbed_one(whole, tmp_path, monkeypatch, stage, step):
    progress = Quiet()
    sessions = []
    inner = stages.run_stage

    def remembering(session, *rest):
        sessions.append(session)
        inner(session, *rest)
    monkeypatch.setattr("rollbook.orchestration.run.run_stage", remembering)

    def stop_there(number, metrics):
        progress.steps.append((progress.steps[-1][0], number))
        if progress.steps[-1] == (stage, step):
            sessions[-1].stop = True
    progress.step = stop_there
    with pytest.raises(Stopped):
        run_recipe(small_recipe(), tmp_path / "run", progress)
    assert resume_run(tmp_path / "run", Quiet()) == 0
    assert ended(tmp_path / "run") == ended(whole)


@pytest.mark.parametrize("delay_s", [1.5, *(pytest.param(one, marks=pytest.mark.soak) for one in (0.4, 3.0))])
def test_a_run_killed_at_any_time_and_resumed_ends_like_an_undisturbed_one(whole, tmp_path, delay_s):
    folder = tmp_path / "run"
    code = ("import sys; from small_runs import *; from rollbook.orchestration.run import run_recipe; from pathlib import Path; "
            "run_recipe(small_recipe(), Path(sys.argv[1]), Quiet())")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), *sys.path))}
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)], env=environment)
    for _ in range(600):
        if (folder / "events").is_dir() and any((folder / "tables").glob("tasks*")):  # the recipe is on record by then
            break
        time.sleep(0.1)
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert resume_run(folder, Quiet()) == 0
    assert ended(folder) == ended(whole)


def test_a_finished_run_is_left_alone(whole):
    before = ended(whole)
    assert resume_run(whole, Quiet()) == 0
    assert ended(whole) == before


def test_a_diverged_step_keeps_its_batch_and_says_so(tmp_path, monkeypatch):
    from rollbook.training import policy as training
    real = training.evaluate

    def overflow(*arguments):
        terms, clipped = real(*arguments)
        terms[0].loss_T.data.fill_(float("nan"))
        return terms, clipped
    monkeypatch.setattr(training, "evaluate", overflow)
    with pytest.raises(Diverged) as caught:
        run_recipe(small_recipe(), tmp_path / "run", Quiet())
    assert "not finite" in str(caught.value)
    with Ledger.open(tmp_path / "run", write=False) as ledger:
        batch = next(iter(ledger.records(Batch)))
        assert ledger.get(batch.tensors)
        assert not list(ledger.records(Update))
        assert next(iter(ledger.records(RunEnd))).status == "diverged"
        assert {end.stage for end in ledger.records(StageEnd)} >= {"cold_start", "select"}


def test_a_step_report_names_only_catalogued_metrics(whole):
    with Ledger.open(whole, write=False) as ledger:
        reports = list(ledger.records(StepReport))
    assert len(reports) == 4
    assert all("reward/total_mean" in report.metrics for report in reports)
