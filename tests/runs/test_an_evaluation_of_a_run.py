"""A run's policies under a frozen protocol: through the command line, killed half way, compared, kept apart from training."""

import dataclasses
import json
import shutil

import pytest
from chat_endpoint import answer, serving
from click.testing import CliRunner
from forging import forge
from small_runs import Quiet, small_recipe
from starlette.testclient import TestClient

from rollbook.audit.passage import audit_run
from rollbook.audit.replay import weights_of
from rollbook.cli import main
from rollbook.evaluation import protocols
from rollbook.evaluation.heldout import tasks_hash
from rollbook.evaluation.protocols import ProtocolRefused
from rollbook.ledger import Ledger
from rollbook.orchestration import evaluating, grids
from rollbook.orchestration.apart import training_side
from rollbook.orchestration.run import run_recipe
from rollbook.orchestration.subjects import subject
from rollbook.records import Decontamination, EnvironmentProof, EvaluationResult, LedgerError, PolicyVersion, content_id
from rollbook.training.policy import PolicyLearner
from rollbook.view.app import Door, application
from rollbook.view.shown import held_runs

QUICK = ("stages.cold_start.steps=6", "stages.rl.steps=2", "stages.rl.filter=none", "stages.rl.optimizer.warmup_steps=0",
         "stages.rl.probe=0", "stages.rl.probe_every=0", "tasks.heldout=8", "reward.verify_workers=1")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("evaluated") / "run"
    assert run_recipe(small_recipe(*QUICK), out, Quiet()) == 0
    return out


@pytest.fixture(scope="module")
def file(run):
    told = said("protocol", "freeze", str(run), str(run.parent / "small.protocol.json"), "--trials", "2", "--aggregate", "pass@2")
    assert told.startswith(str(run.parent / "small.protocol.json: 8 tasks, 2 trials, pass@2"))
    return run.parent / "small.protocol.json"


def asked(policy):
    return subject(policy, rebuild=weights_of)


def client(*roots):
    return TestClient(application(held_runs(list(roots)), Door(token=None, hosts=None)))


def said(*arguments, code=0):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


@pytest.fixture(scope="module")
def folders(run, file):
    with pytest.MonkeyPatch.context() as m:
        m.setattr(evaluating, "ATTEMPTS", 4)
        evaluations(run, file)
    return run.parent / "start", run.parent / "cold_start"


def evaluations(run, file):
    for stage in ("start", "cold_start"):
        told = said("eval", str(file), "--policy", f"{run}:{stage}", "--out", str(run.parent / stage))
        assert "over 8 of 8 tasks" in told and "16 attempts" in told


def test_abilities_are_asked_before_and_after_a_stage_and_not_twice(run, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluating, "prove", lambda image, judge, *_: EnvironmentProof(
        environment=content_id(image), judge=judge.digest, trials=(), verdicts={}, unproved={}))        # seconds each
    again = tmp_path / "run"
    shutil.copytree(run, again)
    few = ("abilities", str(again), "--tasks", "4", "--max-tokens", "8", "--suite", "chat", "--suite", "tools",
           "--stage", "cold_start")
    told = said(*few)
    assert "chat  start  cold_start" in told and "not measured: tools (prompts and answers do not fit" in told
    assert "comparisons of what was trained" in told and "What was not trained" in (again / "report.html").read_text()
    asked_of = sorted((again / "abilities").glob("chat-*/*"))
    assert [folder.name for folder in asked_of] == ["cold_start", "start"]
    heads = [list(Ledger.open(folder, write=False).events())[-1].hash for folder in asked_of]
    said(*few)
    assert heads == [list(Ledger.open(folder, write=False).events())[-1].hash for folder in asked_of]
    assert "has this name" in said(*few[:-1], "nowhere", code=2)


def test_two_policies_of_a_run_are_compared_and_the_policy_is_named(folders):
    told = said("compare", *map(str, folders))
    assert told.startswith("changed: policy (") and "seconds of evaluation" in told
    made = json.loads(said("compare", *map(str, folders), "--json"))
    assert made["comparison"]["changed"]["name"] == "policy" and made["comparison"]["whole"]["gain"]["count"] == 8


