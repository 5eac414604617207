"""What lists need is kept between two starts, and is never shown for a table that it was not made of."""

import os
import shutil

import pyarrow.parquet as pq
import pytest
from viewed_runs import begin, client, whole_run

from rollbook.ledger import Ledger, TraceTable
from rollbook.records import RunEnd
from rollbook.view import held, kept, rows
from rollbook.view.held import keep_columns
from rollbook.view.parts import Part
from rollbook.view.rows import Filters
from rollbook.view.shown import held_runs


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rows, "MANY", 2)
    monkeypatch.setattr(held, "MANY", 2)


@pytest.fixture
def read(monkeypatch):
    """The tables that were read, in order."""
    found, real = [], Part.read.__func__

    def reading(cls, file, place):
        found.append(file.name)
        return real(cls, file, place)

    monkeypatch.setattr(Part, "read", classmethod(reading))
    return found


def looked_at(folder):
    (run,) = held_runs([folder]).values()
    return run.refresh()


def shown(run):
    """All that lists show: every column, the facets, the components, a page."""
    made = run.rows
    return made.table.to_pylist(), made.facets(), made.components, made.versions(), made.find(Filters(sort="longest"))


@pytest.fixture
def run(tmp_path):
    whole_run(tmp_path / "run")
    first = looked_at(tmp_path / "run")
    first.rows.keep(first.facts.ledger.genesis)
    return first


def test_a_second_start_reads_no_table_and_shows_the_same(run, read):
    again = looked_at(run.root)
    assert shown(again) == shown(run) and not read and len(run.rows.parts) >= 4
    assert again.rows.row(3) == run.rows.row(3) and again.rows.whole(5) == run.rows.whole(5)
    assert again.rows.find(Filters(text="7")).count == run.rows.find(Filters(text="7")).count > 0
    identity = again.rows.row(2)["id"]
    for page in ("/run/run/trajectories", f"/run/run/trajectory?id={identity}", "/run/run"):
        assert client(run.root).get(page).status_code == 200


def test_a_table_whose_file_is_another_one_is_not_shown_from_what_was_kept(run, read):
    table = sorted((run.root / "traces").iterdir())[0]
    pq.write_table(pq.read_table(table).slice(1), table)
    again = looked_at(run.root)
    assert len(again.rows) < len(run.rows) and any("damaged" in fault for fault in again.rows.faults) and not read
    table.unlink()
    assert any("missing" in fault for fault in looked_at(run.root).rows.faults)


def test_what_has_just_ended_is_kept_and_what_cannot_be_read_keeps_nothing(tmp_path, read):
    whole_run(tmp_path / "run")
    keep_columns(tmp_path / "run")
    assert read and len(list(kept.folder().glob("*.arrow"))) == 1
    read.clear()
    assert len(looked_at(tmp_path / "run").rows) and not read
    keep_columns(tmp_path / "nothing")
    (tmp_path / "run" / "manifest.json").write_text("{")
    keep_columns(tmp_path / "run")


def test_a_run_that_grew_reads_only_what_is_new(tmp_path, read):
    writer = begin(tmp_path / "run")
    for number in range(1, 4):
        writer.step(number)
    first = looked_at(tmp_path / "run")
    first.rows.keep(first.facts.ledger.genesis)
    read.clear()
    for number in range(4, 6):
        writer.step(number)
    grown = looked_at(tmp_path / "run")
    assert len(grown.rows) > len(first.rows) and 0 < len(read) == len(grown.rows.parts) - len(first.rows.parts)
    grown.rows.keep(grown.facts.ledger.genesis)
    writer.ledger.append(RunEnd(status="completed", detail=""))
    writer.ledger.close()
    read.clear()
    assert len(looked_at(tmp_path / "run").rows) == len(grown.rows) and not read


def test_a_table_that_was_taken_back_is_gone_and_its_successor_is_read(tmp_path, read):
    writer = begin(tmp_path / "run")
    writer.step(1)
    before = writer.ledger.last_seq
    writer.step(2)
    first = looked_at(tmp_path / "run")
    first.rows.keep(first.facts.ledger.genesis)
    writer.ledger.rollback(after=before, reason="resume")
    writer.ledger.close()
    again = looked_at(tmp_path / "run")
    assert len(again.rows) < len(first.rows)
    assert {entry.seq for entry in again.facts.entries(TraceTable)} == {part.seq for part in again.rows.parts}


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:200] + b"\xff" + data[201:],
                                    lambda data: data[:-40], lambda data: os.urandom(500)])
def test_a_kept_file_that_was_cut_or_changed_is_not_used(run, read, damage):
    (file,) = (kept.folder()).glob("*.arrow")
    file.write_bytes(damage(file.read_bytes()))
    assert shown(looked_at(run.root)) == shown(run) and len(read) == len(run.rows.parts)


def test_another_run_or_another_program_takes_nothing(run, read, tmp_path, monkeypatch):
    writer = begin(tmp_path / "other")
    for number in (1, 2, 3):
        writer.step(number)
    writer.ledger.close()
    assert len(looked_at(tmp_path / "other").rows.parts) == len(read) == 3
    read.clear()
    monkeypatch.setattr(kept, "_maker", lambda: "another")
    assert shown(looked_at(run.root)) == shown(run) and read


def test_a_copy_of_a_run_takes_what_was_kept_of_its_equal_tables(run, read, tmp_path):
    shutil.copytree(run.root, tmp_path / "copy")
    assert looked_at(tmp_path / "copy").rows.table.equals(run.rows.table) and not read


def test_a_place_that_cannot_be_written_or_read_changes_nothing(run, read, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROLLBOOK_CACHE", str(tmp_path / "file" / "below"))
    again = looked_at(run.root)
    again.rows.keep(again.facts.ledger.genesis)
    assert shown(again) == shown(run) and read


def test_only_so_many_runs_are_kept_and_the_folder_of_a_run_stays_as_it_was(run, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in run.root.rglob("*")}
    monkeypatch.setattr(kept, "FILES", 3)
    for number in range(5):
        assert kept.save(f"genesis {number}", [])
    assert len(list(kept.folder().iterdir())) == 3 and kept.folder().stat().st_mode & 0o077 == 0
    looked_at(run.root).rows.keep("another")
    assert before == {path: path.stat().st_mtime_ns for path in run.root.rglob("*")}
    assert Ledger.open(run.root, write=False).verify().fault is None
