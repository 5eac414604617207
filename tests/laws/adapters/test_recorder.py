"""A plain loop on the record: what it gave is there, what it did not give is absent, and its accidents have defined ends."""

from __future__ import annotations

import hashlib
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from plain_loop import ENVELOPE, RIGHT, TASKS, TWO, answered, begun, fill, rolled, trained
from safetensors.numpy import load

from rollbook.adapters import Recorder, RewardParts
from rollbook.audit.detector import Detector
from rollbook.audit.passage import audit_run, read
from rollbook.ledger import Ledger
from rollbook.records import (
    Census,
    Credit,
    HostCheckpoint,
    HostEvaluation,
    HostRun,
    HostTask,
    HostUpdate,
    LedgerError,
    NotExposed,
    Outcome,
    RecordError,
    RunEnd,
    Scored,
    Unscored,
)


def held(path, kind):
    return list(Ledger.open(path, write=False).records(kind))


def test_what_the_loop_gave_is_read_back(tmp_path) -> None:
    run = tmp_path / "run"
    with begun(run, settings={"beta": 0.1}) as recorder:
        attempts = trained(recorder, 1)
        recorder.evaluated("heldout", 1, {"accuracy": 0.25, "kl": math.nan, "cost": None})
        recorder.end()
    ledger = Ledger.open(run, write=False)
    assert ledger.verify().holds
    rows = list(ledger.read_traces())
    assert [trace.attempt for trace, _, _ in rows] == attempts and len({trace.group for trace, _, _ in rows}) == len(TASKS)
    assert [verdict.vector.total for _, verdict, _ in rows] == [0.0, 1.0] * 3
    assert held(run, HostTask) == TASKS and held(run, HostRun)[0].settings == {"beta": 0.1}
    assert held(run, Census)[0].outcomes == {"sums": {"accepted": 6}}
    update = held(run, HostUpdate)[0]
    assert update.traces == tuple(trace.id for trace, _, _ in rows) and update.loss == 0.5 and update.unmatched == 0
    assert held(run, HostEvaluation)[0] == HostEvaluation(name="heldout", index=1, metrics={"accuracy": 0.25}, not_finite=("kl",))
    assert held(run, RunEnd)[0].status == "completed"


def test_log_probs_that_were_not_given_are_not_exposed_and_given_ones_are_kept(tmp_path) -> None:
    with begun(tmp_path / "run") as recorder:
        rolled(recorder, 1)
        rolled(recorder, 2, logps=np.array([-0.1, -2.0], np.float32))
        rolled(recorder, 3, logps=[-0.5, math.nan])
    rows = list(Ledger.open(tmp_path / "run", write=False).read_traces())
    found = [trace.segments[1].logps for trace, _, _ in rows]
    assert found[0] == NotExposed() and found[6] == (float(np.float32(-0.1)), -2.0) and found[12] == NotExposed()
    assert rows[12][0].observed == {"logps/not_finite": 1.0} and rows[0][0].observed == {}


def test_a_completion_without_tokens_and_tokens_of_a_tool_are_what_they_are(tmp_path) -> None:
    with begun(tmp_path / "run") as recorder, recorder.rollouts("rl/000001", reward=RIGHT) as rollouts:
        empty, mixed = rollouts.issue(TASKS[:1], 2, None)
        rollouts.sampled([answered(empty, 0, token_ids=()),
                          answered(mixed, 1, token_ids=(7, 8, 9, 2), own=(True, False, False, True),
                                   logps=(-1.0, 0.0, 0.0, -2.0))])
    first, second = (trace for trace, _, _ in Ledger.open(tmp_path / "run", write=False).read_traces())
    assert first.segments[1].token_ids == () and first.segments[1].logps == () and first.envelope is None
    assert [(s.owner, s.token_ids, s.logps) for s in second.segments[1:]] == [
        ("policy", (7,), (-1.0,)), ("tool", (8, 9), None), ("policy", (2,), (-2.0,))]


