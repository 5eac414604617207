"""The conditions under which verdicts are made again, and the processes that make them."""

import os
import socket
import subprocess
import sys
import time

import pytest

from rollbook.records import Budget, Message, Task
from rollbook.records.recipe import RewardSettings
from rollbook.rewards import MagistralJudge, RewardError
from rollbook.rewards import rescore as module
from rollbook.rewards.conditions import AHEAD_DAYS, CONDITIONS, VARIABLE
from rollbook.rewards.rescore import fingerprint, prompts_hash, proof_items, rescore

SETTINGS = RewardSettings(composition="magistral", format_reward=0.1, correct_reward=0.9, length_penalty=0.1, length_max=64,
                          length_cache=16, language_reward=None, verify_seconds=5.0, verify_workers=1)


def task(reference):
    return Task(raw="RawTask:1", family="f", prompt=(Message(role="user", content=f"{reference} =", origin="raw"),),
                reference=reference, canonical=reference, predicate="math.equivalent", initial_state="prompt", tools=(),
                budget=Budget(max_tokens=8), termination=("end_of_turn",))


TASKS = [task(str(number)) for number in range(4)]


def under(condition, program):
    """What a fresh interpreter prints under a condition."""
    code = f"from rollbook.rewards.conditions import apply\napply({condition!r})\n{program}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_clock_is_ahead_and_goes_on():
    ahead, moved = map(float, under("clock", "import time\na = time.time()\ntime.sleep(.05)\nprint(a, time.time() - a)").split())
    assert abs(ahead - time.time() - AHEAD_DAYS * 86400) < 3600
    assert 0.04 < moved < 60


def test_without_a_network_nothing_connects_and_no_name_is_found():
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    tries = ("import socket\n"
             "def tried(act):\n    try: act(); return 'open'\n    except OSError: return 'refused'\n"
             f"print(tried(lambda: socket.create_connection(('127.0.0.1', {port}), 2)), "
             f"tried(lambda: socket.socket().connect(('127.0.0.1', {port}))), "
             "tried(lambda: socket.getaddrinfo('127.0.0.1', 80)))")
    assert under("ordinary", tries).split() == ["open"] * 3
    assert under("network", tries).split() == ["refused"] * 3
    server.close()


def test_packages_come_from_nowhere():
    assert under("packages", "import os; print(os.environ['PIP_NO_INDEX'], os.environ['PYTHONNOUSERSITE'])") == "1 1"


def test_a_started_process_can_take_over_the_condition_of_its_parent():
    inherit = ("import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'from rollbook.rewards.conditions import "
               "apply_inherited; apply_inherited(); import time; print(time.time())'], capture_output=True, text=True).stdout)")
    assert float(under("clock", inherit)) > time.time() + (AHEAD_DAYS - 1) * 86400
    assert VARIABLE not in os.environ


def test_a_sound_judge_gives_the_same_verdicts_under_every_condition_and_here():
    items = proof_items(TASKS, 4)
    found = rescore(MagistralJudge, SETTINGS, items)
    with MagistralJudge(SETTINGS) as judge:
        mine = fingerprint(judge, items)
    assert set(found) == set(CONDITIONS)
    assert {one.verdicts for one in found.values()} == {one.again for one in found.values()} == {mine.verdicts}
    assert {one.symbolic for one in found.values()} != {None} and len({one.symbolic for one in found.values()}) == 1
    assert {(one.prompts, one.judge) for one in found.values()} == {(mine.prompts, mine.judge)}


def test_a_fingerprint_counts_its_verdicts_and_moves_with_texts_and_settings():
    items = proof_items(TASKS, 3)
    with MagistralJudge(SETTINGS) as judge:
        mine, fewer = fingerprint(judge, items), fingerprint(judge, items[:-1])
    assert mine.counts == {"right": 3, "wrong": 3, "gated": 3}
    assert fewer.verdicts != mine.verdicts
    assert prompts_hash([task for task, _ in items]) == mine.prompts != prompts_hash([task for task, _ in items[1:]])


def test_a_judge_that_cannot_be_made_or_does_not_end_is_refused(monkeypatch):
    broken = type("Broken", (), {"__module__": "rollbook.rewards", "__qualname__": "Missing"})
    with pytest.raises(RewardError, match="re-scoring failed"):
        rescore(broken, SETTINGS, proof_items(TASKS, 1))
    monkeypatch.setattr(module, "SECONDS", 0.01)
    with pytest.raises(RewardError, match="did not end"):
        rescore(MagistralJudge, SETTINGS, proof_items(TASKS, 1))
