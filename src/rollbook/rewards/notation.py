r"""One way to write what can be written in several: text rewriting before symbols are parsed. Nothing here computes."""

from __future__ import annotations

import re
from fractions import Fraction

from rollbook.rewards.numbers import bare, rational

DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])")
REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\{?(\d+)\}?")
GROUPED = re.compile(r"(?<=\d)(?:\\,|\\!|\{,\}|,\\!|\\;)(?=\d{3}(?!\d))")
COMMAND = re.compile(r"\\[A-Za-z]+|\\.")
WORDING = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|operatorname|mbox)\s*\{([^{}]*)\}")
LETTERS = re.compile(r"[^\W\d_]+(?:[ '-][^\W\d_]+)*")
SPACES = re.compile(r"\\[,;:! ]|\\quad|\\qquad|~|\s+")
SYMBOLS = str.maketrans({"°": r"^\circ ", "π": r"\pi ", "α": r"\alpha ", "β": r"\beta ", "θ": r"\theta ", "∞": r"\infty ",
                         "×": r"\times ", "·": r"\cdot ", "÷": r"\div ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ",
                         "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "±": r"\pm ", "√": r"\sqrt ", "∈": r"\in "})
OPENING, CLOSING = "([{", ")]}"
SEPARATOR = re.compile(r"\s*(?:[,;]|\\text\s*\{\s*,?\s*(?:and|or)\s*\}|\b(?:and|or)\b)\s*")


def plain(text: str) -> str:
    """The text with one spelling of symbols, exact fractions for decimals, and no layout commands."""
    value = rational(text)
    if value is not None:
        return fraction(value)
    text = bare(text).replace("$", "").translate(SYMBOLS)
    text = re.sub(r"\\left\b|\\right\b|\\displaystyle\b", "", text).replace("\\mid", ":").replace("\\lvert", "|")
    text = re.sub(r"\\[dtc]frac\b", r"\\frac", text).replace("\n", " ")
    text = GROUPED.sub("", text)
    text = REPEATING.sub(_repeating, text)
    return DECIMAL.sub(_decimal, text).strip()


def words(text: str) -> str | None:
    r"""The lower-case words of an answer that is made of words or one letter; None for anything with other symbols.

    Example: words(r"\text{(B)}") == "b"; words("No solution") == "no solution"; words("2x") is None
    """
    shown = SPACES.sub(" ", WORDING.sub(r" \1 ", text)).strip(" .")
    inner = re.fullmatch(r"\(\s*([A-Za-z])\s*\)", shown)
    shown = inner[1] if inner else shown
    return shown.casefold() if LETTERS.fullmatch(shown) else None


def is_wording(text: str) -> bool:
    r"""Whether the whole text is set as words: `\text{yes}`."""
    return WORDING.fullmatch(bare(text)) is not None


def items(text: str) -> list[str]:
    """The parts between commas, semicolons and the words and/or that are inside no bracket."""
    parts, depth, start, position = [], 0, 0, 0
    while position < len(text):
        separator = SEPARATOR.match(text, position) if depth == 0 else None
        if separator and separator.group().strip():
            parts.append(text[start:position])
            start = position = separator.end()
            continue
        depth += (text[position] in OPENING) - (text[position] in CLOSING)
        position += 1
    return [part for part in (part.strip() for part in [*parts, text[start:]]) if part]


def depth(text: str) -> int:
    """How deep the brackets of a text are nested."""
    deepest = level = 0
    for character in text:
        level += (character in OPENING) - (character in CLOSING)
        deepest = max(deepest, level)
    return deepest


def rename(text: str, old: str, new: str) -> str:
    r"""The text with the one-letter symbol `old` replaced where it is not part of a command."""
    pieces = COMMAND.split(text)
    commands = COMMAND.findall(text)
    renamed = [piece.replace(old, new) for piece in pieces]
    return "".join(piece + command for piece, command in zip(renamed, [*commands, ""], strict=True))


def keep_case(answer: str, reference: str) -> tuple[str, str]:
    """Both texts with capital letters marked where the pair uses a letter in both cases (the parser ignores case)."""
    used = {letter for text in (answer, reference) for letter in COMMAND.sub(" ", WORDING.sub(" ", text)) if letter.isalpha()}
    both = sorted(letter for letter in used if letter.isupper() and letter.lower() in used)
    for letter in both:
        answer, reference = (rename(text, letter, f"{letter}_{{0}}") for text in (answer, reference))
    return answer, reference


def fraction(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _decimal(match: re.Match[str]) -> str:
    return fraction(Fraction(f"{match[1] or 0}.{match[2]}")) if len(match[0]) < 100 else match[0]


def _repeating(match: re.Match[str]) -> str:
    whole, lead, period = match[1] or "0", match[2], match[3]
    if len(match[0]) > 100:
        return match[0]
    head = Fraction(int(whole + lead), 10 ** len(lead))
    return fraction(head + Fraction(int(period), 10 ** len(lead) * (10 ** len(period) - 1)))
