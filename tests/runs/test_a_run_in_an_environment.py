"""A run whose tasks have an environment: it trains, its audit is clean, and what was shown or graded otherwise is found."""

import pytest
from click.testing import CliRunner
from small_runs import Quiet

from rollbook.audit.passage import audit_run
from rollbook.cli import main
from rollbook.ledger import Ledger
from rollbook.orchestration.run import run_recipe
from rollbook.recipes import load, resolve
from rollbook.records import EnvironmentSpec, Episode, RollbookError

SMALL = ("model.layers=2", "model.hidden=64", "model.heads=4", "model.kv_heads=2", "model.intermediate=96", "tasks.train=48",
         "tasks.heldout=8", "stages.cold_start.steps=12", "stages.cold_start.batch=8", "stages.cold_start.traces.direct=0.0",
         "stages.cold_start.optimizer.warmup_steps=2", "stages.rl.steps=1", "stages.rl.prompts=3", "stages.rl.per_task=2",
         "stages.rl.groups=2", "stages.rl.max_waves=1", "stages.rl.optimizer.warmup_steps=0", "stages.rl.probe=4",
         "run.threads=1")


def ran(out, *overrides):
    replaced = {one.split("=")[0] for one in overrides}
    recipe = resolve(load("tool-calculator"), "tiny", (*(one for one in SMALL if one.split("=")[0] not in replaced), *overrides))
    assert run_recipe(recipe, out, Quiet()) == 0
    return out


def failed(out):
    return {row.stage: row.evidence for row in audit_run(out).rows if row.result == "fail"}


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    return ran(tmp_path_factory.mktemp("environment") / "run", "environment.definition=patient:Instructed")


def test_its_audit_is_clean_and_its_episodes_play_again(clean):
    assert failed(clean) == {}
    rows = {row.stage: row for row in audit_run(clean, sample=8).rows}
    assert "episodes played again" in rows[4].evidence and "graded again" in rows[8].evidence


def test_its_traces_carry_their_episodes_and_the_spec_is_on_record(clean):
    with Ledger.open(clean) as ledger:
        spec = next(iter(ledger.records(EnvironmentSpec)))
        traces = [trace for event in ledger.events("TraceTable") for _, (trace, _, _) in ledger.rows(event)]
    assert traces and all(isinstance(trace.episode, Episode) and trace.episode.environment == spec.id for trace in traces)


@pytest.mark.parametrize(("setting", "words"), [
    ("tasks.system_prompt=hello", "system_prompt"),
    ("environment.compact_at=50", "compaction"), ("environment.turn_tokens=65", "turn_tokens"),
    ("environment.parameters.terms=two", "terms"), ("environment.definition=nowhere:Nothing", "nowhere")])
def test_what_cannot_run_is_refused_before_anything_is_written(tmp_path, setting, words):
    out = tmp_path / "run"
    with pytest.raises(RollbookError, match=words) as caught:
        ran(out, setting)
    assert not out.exists() and isinstance(caught.value, RollbookError)


def said(*arguments, code=0):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def test_its_episodes_are_asked_again_under_a_frozen_protocol_and_what_is_compared_is_the_policy(clean, tmp_path):
    file = tmp_path / "held.protocol.json"
    assert ": 8 tasks, 1 trial, mean" in said("protocol", "freeze", str(clean), str(file))
    for stage in ("start", "rl"):
        told = said("eval", str(file), "--policy", f"{clean}:{stage}", "--out", str(tmp_path / stage), "--dtype", "float32")
        assert "over 8 of 8 tasks" in told
    assert said("compare", str(tmp_path / "start"), str(tmp_path / "rl")).startswith("changed: policy (")
    with Ledger.open(clean) as ledger, Ledger.open(tmp_path / "rl") as held:
        spec = next(iter(ledger.records(EnvironmentSpec)))
        traces = [trace for trace, _, _ in held.read_traces()]
    assert all(trace.episode is not None and trace.episode.environment == spec.id for trace in traces) and len(traces) == 8
    assert failed(tmp_path / "rl") == {}