def test_a_reward_that_is_missing_or_not_a_number_is_absent_and_never_zero(tmp_path) -> None:
    with begun(tmp_path / "run") as recorder, recorder.rollouts("rl/000001", reward=TWO) as rollouts:
        attempts = rollouts.issue(TASKS[:1], 4, ENVELOPE)
        rollouts.sampled(answered(attempt, place) for place, attempt in enumerate(attempts))
        rollouts.rewarded({attempts[0]: {"right": 1.0, "short": math.nan}, attempts[1]: {"right": None, "short": math.inf},
                           attempts[2]: None})
    part, none, silent, unasked = (verdict for _, verdict, _ in Ledger.open(tmp_path / "run", write=False).read_traces())
    assert isinstance(part, Scored) and part.vector.total == 1.0
    assert [(one.name, one.reason) for one in part.vector.absent] == [("short", "the host gave nan")]
    assert isinstance(none, Unscored) and none.detail == "right: the host gave none; short: the host gave inf"
    assert silent is None and unasked is None


def test_one_number_is_the_only_part_and_is_refused_for_a_reward_of_several() -> None:
    assert RIGHT.verdict("Trace:1", 0.5).vector.value("right") == 0.5
    with pytest.raises(RecordError, match="one number is given for a reward of several parts"):
        TWO.verdict("Trace:1", 0.5)
    with pytest.raises(RecordError, match="no part of its composition"):
        RIGHT.verdict("Trace:1", {"wrong": 0.5})
    with pytest.raises(RecordError, match="weight and a verifier"):
        RewardParts(name="x", weights={"a": 1.0}, verifiers={})


def test_advantages_stand_beside_the_tokens_that_they_were_given_to(tmp_path) -> None:
    with begun(tmp_path / "run") as recorder:
        attempts = rolled(recorder, 1)
        given = {attempt: [float(place)] if place % 2 else [0.25, 0.5] for place, attempt in enumerate(attempts)}
        recorder.update(1, trained=attempts[:3], numbers={}, advantages=given)
        with pytest.raises(RecordError, match="another number of advantages"):
            recorder.update(2, trained=attempts[:1], numbers={}, advantages={attempts[0]: [1.0, 2.0, 3.0]})
    update = held(tmp_path / "run", HostUpdate)[0]
    tensors = load(Ledger.open(tmp_path / "run", write=False).get(update.tensors))
    assert tensors["length"].tolist() == [2, 2, 2] and tensors["advantage"].tolist() == [0.25, 0.5, 1.0, 1.0, 0.25, 0.5]
    assert update.loss is None and update.grad_norm is None and update.metrics == {} and update.not_finite == ()


def test_a_number_that_is_not_finite_is_named_and_not_stored(tmp_path) -> None:
    with begun(tmp_path / "run") as recorder:
        recorder.update(1, trained=[], numbers={"loss": math.nan, "grad_norm": math.inf, "kl": 0.5, "entropy": None})
    update = held(tmp_path / "run", HostUpdate)[0]
    assert (update.loss, update.grad_norm, update.metrics, update.not_finite) == (None, None, {"kl": 0.5}, ("grad_norm", "loss"))


def test_every_issued_attempt_must_be_given_an_end(tmp_path) -> None:
    with begun(tmp_path / "run") as recorder:
        with pytest.raises(RecordError, match="5 attempts of rl/000001 were issued and have no end"), \
                recorder.rollouts("rl/000001", reward=RIGHT) as rollouts:
            attempts = rollouts.issue(TASKS, 2, ENVELOPE)
            rollouts.sampled([answered(attempts[0], 0)])
        with recorder.rollouts("rl/000002", reward=RIGHT) as rollouts:
            attempts = rollouts.issue(TASKS, 2, ENVELOPE)
            rollouts.sampled([answered(attempts[0], 0)])
            rollouts.dropped(attempts[1:], "timed_out")
        with pytest.raises(RecordError, match="was dropped and yet trained"), \
                recorder.rollouts("rl/000003", reward=RIGHT) as rollouts:
            attempts = fill(rollouts)
            rollouts.dropped(attempts[:1], "truncated")
            rollouts.commit()
            recorder.update(1, trained=attempts, numbers={})
    census = held(tmp_path / "run", Census)[0]
    assert census.outcomes == {"sums": {"accepted": 1, "timed_out": 5}}
    assert sum(outcome.code == "timed_out" for outcome in held(tmp_path / "run", Outcome)) == 5


