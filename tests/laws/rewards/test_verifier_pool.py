"""The hard limit: work is killed, a failure is not a wrong answer, and nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from rollbook.records import Unscored, VerifierStamp, canonical, decode, encode
from rollbook.rewards import Failure, RewardError, VerifierPool

SLOW = (r"\sum_{n=1}^{\infty}\frac{\sin(n^2)}{n^3+\ln n}", "5")      # the algebra system looks for a closed form for minutes
HERE = str(Path(__file__).parent)


@pytest.fixture(scope="module")
def pool():
    with_pool = VerifierPool(workers=1, seconds=1.0)
    yield with_pool
    with_pool.close()


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


def gone(pids: list[int], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(map(alive, pids))


def pids(pool: VerifierPool) -> list[int]:
    return [worker.process.pid for worker in pool._workers]


def test_a_comparison_beyond_the_limit_is_killed_and_the_next_one_is_answered(pool):
    pool.verify([("60+1", "61")])
    first = pids(pool)
    outcomes = pool.verify([SLOW, ("60+1", "61"), ("60+2", "61")])
    assert outcomes[0] == Failure(code="timeout", detail="killed after 1.0 s")
    assert outcomes[1:] == [True, False]
    assert gone(first)


def test_a_reference_that_cannot_be_read_is_a_failure_of_its_own_kind(pool):
    outcome = pool.verify([("3", r"\frac{\begin{")])[0]
    assert isinstance(outcome, Failure) and outcome.code == "unparsable_reference"


def test_equal_pairs_are_compared_once_and_answered_each(pool):
    assert pool.verify([("60+1", "61")] * 3) == [True] * 3


def test_a_pool_works_off_the_main_thread(pool):
    found = []
    thread = threading.Thread(target=lambda: found.extend(pool.verify([("x+x", "2x"), ("x+1", "2x")])))
    thread.start()
    thread.join()
    assert found == [True, False]


@pytest.mark.parametrize("answer", [
    "__import__('os').system('touch {path}')", "().__class__.__mro__.__len__()",
    "open('{path}','w')", "exec(\"open('{path}','w')\")",
    r"\text{{__import__('os').system('touch {path}')}}",
])
def test_an_answer_is_never_run_as_python(pool, tmp_path, answer):
    path = tmp_path / "ran"
    assert pool.verify([(answer.format(path=path), "0")]) == [False]
    assert not path.exists()


def test_a_megabyte_of_answer_is_bounded(pool):
    outcomes = pool.verify([("1+" * 500_000 + "1", "500001"), ("(" * 3000 + "1" + ")" * 3000, "2")])
    assert outcomes[0] is False
    assert outcomes[1] is False or isinstance(outcomes[1], Failure)
    assert pool.verify([("60+1", "61")]) == [True]


def test_a_worker_that_dies_at_work_is_a_crash_and_not_a_wrong_answer(pool):
    pool.verify([("60+1", "61")])
    [worker] = pids(pool)
    threading.Timer(0.3, os.kill, (worker, signal.SIGSEGV)).start()
    [outcome] = pool.verify([SLOW])
    assert isinstance(outcome, Failure) and outcome.code == "crash"
    assert pool.verify([("60+1", "61")]) == [True]


def test_a_worker_that_dies_while_idle_is_replaced(pool):
    pool.verify([("60+1", "61")])
    [worker] = pids(pool)
    os.kill(worker, signal.SIGKILL)
    assert gone([worker])
    assert pool.verify([("60+1", "61")]) == [True]


def test_a_worker_that_dies_before_it_took_the_comparison_does_not_make_it_a_crash(pool):
    pool.verify([("60+1", "61")])
    for _ in range(5):
        [worker] = pids(pool)
        os.kill(worker, signal.SIGKILL)  # not waited for: the pool may still find it alive
        assert pool.verify([("60+1", "61")]) == [True]


@pytest.fixture
def fake_work(monkeypatch):
    """Pools of functions from pool_work, closed at the end."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")]))
    made = []

    def pool_of(name, **limits):
        made.append(VerifierPool(**{"workers": 1, "seconds": 1.0, "work": f"pool_work:{name}"} | limits))
        return made[-1]

    yield pool_of
    for one in made:
        one.close()


def starting(monkeypatch, code):
    """The first `code[0]` workers run this instead, then real ones start; how often one was started."""
    count, program = code
    started, real = [], subprocess.Popen

    def popen(command, **how):
        started.append(command)
        return real([sys.executable, "-c", program] if len(started) <= count else command, **how)
    monkeypatch.setattr("rollbook.rewards.pool.subprocess.Popen", popen)
    return started


