"""Counts that are easily confused: tokens processed and unique, GPU-hours, FLOP, total and active parameters.

A quantity knows what it counts and over what. Unlike quantities are not added; each prints its denominator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rollbook.evidence.claims import Claim
from rollbook.evidence.errors import EvidenceError

Unit = Literal["tokens processed", "unique tokens", "GPU-hours", "FLOP", "total parameters", "active parameters", "dollars"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What a unit counts, which units of claims can be read as it, and why two of them may not add up (None where they do)."""

    counts: str
    claims: tuple[str, ...]
    apart: str | None = None


UNITS: dict[Unit, Meaning] = {
    "tokens processed": Meaning(counts="tokens passed through training, every repetition counted", claims=("tokens",),
                                apart="stages may count the same pass, and add up only where a report says so"),
    "unique tokens": Meaning(counts="tokens of different text, repetitions counted once", claims=("tokens",),
                             apart="two sets of text may share documents"),
    "GPU-hours": Meaning(counts="hours of one accelerator", claims=("gpu_hours",)),
    "FLOP": Meaning(counts="floating-point operations", claims=("flop",)),
    "total parameters": Meaning(counts="parameters that are stored", claims=("parameters",),
                                apart="two models are not one, and two conventions count the same weights"),
    "active parameters": Meaning(counts="parameters that work on one token", claims=("parameters",),
                                 apart="two models are not one, and two conventions count the same weights"),
    "dollars": Meaning(counts="dollars", claims=("dollars",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """An amount of one unit. `of` is its denominator: what is counted, by which convention, on which machine.

    Example: str(Quantity(amount=1720320, unit="GPU-hours", of="A100, pretraining")) == "1,720,320 GPU-hours (A100, pretraining)"
    """

    amount: float
    unit: Unit
    of: str
    rounded: bool = False

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise EvidenceError("unknown unit", got=repr(self.unit), fix=f"one of: {', '.join(UNITS)}")
        if not self.of.strip():
            raise EvidenceError(f"{self.amount:g} {self.unit} have no denominator",
                                why=f"{UNITS[self.unit].counts}: a count says nothing without what it is counted over",
                                fix="say what is counted in `of`")
        if not self.amount >= 0:
            raise EvidenceError(f"{self.unit} cannot be fewer than none", got=repr(self.amount))

    def __str__(self) -> str:
        return f"{'about ' if self.rounded else ''}{number(self.amount)} {self.unit} ({self.of})"

    def __add__(self, other: Quantity) -> Quantity:
        refuse_unlike(self, other)
        if apart := UNITS[self.unit].apart:
            raise EvidenceError(f"{self.unit} do not add up by themselves", got=f"{self} and {other}", why=apart,
                                fix="use total(quantities, of=..., because=...), which says why these do")
        return dataclasses.replace(self, amount=self.amount + other.amount, rounded=self.rounded or other.rounded)


def refuse_unlike(first: Quantity, other: Quantity) -> None:
    """Raises for two quantities of different units, or counted over different things."""
    if not isinstance(other, Quantity):
        raise EvidenceError("a quantity is added to something without a unit", got=repr(other), fix="say what it counts")
    if first.unit != other.unit:
        raise EvidenceError(f"{first.unit} and {other.unit} are not added", got=f"{first} and {other}",
                            why=f"one counts {UNITS[first.unit].counts}, the other {UNITS[other.unit].counts}",
                            fix="convert one of them with a stated assumption, or keep them apart")
    if first.of != other.of:
        raise EvidenceError(f"{first.unit} of different things are not added", got=f"{first} and {other}",
                            why="an hour of another accelerator, or a count by another convention, is another unit",
                            fix="use total(quantities, of=..., because=...), which says what the sum counts")


def total(parts: Sequence[Quantity], *, of: str, because: str) -> Quantity:
    """The sum of quantities of one unit, where `because` says why they may be added and `of` what the sum counts.

    Example: total(hours, of="A100, pretraining of all sizes", because="the report lists one run a size")
    """
    if not parts:
        raise EvidenceError("nothing has no sum", got="no quantities", why="no number was given, which is not zero")
    if not because.strip():
        raise EvidenceError("a total has no reason", got=repr(because), why="stages add up only where something says so",
                            fix="say in `because` what makes them additive")
    for other in parts[1:]:
        refuse_unlike(dataclasses.replace(parts[0], of=other.of), other)
    return Quantity(amount=sum(part.amount for part in parts), unit=parts[0].unit, of=of, rounded=any(p.rounded for p in parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """One quantity over another, which keeps both names: tokens processed per unique token, active of total parameters."""

    over: Quantity
    under: Quantity

    @property
    def value(self) -> float:
        return self.over.amount / self.under.amount

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.over}, over {self.under})"


_PAIRS = {("tokens processed", "unique tokens"), ("active parameters", "total parameters"),
          ("tokens processed", "active parameters"), ("tokens processed", "total parameters"), ("FLOP", "GPU-hours"),
          ("dollars", "GPU-hours")}


def ratio(over: Quantity, under: Quantity) -> Ratio:
    """How many of one a single one of the other has; refused for pairs that mean nothing and for a denominator of zero."""
    if over.unit != under.unit and (over.unit, under.unit) not in _PAIRS:
        raise EvidenceError(f"{over.unit} per {under.unit} means nothing", got=f"{over} over {under}",
                            fix=f"pairs that do: {', '.join(' per '.join(pair) for pair in sorted(_PAIRS))}")
    if under.amount == 0:
        raise EvidenceError("a ratio over zero", got=f"{over} over {under}", why="no observation is absent, not infinite")
    return Ratio(over=over, under=under)


def cost(hours: Quantity, dollars_per_hour: float, *, of: str) -> Quantity:
    """What accelerator hours cost at a price; `of` says whose price, since a rental equivalent is no development cost."""
    if hours.unit != "GPU-hours":
        raise EvidenceError("only GPU-hours have a price here", got=str(hours),
                            why="a cost is not estimated from a model's size without hardware, utilisation and restarts")
    return Quantity(amount=hours.amount * dollars_per_hour, unit="dollars", of=of, rounded=hours.rounded)


def of_claim(claim: Claim, unit: Unit) -> Quantity:
    """A claim's number as a quantity. The unit is said by whoever reads the claim: "tokens" alone may mean either kind."""
    value = claim.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EvidenceError(f"claim {claim.id} has no single number", got=repr(value), fix="cite a claim with one")
    if claim.unit not in UNITS[unit].claims:
        raise EvidenceError(f"claim {claim.id} does not count {unit}", got=f"{value} {claim.unit}", fix="read it as what it is")
    if unit.endswith(" parameters") and unit.split()[0] not in claim.quantity:
        raise EvidenceError(f"claim {claim.id} is not about {unit}", got=claim.quantity,
                            why="total and active differ many times over in a mixture of experts", fix="cite the other claim")
    of = ", ".join(part for part in (claim.denominator, claim.model or claim.release, claim.stage) if part)
    return Quantity(amount=value, unit=unit, of=of, rounded=claim.bound == "about")


def number(amount: float) -> str:
    """An amount that can be read: digits in groups below a trillion, else three significant ones with its power of ten."""
    if amount >= 1e15:
        return f"{amount:.3g}"
    return f"{amount:,.0f}" if float(amount).is_integer() else f"{amount:,.4g}"
