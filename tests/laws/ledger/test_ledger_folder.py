"""The run folder: made whole or not at all, one writer, any number of readers, objects named by their content."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from inspected_run import begin
from ledger_samples import outcome, rows

from rollbook.ledger import Ledger
from rollbook.ledger.layout import segments
from rollbook.records import LedgerError, Outcome, digest


@pytest.fixture
def as_nobody() -> Iterator[Path]:
    """A folder that the test may read and not write."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    with Ledger.create(folder / "run", {}) as ledger:
        ledger.append(outcome(0))
        ledger.write_traces("t", *rows(2))
    root = os.geteuid() == 0
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    if root:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        for path in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
            path.chmod(0o755)
        shutil.rmtree(folder)


def test_a_read_only_folder_is_one_clear_error_and_nothing_is_left(as_nobody: Path) -> None:
    before = sorted(as_nobody.rglob("*"))
    for act in (lambda: Ledger.create(as_nobody / "new", {}), lambda: Ledger.create(as_nobody / "deep" / "new", {}),
                lambda: Ledger.open(as_nobody / "run")):
        with pytest.raises(LedgerError, match=r"(?s)Permission denied.*may not write.*choose a writable folder"):
            act()
    assert sorted(as_nobody.rglob("*")) == before


def test_a_read_only_run_can_be_read_and_verified(as_nobody: Path) -> None:
    ledger = Ledger.open(as_nobody / "run", write=False)
    assert ledger.verify().holds and len(list(ledger.read_traces())) == 2
    with pytest.raises(LedgerError, match="not open for writing"):
        ledger.append(outcome(1))


def test_an_existing_run_a_used_folder_and_a_file_are_refused(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "run", {}).close()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name, message in (("run", "already holds a run"), ("used", "not an empty folder"), ("file", "not an empty folder"),
                          ("file/run", "could not be created")):
        with pytest.raises(LedgerError, match=message):
            Ledger.create(tmp_path / name, {})
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_empty_folder_and_missing_parents_are_fine(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "a/b/run"):
        with Ledger.create(tmp_path / name, {"x": 1}) as ledger:
            assert ledger.verify().holds
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "empty"]


def test_a_manifest_that_cannot_be_written_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no JSON form"):
        Ledger.create(tmp_path / "run", {"x": object()})
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="is not a run folder"):
        Ledger.open(tmp_path / "nothing")
    Ledger.create(tmp_path / "run", {}).close()
    shutil.rmtree(tmp_path / "run" / "events")
    with pytest.raises(LedgerError, match="event log could not be read"):
        Ledger.open(tmp_path / "run")
    manifest = tmp_path / "run" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(LedgerError, match="newer format"):
        Ledger.open(tmp_path / "run")


def test_two_processes_cannot_write_one_run_and_the_lock_dies_with_its_holder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    script = ("import sys, os, time\nfrom rollbook.ledger import Ledger\n"
              f"ledger = Ledger.create({str(run)!r}, {{}})\nchild = os.fork()\n"
              "if child == 0:\n    print(os.getpid(), flush=True)\n"
              "time.sleep(60)\n")
    holder = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    worker = int(holder.stdout.readline())
    try:
        with pytest.raises(LedgerError, match=f"another process is writing this run, got process {holder.pid}"):
            Ledger.open(run)
        assert Ledger.open(run, write=False).verify().holds
        holder.kill()
        holder.wait()
        with Ledger.open(run) as ledger:
            ledger.append(outcome(0))
    finally:
        os.kill(worker, signal.SIGKILL)
        holder.kill()
        holder.stdout.close()


def test_a_run_is_opened_for_writing_once_even_in_one_process(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "run", {}), pytest.raises(LedgerError, match="another process"):
        Ledger.open(tmp_path / "run")
    Ledger.open(tmp_path / "run").close()


def test_a_reader_beside_a_writer_sees_a_growing_prefix(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "run", {}) as ledger:
        writer = threading.Thread(target=lambda: [ledger.append_many([outcome(i), outcome(i + 1)]) for i in range(0, 400, 2)])
        writer.start()
        reader, sizes = Ledger.open(tmp_path / "run", write=False), [0]
        while writer.is_alive() or sizes[-1] < 400:
            seen = list(reader.records(Outcome))
            assert seen == [outcome(index) for index in range(len(seen))]
            sizes.append(len(seen))
        writer.join()
    assert sizes == sorted(sizes) and sizes[-1] == 400


def test_threads_may_append_at_the_same_time(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "run", {}) as ledger:
        threads = [threading.Thread(target=lambda base=base: [ledger.append(outcome(base + i)) for i in range(20)])
                   for base in (0, 100, 200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ledger.verify().holds and ledger.verify().events == 60


def test_objects_are_named_by_their_content_and_stored_once(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "run", {}) as ledger:
        for data in (b"", b"a", b"x" * 100_000):
            assert ledger.put(data) == ledger.put(data) == digest(data)
            assert ledger.get(digest(data)) == data
        assert ledger.verify().objects == 3
        path = tmp_path / "run" / "objects" / digest(b"a")[:2] / digest(b"a")[2:]
        path.write_bytes(b"b")
        with pytest.raises(LedgerError, match=f"objects/{digest(b'a')[:2]}/{digest(b'a')[2:]} is damaged"):
            ledger.get(digest(b"a"))
        assert ledger.put(b"a") == digest(b"a") and ledger.get(digest(b"a")) == b"a", "storing it again mends it"


def test_an_object_that_a_batch_refers_to_and_that_is_missing_is_found(tmp_path: Path) -> None:
    from rollbook.records import Batch

    with Ledger.create(tmp_path / "run", {}) as ledger:
        tensors = ledger.put(b"tensors")
        ledger.append(Batch(scope="s", traces=(), tensors=tensors, objective={}, terms=(), plan=(),
                            action_tokens=0, groups=0, max_length=None,
                            max_age=0, threads=1, deterministic=True, compute_dtype="float32"))
        assert ledger.verify().holds
        (ledger.root / "objects" / tensors[:2] / tensors[2:]).unlink()
        fault = str(ledger.verify().fault)
        assert "line 1 " in fault and f"objects/{tensors[:2]}/{tensors[2:]}" in fault


def test_a_closed_ledger_reads_and_refuses_to_write(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "run", {}) as ledger:
        ledger.append(outcome(0))
    assert list(ledger.records(Outcome)) == [outcome(0)]
    for act in (lambda: ledger.append(outcome(1)), lambda: ledger.put(b"x"), lambda: ledger.write_table("t", [outcome(1)])):
        with pytest.raises(LedgerError, match="not open for writing"):
            act()


def test_reading_some_kinds_gives_the_times_of_all_standing_events_and_those_kinds_alone(tmp_path):
    writer = begin(tmp_path / "run")
    writer.step(1)
    kept = writer.ledger.last_seq
    writer.step(2)
    writer.ledger.rollback(after=kept, reason="resume")
    writer.ledger.close()
    held = Ledger.open(tmp_path / "run", write=False)
    every = list(held.events())
    found = list(held.times({"StepReport", "TraceTable"}))
    assert [when for when, _ in found] == [event.time for event in every] and any(event.kind == "Rollback" for event in every)
    assert [event for _, event in found if event] == [event for event in every if event.kind in ("StepReport", "TraceTable")]
    log = segments(tmp_path / "run")[-1]
    log.write_bytes(log.read_bytes().replace(b'"kind":"Census"', b'"kind":"Cemsus"', 1))
    with pytest.raises(LedgerError, match="broken"):
        list(held.times({"StepReport"}))
