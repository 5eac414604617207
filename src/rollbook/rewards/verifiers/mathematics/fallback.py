"""The second parser: math-verify's LaTeX grammar and its comparison, for notation that our own grammar does not know."""

from __future__ import annotations

import dataclasses
import logging
import re
from typing import Any

from rollbook.rewards.notation import WORDING
from rollbook.rewards.verifiers.mathematics.nodes import Unsupported

CODE = re.compile(r"\\(?:input|include|def|let|write|read|openin|catcode|newcommand|special|immediate|csname)(?![A-Za-z])"
                  r"|__|\bimport\b|\blambda\b|\.[a-zA-Z_]+\s*\(|[`\"@]")
COMMAND = re.compile(r"\\[A-Za-z]+|\\.")


def same_by_math_verify(answer: str, reference: str) -> bool:
    """Whether math-verify accepts; Unsupported where it cannot read the reference. What looks like code is refused unread."""
    import math_verify

    if CODE.search(answer):
        return False
    answer, reference = keep_case(answer, reference)
    units = "\\text" in answer + reference or "\\mathrm" in answer + reference
    wanted = _parse(math_verify, reference, units)
    if all(isinstance(form, str) for form in wanted):
        raise Unsupported(reference[:80])
    found = _parse(math_verify, answer, units)
    exact = _exact(found, wanted)
    if exact is not None:
        return exact
    return bool(math_verify.verify(wanted, found, timeout_seconds=None, allow_set_relation_comp=True))


def rename(text: str, old: str, new: str) -> str:
    r"""The text with the one-letter symbol `old` replaced where it is not part of a command."""
    pieces, commands = COMMAND.split(text), COMMAND.findall(text)
    return "".join(piece.replace(old, new) + command for piece, command in zip(pieces, [*commands, ""], strict=True))


def keep_case(answer: str, reference: str) -> tuple[str, str]:
    """Both texts with capital letters marked where the pair uses a letter in both cases (the parser ignores case)."""
    used = {letter for text in (answer, reference) for letter in COMMAND.sub(" ", WORDING.sub(" ", text)) if letter.isalpha()}
    for letter in sorted(letter for letter in used if letter.isupper() and letter.lower() in used):
        answer, reference = (rename(text, letter, f"{letter}_{{0}}") for text in (answer, reference))
    return answer, reference


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
