"""docs/papers.md says what the classes say: every class, every field, every default; and its tests exist."""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path

import pytest

from rollbook.objectives import OBJECTIVES, Unstated
from rollbook.objectives.credit import RULES
from rollbook.objectives.preference import Dpo, Llama3Dpo
from rollbook.objectives.terms import AdaptiveEntropy

ROOT = Path(__file__).parents[3]
CLASSES = {**OBJECTIVES, **RULES, "Dpo": Dpo, "Llama3Dpo": Llama3Dpo, "AdaptiveEntropy": AdaptiveEntropy}


def rows() -> list[list[str]]:
    lines = (ROOT / "docs" / "papers.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in cells if row[0] != "paper" and not set(row[0]) <= {"-"}]


ROWS = rows()
CLASS_ROWS = [row for row in ROWS if row[1].strip("`") in CLASSES]


def fields_of(numbers: str) -> dict[str, str]:
    """`low = 0.2 [D]; credit: open [U]` as {"low": "= 0.2 [D]", "credit": ": open [U]"}."""
    entries = (re.match(r"(\w+)\s*([=:].*)", part.strip()) for part in numbers.split(";"))
    return {entry[1]: entry[2] for entry in entries if entry}


def text_of(value: object) -> str:
    return type(value).__name__ if dataclasses.is_dataclass(value) else str(value)


def test_every_objective_has_exactly_one_row() -> None:
    names = [row[1].strip("`") for row in CLASS_ROWS]
    assert len(names) == len(set(names)) and set(names) >= {*OBJECTIVES, "Dpo", "Llama3Dpo", "AdaptiveEntropy"}


@pytest.mark.parametrize("row", CLASS_ROWS, ids=lambda row: row[1])
def test_a_rows_numbers_are_the_classs_fields(row: list[str]) -> None:
    printed = fields_of(row[2])
    fields = {field.name: field for field in dataclasses.fields(CLASSES[row[1].strip("`")])}
    assert set(printed) == set(fields)
    for name, field in fields.items():
        assert re.search(r"\[(D|C|I|U)\]", printed[name]), f"{name} has no label"
        if field.default is dataclasses.MISSING:
            assert printed[name].startswith(":"), f"{name} has no default"
        elif isinstance(field.default, Unstated):
            assert printed[name].startswith(":"), f"{name} is unstated"
            check_unstated(field.default, printed[name])
        else:
            assert re.fullmatch(rf"= {re.escape(text_of(field.default))} \[\w\].*", printed[name]), f"{name} is {field.default}"


def check_unstated(default: Unstated, printed: str) -> None:
    if default.known is not None:
        assert f"{default.known}(" in printed
    for name, value in default.printed:
        assert f"{name} = {value:g} [D]" in printed if isinstance(value, float) else f"{name} = {value} [D]" in printed
    for name in default.missing:
        assert f"{name} open [U]" in printed


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1])
def test_a_rows_test_exists(row: list[str]) -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert f"def {row[3].strip('`')}(" in tests


@pytest.mark.parametrize("row", [row for row in ROWS if row not in CLASS_ROWS], ids=lambda row: row[1])
def test_a_rows_function_exists(row: list[str]) -> None:
    module, name = row[1].strip("`").rsplit(".", 1)
    assert callable(getattr(importlib.import_module(f"rollbook.objectives.{module}"), name))


@pytest.mark.parametrize("cls", OBJECTIVES.values(), ids=lambda cls: cls.__name__)
def test_each_docstring_states_source_and_gradient_and_its_module_shapes_and_units(cls: type) -> None:
    assert re.search(r"\(.*(\d{4}\.\d{4,5}|Nature|Thinking Machines)", cls.__doc__ or ""), "source"
    assert re.search(r"[Gg]radient", cls.__doc__ or "")
    module = importlib.import_module(cls.__module__)
    assert re.search(r"Suffix(es)?:? .*action tokens", module.__doc__ or "") and "nats" in (module.__doc__ or "")
    assert "d loss / d logp" in (module.__doc__ or "") or "-J per token" in (module.__doc__ or "")
