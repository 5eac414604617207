"""What a kill, a full disk or a torn write leaves behind: a log that is whole, with everything acknowledged in it."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ledger_samples import outcome, rows

from rollbook.ledger import Ledger, log
from rollbook.ledger.layout import segments
from rollbook.records import LedgerError, Outcome, digest

APPENDER = """
import os, sys
sys.path.insert(0, {here!r})
from ledger_samples import outcome, rows
from rollbook.ledger import Ledger
with Ledger.open({run!r}) as ledger:
    index = ledger.last_seq * 1000
    while True:
        index += 10
        ids = [ledger.append(outcome(index)), *ledger.append_many([outcome(index + k, "stale") for k in (1, 2, 3)])]
        ids.append("object " + ledger.put(b"blob %d" % index))
        if index % 50 == 0:
            ids.append(ledger.write_traces(f"t/{{index}}", *rows(2)))
        os.write(1, ("\\n".join(ids) + "\\n").encode())
"""


def test_after_kill_9_at_random_instants_everything_acknowledged_is_there(tmp_path: Path) -> None:
    run = tmp_path / "run"
    Ledger.create(run, {}).close()
    acknowledged: list[str] = []
    for attempt in range(8):
        script = APPENDER.format(here=str(Path(__file__).parent), run=str(run))
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(random.Random(attempt).uniform(0, 0.15))
        process.kill()
        rest = process.stdout.read()
        process.wait()
        assert process.returncode == -signal.SIGKILL and first
        acknowledged += (first + rest[:rest.rfind(b"\n") + 1]).decode().split("\n")[:-1]
        with Ledger.open(run) as ledger:
            present = {event.id for event in ledger.events()}
            assert ledger.verify().holds, ledger.verify().fault
            for item in acknowledged:
                kind, _, name = item.partition(" ")
                assert ledger.get(name) if kind == "object" else item in present
            assert len(list(ledger.read_traces())) == 2 * len(list(ledger.events("TraceTable")))
    assert len(acknowledged) > 8 * 5


def test_a_tail_torn_at_any_byte_is_cut_off_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    with Ledger.create(tmp_path / "run", {}) as ledger:
        ledger.append(outcome(0))
        ledger.append(outcome(1))
    first, last = segments(tmp_path / "run")[0].read_bytes().splitlines(keepends=True)
    for size in sorted({*range(0, len(last), 9), 1, len(last) - 2, len(last) - 1}):
        copy = tmp_path / f"copy{size}"
        shutil.copytree(tmp_path / "run", copy)
        segments(copy)[0].write_bytes(first + last[:size])
        reader = Ledger.open(copy, write=False)
        assert list(reader.records(Outcome)) == [outcome(0)]
        assert reader.verify().holds and reader.verify().unfinished_bytes == size
        assert segments(copy)[0].read_bytes() == first + last[:size], "reading changes nothing"
        with Ledger.open(copy) as ledger:
            repairs = [event.record() for event in ledger.events("Repair")]
            assert len(repairs) == (size > 0)
            for repair in repairs:
                assert (repair.fault, repair.bytes, repair.digest) == ("torn_tail", size, digest(last[:size]))
                assert repair.position == f"events/000001.jsonl byte {len(first)}"
            ledger.append(outcome(1))
            assert ledger.verify().holds and ledger.verify().unfinished_bytes == 0
            assert ledger.semantic_hash() == Ledger.open(tmp_path / "run", write=False).semantic_hash()
        shutil.rmtree(copy)


def test_a_tail_of_zeros_or_longer_than_the_repair_is_cut_off(tmp_path: Path) -> None:
    for index, torn in enumerate((b"\0" * 5000, b'{"body":' + b"x" * 9000)):
        run = tmp_path / str(index)
        with Ledger.create(run, {}) as ledger:
            ledger.append(outcome(0))
        with segments(run)[0].open("ab") as file:
            file.write(torn)
        with Ledger.open(run) as ledger:
            assert [event.kind for event in ledger.events()] == ["Outcome", "Repair"]
            assert ledger.verify().unfinished_bytes == 0


def test_a_torn_line_that_is_not_the_last_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SEGMENT_BYTES", 100)
    with Ledger.create(tmp_path / "run", {}) as ledger:
        for index in range(3):
            ledger.append(outcome(index))
    path = segments(tmp_path / "run")[0]
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(LedgerError, match=r"events/000001\.jsonl line 1 "):
        Ledger.open(tmp_path / "run")


class Killed(BaseException):
    """The process is gone: from here on no file-system call has an effect."""


class Killer:
    """Lets `calls` file-system calls of the ledger through, then kills; a killed `pwrite` writes half of its bytes."""

    NAMES = ("pwrite", "fsync", "rename", "unlink", "mkdir", "ftruncate", "open")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, calls: int):
        self.left = calls
        for name in self.NAMES:
            monkeypatch.setattr(os, name, self._guarded(name, getattr(os, name)))

    def _guarded(self, name: str, call):
        def guarded(*arguments, **options):
            self.left -= 1
            if self.left == -1 and name == "pwrite":
                call(arguments[0], bytes(arguments[1])[:len(arguments[1]) // 2], *arguments[2:])
            if self.left < 0:
                raise Killed
            return call(*arguments, **options)
        return guarded


def steps(ledger: Ledger) -> Iterator[None]:
    """Two steps, each ended by a `stale` outcome; a step that was begun before is taken back and done again."""
    done = sum(record.code == "stale" for record in ledger.records(Outcome))
    commits = [event.seq for event in ledger.events("Outcome") if event.body["code"] == "stale"]
    ledger.rollback(after=commits[-1] if commits else 0, reason="the step was not finished")
    for step in range(done, 2):
        ledger.append_many([outcome(10 * step + index) for index in range(3)])
        ledger.put(b"batch %d" % step)
        ledger.write_traces(f"rl/{step}", *rows(2))
        ledger.write_table(f"ends/{step}", [outcome(10 * step + 5)])
        ledger.append(outcome(10 * step, "stale"))
        yield


def test_killed_at_every_write_boundary_and_continued_the_run_is_the_undisturbed_run(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(log, "SEGMENT_BYTES", 900)
    with Ledger.create(tmp_path / "whole", {}) as ledger:
        list(steps(ledger))
        expected = ledger.semantic_hash()
    for calls in range(1000):
        run, ledger, finished, acknowledged = tmp_path / f"run{calls}", None, False, 0
        with monkeypatch.context() as patch:
            killer = Killer(patch, calls)
            try:
                ledger = Ledger.create(run, {})
                for _ in steps(ledger):
                    acknowledged += 1
                finished = True
            except Killed:
                pass
        finished = finished and killer.left >= 0
        if ledger is not None:
            ledger.close()
        if not run.exists():
            Ledger.create(run, {}).close()
        with monkeypatch.context() as patch:
            try:
                Killer(patch, 11 + calls % 7)
                ledger = Ledger.open(run)
                list(steps(ledger))
            except Killed:
                pass
        if ledger is not None:
            ledger.close()
        with Ledger.open(run) as ledger:
            assert sum(record.code == "stale" for record in ledger.records(Outcome)) >= acknowledged
            list(steps(ledger))
            assert ledger.semantic_hash() == expected, calls
            report = ledger.verify()
            assert report.holds and report.unfinished_bytes == 0, (calls, report.fault)
            assert sorted(path.name for path in (run / "traces").iterdir()) == [f"rl-{step}.parquet" for step in range(2)]
        shutil.rmtree(run)
        if finished:
            break
    assert 60 < calls < 999


def test_a_rollback_leaves_the_log_and_takes_its_events_back(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "run", {}) as ledger:
        ledger.append(outcome(0))
        before, mark = ledger.semantic_hash(), ledger.last_seq
        ledger.append(outcome(1))
        ledger.write_traces("t", *rows(2))
        assert ledger.rollback(after=mark, reason="unfinished") == 2
        assert ledger.rollback(after=mark, reason="unfinished") == 0
        assert ledger.semantic_hash() == before
        assert list(ledger.records(Outcome)) == [outcome(0)] and list(ledger.read_traces()) == []
        ledger.write_traces("t", *rows(3))
        assert len(list(ledger.read_traces())) == 3
        assert ledger.verify().holds and ledger.verify().events == 5
    with Ledger.open(tmp_path / "run") as ledger:
        assert [event.kind for event in ledger.events()] == ["Outcome", "Rollback", "TraceTable"]


def test_what_is_acknowledged_was_synced_after_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    with Ledger.create(tmp_path / "run", {}) as ledger:
        for name in ("pwrite", "fsync", "rename"):
            call = getattr(os, name)
            monkeypatch.setattr(os, name, lambda *arguments, call=call, name=name: (calls.append(name), call(*arguments))[1])
        for act, order in ((lambda: ledger.append(outcome(0)), ["pwrite", "fsync"]),
                           (lambda: ledger.append_many([outcome(1), outcome(2)]), ["pwrite", "fsync"]),
                           (lambda: ledger.put(b"x"), ["fsync", "fsync", "rename", "fsync"]),
                           (lambda: ledger.write_traces("t", *rows(1)), ["fsync", "rename", "fsync", "pwrite", "fsync"])):
            calls.clear()
            act()
            assert calls == order


def full_disk(monkeypatch: pytest.MonkeyPatch, name: str, after: int) -> None:
    """`os.name` fails with ENOSPC after `after` calls; a failing write still writes a part."""
    call, left = getattr(os, name), [after]

    def failing(*arguments):
        left[0] -= 1
        if left[0] < 0:
            if name == "pwrite" and left[0] == -1:
                call(arguments[0], bytes(arguments[1])[:7], *arguments[2:])
            raise OSError(errno.ENOSPC, "No space left on device")
        return call(*arguments)

    monkeypatch.setattr(os, name, failing)


@pytest.mark.parametrize("name", ["pwrite", "fsync"])
def test_a_full_disk_is_one_clear_error_and_the_log_stays_whole(
        tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger.create(tmp_path / "run", {}) as ledger:
        ledger.append(outcome(0))
    acts = (lambda ledger: ledger.append(outcome(1)), lambda ledger: ledger.append_many([outcome(1), outcome(2)]),
            lambda ledger: ledger.write_traces("t", *rows(2)), lambda ledger: ledger.write_table("t", [outcome(3)]))
    for act in acts:
        with Ledger.open(tmp_path / "run") as ledger:
            with monkeypatch.context() as patch:
                full_disk(patch, name, 0)
                with pytest.raises(LedgerError, match=r"(?s)No space left.*why: there is no space.*fix: free space"):
                    act(ledger)
            assert list(Ledger.open(tmp_path / "run", write=False).records(Outcome)) == [outcome(0)]
            assert list((tmp_path / "run" / "traces").iterdir()) == []
    with Ledger.open(tmp_path / "run") as ledger:
        ledger.append(outcome(4))
        assert list(ledger.records(Outcome)) == [outcome(0), outcome(4)] and ledger.verify().holds


def test_after_a_full_disk_has_space_again_the_same_ledger_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger.create(tmp_path / "run", {}) as ledger:
        ledger.append(outcome(0))
        with monkeypatch.context() as patch:
            full_disk(patch, "pwrite", 0)
            with pytest.raises(LedgerError):
                ledger.append(outcome(1))
        ledger.append(outcome(2))
        assert list(ledger.records(Outcome)) == [outcome(0), outcome(2)] and ledger.verify().unfinished_bytes == 0


def test_an_append_that_cannot_be_undone_stops_the_writer_and_is_mended_on_opening(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger.create(tmp_path / "run", {}) as ledger:
        ledger.append(outcome(0))
        with monkeypatch.context() as patch:
            full_disk(patch, "pwrite", 0)
            full_disk(patch, "ftruncate", 0)
            with pytest.raises(LedgerError, match="could not be written"):
                ledger.append(outcome(1))
        with pytest.raises(LedgerError, match="open the run again"):
            ledger.append(outcome(2))
    with Ledger.open(tmp_path / "run") as ledger:
        assert [event.kind for event in ledger.events()] == ["Outcome", "Repair"]


def test_an_interrupt_while_records_are_encoded_leaves_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "CHUNK_BYTES", 100)
    monkeypatch.setattr(log, "SEGMENT_BYTES", 2000)

    def entries():
        yield from (log.entry(outcome(index)) for index in range(20))
        raise KeyboardInterrupt

    with Ledger.create(tmp_path / "run", {}) as ledger:
        ledger.append(outcome(0))
        assert ledger._log is not None
        with pytest.raises(KeyboardInterrupt):
            ledger._log.append(entries())
        ledger.append(outcome(1))
        assert list(ledger.records(Outcome)) == [outcome(0), outcome(1)]
        assert len(segments(ledger.root)) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_on_a_really_full_file_system_the_log_stays_whole(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow mounting")
    try:
        with Ledger.create(disk / "run", {}) as ledger:
            ids, failures = [], []
            for index in range(400):
                for act in (lambda i=index: ledger.append(outcome(i)), lambda i=index: ledger.put(b"%d" % i * 3000),
                            lambda i=index: ledger.write_traces(f"t/{i}", *rows(3))):
                    try:
                        ids.append(act())
                    except LedgerError as error:
                        failures.append(str(error))
            assert failures and all("free space" in failure for failure in failures), set(failures)
            assert ledger.verify().holds
            assert {event.id for event in ledger.events()} <= set(ids)
            for path in (disk / "run").rglob("*"):
                assert ".unfinished" not in path.name
    finally:
        subprocess.run(["umount", str(disk)], check=True)
