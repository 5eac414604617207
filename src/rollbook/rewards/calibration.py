"""Whether a scorer can be believed: reliability of its probabilities, its taste for length, its accuracy per source; and
whether a policy has outgrown it: gold against proxy as the KL to the start grows (Gao et al. 2210.10760).

Suffix: P pairs. `margin` is the score of the first response minus that of the second.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollbook.records import CodecError, decode
from rollbook.rewards.errors import RewardError
from rollbook.rewards.judges.agreement import wilson
from rollbook.rewards.transforms import sigmoid

BINS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One labelled pair as a scorer sees it: the margin of its scores, whether the first is the better one by label, both
    lengths.

    Example: Compared(margin=0.7, first_better=True, lengths=(120, 80), source="maths")
    """

    margin: float
    first_better: bool
    lengths: tuple[int, int]
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Pairs whose confidence lies in one band: mean confidence, share that was right with its 95% Wilson interval."""

    count: int
    confidence: float
    right: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """`curve` is the reliability curve over confidence .5 .. 1, `error` its mean distance from the diagonal weighted by counts.

    `longer_scored` and `longer_labelled` are the shares of unequal pairs in which the longer response is preferred by the
    scorer and by the labels: their difference is the length bias. Ties of scores count as half right.
    """

    pairs: int
    accuracy: float
    curve: tuple[Bin, ...]
    error: float
    brier: float
    longer_scored: float | None
    longer_labelled: float | None
    by_source: Mapping[str, tuple[int, float, float, float]]

    @property
    def length_bias(self) -> float | None:
        """How much more often than the labels the scorer prefers the longer response."""
        if self.longer_scored is None or self.longer_labelled is None:
            return None
        return self.longer_scored - self.longer_labelled


def calibration(pairs: Sequence[Compared], *, scale: float = 1.0) -> Calibration:
    """The report of a scorer whose probability is sigma(scale * margin)."""
    if not pairs or any(not math.isfinite(one.margin) for one in pairs):
        raise RewardError("calibration needs labelled pairs with finite margins", got=f"{len(pairs)} pairs",
                          fix="leave pairs without a rating out, and report how many they were")
    probability_P = [sigmoid(scale * one.margin) for one in pairs]
    right_P = [_right(one) for one in pairs]
    held: dict[int, list[int]] = defaultdict(list)
    for place, probability in enumerate(probability_P):
        held[min(int((max(probability, 1 - probability) - 0.5) * 2 * BINS), BINS - 1)].append(place)
    curve = tuple(_bin([max(probability_P[p], 1 - probability_P[p]) for p in places], [right_P[p] for p in places])
                  for _, places in sorted(held.items()))
    unequal = [one for one in pairs if one.lengths[0] != one.lengths[1]]
    sources: dict[str, list[float]] = defaultdict(list)
    for one, right in zip(pairs, right_P, strict=True):
        sources[one.source].append(right)
    brier = sum((probability - one.first_better) ** 2 for probability, one in zip(probability_P, pairs, strict=True)) / len(pairs)
    return Calibration(
        pairs=len(pairs), accuracy=sum(right_P) / len(pairs), curve=curve, brier=brier,
        error=sum(one.count * abs(one.confidence - one.right) for one in curve) / len(pairs),
        longer_scored=_share([0.5 if one.margin == 0 else float((one.margin > 0) == _first_longer(one)) for one in unequal]),
        longer_labelled=_share([float(one.first_better == _first_longer(one)) for one in unequal]),
        by_source={name: (len(own), sum(own) / len(own), *wilson(sum(own) / len(own), len(own)))
                   for name, own in sorted(sources.items())})


def log_odds(probability: float) -> float:
    """The margin whose sigmoid is a probability; of 0 and 1, that of the nearest probability that a double tells from them."""
    held = min(max(probability, 2.0**-52), 1.0 - 2.0**-52)
    return math.log(held / (1.0 - held))


def read_compared(file: Path) -> tuple[list[Compared], Counter[str]]:
    """The pairs of a JSON-lines file, and how many lines could not be read, by reason."""
    rows: list[Compared] = []
    unread: Counter[str] = Counter()
    for line in file.read_bytes().splitlines():
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            one = decode(Compared, row) if isinstance(row, dict) else None
        except (ValueError, RecursionError):
            unread["not JSON"] += 1
            continue
        except CodecError as error:
            unread[str(error.what)] += 1
            continue
        if one is None:
            unread["not an object"] += 1
        else:
            rows.append(one)
    return rows, unread


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A point of training: KL to the start (nats), the reward that is optimised, the measure that is meant."""

    step: int
    kl_nats: float
    proxy: float
    gold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Gold and proxy over the KL. `peak` is where gold was highest; `gold_lost` and `proxy_won` are what changed from there to
    the end, as means over the last `window` moments; `over_optimised` says that gold fell by more than `tolerance` while proxy
    rose. `visible` says whether it could have been seen: gold moves, and is not a share that lies within `tolerance` of nothing.

    `alpha` and `beta` fit gold(d) - gold(0) = d (alpha - beta d) with d = sqrt(KL); None where the KL does not vary.
    """

    peak: Moment
    gold_lost: float
    proxy_won: float
    over_optimised: bool
    visible: bool
    alpha: float | None
    beta: float | None


def watch(moments: Sequence[Moment], *, tolerance: float, window: int = 3) -> Watch:
    """Whether the policy has outgrown its reward; moments in the order of their steps."""
    if len(moments) < 2 or window < 1 or tolerance < 0:
        raise RewardError("a watch needs two moments or more, a window of at least 1 and a tolerance of 0 or more",
                          got=f"{len(moments)} moments, window {window}, tolerance {tolerance}")
    smooth = [_around(moments, place, window) for place in range(len(moments))]
    top = max(range(len(moments)), key=lambda place: (smooth[place][0], -place))
    lost, won = smooth[top][0] - smooth[-1][0], smooth[-1][1] - smooth[top][1]
    alpha, beta = _fit(moments)
    golds = [one.gold for one in moments]
    visible = min(golds) < max(golds) and (min(golds) < 0 or smooth[top][0] > tolerance)
    return Watch(peak=moments[top], gold_lost=lost, proxy_won=won, over_optimised=lost > tolerance and won > 0, visible=visible,
                 alpha=alpha, beta=beta)


def _around(moments: Sequence[Moment], place: int, window: int) -> tuple[float, float]:
    """Gold and proxy as means of the moments up to this one, at most `window`."""
    part = moments[max(0, place + 1 - window):place + 1]
    return sum(one.gold for one in part) / len(part), sum(one.proxy for one in part) / len(part)


def _fit(moments: Sequence[Moment]) -> tuple[float | None, float | None]:
    """Least squares for y = alpha d - beta d^2 through the first moment."""
    base = moments[0]
    points = [(math.sqrt(max(one.kl_nats, 0.0)), one.gold - base.gold) for one in moments[1:]]
    a, b, c = (sum(d**power for d, _ in points) for power in (2, 3, 4))
    u, v = sum(d * y for d, y in points), sum(d * d * y for d, y in points)
    determinant = a * c - b * b
    if determinant <= 1e-12 * max(a * c, 1e-300):
        return None, None
    return (u * c - v * b) / determinant, (u * b - v * a) / determinant


def _right(one: Compared) -> float:
    return 0.5 if one.margin == 0 else float((one.margin > 0) == one.first_better)


def _first_longer(one: Compared) -> bool:
    return one.lengths[0] > one.lengths[1]


def _share(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _bin(confidences: Sequence[float], rights: Sequence[float]) -> Bin:
    share = sum(rights) / len(rights)
    low, high = wilson(share, len(rights))
    return Bin(count=len(rights), confidence=sum(confidences) / len(confidences), right=share, low=low, high=high)
