r"""Magistral's reward (arXiv 2506.10910 section 2.2): a format gate, then verified correctness, then a soft length penalty.

    R(y) = 0                                        if the gate fails, and nothing later is graded
    R(y) = r_format + r_correct [answer = reference] + R_length(|y|)   otherwise

    R_length(n) = 0                                      n <= l_max - l_cache
                = -scale (n - l_max + l_cache) / l_cache      l_max - l_cache < n <= l_max
                = -scale                                 n > l_max

The printed numbers (.1, .9, scale .1) come from the recipe. Pure functions: text and numbers in, records out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollbook.records import AbsentComponent, Component, Composition, RewardVector, VerifierStamp
from rollbook.records.recipe import RewardSettings
from rollbook.rewards.boxes import last_box
from rollbook.rewards.errors import RewardError
from rollbook.rewards.inputs import check_numbers

OPEN, CLOSE = "<think>", "</think>"
COMPOSITION = "magistral/1"
PARTS = ("format", "correctness", "length", "language_consistency")
FormatReason = Literal["no_opening_tag", "several_opening_tags", "no_closing_tag", "several_closing_tags", "no_box",
                       "unclosed_box", "empty_box"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatResult:
    """Whether the gate is passed; `answer` is the boxed text if it is, `reason` the first rule that was broken if not.

    Example: format_gate("<think>1+1=2</think> \\\\boxed{2}") == FormatResult(passed=True, reason=None, answer="2")
    """

    passed: bool
    reason: FormatReason | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamps:
    """Which code computed each part."""

    format: VerifierStamp
    correctness: VerifierStamp
    length: VerifierStamp


def format_gate(text: str) -> FormatResult:
    r"""The response begins with its one opening tag, has exactly one closing tag, and boxes its answer after that.

    "Begins" is literal: not even white space may come first. A box that was never closed, or holds nothing, is no answer.
    Limit: mathematical answers; the fenced code block of the paper's second kind of task is not read.
    """
    if not text.startswith(OPEN):
        return FormatResult(passed=False, reason="no_opening_tag")
    if text.count(OPEN) > 1:
        return FormatResult(passed=False, reason="several_opening_tags")
    closings = text.count(CLOSE)
    if closings != 1:
        return FormatResult(passed=False, reason="several_closing_tags" if closings else "no_closing_tag")
    box = last_box(text[text.index(CLOSE) + len(CLOSE):])
    match box.state:
        case "found":
            return FormatResult(passed=True, answer=box.answer)
        case "none":
            return FormatResult(passed=False, reason="no_box")
        case "unclosed":
            return FormatResult(passed=False, reason="unclosed_box")
        case "empty":
            return FormatResult(passed=False, reason="empty_box")


def length_penalty(length: int, *, length_max: int, length_cache: int, scale: float) -> float:
    """The soft length penalty, between -scale and 0; `length` is in the policy's own tokens."""
    check_numbers("length_penalty", length=length, length_max=length_max, length_cache=length_cache, scale=scale)
    if not 0 < length_cache <= length_max or scale < 0:
        raise RewardError("the length penalty needs 0 < length_cache <= length_max and a scale of 0 or more",
                          got=f"length_max {length_max}, length_cache {length_cache}, scale {scale}",
                          why="the slope is scale / length_cache and the free length is length_max - length_cache")
    excess = length - (length_max - length_cache)
    if excess <= 0:
        return 0.0
    return -scale * (min(excess, length_cache) / length_cache)


def gated_vector(gate: FormatResult, stamps: Stamps, composition_digest: str) -> RewardVector:
    """The vector of a failed gate: reward zero, later parts not run. Accuracy is 0.0: the response has no usable answer."""
    reason = f"format gate failed: {gate.reason}"
    absent = tuple(AbsentComponent(name=name, reason=reason) for name in ("correctness", "length"))
    part = Component(name="format", value=0.0, verifier=stamps.format, detail=str(gate.reason))
    return RewardVector(components=(part,), absent=(*absent, _language()), composition=COMPOSITION,
                        composition_digest=composition_digest, total=0.0, accuracy=0.0)


def graded_vector(*, correct: bool, length: int, detail: str, settings: RewardSettings, stamps: Stamps,
                  composition_digest: str) -> RewardVector:
    """The vector of a response in the required format whose answer was verified as `correct`."""
    penalty = length_penalty(length, length_max=settings.length_max, length_cache=settings.length_cache,
                             scale=settings.length_penalty)
    parts = (Component(name="format", value=settings.format_reward, verifier=stamps.format),
             Component(name="correctness", value=settings.correct_reward if correct else 0.0, verifier=stamps.correctness,
                       detail=detail),
             Component(name="length", value=penalty, verifier=stamps.length, detail=f"{length} tokens"))
    return RewardVector(components=parts, absent=(_language(),), composition=COMPOSITION,
                        composition_digest=composition_digest, total=sum(part.value for part in parts),
                        accuracy=1.0 if correct else 0.0)


def composition(digest: str) -> Composition:
    """The composition as data: the gate, then the plain sum of the parts."""
    return Composition(name=COMPOSITION, digest=digest, gate="format", parts=dict.fromkeys(PARTS, 1.0))


def _language() -> AbsentComponent:
    return AbsentComponent(name="language_consistency", reason="not configured")
