"""Where a gain comes from: paired, by task family, length, difficulty and token budget, and against what was spent on it.

Strata are fixed by the task or by both sides together, never by one side's own outcomes: a task that one side failed looks
easier for the other by regression to the mean alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy import stats

from rollbook.evaluation.differences import ComparisonRefused, Difference
from rollbook.evaluation.intervals import ENOUGH, cluster_bootstrap
from rollbook.evaluation.multiple import holm
from rollbook.evaluation.statistics import BOOTSTRAP_SEED, mcnemar
from rollbook.records import EvaluationResult, Interval

LEVEL = 0.95
PARTS = 3
Claim = Literal["gain", "loss", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One attempt as a comparison needs it: accuracy (None: unscored) and tokens sampled."""

    accuracy: float | None
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What went into a policy until it was published; None where it is not on record."""

    tokens_generated: int
    tokens_trained: int
    attempts: int
    updates: int
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a comparison, by problem: the aggregated value, the attempts, the family, the length of the prompt."""

    result: EvaluationResult
    values: Mapping[str, float | None]
    attempts: Mapping[str, Sequence[Answered]]
    families: Mapping[str, str]
    prompt_tokens: Mapping[str, int]
    training: Training | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The paired gain over some problems. `p_value` is adjusted (Holm) among the parts of one table; None without a difference.

    Example: Gain(of="gcd", before=0.30, after=0.42, gain=Interval(...), p_value=0.004, claim="gain")
    """

    of: str
    before: float
    after: float
    gain: Interval
    p_value: float | None
    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A comparison: what changed, the gain over all problems and by part, and what could not be paired.

    `left_out` counts problems that one side or both could not score, `tables` maps a way of dividing to its parts.
    """

    changed: Difference
    whole: Gain
    tables: Mapping[str, tuple[Gain, ...]]
    left_out: int
    notes: tuple[str, ...]


def compared(before: Side, after: Side, changed: Difference) -> Compared:
    """The comparison of two sides that ask the same problems."""
    pairs, families = paired(before.values, after.values), before.families
    whole = gain_of("all", pairs, families)
    tables = {"family": _parts(pairs, families, families),
              "prompt length": _parts(pairs, _thirds(pairs, lambda name: before.prompt_tokens[name], "tokens"), families),
              "difficulty": _parts(pairs, _difficulty(pairs), families),
              "token budget": _budgets(before, after, families)}
    return Compared(changed=changed, whole=whole, tables={name: rows for name, rows in tables.items() if len(rows) > 1},
                    left_out=len(before.values) - len(pairs), notes=_notes(before, after, families))


def paired(before: Mapping[str, float | None], after: Mapping[str, float | None]) -> dict[str, tuple[float, float]]:
    """Both values of each problem that both sides could score; refuses other problems, and too few of them."""
    if set(before) != set(after):
        raise ComparisonRefused("the two sides ask different problems",
                                got=f"{len(set(before) ^ set(after))} problems stand on one side only",
                                why="a gain on other problems is none", fix="evaluate both under one protocol")
    pairs = {name: (b, a) for name, b in before.items() if b is not None and (a := after[name]) is not None}
    if len(pairs) < 2:
        raise ComparisonRefused("the two sides share fewer than two scored problems", got=str(len(pairs)),
                                why="no data is not a gain of 0", fix="see why the rest is unscored: rollbook query")
    return pairs


def gain_of(of: str, pairs: Mapping[str, tuple[float, float]], families: Mapping[str, str]) -> Gain:
    """The gain over these problems: (before, after) of each; families are resampled where there are enough of them."""
    gains = {name: a - b for name, (b, a) in pairs.items()}
    interval = cluster_bootstrap(_clusters(gains, families), seed=BOOTSTRAP_SEED, level=LEVEL)
    p_value = _p_value(list(pairs.values()))
    count = len(pairs)
    before, after = (math.fsum(pair[side] for pair in pairs.values()) / count for side in (0, 1))
    return Gain(of=of, before=before, after=after, gain=interval, p_value=p_value, claim=claim(interval, p_value))


def claim(gain: Interval, p_value: float | None) -> Claim:
    """A gain or a loss only where the interval excludes zero and the test agrees; without a test there is no claim."""
    if p_value is None or p_value > 1 - gain.level:
        return "none"
    return "gain" if gain.low > 0 else "loss" if gain.high < 0 else "none"


def _clusters(gains: Mapping[str, float], families: Mapping[str, str]) -> Mapping[str, Sequence[float]]:
    """Families where there are enough of them to resample, else each problem alone."""
    found: dict[str, list[float]] = {}
    many = len({families[name] for name in gains}) >= ENOUGH
    for name, gain in gains.items():
        found.setdefault(families[name] if many else name, []).append(gain)
    return found


def _p_value(pairs: Sequence[tuple[float, float]]) -> float | None:
    """McNemar's exact test where all outcomes are right or wrong, else the paired t-test; None where no pair differs.

    Where all pairs differ by the same amount there is no variance to compare it with: then the exact sign test.
    """
    if all(value in (0.0, 1.0) for pair in pairs for value in pair):
        return mcnemar([b for b, _ in pairs], [a for _, a in pairs])
    gains = [a - b for b, a in pairs]
    if len(set(gains)) < 2:
        return 2.0 ** (1 - len(gains)) if gains[0] else None
    return float(stats.ttest_1samp(gains, 0.0).pvalue)


