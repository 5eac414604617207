"""Generators and verifiers killed at random instants, twenty times: the run ends, its census closes, nothing is trained twice."""

import os
import random
import signal
import threading
import time

import psutil
import pytest
from small_runs import Quiet, small_recipe

from rollbook.audit.passage import audit_run
from rollbook.ledger import Ledger
from rollbook.orchestration.run import run_recipe
from rollbook.records import Batch, Outcome

KILLS = 20
SHORT = ("stages.cold_start.steps=45", "tasks.heldout=8", "stages.select.candidates=8", "stages.rl.steps=120",
         "stages.rl.max_waves=40", "stages.rl.max_policy_age=2", "stages.rl.probe_every=0", "stages.rl.checkpoint_every=10",
         "stages.rl.optimizer.learning_rate=1e-5")


def workers(marks):
    """Processes below this one that generate or verify."""
    found = []
    for one in psutil.Process().children(recursive=True):
        try:
            line = " ".join(one.cmdline())
        except psutil.Error:
            continue
        if any(mark in line for mark in marks):
            found.append(one)
    return found


def killer(marks, stop, killed, seed):
    chance = random.Random(seed)
    while not stop.is_set() and len(killed) < KILLS:
        time.sleep(chance.uniform(0.5, 6.0))
        victims = workers(marks)
        if victims:
            victim = chance.choice(victims)
            try:
                os.kill(victim.pid, signal.SIGKILL)
                killed.append(victim.pid)
            except ProcessLookupError:
                pass


@pytest.mark.soak
@pytest.mark.parametrize(("runtime", "marks"), [("processes", ("spawn_main", "rewards.worker")),
                                                ("ray", ("ray::_Actor", "rewards.worker"))])
def test_killed_workers_lose_nothing_and_double_nothing(tmp_path, runtime, marks):
    pytest.importorskip("ray" if runtime == "ray" else "psutil")
    how = (f"{{throttle: {{kind: AReaLCode, eta: 2}}, concurrency: 16, on_update: keep, late: wait, queue: 8, stall_s: 240, "
           f"runtime: {runtime}, generators: 2}}")
    stop, killed = threading.Event(), []
    thread = threading.Thread(target=killer, args=(marks, stop, killed, 7), daemon=True)
    thread.start()
    try:
        assert run_recipe(small_recipe(*SHORT, f"stages.rl.asynchrony={how}"), tmp_path / "run", Quiet()) == 0
    finally:
        stop.set()
        thread.join()
    print(f"{runtime}: {len(killed)} workers killed")
    assert len(killed) == KILLS, "the run ended before every kill: give it more steps"
    assert [(row.stage, row.evidence) for row in audit_run(tmp_path / "run").rows if row.result == "fail"] == []
    with Ledger.open(tmp_path / "run", write=False) as ledger:
        trained = [trace for batch in ledger.records(Batch) if batch.scope.startswith("rl/") for trace in batch.traces]
        ended = [outcome.attempt for outcome in ledger.records(Outcome) if not outcome.attempt.startswith("eval/")]  # asked of 3
    assert len(trained) == len(set(trained))
    assert len(ended) == len(set(ended))