def test_an_evaluation_that_was_stopped_goes_on_and_ends_with_the_same_result(run, file, folders, monkeypatch):
    bundle = protocols.load(file)
    monkeypatch.setattr(evaluating, "ATTEMPTS", 4)
    whole = next(iter(Ledger.open(folders[1], write=False).records(EvaluationResult)))
    real, parts = evaluating.Ledger.write_traces, []

    def dying(*arguments):
        parts.append(arguments[1])
        if len(parts) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(evaluating.Ledger, "write_traces", dying)
    with pytest.raises(KeyboardInterrupt):
        evaluating.evaluate_into(run.parent / "killed", bundle, asked(f"{run}:cold_start"), Quiet(), dtype="auto")
    monkeypatch.setattr(evaluating.Ledger, "write_traces", real)
    made = evaluating.evaluate_into(run.parent / "killed", bundle, asked(f"{run}:cold_start"), Quiet(), dtype="auto")
    assert (made.outcomes, made.spend, made.weights) == (whole.outcomes, whole.spend, whole.weights)
    ids = [[identity for event in Ledger.open(run.parent / name, write=False).events("TraceTable")
            for identity, _ in Ledger.open(run.parent / name, write=False).rows(event)] for name in ("cold_start", "killed")]
    assert ids[0] == ids[1] and len(ids[0]) == 16


def test_a_grid_is_stopped_goes_on_and_says_what_every_factor_does(run, file, folders, tmp_path, monkeypatch):
    proof = next(iter(Ledger.open(folders[0], write=False).records(EnvironmentProof)))
    monkeypatch.setattr(evaluating, "prove", lambda *given: proof)         # one proof of the verifier is enough
    (tmp_path / "grid.yaml").write_text(f"""
protocol: {file}
policies: {{start: "{run}:start", cold: "{run}:cold_start"}}
factors:
  budget: {{whole: {{}}, quarter: {{max_tokens: 16}}}}
  judge: {{as_frozen: {{}}, strict: {{reward.format_reward: 0}}}}
except: [{{budget: quarter, judge: strict}}, {{policy: start, budget: quarter}}, {{policy: start, judge: strict}}]
""")
    arguments = ("grid", str(tmp_path / "grid.yaml"), "--out", str(tmp_path / "out"))
    listed = said(*arguments, "--check")
    assert "4 cells of 8 tasks, 3 protocols" in listed and "policy cold, budget quarter, judge as_frozen" in listed
    assert not (tmp_path / "out").exists()
    real, made = grids.evaluate_into, []

    def stopping(folder, *given, **named):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(folder.name)
        return real(folder, *given, **named)

    monkeypatch.setattr(grids, "evaluate_into", stopping)
    assert "go on with the same command" in said(*arguments, code=130)
    assert "2 of 4 cells of the grid are not finished" in said("compare", str(tmp_path / "out"), code=1)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cells" / made[0]).rglob("*")
              if path.is_file() and path.name != ".lock"}
    made.clear()
    monkeypatch.setattr(grids, "evaluate_into", lambda folder, *given, **named: real(folder, *given, **named))
    told = said(*arguments)
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert "budget: whole, quarter (changes max_tokens)" in told
    assert "judge: as_frozen, strict (changes reward.format_reward)" in told
    shown = json.loads(said("compare", str(tmp_path / "out"), "--json"))
    assert {(one["factor"], one["contexts"]) for one in shown["effects"]} == {("policy", 1), ("budget", 1), ("judge", 1)}
    assert [one["gain"]["gain"]["estimate"] for one in shown["effects"] if one["factor"] == "judge"] == [0.0]   # the same answers
    assert any(note.startswith("left out on purpose") for note in shown["notes"])


def test_a_step_before_the_last_is_computed_again_and_evaluated(run, file, tmp_path):
    versions = [v for v in Ledger.open(run, write=False).records(PolicyVersion) if v.stage == "rl"]
    assert [asked(f"{run}:rl:{step}").weights for step in (1, 2)] == [one.weights for one in versions] and len(versions) == 2
    said("eval", str(file), "--policy", f"{run}:rl:1", "--out", str(tmp_path / "step"))
    assert next(iter(Ledger.open(tmp_path / "step", write=False).records(EvaluationResult))).weights == versions[0].weights


def test_a_step_whose_weights_do_not_come_out_again_is_refused(run, monkeypatch):
    real = PolicyLearner.update

    def otherwise(self, *given, **named):
        done = real(self, *given, **named)
        next(self.decoder.parameters()).data[0] += 1e-3
        return done

    monkeypatch.setattr(PolicyLearner, "update", otherwise)
    with pytest.raises(LedgerError, match="did not come out again"):
        asked(f"{run}:rl:1")


