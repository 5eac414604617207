r"""The final answer of a response: what stands in its last \boxed{...}, by brace matching in one pass."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

BoxState = Literal["found", "empty", "unclosed", "none"]
TOKEN = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    r"""The last box of a text. `answer` is None unless `state` is found.

    Example: last_box(r"so \boxed{\frac{1}{2}}.") == Box(state="found", answer=r"\frac{1}{2}")
    """

    state: BoxState
    answer: str | None = None


def last_box(text: str) -> Box:
    r"""The content of the last \boxed{...}; boxes inside it are replaced by what they hold.

    The box that was opened last decides: where it is not closed there is no answer, whatever was boxed before. Where it lies
    inside another closed box, the outermost of them is the answer. `\{` and `\}` are characters, not braces. Linear in the
    length of the text.
    """
    spans, unclosed = _spans(text)
    if not spans and not unclosed:
        return Box(state="none")
    last = max([inner for inner, _ in spans] + unclosed)
    if last in unclosed:
        return Box(state="unclosed")
    start, end = min(span for span in spans if span[0] <= last <= span[1])
    answer = _without_boxes(text, start, end, spans).strip()
    return Box(state="found", answer=answer) if answer else Box(state="empty")


def _spans(text: str) -> tuple[list[tuple[int, int]], list[int]]:
    """Content spans of the closed boxes, and where the content of the unclosed ones begins."""
    stack: list[int | None] = []
    spans: list[tuple[int, int]] = []
    for match in TOKEN.finditer(text):
        token = match.group()
        if token == "{":
            stack.append(None)
        elif token == "}":
            opened = stack.pop() if stack else None
            if opened is not None:
                spans.append((opened, match.start()))
        elif token.startswith("\\boxed"):
            stack.append(match.end())
    return spans, [opened for opened in stack if opened is not None]


def _without_boxes(text: str, start: int, end: int, spans: list[tuple[int, int]]) -> str:
    """The text between `start` and `end` with the wrappers of its inner boxes left out."""
    cuts: list[tuple[int, int]] = []
    for inner, close in spans:
        if start < inner <= end and close < end:
            cuts += [(text.rindex("\\boxed", 0, inner), inner), (close, close + 1)]
    kept, position = [], start
    for cut_start, cut_end in sorted(cuts):
        kept.append(text[position:cut_start])
        position = cut_end
    return "".join([*kept, text[position:end]])
