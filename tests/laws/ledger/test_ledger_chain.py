"""The chain: what was written is what is read, and anything else is refused with its position."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from ledger_samples import outcome, rows

from rollbook.ledger import Ledger, log
from rollbook.ledger.chain import Entry, log_line
from rollbook.ledger.layout import segments
from rollbook.records import LedgerError, RecordError, canonical, content_id, digest


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with Ledger.create(tmp_path / "run", {"recipe": "r\u00e9sum\u00e9"}) as ledger:
        ledger.append(outcome(0))
        ledger.append(outcome(1), observed={"host_load": 0.5})
        ledger.put(b"a blob")
        ledger.write_traces("rl/000001", *rows(3))
        ledger.append(outcome(2, "stale"))
    return tmp_path / "run"


def test_what_was_appended_is_what_is_read(run: Path) -> None:
    ledger = Ledger.open(run, write=False)
    alone = [event.record() for event in ledger.events("Outcome")]
    assert alone == [outcome(0), outcome(1), outcome(2, "stale")]
    assert [event.id for event in ledger.events("Outcome")] == [content_id(record) for record in alone]
    assert [event.observed for event in ledger.events("Outcome")] == [None, {"host_load": 0.5}, None]
    assert [event.seq for event in ledger.events()] == [1, 2, 3, 4]
    assert ledger.manifest == {"recipe": "r\u00e9sum\u00e9"}


def test_a_line_hash_is_the_sha256_of_its_canonical_event_without_the_hash(run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_bytes())
    previous = digest(canonical({key: manifest[key] for key in ("format", "run")}))
    for line in segments(run)[0].read_bytes().splitlines():
        event = json.loads(line)
        stated = event.pop("hash")
        assert event["prev"] == previous
        assert stated == digest(canonical(event))
        previous = stated
    assert Ledger.open(run, write=False).verify().head == previous


def test_a_flipped_byte_anywhere_in_the_log_is_refused_with_its_position(run: Path) -> None:
    path = segments(run)[0]
    good = path.read_bytes()
    ends = [index for index, byte in enumerate(good) if byte == 10]
    near_ends = {end + shift for end in ends for shift in (-1, 0, 1) if end + shift < len(good)}
    for index in sorted({*range(0, len(good), 5), *near_ends}):
        bad = bytearray(good)
        bad[index] ^= 1 << (index % 8)
        path.write_bytes(bad)
        line = 1 + sum(end < index for end in ends)
        report = Ledger.open(run, write=False).verify()
        assert report.fault is not None and f"line {line} " in report.fault, (index, report.fault)
        with pytest.raises(LedgerError, match=f"line {line} "):
            Ledger.open(run)
        assert path.read_bytes() == bad, "a refused log is left as it is"
    path.write_bytes(good)
    assert Ledger.open(run, write=False).verify().holds


def test_a_flipped_byte_anywhere_in_the_manifest_is_refused(run: Path) -> None:
    path = run / "manifest.json"
    good = path.read_bytes()
    for index in range(len(good)):
        bad = bytearray(good)
        bad[index] ^= 1 << (index % 8)
        path.write_bytes(bad)
        with pytest.raises(LedgerError, match=r"manifest\.json"):
            Ledger.open(run, write=False)


def test_a_flipped_byte_in_a_table_or_object_is_named(run: Path) -> None:
    for folder in ("traces", "objects"):
        path = next(path for path in (run / folder).rglob("*") if path.is_file())
        good = path.read_bytes()
        for index in range(0, len(good), 1 + len(good) // 50):
            bad = bytearray(good)
            bad[index] ^= 0x10
            path.write_bytes(bad)
            fault = Ledger.open(run, write=False).verify().fault
            assert fault is not None and path.name in fault
        path.write_bytes(good)
    assert Ledger.open(run, write=False).verify().holds


def test_a_damaged_table_is_refused_when_it_is_read(run: Path) -> None:
    path = next((run / "traces").iterdir())
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(LedgerError, match="damaged"):
        list(Ledger.open(run, write=False).read_traces())
    path.unlink()
    with pytest.raises(LedgerError, match="missing"):
        list(Ledger.open(run, write=False).traces())


def test_lines_that_were_removed_swapped_or_repeated_are_refused(run: Path) -> None:
    path = segments(run)[0]
    lines = path.read_bytes().splitlines(keepends=True)
    for changed in ([*lines[:1], *lines[2:]], [lines[1], lines[0], *lines[2:]], [lines[0], *lines], [*lines, lines[-1]]):
        path.write_bytes(b"".join(changed))
        with pytest.raises(LedgerError, match=r"broken at events/000001\.jsonl line \d"):
            Ledger.open(run)


def test_a_log_of_another_run_does_not_fit_the_manifest(run: Path, tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "other", {"recipe": "another"}) as other:
        other.append(outcome(0))
    shutil.copy(segments(tmp_path / "other")[0], segments(run)[0])
    with pytest.raises(LedgerError, match="line 1 "):
        Ledger.open(run)


def test_segments_rotate_and_a_missing_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SEGMENT_BYTES", 1000)
    with Ledger.create(tmp_path / "run", {}) as ledger:
        ledger.append_many([outcome(index) for index in range(7)])
        for index in range(7, 12):
            ledger.append(outcome(index))
        assert [record.attempt[-1] for record in ledger.records(type(outcome(0)))] == list("012345678901")
    paths = segments(tmp_path / "run")
    assert len(paths) >= 4
    with Ledger.open(tmp_path / "run") as ledger:
        ledger.append(outcome(12))
        assert ledger.last_seq == 13
        assert ledger.verify().events == 13
    paths[1].unlink()
    with pytest.raises(LedgerError, match=r"events/000002\.jsonl"):
        Ledger.open(tmp_path / "run")


def test_a_table_that_a_record_refers_to_and_an_object_that_is_missing_are_named(run: Path) -> None:
    ledger = Ledger.open(run, write=False)
    with pytest.raises(LedgerError, match=r"objects/00/0+ is missing"):
        ledger.get("00" * 32)
    with pytest.raises(LedgerError, match="64 hexadecimal"):
        ledger.get("../../etc/passwd")


@pytest.mark.parametrize(("kind", "schema", "body", "message"), [
    ("Outcome", 2, {}, "newer schema version"),
    ("Outcome", 0, {}, "older schema version"),
    ("Outcom", 1, {}, "unknown kind.*\n.*\n.*Outcome"),
    ("Outcome", 1, {"detial": "x"}, r"unknown key Outcome\.detial(.|\n)*detail"),
    ("Outcome", 1, {"family": 3}, r"Outcome\.family must be a string"),
])
def test_the_strict_reader_refuses_what_it_does_not_know_with_the_position(
        run: Path, kind: str, schema: int, body: dict[str, object], message: str) -> None:
    full = {"attempt": "a", "family": "f", "code": "accepted", "detail": "", "kind": "Outcome", **body}
    with Ledger.open(run) as ledger:
        assert ledger._log is not None
        ledger._log.append([Entry(kind=kind, id=f"{kind}:00", schema=schema, body=canonical(full), observed=b"null")])
        event = list(ledger.events())[-1]
        assert ledger.verify().holds
    with pytest.raises(LedgerError, match=message) as refusal:
        event.record()
    assert "line 5 " in str(refusal.value)


def test_an_event_line_with_another_key_is_refused(run: Path) -> None:
    head = Ledger.open(run, write=False).verify().head
    entry = Entry(kind="Outcome", id="Outcome:00", schema=1, body=b"{}", observed=b'null,"original":1')
    with segments(run)[0].open("ab") as file:
        file.write(log_line(entry, head, 5, 0.0)[0])
    with pytest.raises(LedgerError, match=r"(?s)line 5 .*original"):
        list(Ledger.open(run, write=False).events())


def test_only_records_of_the_chain_are_logged(run: Path) -> None:
    @dataclasses.dataclass(frozen=True)
    class Outcome:
        SCHEMA = 1
        attempt: str

    with Ledger.open(run) as ledger, pytest.raises(RecordError, match="only records of the chain"):
        ledger.append(Outcome(attempt="a"))


def test_the_semantic_hash_ignores_time_and_observations_and_sees_every_record(tmp_path: Path) -> None:
    def record(name: str, observed: dict[str, float] | None, last: str) -> str:
        with Ledger.create(tmp_path / name, {"run": name}) as ledger:
            ledger.append(outcome(0), observed=observed)
            traces, verdicts, outcomes = rows(4)
            quick = [dataclasses.replace(trace, observed={"latency_s": len(name) / 10}) for trace in traces]
            ledger.write_traces("t", quick, verdicts, outcomes)
            ledger.append(outcome(1, last))
            return ledger.semantic_hash()

    first = record("a", None, "stale")
    assert record("second", {"load": 0.7}, "stale") == first
    assert record("c", None, "failed") != first


def test_a_clock_that_goes_backwards_changes_neither_order_nor_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 50.0, 60.0])
    with Ledger.create(tmp_path / "run", {}) as ledger:
        monkeypatch.setattr(log.time, "time", lambda: next(clock))
        for index in range(3):
            ledger.append(outcome(index))
        assert [event.time for event in ledger.events()] == [100.0, 50.0, 60.0]
        assert list(ledger.records(type(outcome(0)))) == [outcome(index) for index in range(3)]
        assert ledger.verify().clock_steps_back == 1 and ledger.verify().holds
