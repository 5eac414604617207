"""From the runs to a verdict, by the rule that was written down before them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rollbook.evaluation.intervals import RESAMPLES, cluster_bootstrap
from rollbook.evidence.errors import EvidenceError
from rollbook.experiments.definition import QUANTITIES, Decision, Definition, Quantity
from rollbook.experiments.runs import Outcome
from rollbook.records import Interval

SEED = 20260719
Word = Literal["confirmed", "not confirmed at this scale", "inconclusive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSummary:
    """One level: scores by seed, their interquartile mean with its interval, runs that diverged, means of what was spent."""

    scores: Mapping[int, float]
    iqm: Interval | None
    diverged: tuple[int, ...]
    spent: Mapping[Quantity, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The word, why, the effect (treatment minus baseline, paired by seed and task) and each level.

    Example: Verdict(word="confirmed", why="the interval lies below zero", effect=Interval(...), levels={...})
    """

    word: Word
    why: str
    effect: Interval | None
    levels: Mapping[str, LevelSummary]


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean of the middle half: a quarter of the values is cut at each end, fractions of a value included.

    Example: interquartile_mean([0, 1, 2, 3, 100]) == 2.0
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    count = ordered.size
    edges = np.clip(np.arange(count + 1), count / 4, 3 * count / 4)
    weights = np.diff(edges)
    return float((weights * ordered).sum() / weights.sum())


def iqm_interval(values: Sequence[float]) -> Interval:
    """The interquartile mean over seeds with a percentile interval; the seeds are resampled."""
    rng = np.random.default_rng(SEED)
    held = np.asarray(values, dtype=np.float64)
    drawn = [interquartile_mean(held[rng.integers(0, held.size, size=held.size)]) for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(estimate=interquartile_mean(values), low=float(low), high=float(high), level=0.95,
                    method=f"IQM, bootstrap over seeds, {RESAMPLES} resamples", count=held.size)


def judge(definition: Definition, outcomes: Sequence[Outcome]) -> Verdict:
    """The verdict over all runs of an experiment. Raises EvidenceError where one is missing."""
    held = {(one.level, one.seed): one for one in outcomes}
    missing = [f"{level} seed {seed}" for level, seed in definition.runs if (level, seed) not in held]
    if missing:
        raise EvidenceError(f"{definition.name} has no verdict yet", got=f"{len(missing)} runs missing: {', '.join(missing[:5])}",
                            why="the rule was fixed for all of them", fix="go on with the queue")
    levels = {level: _summary(definition, [held[level, seed] for seed in definition.seeds])
              for level in dict.fromkeys(name for name, _ in definition.runs)}
    gone = [f"{level} seed {seed}" for level, one in levels.items() for seed in one.diverged]
    if gone and definition.decision.if_diverged is None:
        return Verdict(word="inconclusive", why=f"runs diverged ({', '.join(gone)}) and no score was fixed for that", effect=None,
                       levels=levels)
    effect = _effect(definition, held)
    if apart := _unmatched(definition, held):
        return Verdict(word="inconclusive", why=apart, effect=effect, levels=levels)
    word, why = decide(definition.decision, effect)
    return Verdict(word=word, why=why, effect=effect, levels=levels)


def _summary(definition: Definition, runs: Sequence[Outcome]) -> LevelSummary:
    fallback = definition.decision.if_diverged
    scores = {one.seed: one.score if one.score is not None else fallback for one in runs}
    known = {seed: score for seed, score in scores.items() if score is not None}
    return LevelSummary(scores=known, iqm=iqm_interval(list(known.values())) if len(known) > 1 else None,
                        diverged=tuple(one.seed for one in runs if one.status == "diverged"),
                        spent={name: sum(one.spent[name] for one in runs) / len(runs) for name in QUANTITIES})


def _effect(definition: Definition, held: Mapping[tuple[str, int], Outcome]) -> Interval:
    """Differences by task within a seed; whole seeds are resampled, with limits as wide as Student's t."""
    clusters = {}
    for seed in definition.seeds:
        one, other = held[definition.treatment, seed], held[definition.baseline, seed]
        tasks = sorted((one.outcomes.keys() or other.outcomes.keys()) & (other.outcomes.keys() or one.outcomes.keys()))
        lost = definition.decision.if_diverged
        pairs = [(one.outcomes.get(task, lost), other.outcomes.get(task, lost)) for task in tasks] or [(lost, lost)]
        clusters[str(seed)] = [a - b for a, b in pairs if a is not None and b is not None]
    return cluster_bootstrap(clusters, seed=SEED)


def _unmatched(definition: Definition, held: Mapping[tuple[str, int], Outcome]) -> str | None:
    """Why the levels did not spend alike, or None. What a diverged run did not come to spend counts for neither."""
    quantity, spent = definition.matched.quantity, {}
    for name in (definition.baseline, definition.treatment):
        ended = [one.spent[quantity] for seed in definition.seeds if (one := held[name, seed]).status == "completed"]
        if not ended:
            return None
        spent[name] = sum(ended) / len(ended)
    most, least = max(spent.values()), min(spent.values())
    if most == 0 or (most - least) / most <= definition.matched.tolerance:
        return None
    listed = ", ".join(f"{name} {value:,.0f}" for name, value in spent.items())
    return f"the levels did not spend alike: {quantity} {listed}, more than {definition.matched.tolerance:.0%} apart"


def decide(rule: Decision, effect: Interval) -> tuple[Word, str]:
    """The word of a rule for an effect, with its reason."""
    low, high = effect.low, effect.high
    if rule.expects == "same":
        if -rule.margin < low and high < rule.margin:
            return "confirmed", f"the interval lies within {rule.margin:g} of zero"
        if low > 0 or high < 0:
            return "not confirmed at this scale", "the interval excludes zero and leaves the margin"
        return "inconclusive", "the interval holds zero and leaves the margin"
    sign = 1 if rule.expects == "higher" else -1
    toward, away = (low, high) if sign > 0 else (-high, -low)
    if toward > 0:
        return "confirmed", f"the interval lies {'above' if sign > 0 else 'below'} zero"
    if away < rule.margin:
        return "not confirmed at this scale", f"a difference of {rule.margin:g} is excluded"
    return "inconclusive", f"the interval holds zero and a difference of {rule.margin:g}"
