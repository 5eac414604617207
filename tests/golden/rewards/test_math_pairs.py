"""The corpus of answer pairs: nothing wrong is accepted, nothing equal is refused beyond what is listed here."""

import json
from itertools import combinations
from pathlib import Path

import pytest

from rollbook.rewards.boxes import last_box
from rollbook.rewards.math import Undecided, UnparsableReference, equivalent

HERE = Path(__file__).parent
BLIND = ("math_pairs_blind", "math_pairs_second_blind",        # written without the verifier's code
         "math_pairs_third_blind", "math_pairs_fourth_blind")
FILES = (*BLIND, "math_pairs_informed")
LEAST = {"math_pairs_second_blind": 150, "math_pairs_third_blind": 150, "math_pairs_fourth_blind": 90}
KNOWN_REFUSALS = {("15", "\\fbox{15}"),       # only \boxed is a box; a parameter that is not declared is a symbol
                  ("\\frac{\\pi}{4} + \\frac{n\\pi}{2}",
                   "Thus the answer is $\\boxed{\\frac{\\pi}{4}+\\frac{k\\pi}{2},\\ k\\in\\mathbb{Z}}$."),
                  ("n \\equiv 2 \\pmod 5", "We conclude: \\(\\boxed{n = 5k+2}\\)"),
                  ("\\{1, 3, 5, 7, 9\\}",       # a step of two is shown by three numbers: 1, 4, .., 25 may be squares
                   "$\\boxed{\\{1,3,\\ldots,9\\}}$"),
                  ("\\text{infinitely many}", "\\boxed{\\infty}"),       # words equal what they name: many is no number
                  ("25\\ \\Omega", "\\boxed{0.025\\ \\mathrm{k}\\Omega}"),       # a Greek letter is a symbol; `ohms` is a unit
                  ("\\frac{x^2-1}{x-1}", "\\boxed{x+1,\\ x\\neq1}"),
                  ("12", "\\boxed{" + "(" * 3000 + "12" + ")" * 3000 + "}")}       # deeper than what is read
ROWS = [(name, json.loads(line)) for name in FILES for line in (HERE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
KINDS = sorted({(name, row["kind"]) for name, row in ROWS})


def accepted(row):
    """Whether the response is accepted; a comparison without an outcome is not."""
    box = last_box(row["answer"])
    if box.answer is None or not row["reference"].strip():
        return False
    try:
        return equivalent(box.answer, row["reference"])
    except (UnparsableReference, Undecided):
        return False


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_what_is_accepted_is_equal_and_what_is_equal_is_accepted(name, kind):
    rows = [row for file, row in ROWS if (file, row["kind"]) == (name, kind)]
    wrong = [(row["reference"], row["answer"]) for row in rows if accepted(row) != row["equal"]]
    assert [pair for pair in wrong if pair not in KNOWN_REFUSALS] == []


def test_the_corpus_is_large_has_both_outcomes_and_repeats_nothing():
    assert all(sum(file == name for file, _ in ROWS) >= LEAST.get(name, 750) for name in FILES)
    for name in FILES:
        equal = [row["equal"] for file, row in ROWS if file == name]
        assert 0.4 < sum(equal) / len(equal) < 0.6
    boxed = [{(row["reference"], last_box(row["answer"]).answer) for file, row in ROWS if file == name
              and last_box(row["answer"]).answer} for name in FILES]
    assert all(len(one & other) < 0.02 * len(ROWS) for one, other in combinations(boxed, 2))


@pytest.mark.parametrize("name", FILES)
def test_every_reference_that_can_be_read_equals_itself_in_other_clothes(name):
    clothes = ("{}", "${}$", "\\({}\\)", " {} ", "{}.", "\\displaystyle {}", "\\left({}\\right)")
    plain = [row["reference"] for file,
             row in ROWS if file == name and row["kind"] in ("fraction", "radical", "factored_expanded")]
    wrong = [(form, reference) for reference in plain for form in clothes if "=" not in reference
             and not equivalent(form.replace("{}", reference), reference)]
    assert wrong == []