def test_a_worker_that_is_killed_while_it_starts_is_started_again(monkeypatch):
    started = starting(monkeypatch, (2, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    with_pool = VerifierPool(workers=1, seconds=5.0)
    assert with_pool.verify([("60+1", "61")]) == [True]
    assert len(started) == 3
    with_pool.close()


def test_workers_that_are_always_killed_while_they_start_or_end_by_themselves_are_refused(monkeypatch):
    for program, count, says in (("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 5, "a signal ended 5 in a row"),
                                 ("raise SystemExit(3)", 1, "first imports failed")):
        with monkeypatch.context() as patch:
            started = starting(patch, (99, program))
            with_pool = VerifierPool(workers=1, seconds=5.0)
            with pytest.raises(RewardError, match="did not start") as caught:
                with_pool.verify([("60+1", "61")])
            assert says in str(caught.value) and len(started) == count
            with_pool.close()


def test_memory_beyond_the_limit_is_a_failure_of_its_own_kind(fake_work):
    small = fake_work("hog", seconds=20.0, memory_bytes=400 * 1024**2)
    [outcome] = small.run([(4000,)])
    assert isinstance(outcome, Failure) and outcome.code in ("out_of_memory", "crash")
    assert small.run([(2,)]) == [2]


def test_a_pool_calls_whatever_function_it_is_given_and_returns_what_that_returns(fake_work):
    assert fake_work("echo").run([({"a": [1, None]},), ("x",), ("x",)]) == [{"a": [1, None]}, "x", "x"]


def test_a_function_that_never_gives_the_interpreter_back_is_killed(fake_work):
    assert fake_work("spin").run([(60,), (3,)]) == [Failure(code="timeout", detail="killed after 1.0 s"), False]


def test_a_function_that_raises_is_a_failure_with_its_reason_and_the_rest_goes_on(fake_work):
    one, other = fake_work("fail").run([("first",), ("second",)])
    assert (one.code, one.detail) == ("crash", "ValueError: first")
    assert (other.code, other.detail) == ("crash", "ValueError: second")


def test_an_exception_that_says_which_failure_it_is_becomes_that_failure(fake_work):
    assert fake_work("refuse").run([("no_reference",)]) == [Failure(code="no_reference", detail="nothing to compare with")]


@pytest.mark.parametrize("name", ["crash", "leave", "unspeakable"])
def test_a_function_that_ends_its_process_or_says_the_unspeakable_is_a_crash(fake_work, name):
    [outcome] = fake_work(name).run([()])
    assert isinstance(outcome, Failure) and outcome.code == "crash"


def test_a_closed_pool_has_no_processes_and_refuses_work():
    pool = VerifierPool(workers=2, seconds=1.0)
    pool.verify([("60+1", "61"), ("60+2", "61")])
    workers = pids(pool)
    assert len(workers) == 2
    pool.close()
    assert gone(workers, 2.0)
    with pytest.raises(RewardError, match="closed"):
        pool.verify([("1+1", "2")])


def test_a_forgotten_pool_leaves_no_process():
    pool = VerifierPool(workers=1, seconds=1.0)
    pool.verify([("60+1", "61")])
    workers = pids(pool)
    del pool
    assert gone(workers)


PARENT = textwrap.dedent("""
    import signal
    import threading
    from rollbook.rewards import VerifierPool
    signal.signal(signal.SIGINT, signal.default_int_handler)       # a parent started in the background inherits "ignore"
    pool = VerifierPool(workers=1, seconds={seconds})
    pool.verify([("60+1", "61")])
    print(pool._workers[0].process.pid, flush=True)
    if {busy}:
        pool.verify([({answer!r}, "5")])
    threading.Event().wait()
""")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("answer", [SLOW[0], ""], ids=["busy", "idle"])
def test_no_worker_outlives_a_parent_that_was_stopped(how, answer):
    code = PARENT.format(seconds=2.0, answer=answer, busy=answer != "")
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    worker = int(parent.stdout.readline())
    time.sleep(0.3)
    assert alive(worker)
    parent.send_signal(how)
    parent.wait(10)
    parent.stdout.close()
    assert gone([worker], 6.0)


@pytest.mark.parametrize(("name", "argument", "detail"), [
    ("refuse", "rate_limit_exceeded", "LookupError: nothing to compare with"),
    ("fail", "half \ud800 pair", "ValueError: half \\ud800 pair"),
    ("mute", "", "Mute: its text cannot be had: ZeroDivisionError")])
def test_what_an_exception_says_is_a_failure_that_a_record_can_hold(fake_work, name, argument, detail):
    [outcome] = fake_work(name).run([(argument,)])
    assert outcome == Failure(code="crash", detail=detail)
    stamp = VerifierStamp(name="own", version="1", digest="d")
    record = Unscored(trace="Trace:1", verifier=stamp, code=outcome.code, detail=outcome.detail)
    assert decode(Unscored, json.loads(canonical(encode(record)).decode())) == record