def test_a_finished_evaluation_is_not_made_again_and_a_folder_of_another_refuses(run, file, folders):
    before = list(Ledger.open(folders[0], write=False).records(EvaluationResult))
    assert "over 8 of 8 tasks" in said("eval", str(file), "--policy", f"{run}:start", "--out", str(folders[0]))
    assert list(Ledger.open(folders[0], write=False).records(EvaluationResult)) == before
    assert "policy differ" in said("eval", str(file), "--policy", str(run), "--out", str(folders[0]), code=2)


def test_an_evaluation_is_audited_like_a_run(folders):
    rows = {row.name: row.result for row in audit_run(folders[1]).rows}
    assert {rows[name] for name in ("normalisation", "environment", "request", "events", "reward", "admission",
                                    "publication")} == {"pass"}
    assert "fail" not in rows.values() and rows["splits"] == "not_applicable"


FORGED = {"value": lambda value: {**value, "estimate": value["estimate"] + 0.1, "high": 1.0},
          "outcomes": lambda held: {**held, min(held): 1.0 - held[min(held)]}, "unscored_attempts": lambda count: count + 1,
          "spend": lambda spend: {**spend, "tokens": 1}, "by_family": lambda held: {**held, "made up": 1.0},
          "weights": lambda weights: "f" * 64, "protocol": lambda name: name[:-1] + "0"}


@pytest.mark.parametrize("field", sorted(FORGED))
def test_a_result_that_its_trajectories_do_not_bear_out_fails_its_audit(folders, tmp_path, field):
    forged = forge(folders[1], tmp_path / "forged", lambda kind, body, number: body if kind != "EvaluationResult" else
                   {**body, field: FORGED[field](body[field])})
    row = next(row for row in audit_run(forged).rows if row.name == "evaluation")
    assert row.result == "fail" and row.record.startswith("EvaluationResult:")
    assert next(row for row in audit_run(folders[1]).rows if row.name == "evaluation").result == "pass"


def test_two_evaluations_are_compared_in_the_viewer_and_their_tasks_stand_beside_each_other(folders):
    held = client(*folders)
    page = held.get("/compare").text
    assert "start</bdi> → <bdi>cold_start" in page and "What changed: <bdi>policy</bdi>" in page
    tokens = held.get("/run/start").text
    assert "16 of 16 attempts are on record" in tokens and "No training step" not in tokens
    task = next(iter(next(iter(Ledger.open(folders[0], write=False).records(EvaluationResult))).outcomes))
    beside = held.get(f"/run/start/task?id={task}").text
    assert beside.count("<article") == 2 and "cold_start</bdi>" in beside
    trace = next(iter(held_runs([folders[0]]).values())).rows.row(0)["id"]
    assert 'class="t ' in held.get(f"/run/start/trajectory?id={trace}").text      # token by token: the tokenizer is on record


@pytest.mark.parametrize(("policy", "words"), [
    ("{run}:nowhere", "no finished stage"), ("{run}:cold_start:3", "published no policy after step 3"),
    ("{run}:rl:7", "give rl:1 to rl:2"),
    ("no/such/model/anywhere", "no model found"), ("{run}x:cold_start", "no run and no model"),
    ("http://127.0.0.1:1/v1", "does not say which models"), ("http://a@b/v1", "a host and a path")])
def test_a_policy_that_cannot_be_found_is_refused_with_the_reason(run, file, policy, words):
    assert words in said("eval", str(file), "--policy", policy.format(run=run), "--out", str(run.parent / "none"), code=2)
    assert not (run.parent / "none").exists()


