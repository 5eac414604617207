r"""Whether a boxed answer equals the reference: exact numbers, then rules on notation, then math-verify over SymPy.

Runs in a worker process: nothing here is bounded in time, and no text is ever evaluated as Python:
only the LaTeX grammar reads it.
Decimals are exact: 0.333 is not one third. Limit: units are not converted; a scaled equation is not the solved one.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable
from typing import Any

from rollbook.rewards.notation import depth, is_wording, items, keep_case, plain, rename, words
from rollbook.rewards.numbers import compare, rational

MAX_CHARACTERS = 4000
MAX_DEPTH = 32
MAX_ITEMS = 12
CODE = re.compile(r"__|\bimport\b|\blambda\b|\.[a-zA-Z_]+\s*\(|[`\"@]")
FAMILY = re.compile(r"(.*?)[,;]?\s*(?:\\[,; ]\s*)*([a-z])\s*\\in\s*(?:\\mathbb\s*)?\{?(?:\\mathbb\s*)?[ZN]\}?\s*")
FUNCTION = re.compile(r"([A-Za-z])\(([a-z])\)\s*=(.*)")
ASSIGNMENT = re.compile(r"([A-Za-z])\s*=([^=<>]+)")
BASED = re.compile(r"([0-9A-Za-z]+)_\{?(\d+)\}?")
CLOCK = re.compile(r"(\d{1,2}):(\d{2})\s*([ap])\.?\s?m\.?", re.IGNORECASE)
PLAIN_CLOCK = re.compile(r"(\d{1,2}):(\d{2})")
WORD_COMMAND = re.compile(r"\\(?:text|mathrm)\s*\{([^{}]*)\}")
SET_MARKS = ("\\pm", "\\{", "\\in", "\\cup", "<", ">", "\\le", "\\ge", "\\mathbb")
ELLIPSIS = ("\\ldots", "\\dots", "\\cdots", "...")
Rule = Callable[[str, str], bool | None]


class UnparsableReference(Exception):
    """The reference is no mathematics that the parser can read, and no words either."""


def equivalent(answer: str, reference: str) -> bool:
    """Whether the two are the same answer. Raises UnparsableReference where the reference cannot decide."""
    known = compare(answer, reference)
    if known is not None:
        return known
    if len(answer) > MAX_CHARACTERS or depth(answer) > MAX_DEPTH or CODE.search(answer):
        return False
    if len(reference) > MAX_CHARACTERS:
        raise UnparsableReference(f"{len(reference)} characters")
    for rule in (_words, _based, _clock):
        decided = rule(answer, reference)
        if decided is not None:
            return decided
    left, right = plain(answer), plain(reference)
    for rule in (compare, _family, _function, _assignment, _list):
        decided = rule(left, right)
        if decided is not None:
            return decided
    return _symbolic(*keep_case(left, right))


def _words(answer: str, reference: str) -> bool | None:
    """Words equal words whatever their case; a reference set as words equals nothing else."""
    wanted = words(reference)
    if wanted is None:
        return None
    if words(answer) == wanted and (len(wanted) > 1 or words(reference) != reference or answer == reference):
        return True
    return False if is_wording(reference) else None


def _based(answer: str, reference: str) -> bool | None:
    """Numerals with a base: same digits, same base."""
    left, right = BASED.fullmatch(answer.strip()), BASED.fullmatch(reference.strip())
    if not (left and right and left[1][0].isdigit() and right[1][0].isdigit()):
        return None
    return (left[1].lstrip("0").upper(), left[2]) == (right[1].lstrip("0").upper(), right[2])


def _minutes(text: str) -> int | None:
    text = WORD_COMMAND.sub(r" \1", text).strip()
    if match := CLOCK.fullmatch(text):
        return int(match[1]) % 12 * 60 + int(match[2]) + (720 if match[3].lower() == "p" else 0)
    match = PLAIN_CLOCK.fullmatch(text)
    return int(match[1]) * 60 + int(match[2]) if match else None


def _clock(answer: str, reference: str) -> bool | None:
    """Times of day, where one of the two says am or pm."""
    left, right = _minutes(answer), _minutes(reference)
    marked = any(re.search(r"[ap]\.?\s?m", text, re.IGNORECASE) for text in (answer, reference))
    return left == right if left is not None and right is not None and marked else None


def _family(answer: str, reference: str) -> bool | None:
    """Infinite families: the integer parameter is bound, so its name does not matter, but its presence does."""
    left, right = FAMILY.fullmatch(answer), FAMILY.fullmatch(reference)
    if right is None or not right[1].strip():
        return None
    if left is None or not left[1].strip():
        return False
    return equivalent(rename(left[1], left[2], right[2]), right[1])


def _function(answer: str, reference: str) -> bool | None:
    """Definitions: the argument is bound, the name of the function is not."""
    left, right = FUNCTION.fullmatch(answer), FUNCTION.fullmatch(reference)
    if not (left and right) or left[2] == right[2]:
        return None
    return left[1] == right[1] and equivalent(rename(left[3], left[2], right[2]), right[3])


def _assignment(answer: str, reference: str) -> bool | None:
    """One variable given a value on both sides: the same variable, the same value."""
    left, right = ASSIGNMENT.fullmatch(answer), ASSIGNMENT.fullmatch(reference)
    if not (left and right) or len(items(answer)) > 1 or len(items(reference)) > 1 or left[1] in left[2]:
        return None
    return left[1] == right[1] and equivalent(left[2], right[2])


def _list(answer: str, reference: str) -> bool | None:
    """Several answers: all of them and no others, in any order; a sequence with dots in its own order."""
    if "\\begin" in answer + reference or (rational(reference) is not None and rational(answer) is not None):
        return None
    left, right = items(answer), items(reference)
    if max(len(left), len(right)) < 2 or max(len(left), len(right)) > MAX_ITEMS:
        return None
    if len(left) != len(right):
        return None if any(mark in answer + reference for mark in SET_MARKS) or reference.startswith(("(", "[")) else False
    if any(dots in reference for dots in ELLIPSIS):
        return all(_item(one, other) for one, other in zip(left, right, strict=True))
    for wanted in right:
        match = next((index for index, found in enumerate(left) if _item(found, wanted)), None)
        if match is None:
            return False
        left.pop(match)
    return True


def _item(answer: str, reference: str) -> bool:
    return answer.replace(" ", "") == reference.replace(" ", "") or equivalent(answer, reference)


def _symbolic(answer: str, reference: str) -> bool:
    import math_verify

    units = "\\text" in answer + reference or "\\mathrm" in answer + reference
    wanted = _parse(math_verify, reference, units)
    if all(isinstance(form, str) for form in wanted) and words(reference) is None:
        raise UnparsableReference(reference[:80])
    found = _parse(math_verify, answer, units)
    exact = _exact(found, wanted)
    if exact is not None:
        return exact
    return bool(math_verify.verify(wanted, found, timeout_seconds=None, allow_set_relation_comp=True))


def _parse(math_verify: Any, text: str, units: bool) -> list[Any]:
    """SymPy forms by the LaTeX grammar alone: the plain-expression reader of the library would evaluate Python.

    Units are stripped only where text is set as text: the library's unit list also deletes the variable t.
    """
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    latex = math_verify.LatexExtractionConfig(boxed_match_priority=-1)
    if not units:
        latex = dataclasses.replace(latex, normalization_config=dataclasses.replace(latex.normalization_config, units=False))
    return list(math_verify.parse(f"${text}$", extraction_config=[latex], parsing_timeout=None))


def _exact(found: list[Any], wanted: list[Any]) -> bool | None:
    """Equality of two expressions by exact arithmetic and SymPy's zero test; None for other objects or no decision."""
    import sympy

    pair = [form for forms in (found, wanted) for form in forms if isinstance(form, sympy.Expr)]
    if len(pair) != 2 or any(form.has(sympy.UnevaluatedExpr, sympy.oo, sympy.zoo, sympy.nan) for form in pair):
        return None
    unit = {symbol: sympy.I for form in pair for symbol in form.free_symbols if symbol.name == "i" and not symbol.is_real}
    left, right = (form.subs(unit).doit() for form in pair)
    if left.is_Symbol or right.is_Symbol:
        return None
    if left.is_Rational and right.is_Rational:
        return bool(left == right)
    if bool(left.free_symbols) != bool(right.free_symbols) and not (left - right).simplify().is_number:
        return False
    zero: bool | None = (left - right).equals(0)
    return zero
