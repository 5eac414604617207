"""Laws of a claims file: what each label owes, what a number needs, and that a refusal names file, line and reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_claims import TEXT, changed, folder

from rollbook.evidence.claims import Code, Config
from rollbook.evidence.errors import EvidenceError, EvidenceProblems
from rollbook.evidence.registry import read_folder

HIGH = "{label: D, stage: rl, value: 0.3, unit: number, says: The upper clip is three tenths.}"
LOW = "{label: U, stage: rl, says: The lower clip is not given.}"


def words(error: EvidenceError, wanted: list[str]) -> bool:
    return all(word in str(error) for word in wanted)


def test_a_claim_is_read_with_its_source_its_scope_and_its_line(tmp_path: Path) -> None:
    registry = read_folder(folder(tmp_path, test=TEXT))
    high = registry.claim("test.old.high")
    assert (high.value, high.unit, high.label, high.release, high.scope) == (0.3, "number", "D", "old", ("old",))
    assert (high.source.document, high.source.section, high.source.cites) == ("case-study", "6.9", ("The report, section 2",))
    assert high.at == "test.yaml:20" and TEXT.splitlines()[19].strip().startswith("high:")
    assert registry.claim("test.old.layers").artifact == Config(repository="a/b", quantity="layers")
    assert registry.claim("test.old.code").artifact == Code(repository="a/c", commit="abc", file="run.sh", contains="GROUP=8")


@pytest.mark.parametrize(("old", "new", "wanted"), [
    ("label: D, stage: rl", "label: X, stage: rl",
     ["test.yaml:20: test.old.high has an unknown label", "got 'X'", "D, C, R, I, U"]),
    (LOW, "{label: U, stage: rl, value: 0.2, unit: number, says: x}",
     ["test.yaml:24: test.old.low has label U and a value", "got 0.2", "what is unknown has no value"]),
    (LOW, "{label: U, stage: rl, unit: number, says: x}", ["test.yaml:24", "has label U and a unit"]),
    ("assumes: [generation is asynchronous], ", "", ["test.old.ratio has label I but no assumes", "stands on its assumptions"]),
    ("assumes: [generation is asynchronous]", "assumes: []", ["test.old.ratio has label I but no assumes"]),
    (HIGH, "{label: D, stage: rl, assumes: [x], says: y}", ["test.yaml:20", "has label D and `assumes`", "only I (inference)"]),
    (HIGH, "{label: R, stage: rl, value: 0.3, unit: number, says: y}", ["has label R but no run", "a run in the ledger"]),
    (HIGH, "{label: D, stage: rl, run: runs/1, says: y}", ["has label D and `run`"]),
    (HIGH, "{label: C, stage: rl, value: 0.3, unit: number, says: y}", ["has label C but no artifact with a check"]),
    (HIGH, "{label: D, stage: rl, value: 0.3, says: y}", ["has a number but no unit", "got 0.3", "coefficient or a rate"]),
    (HIGH, "{label: D, stage: rl, value: 0.3, unit: nubmer, says: y}", ["unknown unit", "'nubmer'", "nearest units: number"]),
    (HIGH, "{label: D, stage: rl, value: wide, unit: number, says: y}", ["has a unit but no number"]),
    (HIGH, "{label: D, stage: rl, unit: number, says: y}", ["has a unit but no value"]),
    (HIGH, "{label: D, stage: rl, value: 0.3, unit: steps, says: y}", ["a number that is no steps", "whole numbers from 0"]),
    (HIGH, "{label: D, stage: rl, value: -1, unit: steps, says: y}", ["a number that is no steps"]),
    (HIGH, "{label: D, stage: rl, value: 1.3, unit: fraction, denominator: of x, says: y}", ["is no fraction", "from 0 to 1"]),
    (HIGH, "{label: D, stage: rl, value: 101, unit: score, denominator: of x, says: y}", ["is no score", "from 0 to 100"]),
    (HIGH, "{label: D, stage: rl, value: 0.3, unit: fraction, says: y}", ["unit fraction but no denominator"]),
    (HIGH, "{label: D, stage: rl, value: [3, 1], bound: range, unit: steps, says: y}", ["not two rising numbers"]),
    (HIGH, "{label: D, stage: rl, value: [3, x], unit: steps, says: y}", ["mixes numbers with other values"]),
    (HIGH, "{label: D, stage: rl, value: wide, bound: at_most, says: y}", ["has a bound but no number"]),
    (HIGH, "{label: D, stage: rl, value: 1, bound: nearly, unit: steps, says: y}", ["unknown bound", "'nearly'"]),
    (HIGH, "{label: D, stage: training, value: 1, unit: steps, says: y}", ["unknown stage", "'training'"]),
    (HIGH, "{label: D, value: 1, unit: steps, says: y}", ["test.old.high has no stage"]),
    (HIGH, "{label: D, stage: rl, value: 1, unit: steps}", ["test.old.high has no says"]),
    (HIGH, "{label: D, stage: rl, valeu: 1, says: y}", ["test.yaml:20: unknown key valeu", "nearest names: value"]),
    (HIGH, "{label: D, stage: rl, document: rumour, says: y}", ["unknown document", "'rumour'"]),
    (HIGH, '{label: D, stage: rl, section: "6.13", says: y}', ["case-study has no such section", "'6.13'"]),
    (HIGH, "{label: D, stage: rl, cites: [paper], says: y}", ["a paper that the file does not list", "nearest names: report"]),
    (HIGH, "{label: D, stage: rl, contradicts: [test.old.low], says: y}", ["contradicts another claim without a note"]),
    (HIGH, "{label: D, stage: rl, says: 5}", ["test.yaml:20", "says must be a text", "got 5"]),
    (HIGH, "{label: D, stage: rl, scope: old, says: y}", ["scope must be a list of texts"]),
    ("check: layers,", "check: height,", ["checks what no configuration shows", "'height'"]),
    ("model: old-8b, ", "", ["names no model"]),
    ("value: 2, unit: layers, ", "", ["has a check but no value"]),
    ("artifact: {config: a/b}", "artifact: {weights: a/b}", ["artifact of neither form"]),
    ("artifact: {config: a/b}, check: layers", "artifact: {config: a/b}", ["label C but no artifact with a check"]),
    ("check: {contains: GROUP=8}", "check: {holds: GROUP=8}", ["artifact of neither form"]),
    ("date: 2025-04", "date: 2025", ["date must be a text", "got 2025"]),
    ("date: 2025-04", "date: April", ["releases.old needs a name and a date", "'April'"]),
    ("laboratory: test", "laboratory: other", ["laboratory must equal the file's name", "write test"]),
    ("rollbook.claims/1", "rollbook.claims/2", ["must begin with `schema: rollbook.claims/1`"]),
    ('section: "6.9"', "section: 6.9", ["section must be a text", "got 6.9"]),
    ('    section: "6.9"\n', "", ["test.old.high has no section", "no claim without its source"]),
    ("    document: case-study\n", "", ["has no document", "no claim without its source"]),
    ("      low:", "      high:", ["test.yaml:24: key groups.old.claims.high is written twice"]),
    ("name: A laboratory", "name: [", ["not valid YAML"]),
    ("name: A laboratory", "name: !x A", ["not valid YAML"]),
])
def test_a_claim_that_breaks_its_own_meaning_is_refused_with_file_line_and_reason(tmp_path: Path, old: str, new: str,
                                                                                   wanted: list[str]) -> None:
    with pytest.raises(EvidenceError) as caught:
        changed(tmp_path, old, new)
    assert words(caught.value, wanted), caught.value


def test_all_problems_of_a_file_are_listed_at_once(tmp_path: Path) -> None:
    with pytest.raises(EvidenceProblems) as caught:
        changed(tmp_path, "label: D, stage: rl, value: 0.3, unit: number", "label: X, stage: rlhf, value: 0.3, x: 1")
    assert len(caught.value.problems) == 3
    assert words(caught.value, ["the claims have 3 problems", "unknown label", "unknown stage", "unknown key x"])


@pytest.mark.parametrize(("claim", "wanted"), [
    ("other: {label: D, stage: rl, quantity: high, value: 0.4, unit: number, says: y}",
     ["test.yaml:28: test.old.other contradicts test.old.high (test.yaml:20)", "got D 0.4 number against D 0.3 number"]),
    ("other: {label: D, stage: rl, quantity: high, value: 30, unit: steps, says: y}", ["has another unit than test.old.high"]),
    ("other: {label: U, stage: rl, quantity: high, says: y}", ["test.old.other calls unknown what is stated by test.old.high"]),
    ("other: {label: D, stage: rl, quantity: low, value: 0.2, unit: number, says: y}", ["what is unknown to test.old.low"]),
    ("other: {label: D, stage: rl, quantity: ratio, value: trainer, says: y}", ["contradicts test.old.ratio"]),
    ("other: {label: D, stage: rl, quantity: high, value: 0.4, bound: at_least, unit: number, says: y}", ["contradicts"]),
    ("other: {label: D, stage: rl, release: newer, says: y}", ["unknown release", "'newer'", "nearest names: new"]),
    ("other: {label: D, stage: rl, scope: [older], says: y}", ["unknown release", "'older'"]),
    ("other: {label: D, stage: rl, model: old-9b, says: y}", ["unknown model of old", "nearest names: old-8b"]),
    ("other: {label: D, stage: rl, scope: [old, new], says: y}", ["has new both in its scope and in not_for"]),
    ("other: {label: D, stage: rl, supersedes: [test.old.hihg], note: x, says: y}", ["to an unknown claim", "test.old.high"]),
])
def test_claims_that_do_not_stand_together_are_refused(tmp_path: Path, claim: str, wanted: list[str]) -> None:
    with pytest.raises(EvidenceError) as caught:
        read_folder(folder(tmp_path, test=f"{TEXT}      {claim}\n"))
    assert words(caught.value, wanted), caught.value


@pytest.mark.parametrize("claim", [
    "other: {label: D, stage: rl, quantity: high, value: 0.4, unit: number, contradicts: [test.old.high], note: x, says: y}",
    "other: {label: D, stage: rl, quantity: high, value: 0.4, unit: number, supersedes: [test.old.high], note: erratum, says: y}",
    "other: {label: D, stage: rl, quantity: high, value: 0.3, unit: number, says: y}",
    "other: {label: D, stage: rl, quantity: high, value: [0.2, 0.3], bound: range, unit: number, says: y}",
    "other: {label: D, stage: rl, quantity: high, value: 0.31, bound: about, unit: number, says: y}",
    "other: {label: D, stage: sft, quantity: high, value: 0.4, unit: number, says: y}",
    "other: {label: D, stage: rl, model: old-8b, quantity: high, value: 0.4, unit: number, says: y}",
    "other: {label: D, stage: sft, quantity: share, value: 0.2, unit: fraction, denominator: of tokens, says: y}",
    "other: {label: I, stage: rl, quantity: low, value: 0.2, unit: number, assumes: [custom], says: y}",
])
def test_claims_that_stand_together_are_read(tmp_path: Path, claim: str) -> None:
    assert len(read_folder(folder(tmp_path, test=f"{TEXT}      {claim}\n")).ids) == 7


def test_a_release_stands_in_one_file_and_its_name_with_its_date_is_its_own(tmp_path: Path) -> None:
    second = "schema: rollbook.claims/1\nlaboratory: two\nname: Two\nreleases:\n  old: {name: Else, date: 2025-04}\ngroups: {}\n"
    with pytest.raises(EvidenceError, match=r"two.yaml: release old is also in test.yaml"):
        read_folder(folder(tmp_path, test=TEXT, two=second))
    with pytest.raises(EvidenceError, match="releases old and older have one name and date"):
        read_folder(folder(tmp_path, test=TEXT, two=second.replace("old: {name: Else", "older: {name: Old")))


def test_a_reproduced_claim_needs_its_run_in_the_ledger(tmp_path: Path) -> None:
    text = TEXT.replace(HIGH, "{label: R, stage: rl, value: 0.3, unit: number, run: abc123, says: y}")
    registry = read_folder(folder(tmp_path, test=text))
    registry.check_runs(lambda run: run == "abc123")
    with pytest.raises(EvidenceError, match=r"test.yaml:20: test.old.high names a run that is not in the ledger, got 'abc123'"):
        registry.check_runs(lambda run: False)
