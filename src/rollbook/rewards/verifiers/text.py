"""Text against text: exact answers, one choice of several, a pattern."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from rollbook.rewards.verifiers.base import BadReference, VerifierSpec, verdict
from rollbook.rewards.verifiers.extraction import answer_in

MAX_ANSWER = 20_000
WORDING = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
ONE = r"(?:\*\*|\\text\w*\{|\\math\w+\{|\$|\\\(|[({\[])*\s*([A-Z])\s*(?:\*\*|\$|\\\)|[)}\]])*"
STATED = re.compile(rf"(?:answer|choice|option)\b(?:\s+(?:is|would be|should be))?\s*[:=]?\s*{ONE}(?![A-Za-z'’])", re.IGNORECASE)
ALONE = re.compile(rf"\s*{ONE}\s*(?:[.):]\s*\S.*|\s+[^A-Za-z].*|[.:]?)", re.DOTALL)
SECOND = re.compile(r"[\s)}\]*$.:]*(?:,|/|&|;|and\b|or\b)?[\s({\[*$]*([A-Z])(?![A-Za-z'’])(?!\s+[a-z])")


def exact(response: str, reference: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The answer is the reference, or one of several, up to white space at its ends (and case, where the settings say so)."""
    wanted = [reference] if isinstance(reference, str) else reference
    if not isinstance(wanted, list) or not wanted or not all(isinstance(one, str) and one.strip() for one in wanted):
        raise BadReference("the reference is a text or a list of texts, none of them empty")
    answer = answer_in(response, settings["extract"])
    if answer is None:
        return verdict(False, "no answer")
    if len(answer) > MAX_ANSWER:
        return verdict(False, f"an answer of {len(answer)} characters")
    found = _normal(answer, settings)
    return verdict(found in {_normal(one, settings) for one in wanted}, answer)


def _normal(text: str, settings: Mapping[str, Any]) -> str:
    text = unicodedata.normalize("NFC", text).strip()
    if settings["collapse_spaces"]:
        text = re.sub(r"\s+", " ", text)
    return text.casefold() if settings["ignore_case"] else text


def choice(response: str, reference: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """One letter was chosen, and it is the right one. Two letters are no choice, a letter outside the choices neither."""
    options = settings["options"]
    if not isinstance(reference, str) or len(_letters(reference)) != 1 or _letters(reference)[0] not in options:
        raise BadReference(f"the reference is one letter of {options}, got {reference!r}"[:200])
    chosen = chosen_letter(response, options)
    return verdict(chosen == _letters(reference)[0], f"chose {chosen or 'nothing'}")


def _letters(text: str) -> list[str]:
    return re.findall("[A-Z]", WORDING.sub(r"\1", text).strip().upper())


def chosen_letter(response: str, options: str) -> str | None:
    r"""The one letter that a response settles on: in its last box, or as its last "answer is X", or as all it says.

    Example: chosen_letter("The answer is (C).", "ABCD") == "C"; chosen_letter(r"\boxed{A, B}", "ABCD") is None
    """
    boxed = answer_in(response, "boxed")
    if boxed is not None:
        shown = WORDING.sub(r" \1 ", boxed).strip()
        return _only(shown, options)
    visible = answer_in(response, "whole") or ""
    found = [(match[1], match.end()) for match in STATED.finditer(visible) if match[1].isupper()]
    if found:
        letter, end = found[-1]
        rest = visible[end:end + 24]
        joined = re.match(r"\s*(?:,|and|or|/|&)\s*(?:\(?)([A-Z])(?![A-Za-z])", rest)
        return None if joined or letter not in options else letter
    last = answer_in(response, "last_line") or ""
    return _only(last, options) if len(last) < 200 else None


def _only(shown: str, options: str) -> str | None:
    """The letter with which a short text begins, unless another choice stands right behind it: `A, B`, `(A) (B)`, `A. B`."""
    match = ALONE.fullmatch(shown)
    if match is None or match[1] not in options or not match[1].isupper():
        return None
    second = SECOND.match(shown, match.end(1))
    return None if second and second[1] in options else match[1]


def pattern(response: str, reference: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The answer matches the pattern of the reference, whole or somewhere. A pattern without end meets the limit of time."""
    flags = (re.IGNORECASE if settings["ignore_case"] else 0) | (re.DOTALL if settings["dot_matches_newline"] else 0)
    try:
        compiled = re.compile(reference, flags)
    except (re.error, TypeError, OverflowError, RecursionError) as error:
        raise BadReference(f"no pattern: {error}"[:200]) from None
    answer = answer_in(response, settings["extract"])
    if answer is None:
        return verdict(False, "no answer")
    found = compiled.fullmatch(answer) if settings["whole"] else compiled.search(answer)
    return verdict(found is not None, answer)


EXACT = VerifierSpec(name="exact", version="1", work=f"{__name__}:exact",
                     sources=("boxes.py", "verifiers/extraction.py", "verifiers/text.py"),
                     settings={"extract": "boxed_or_whole", "ignore_case": False, "collapse_spaces": False})
CHOICE = VerifierSpec(name="choice", version="1", work=f"{__name__}:choice",
                      sources=("boxes.py", "verifiers/extraction.py", "verifiers/text.py"), settings={"options": "ABCDEFGHIJ"})
PATTERN = VerifierSpec(name="pattern", version="1", work=f"{__name__}:pattern",
                       sources=("boxes.py", "verifiers/extraction.py", "verifiers/text.py"),
                       settings={"extract": "boxed_or_whole", "whole": True, "ignore_case": False, "dot_matches_newline": False})
