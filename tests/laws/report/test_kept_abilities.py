"""What a run kept of abilities that it did not train, on the page beside its gains."""

import json

import pytest
from report_samples import complete_run

from rollbook.cli_abilities import said
from rollbook.ledger import Ledger
from rollbook.records import Abilities, AbilityChange, Interval, LedgerError, canonical, encode
from rollbook.report.kept import FILE, kept
from rollbook.report.page import write_report


def change(ability, low, high, claim):
    gain = Interval(estimate=(low + high) / 2, low=low, high=high, level=0.95, method="paired bootstrap", count=64)
    return AbilityChange(ability=ability, before="start", after="rl", share_before=0.5, share_after=0.5 + gain.estimate,
                         gain=gain, p_value=0.01, claim=claim)


CHANGES = (change("chat", -0.3, -0.1, "loss"), change("format", -0.1, 0.2, "none"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept") / "run"
    complete_run(folder)
    return folder


def written(run, changes, genesis=None):
    with Ledger.open(run, write=False) as ledger:
        made = Abilities(run=genesis or ledger.genesis, changes=changes, left_out={"tools": "prompts are too long: 1007 > 256"})
    (run / FILE).parent.mkdir(exist_ok=True)
    (run / FILE).write_bytes(canonical(encode(made)))
    return made


def test_a_regression_stands_on_the_page_beside_the_gains_and_a_change_within_chance_is_none(run):
    written(run, CHANGES)
    page = write_report(run).read_text()
    assert "Regressions beyond chance: chat (start → rl) -20.0 points." in page.replace("−", "-")
    assert page.count("regression</b>") == 1 and "Not measured: tools (prompts are too long" in page
    written(run, CHANGES[1:])
    assert "No regression beyond chance in 1 comparisons." in write_report(run).read_text()


def test_a_run_without_the_suites_says_nothing_of_them(run):
    (run / FILE).unlink(missing_ok=True)
    assert "What was not trained" not in write_report(run).read_text()


@pytest.mark.parametrize("damage", ["{", json.dumps({"kind": "Abilities"}), None])
def test_a_file_that_is_damaged_or_of_another_run_is_refused(run, damage):
    written(run, CHANGES, genesis="00" * 32)
    if damage is not None:
        (run / FILE).write_text(damage)
    with pytest.raises(LedgerError, match=r"cannot be read|is of another run"):
        kept(run, "ff" * 32)


def test_the_terminal_names_every_regression_and_how_many_gains_stand_beside_it():
    made = Abilities(run="a", changes=CHANGES, left_out={})
    assert said(made, []).endswith("regressions beyond chance: chat (start to rl) -20.0")
    assert said(Abilities(run="a", changes=(), left_out={}), []).endswith("regressions beyond chance: none")