def test_an_exception_in_the_loop_ends_its_attempts_as_failed(tmp_path) -> None:
    with begun(tmp_path / "run") as recorder, pytest.raises(ZeroDivisionError):
        with recorder.rollouts("rl/000001", reward=RIGHT) as rollouts:
            attempts = rollouts.issue(TASKS, 2, ENVELOPE)
            rollouts.sampled([answered(attempts[0], 0)])
            raise ZeroDivisionError
    assert {outcome.code for outcome in held(tmp_path / "run", Outcome)} == {"failed"}
    assert held(tmp_path / "run", Census)[0].count("failed") == 6


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from plain_loop import *
recorder = begun(sys.argv[1])
trained(recorder, 1)
rollouts = recorder.rollouts("rl/000002", reward=RIGHT)
attempts = rollouts.issue(TASKS, 2, ENVELOPE)
if sys.argv[3] == "committed":
    rollouts.sampled(answered(attempt, place) for place, attempt in enumerate(attempts))
    rollouts.rewarded({attempt: float(place % 2) for place, attempt in enumerate(attempts)})
    rollouts.commit()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("state", "standing"), [("issued", 6), ("committed", 12)])
def test_a_host_that_is_killed_in_a_step_leaves_a_readable_run_that_can_go_on(tmp_path, state: str, standing: int) -> None:
    run = tmp_path / "run"
    done = subprocess.run([sys.executable, "-c", KILLED, str(run), str(Path(__file__).parent), state], check=False,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == -signal.SIGKILL
    assert Ledger.open(run, write=False).verify().holds
    assert [row for row in audit_run(run).rows if row.result == "fail"] == []
    with Recorder.open(run) as recorder:
        assert recorder.index == 1
        assert len(list(recorder.ledger.read_traces())) == standing
        trained(recorder, 3)
        if state == "issued":
            rolled(recorder, 2)
    assert Ledger.open(run, write=False).verify().holds


def test_a_host_that_goes_back_to_an_earlier_state_makes_the_later_steps_void(tmp_path) -> None:
    with begun(tmp_path / "run") as recorder:
        for number in (1, 2, 3):
            trained(recorder, number)
            recorder.evaluated("probe", number, {"accuracy": 0.1 * number})
        recorder.end()
    with Recorder.open(tmp_path / "run", after=2) as recorder:
        assert recorder.index == 2
        with pytest.raises(RecordError, match="recorded once and in order"):
            recorder.update(2, trained=[], numbers={})
        trained(recorder, 3)
    assert [one.index for one in held(tmp_path / "run", HostUpdate)] == [1, 2, 3]
    assert [one.index for one in held(tmp_path / "run", HostEvaluation)] == [1, 2] and not held(tmp_path / "run", RunEnd)
    with Recorder.open(tmp_path / "run", after=0) as recorder:
        assert recorder.index == 0 and not list(recorder.ledger.read_traces())
        assert next(event.kind for event in recorder.ledger.events()) == "HostRun"


def test_steps_of_one_generation_are_void_one_by_one(tmp_path) -> None:
    with begun(tmp_path / "run") as recorder:
        attempts = rolled(recorder, 1)
        for number in (1, 2, 3):
            recorder.update(number, trained=attempts, numbers={"loss": float(number)})
    with Recorder.open(tmp_path / "run", after=1) as recorder:
        assert recorder.index == 1 and len(list(recorder.ledger.read_traces())) == 6
    assert [one.index for one in held(tmp_path / "run", HostUpdate)] == [1]


def test_two_processes_cannot_write_one_folder(tmp_path) -> None:
    with begun(tmp_path / "run") as recorder:
        rolled(recorder, 1)
        with pytest.raises(LedgerError, match="another process is writing this run"):
            Recorder.open(tmp_path / "run")
        with pytest.raises(LedgerError, match="already holds a run"):
            begun(tmp_path / "run")
        rolled(recorder, 2)
    assert Ledger.open(tmp_path / "run", write=False).verify().holds


def test_only_the_record_of_a_host_is_gone_on_with(tmp_path) -> None:
    Ledger.create(tmp_path / "other", {}).close()
    with pytest.raises(LedgerError, match="not the record of a host's run"):
        Recorder.open(tmp_path / "other")
    with Ledger.open(tmp_path / "other"):
        pass


def test_a_checkpoint_is_recorded_by_the_hashes_of_its_safetensors_and_nothing_of_its_place(tmp_path) -> None:
    folder = tmp_path / "home" / "someone" / "checkpoint-7"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("no weights")
    with begun(tmp_path / "run") as recorder:
        with pytest.raises(RecordError, match="no safetensors"):
            recorder.checkpoint(7, folder)
        (folder / "model.safetensors").write_bytes(b"weights")
        recorder.checkpoint(7, folder)
    weights = hashlib.sha256(b"weights").hexdigest()
    assert held(tmp_path / "run", HostCheckpoint) == [
        HostCheckpoint(index=7, folder="checkpoint-7", files={"model.safetensors": weights})]
    assert "someone" not in "".join(path.read_text() for path in (tmp_path / "run" / "events").iterdir())


def test_advantages_by_a_named_rule_become_a_credit_record(tmp_path) -> None:
    with begun(tmp_path / "run") as recorder, recorder.rollouts("rl/000001", reward=RIGHT) as rollouts:
        attempts = fill(rollouts)
        rollouts.credited({"kind": "GroupCentered"}, {attempt: place % 2 - 0.5 for place, attempt in enumerate(attempts)},
                          baseline="group mean", normalized_over="GroupCentered")
    credit = held(tmp_path / "run", Credit)[0]
    assert credit.reward == (0.0, 1.0) * 3 and credit.advantage == (-0.5, 0.5) * 3 and len(set(credit.group_of)) == 3




def test_the_audit_names_what_the_host_did_not_show_and_checks_the_rest(tmp_path) -> None:
    with begun(tmp_path / "run", unseen={"request": "my loop has no envelope"}, partly={"reward": "one part only"}) as recorder:
        trained(recorder, 1)
        recorder.end()
    rows = {row.name: row for row in audit_run(tmp_path / "run").rows}
    unseen = held(tmp_path / "run", HostRun)[0].unseen
    assert set(unseen) >= {"splits", "update", "publication", "events", "gate", "request"}
    for stage, why in unseen.items():
        assert rows[stage].result == "not_applicable" and rows[stage].evidence == f"my loop 1: {why}"
    assert rows["reward"].result == "pass" and "my loop 1: one part only" in rows["reward"].evidence
    assert [row for row in rows.values() if row.result == "fail"] == []


def test_a_detector_of_an_unseen_stage_is_shown_nothing(tmp_path) -> None:
    class Spy(Detector):
        stage, absent = 1, "nothing"

        def __init__(self, name):
            super().__init__()
            self.name, self.shown = name, []

        def record(self, run, identity, record):
            self.shown.append(record)

        def row(self, run, row):
            self.shown.append(row)

    with begun(tmp_path / "run") as recorder:
        trained(recorder, 1)
    spies = [Spy("gate"), Spy("reward")]
    index = read(Ledger.open(tmp_path / "run", write=False), spies)
    assert spies[0].shown == [] and len(spies[1].shown) > 6
    assert index.host.host == "my loop" and list(index.host_tasks.values()) == TASKS


def test_a_stage_that_no_chain_has_cannot_be_unseen(tmp_path) -> None:
    with pytest.raises(RecordError, match="no stage of the chain"):
        begun(tmp_path / "run", unseen={"weather": "rain"})
    with pytest.raises(RecordError, match="either unseen or seen in part"):
        HostRun(host="h", version="1", adapter="a", unseen={"gate": "x"}, partly={"gate": "y"}, settings={})


def test_no_environment_variable_reaches_the_record(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret_of_mine")
    with begun(tmp_path / "run") as recorder:
        trained(recorder, 1)
    stored = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert b"hf_secret_of_mine" not in stored and str(Path.home()).encode() not in stored


def test_recording_a_plain_loop_needs_no_torch() -> None:
    program = "import sys, rollbook.adapters; print([n for n in ('torch', 'transformers', 'trl') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
