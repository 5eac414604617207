"""kill -9 at every write boundary and at random instants: resumed, the run ends like an undisturbed one. `make soak`.

A killed process leaves its files as they are, so what a kill before a write leaves is the folder as it stands there. One run is
photographed before every write, and from each picture that differs from those before it a run is resumed: to sync what is written
changes no file. Every sixteenth write and at random instants a process is really killed.

KILL_FROM and KILL_EVERY choose a part of the pictures, KILLS and KILL_SEED the random kills: several processes share the work.
"""

import hashlib
import os
import pickle
import random
import re
import shutil
import signal
import time

import pytest
from attacked import quick_recipe
from small_runs import Quiet

from rollbook.ledger import Ledger
from rollbook.orchestration import run as orchestration
from rollbook.orchestration.run import resume_run, run_recipe
from rollbook.records import Census, LedgerError, PolicyVersion

pytestmark = pytest.mark.soak
WRITES = ("pwrite", "fsync", "rename", "replace", "link", "unlink", "ftruncate")
RANDOM_KILLS = int(os.environ.get("KILLS", "30"))
SIZES = ("stages.rl.checkpoint_every=1", "stages.rl.probe_every=2", "tasks.heldout=8", "stages.select.candidates=8")


def ended(folder):
    with Ledger.open(folder, write=False) as ledger:
        assert ledger.verify().holds
        return (ledger.semantic_hash(), [version.weights for version in ledger.records(PolicyVersion)],
                [str(census.outcomes) for census in ledger.records(Census)])


def in_child(act, *, kill_after_s=None):
    """Runs `act` in a forked process, which knows the slow imports already; its exit status."""
    child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def before_each_write(act):
    """Replaces the writing system calls: act(number of the call, counted from 1) comes first."""
    calls = 0

    def wrapped(inner):
        def call(*arguments, **options):
            nonlocal calls
            calls += 1
            act(calls)
            return inner(*arguments, **options)
        return call
    for name in WRITES:
        setattr(os, name, wrapped(getattr(os, name)))


def dying_at(boundary):
    """The process kills itself before its write number `boundary`."""
    before_each_write(lambda number: os.kill(os.getpid(), signal.SIGKILL) if number == boundary else None)


def state_of(folder):
    """A hash of everything below a folder; names that are made up anew every time do not count."""
    hasher = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = re.sub(r"(\.unfinished-|\.run\.)[0-9a-f]+", r"\1", str(path.relative_to(folder)))
        hasher.update(name.encode() + b"\n" + (path.read_bytes() if path.is_file() else b""))
    return hasher.hexdigest()


def photographed(live, pictures):
    """Keeps the folder as it stands before every write, where it stands otherwise than before; `writes` counts all of them."""
    seen = set()

    def act(number):
        state = state_of(live)
        if state not in seen:
            seen.add(state)
            shutil.copytree(live, pictures / f"{number:04d}", symlinks=True)
        (pictures / "writes").write_text(str(number))
    before_each_write(act)


def proved_once(kept):
    """An environment's proof, made by the first child that asks: it writes nothing, and is a third of a run's time."""
    prove = orchestration.prove

    def once(*given):
        if not kept.exists():
            kept.write_bytes(pickle.dumps(prove(*given)))
        return pickle.loads(kept.read_bytes())
    return once


def resumed(recipe, folder):
    """What a user does after a kill: resume; where nothing was recorded yet, start again."""
    def act():
        if not (folder / "manifest.json").exists():
            run_recipe(recipe, folder, Quiet())
            return
        try:
            resume_run(folder, Quiet())
        except LedgerError as error:
            assert "before its recipe was recorded" in str(error)
            os.rename(folder, folder.with_name(folder.name + "-empty"))
            run_recipe(recipe, folder, Quiet())
    return in_child(act)


@pytest.fixture(scope="module")
def undisturbed(warm_in_child, tmp_path_factory):
    """The recipe, how an undisturbed run ends, the pictures of its folder and the number of its writes, how long it takes."""
    recipe, live, pictures = (quick_recipe(warm_in_child, *SIZES), tmp_path_factory.mktemp("whole"),
                              tmp_path_factory.mktemp("pictures"))
    began = time.monotonic()
    assert in_child(lambda: run_recipe(recipe, live / "timed", Quiet())) == 0
    seconds = time.monotonic() - began
    shutil.rmtree(live / "timed")

    def act():
        photographed(live, pictures)
        run_recipe(recipe, live / "run", Quiet())
    assert in_child(act) == 0
    return recipe, ended(live / "run"), pictures, seconds


@pytest.fixture(scope="module")
def warm_in_child(tmp_path_factory):
    """A warm model, made in a child: this process must stay free of compute threads, for it forks."""
    from small_runs import small_recipe

    out = tmp_path_factory.mktemp("warm") / "run"
    recipe = small_recipe("stages.rl.steps=1", "stages.rl.optimizer.warmup_steps=0")
    assert in_child(lambda: run_recipe(recipe, out, Quiet())) == 0
    return out / "checkpoints" / "cold_start"


def test_what_a_kill_before_any_write_leaves_ends_like_an_undisturbed_run(undisturbed, tmp_path, monkeypatch):
    recipe, whole, pictures, _ = undisturbed
    first, every = int(os.environ.get("KILL_FROM", "1")), int(os.environ.get("KILL_EVERY", "1"))
    monkeypatch.setattr(orchestration, "prove", proved_once(tmp_path / "proof"))
    states, writes = sorted(pictures.glob("[0-9]*")), (pictures / "writes").read_text()
    assert len(states) > 40
    for picture in states[first - 1::every]:
        assert resumed(recipe, picture / "run") == 0, f"write {picture.name}"
        assert ended(picture / "run") == whole, f"write {picture.name}"
        print(f"left before write {picture.name} of {writes} ({len(states)} states): same end", flush=True)
        shutil.rmtree(picture)


def test_a_run_killed_at_write_boundaries_ends_like_an_undisturbed_one(undisturbed, tmp_path, monkeypatch):
    recipe, whole, pictures, _ = undisturbed
    writes = int((pictures / "writes").read_text())
    monkeypatch.setattr(orchestration, "prove", proved_once(tmp_path / "proof"))
    for boundary in range(8, writes + 1, 16):
        folder = tmp_path / f"run{boundary}"

        def act(folder=folder, boundary=boundary):
            dying_at(boundary)
            run_recipe(recipe, folder, Quiet())
        assert in_child(act) == -signal.SIGKILL
        assert resumed(recipe, folder) == 0, f"write {boundary}"
        assert ended(folder) == whole, f"write {boundary}"
        print(f"killed before write {boundary} of {writes}: same end", flush=True)


def test_a_run_killed_at_random_instants_twice_ends_like_an_undisturbed_one(undisturbed, tmp_path):
    recipe, whole, _, seconds = undisturbed
    rng = random.Random(int(os.environ.get("KILL_SEED", "20")))
    for number in range(RANDOM_KILLS):
        folder = tmp_path / f"run{number}"
        in_child(lambda folder=folder: run_recipe(recipe, folder, Quiet()), kill_after_s=rng.uniform(0.05, 0.95) * seconds)
        if (folder / "manifest.json").exists():
            in_child(lambda folder=folder: resume_run(folder, Quiet()), kill_after_s=rng.uniform(0.05, 0.95) * seconds)
        assert resumed(recipe, folder) == 0, f"kill {number}"
        assert ended(folder) == whole, f"kill {number}"
        print(f"random kill {number + 1} of {RANDOM_KILLS}: same end", flush=True)
