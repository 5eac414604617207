"""AgentWorld's information-theoretic turn mask (2606.24597 section 3.2, Table 3): which turns carry loss.

    overlap = |Wa & Wo| / |Wa|    novelty = |Wo - Wa| / |Wo|    jaccard = |Wa & Wo| / |Wa | Wo|    ratio = |obs| / |act|

Wa, Wo are the lower-cased word sets of action and observation, |act| and |obs| their lengths in characters. A masked turn stays
in the context; only its loss is dropped, so this module returns decisions and no text.
Labels: D disclosed, I inference, U unknown.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Literal, assert_never, get_args

from rollbook.tasks.errors import TaskError

Category = Literal["retrieval", "expansion", "action", "transform", "boilerplate", "echo", "other"]
WordRule = Literal["whitespace", "alphanumeric"]
KEEP_PERCENT = MappingProxyType({"retrieval": 100, "expansion": 100, "action": 100, "transform": 50, "boilerplate": 10, "echo": 5,
                                 "other": 100})  # [D]
PROPOSED_PRECEDENCE: tuple[Category, ...] = ("echo", "boilerplate", "transform", "retrieval", "expansion", "action")  # [I]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Counts of one turn and the four exact ratios; a ratio whose denominator is 0 is None, never 0.

    Example: "ls a" answered by "a b" has action_words=2, observation_words=2, shared=1: overlap 1/2, novelty 1/2, jaccard 1/3.
    """

    action_words: int
    observation_words: int
    shared: int
    action_chars: int
    observation_chars: int

    @property
    def overlap(self) -> Fraction | None:
        return _share(self.shared, self.action_words)

    @property
    def novelty(self) -> Fraction | None:
        return _share(self.observation_words - self.shared, self.observation_words)

    @property
    def jaccard(self) -> Fraction | None:
        """Printed among the statistics; no category of Table 3 reads it."""
        return _share(self.shared, self.action_words + self.observation_words - self.shared)

    @property
    def ratio(self) -> Fraction | None:
        return _share(self.observation_chars, self.action_chars)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDecision:
    """Whether a turn's loss is kept, and why."""

    turn: int
    category: Category
    keep: bool
    statistics: Overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMask:
    """Category and keep decision of each turn. The percentages are `KEEP_PERCENT` [D]; every field here is U.

    `precedence` orders the categories other than "other", whose conditions overlap (echo lies inside boilerplate); the order
    proposed here is PROPOSED_PRECEDENCE [I]. `short_chars`: an observation of fewer characters is short [I: the observation].
    `words`: split at white space, or runs of letters and digits. `seed` enters the keep decision.
    """

    precedence: tuple[Category, ...]
    short_chars: int
    words: WordRule
    seed: int

    def __post_init__(self) -> None:
        wanted = sorted(set(get_args(Category)) - {"other"})
        if sorted(self.precedence) != wanted:
            raise TaskError("TurnMask.precedence must name each category but other once",
                            got=", ".join(self.precedence) or "none",
                            why="the conditions overlap, so their order decides", fix=f"order {', '.join(wanted)}")
        whole = type(self.short_chars) is int and type(self.seed) is int
        if not whole or self.short_chars < 0 or self.words not in get_args(WordRule):
            raise TaskError("TurnMask needs whole short_chars >= 0 and seed, and words, whitespace or alphanumeric",
                            got=f"short_chars {self.short_chars!r}, seed {self.seed!r}, words {self.words!r}")

    def statistics(self, action: str, observation: str) -> Overlap:
        """The counts of one turn."""
        said, seen = word_set(action, self.words), word_set(observation, self.words)
        return Overlap(action_words=len(said), observation_words=len(seen), shared=len(said & seen), action_chars=len(action),
                       observation_chars=len(observation))

    def category(self, statistics: Overlap) -> Category:
        """The first category of the precedence whose condition holds, else "other". An undefined ratio meets no condition [I]."""
        short = statistics.observation_chars < self.short_chars
        return next((name for name in self.precedence if _holds(name, statistics, short)), "other")

    def decide(self, sample: str, turns: Sequence[tuple[str, str]]) -> tuple[TurnDecision, ...]:
        """One decision per (action, observation) turn of a sample, in order; the same in any process and after any resume."""
        decisions = []
        for turn, (action, observation) in enumerate(turns):
            statistics = self.statistics(action, observation)
            category = self.category(statistics)
            keep = kept(KEEP_PERCENT[category], seed=self.seed, sample=sample, turn=turn)
            decisions.append(TurnDecision(turn=turn, category=category, keep=keep, statistics=statistics))
        return tuple(decisions)


def word_set(text: str, rule: WordRule) -> frozenset[str]:
    """The lower-cased distinct words of a text."""
    match rule:
        case "whitespace":
            return frozenset(text.lower().split())
        case "alphanumeric":
            return frozenset(re.findall(r"[^\W_]+", text.lower()))
        case _:
            assert_never(rule)


def kept(percent: int, *, seed: int, sample: str, turn: int) -> bool:
    """Whether hash(seed, sample, turn), uniform in 0 .. 1, falls below percent / 100; 100 always does, 0 never."""
    key = json.dumps([seed, sample, turn]).encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") * 100 < percent << 64


def _holds(name: Category, s: Overlap, short: bool) -> bool:
    """Table 3's condition; percentages are compared exactly, >= and <= include equality."""
    match name:
        case "retrieval":
            return _at_least(s.novelty, 60) and s.ratio is not None and s.ratio > 1
        case "expansion":
            return _at_least(s.overlap, 50) and _at_least(s.novelty, 50) and s.ratio is not None and s.ratio > Fraction(3, 2)
        case "action":
            return _at_least(s.novelty, 50) and (short or (s.ratio is not None and s.ratio <= 1))
        case "transform":
            return _below(s.novelty, 50) and s.ratio is not None and s.ratio < 1
        case "boilerplate":
            return _at_least(s.overlap, 50) and _below(s.novelty, 50)
        case "echo":
            return _at_least(s.overlap, 70) and _below(s.novelty, 30)
        case "other":
            return True
        case _:
            assert_never(name)


def _share(part: int, whole: int) -> Fraction | None:
    return Fraction(part, whole) if whole else None


def _at_least(share: Fraction | None, percent: int) -> bool:
    return share is not None and share * 100 >= percent


def _below(share: Fraction | None, percent: int) -> bool:
    return share is not None and share * 100 < percent