def test_an_endpoint_is_evaluated_resumed_audited_compared_and_shown_with_what_it_does_not_show(run, file, folders, monkeypatch):
    monkeypatch.setattr(evaluating, "ATTEMPTS", 4)
    out, down = run.parent / "endpoint", []

    def reply(body, number):
        if down and number > 8:
            return 400, b"no\x1b[2J\x1b]0;owned\x07"
        return answer("<think>\nno\n</think>\n\\boxed{7}", read=20, sampled=9)

    down.append(True)
    with serving(reply) as (url, calls):
        told = said("eval", str(file), "--policy", url, "--workers", "1", "--out", str(out), code=2)
        assert "not one of 4 attempts was answered" in told and len(calls) == 12 and "\x1b" not in told
        down.clear()
        told = said("eval", str(file), "--policy", url, "--workers", "1", "--out", str(out))
    assert "the endpoint answered as m-2026, fingerprint fp1" in told and "144 tokens sampled, 320 read, 16 attempts" in told
    assert len(calls) == 12 + 8
    rows = {row.name: row for row in audit_run(out).rows}
    assert [name for name, row in rows.items() if row.result == "fail"] == [] and rows["evaluation"].result == "pass"
    assert "neither tokens nor log-probs" in rows["events"].evidence and rows["reward"].result == "pass"
    assert "things differ" in said("compare", str(folders[1]), str(out), code=1)
    assert "an endpoint does not show its engine" in said("compare", str(folders[1]), str(out), "--policy-as-one")
    page = client(out).get("/run/endpoint/trajectories").text
    assert "16 of 16 trajectories" in page and ">9<br>" in page
    trace = next(iter(held_runs([out]).values())).rows.row(0)["id"]
    assert "did not show its tokens" in client(out).get(f"/run/endpoint/trajectory?id={trace}").text


def test_a_policy_with_another_template_and_a_verifier_that_changed_are_refused(run, file):
    made = protocols.load(file)
    changed = {"template": "f" * 64, "verifier": "f" * 64}
    for name, value in changed.items():
        other = dataclasses.replace(made, protocol=dataclasses.replace(made.protocol, **{name: value}))
        with pytest.raises(ProtocolRefused, match=r"template|judges"):
            evaluating.evaluate_into(run.parent / name, other, asked(str(run)), Quiet(), dtype="auto")


def test_a_checkpoint_that_was_changed_after_the_run_is_not_evaluated(run, file, monkeypatch):
    chosen = asked(f"{run}:cold_start")
    next(iter(chosen.policy.decoder.parameters())).data[0] += 1.0
    with pytest.raises(LedgerError, match="not the policy that the run published"):
        evaluating.evaluate_into(run.parent / "changed", protocols.load(file), chosen, Quiet(), dtype="auto")


def test_a_policy_is_not_asked_what_its_run_trained_on(run, file, folders, tmp_path):
    apart = Ledger.open(folders[1], write=False).manifest["apart"]
    assert apart["found"] == 0 < apart["run_tasks"] and Ledger.open(folders[0], write=False).manifest.get("apart") is None
    side = training_side(run)
    made = protocols.load(file)
    known = dataclasses.replace(made.protocol, tasks=tasks_hash(side.tasks[:4]), task_count=4)
    raws = tuple(raw for raw in side.raws if content_id(raw) in {task.raw for task in side.tasks[:4]})
    protocols.write(protocols.Bundle(protocol=known, tasks=side.tasks[:4], raws=raws), tmp_path / "known.json")
    for policy in (f"{run}:cold_start", f"{run}:rl:1"):
        told = said("eval", str(tmp_path / "known.json"), "--policy", policy, "--out", str(tmp_path / "out"), code=2)
        assert "4 tasks that this run trained on stand in the protocol" in told and not (tmp_path / "out").exists()
    said("eval", str(tmp_path / "known.json"), "--policy", f"{run}:start", "--out", str(tmp_path / "start"))


def test_no_run_trains_on_the_tasks_of_a_registered_protocol(run, file, tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLBOOK_PROTOCOLS", str(tmp_path / "registry"))
    assert str(tmp_path / "registry") in said("protocol", "register", str(file))
    assert "pass@2" in said("protocol", "list") and '"rule": "pass"' in said("protocol", "show", str(file))
    with pytest.raises(ProtocolRefused, match="training tasks stand in registered"):
        run_recipe(small_recipe(*QUICK, "tasks.seed=3"), tmp_path / "contaminated", Quiet())
    assert not (tmp_path / "contaminated").exists()
    out = tmp_path / "again"
    monkeypatch.setattr("rollbook.orchestration.run._go", lambda *given: 0)
    assert run_recipe(small_recipe(*QUICK), out, Quiet()) == 0
    found = {one.protocol: one for one in Ledger.open(out, write=False).records(Decontamination)}
    assert set(found) == {"heldout", f"small/{protocols.load(file).id[:12]}"}
    assert next(iter(Ledger.open(out, write=False).records(PolicyVersion))).index == 0
    rows = {row.name: row.result for row in audit_run(out).rows}
    assert (rows["acquisition"], rows["normalisation"], rows["splits"]) == ("pass", "pass", "pass")