def _parts(pairs: Mapping[str, tuple[float, float]], part_of: Mapping[str, str], families: Mapping[str, str]) -> tuple[Gain, ...]:
    """One gain for each part with at least two problems, its p-value adjusted among them."""
    parts: dict[str, dict[str, tuple[float, float]]] = {}
    for name, pair in pairs.items():
        parts.setdefault(part_of[name], {})[name] = pair
    return adjusted([gain_of(of, held, families) for of, held in sorted(parts.items()) if len(held) > 1])


def adjusted(gains: Sequence[Gain]) -> tuple[Gain, ...]:
    """The same gains with p-values and claims corrected for their number."""
    tested = {str(at): one.p_value for at, one in enumerate(gains) if one.p_value is not None}
    made = holm(tested)
    return tuple(Gain(of=one.of, before=one.before, after=one.after, gain=one.gain, p_value=made.get(str(at)),
                      claim=claim(one.gain, made.get(str(at)))) for at, one in enumerate(gains))


def _thirds(names: Mapping[str, object], size: Callable[[str], int], unit: str) -> dict[str, str]:
    """Problems in up to three parts of about equal number, named by the range of sizes; equal sizes stay together."""
    sizes = sorted(size(name) for name in names)
    edges = sorted({sizes[len(sizes) * part // PARTS] for part in range(1, PARTS)} - {sizes[0]})
    bounds = [sizes[0], *edges]
    last = [*(edge - 1 for edge in edges), sizes[-1]]
    titles = [f"{at + 1}: {low} to {high} {unit}" for at, (low, high) in enumerate(zip(bounds, last, strict=True))]
    return {name: titles[sum(size(name) >= edge for edge in edges)] for name in names}


def _difficulty(pairs: Mapping[str, tuple[float, float]]) -> dict[str, str]:
    """By the mean of both sides, which favours neither."""
    def title(mean: float) -> str:
        return "1: solved by both" if mean == 1.0 else "3: solved by none" if mean == 0.0 else "2: solved by some"
    return {name: title((b + a) / 2) for name, (b, a) in pairs.items()}


def _budgets(before: Side, after: Side, families: Mapping[str, str]) -> tuple[Gain, ...]:
    """The gain of the mean over attempts if answers had to be done within a quarter, a half … of the longest answer's tokens."""
    longest = max((one.tokens for side in (before, after) for held in side.attempts.values() for one in held), default=0)
    rows = []
    for budget in sorted({max(1, math.ceil(longest * quarter / 4)) for quarter in range(1, 5)} if longest else ()):
        pairs = {}
        for name in before.values:
            b, a = _within(before.attempts.get(name, ()), budget), _within(after.attempts.get(name, ()), budget)
            if b is not None and a is not None:
                pairs[name] = (b, a)
        if len(pairs) > 1:
            rows.append(gain_of(f"at most {budget} tokens", pairs, families))
    return adjusted(rows)


def _within(attempts: Sequence[Answered], budget: int) -> float | None:
    held = [one.accuracy if one.tokens <= budget else 0.0 for one in attempts if one.accuracy is not None]
    return math.fsum(held) / len(held) if held else None


def _notes(before: Side, after: Side, families: Mapping[str, str]) -> tuple[str, ...]:
    notes = []
    count = len(set(families.values()))
    if count < ENOUGH:
        notes.append(f"{count} task families are too few to resample ({ENOUGH} would do): "
                     "the interval is over problems and speaks of these families only")
    unscored = before.result.unscored_attempts, after.result.unscored_attempts
    if any(unscored):
        notes.append(f"unscored attempts, counted and in no mean: {unscored[0]} before, {unscored[1]} after")
    return tuple(notes)


def systems(before: Side, after: Side) -> tuple[tuple[tuple[str, str, str], ...], str]:
    """What was spent on either side, as rows, and whether the gain is of the algorithm or may be of a larger budget."""
    one, other = before.result, after.result
    rows = [("tokens sampled in evaluation", f"{one.spend.tokens:,}", f"{other.spend.tokens:,}"),
            ("attempts in evaluation", f"{one.spend.attempts:,}", f"{other.spend.attempts:,}"),
            ("seconds of evaluation", _seconds(one.observed.get("seconds")), _seconds(other.observed.get("seconds")))]
    t, u = before.training, after.training
    if t is None or u is None:
        return tuple(rows), "how the policies were trained is not on record for both: their budgets cannot be compared"
    named = (("tokens generated in training", t.tokens_generated, u.tokens_generated),
             ("tokens trained on", t.tokens_trained, u.tokens_trained), ("attempts in training", t.attempts, u.attempts))
    rows += [(name, f"{b:,}", f"{a:,}") for name, b, a in named]
    rows += [("updates", f"{t.updates:,}", f"{u.updates:,}"),
             ("seconds of training", _seconds(t.seconds), _seconds(u.seconds))]
    apart = [f"{name}: {a / b:.2f} times" if b else f"{name}: {a:,} against none" for name, b, a in named
             if abs(a - b) > 0.01 * max(a, b)]
    if apart:
        return tuple(rows), "the budgets differ, so that a gain may be theirs: " + "; ".join(apart)
    return tuple(rows), "equal tokens generated, tokens trained on and attempts: seconds are of the system, the gain is not"


def _seconds(value: float | None) -> str:
    return "—" if value is None else f"{value:,.1f}"
