"""Rewards from rules and from AI labels: Sparrow and RLAIF. Plain floats; the models' probabilities are given.

Every number of these papers is recalled, not re-read (label I): each is a field without a default. The soft-label loss that
trains a reward model on the labels is `objectives.preference.soft_label`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollbook.rewards.errors import RewardError
from rollbook.rewards.inputs import check_counts, check_labels, check_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class SparrowReward:
    """Sparrow's RL reward (2209.14375, recalled): preference + mean rule score - length * tokens - invalid * [format invalid].

    Example: SparrowReward(length=0.01, invalid=1.0)(0.3, [0.9, 0.5], tokens=10, valid=True) == 0.9
    """

    length: float
    invalid: float

    def __post_init__(self) -> None:
        check_numbers("SparrowReward", length=self.length, invalid=self.invalid)
        if min(self.length, self.invalid) < 0:
            raise RewardError("SparrowReward.length and .invalid must be 0 or more", got=f"{self.length!r} and {self.invalid!r}",
                              why="they are taken from the reward", fix="use positive penalties")

    def __call__(self, preference: float, kept_R: Sequence[float], *, tokens: int, valid: bool) -> float:
        """`preference` is the preference model's score, `kept_R` the probability of each rule that it is not violated."""
        _probabilities("SparrowReward", kept_R)
        check_numbers("SparrowReward", preference=preference)
        check_counts("SparrowReward", tokens=tokens)
        check_labels("SparrowReward", valid=(valid,))
        return preference + math.fsum(kept_R) / len(kept_R) - self.length * tokens - (0.0 if valid else self.invalid)


def sparrow_rerank(preference: float, mean_preference: float, kept_R: Sequence[float]) -> float:
    """Sparrow's reranking score (2209.14375, recalled): e^r / (e^r + e^mean) times the rules' geometric mean probability.

    0 as soon as one rule is surely violated; increases with `preference`. `mean_preference` is the mean over the candidates.
    """
    _probabilities("sparrow_rerank", kept_R)
    check_numbers("sparrow_rerank", preference=preference, mean_preference=mean_preference)
    difference = mean_preference - preference
    share = 1.0 / (1.0 + math.exp(difference)) if difference < 700.0 else 0.0
    if min(kept_R) == 0.0:
        return 0.0
    return share * math.exp(math.fsum(math.log(p) for p in kept_R) / len(kept_R))


def both_orders(first_logp: tuple[float, float], second_logp: tuple[float, float]) -> float:
    """RLAIF's soft label (2309.00267): the probability that response A is better, averaged over both orders of the two options.

    Each pair holds the log-probs of the option tokens (first shown, second shown); A is shown first in `first_logp` and second in
    `second_logp`. A bias of the labeller to a position that is additive in probability cancels exactly.

    Example: both_orders((log .8, log .2), (log .4, log .6)) == 0.7
    """
    return (_softmax(first_logp)[0] + _softmax(second_logp)[1]) / 2


def expected_score(logp_by_score: Mapping[int, float], *, low: float, high: float) -> float:
    """d-RLAIF's reward (2309.00267): the expectation over the score tokens, normalised among them, laid from their range onto
    low .. high (the paper's interval is recalled as -1 .. 1).

    Example: expected_score({1: log .5, 10: log .5}, low=-1.0, high=1.0) == 0.0
    """
    check_numbers("expected_score", low=low, high=high)
    if len(logp_by_score) < 2 or not low < high:
        raise RewardError("an expected score needs two scores or more and low < high",
                          got=f"{sorted(logp_by_score)}, low {low}, high {high}")
    scores = sorted(logp_by_score)
    probability = _softmax([logp_by_score[score] for score in scores])
    mean = math.fsum(score * p for score, p in zip(scores, probability, strict=True))
    return low + (high - low) * (mean - scores[0]) / (scores[-1] - scores[0])


def _softmax(logps: Sequence[float]) -> list[float]:
    if not logps or any(isinstance(x, bool) or not isinstance(x, int | float) or not x < math.inf for x in logps) or (
            max(logps) == -math.inf):
        raise RewardError("log-probs of options must be numbers, one of them above minus infinity", got=str(list(logps)))
    top = max(logps)
    mass = [math.exp(x - top) for x in logps]
    return [x / math.fsum(mass) for x in mass]


def _probabilities(who: str, values: Sequence[float]) -> None:
    if not values or not all(isinstance(p, int | float) and not isinstance(p, bool) and 0.0 <= p <= 1.0 for p in values):
        raise RewardError(f"{who} needs a probability for each rule, one rule at least", got=str(list(values)),
                          why="a rule that was not judged is not a rule that was kept")
