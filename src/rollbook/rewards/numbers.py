r"""The exact fast path: plain numbers are compared as fractions, identical texts as texts; everything else is left open."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_NUMBER_CHARACTERS = 200
GROUPED = re.compile(r"[+-]?\d{1,3}(?:(?:\{,\}|,\\!|,|\\,|\\;|\\ |\\!)\d{3})+(?:\.\d+)?")
DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)")
RATIO = re.compile(r"([+-]?)(?:\\[dtc]?frac)?(?:\{([+-]?\d+)\}\{([+-]?\d+)\}|(\d)(\d)|\{([+-]?\d+)\}(\d)|(\d)\{([+-]?\d+)\})")
SLASHED = re.compile(r"([+-]?\d+)\s*/\s*(\d+)")
PERCENT = re.compile(r"\s*\\?%$|\s*\\text\s*\{\s*percent\s*\}$")
GROUP_MARKS = re.compile(r"\{,\}|,\\!|,|\\,|\\;|\\ |\\!")
MINUS = str.maketrans({"\u2212": "-", "\u2013": "-", "\u2010": "-", "\u2011": "-", "\uff0d": "-", "\u00a0": " "})
WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))


def bare(text: str) -> str:
    r"""The text without surrounding white space, math delimiters and a closing full stop; every dash is a minus.

    Example: bare(r"$\frac{1}{2}$. ") == r"\frac{1}{2}"
    """
    text = text.translate(MINUS).strip()
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1].rstrip()
    for left, right in WRAPPERS:
        inner = text[len(left):len(text) - len(right)]
        if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right) and "$" not in inner:
            return inner.strip()
    return text


def rational(text: str) -> Fraction | None:
    r"""The exact value of an integer, decimal, grouped number or simple fraction or percentage; None for anything else.

    Example: rational("1,250") == 1250; rational(r"-\frac{3}{4}") == Fraction(-3, 4); rational("3,8") is None
    """
    text = bare(text)
    if not text or len(text) > MAX_NUMBER_CHARACTERS or not text.isascii():
        return None
    if mark := PERCENT.search(text):
        value = rational(text[:mark.start()])
        return value / 100 if value is not None else None
    if DECIMAL.fullmatch(text):
        return Fraction(text)
    if GROUPED.fullmatch(text):
        return Fraction(GROUP_MARKS.sub("", text))
    if match := SLASHED.fullmatch(text):
        return _ratio(match[1], match[2])
    if "frac" in text and (match := RATIO.fullmatch(text)):
        above, below = (part for part in match.groups()[1:] if part is not None)
        value = _ratio(above, below)
        return -value if value is not None and match[1] == "-" else value
    return None


def compare(answer: str, reference: str) -> bool | None:
    r"""Whether two plain numbers, or two identical texts, are equal; None where symbols would have to be compared.

    A bare number above 1 is taken for as many percent where the other is a percentage: the sign is left out where the question
    names the unit. At 1 and below it is a fraction.

    Example: compare("30", r"30\%") is True; compare("0.3", r"30\%") is True; compare("0.5", r"0.5\%") is False
    """
    left, right = rational(answer), rational(reference)
    if left is not None and right is not None:
        return left == right or _same_percent(answer, left, reference, right)
    return True if bare(answer) == bare(reference) else None


def _same_percent(answer: str, left: Fraction, reference: str, right: Fraction) -> bool:
    """Whether exactly one of two numbers is a percentage and the other, above 1, is its number without the sign."""
    marked = [PERCENT.search(bare(text)) is not None for text in (answer, reference)]
    if marked[0] == marked[1]:
        return False
    number, percentage = (right, left) if marked[0] else (left, right)
    return number > 1 and number == 100 * percentage


def _ratio(above: str, below: str) -> Fraction | None:
    return Fraction(int(above), int(below)) if int(below) else None
