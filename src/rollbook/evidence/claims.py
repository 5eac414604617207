"""What is claimed: one statement about one release, who makes it, how it is known, and which releases it may be used for."""

from __future__ import annotations

from dataclasses import dataclass

from rollbook.evidence.vocabulary import Bound, Label

Scalar = str | bool | int | float
Value = Scalar | tuple[Scalar, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A model release (or an algorithm paper's controlled experiment) that claims are about. `models` are its checkpoints.

    Example: Release(id="magistral-small", laboratory="mistral", name="Magistral Small", date="2025-06")
    """

    id: str
    laboratory: str
    name: str
    date: str
    models: tuple[str, ...] = ()
    note: str | None = None

    @property
    def subject(self) -> str:
        """How a recipe names it: `Magistral Small (2025-06)`."""
        return f"{self.name} ({self.date})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a claim was read: a document, its section, and the papers it has it from.

    Example: Source(document="case-study", section="6.9", cites=("Magistral, arXiv 2506.10910",))
    """

    document: str
    section: str
    cites: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A published configuration, by the name of its repository; `quantity` is what it shows."""

    repository: str
    quantity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A file of a public repository at a commit; `contains` is text that must be found in it."""

    repository: str
    commit: str
    file: str
    contains: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """A release that is often given a claim wrongly, and why it is wrong."""

    release: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One checkable statement. U has no value; C has an `artifact`; I has `assumes`; R has `run`; every claim has a source.

    `at` is its file, with its line where the file itself was read. `objectives` are the classes that compute what it names.

    Example: Claim(id="mistral.magistral-small.epsilon_high", label="D", stage="rl", quantity="epsilon_high", says="...",
        release="magistral-small", model=None, scope=("magistral-small",), value=0.3, unit="number",
        source=Source(document="case-study", section="6.9"), at="mistral.yaml:41")
    """

    id: str
    label: Label
    stage: str
    quantity: str
    says: str
    release: str
    model: str | None
    scope: tuple[str, ...]
    source: Source
    at: str
    value: Value = None
    bound: Bound = "exact"
    unit: str | None = None
    denominator: str | None = None
    artifact: Config | Code | None = None
    assumes: tuple[str, ...] = ()
    run: str | None = None
    not_for: tuple[Boundary, ...] = ()
    contradicts: tuple[str, ...] = ()
    supersedes: tuple[str, ...] = ()
    objectives: tuple[str, ...] = ()
    note: str | None = None

    @property
    def subject(self) -> tuple[str, str | None, str, str]:
        """What must not be answered in two ways: release, model, stage, quantity."""
        return self.release, self.model, self.stage, self.quantity


def covers(claim: Claim, release: Release) -> bool:
    """Whether a recipe of this release may cite the claim."""
    return release.id in claim.scope


def interval(claim: Claim) -> tuple[float, float] | None:
    """The numbers that agree with the claim, or None where its value is no number."""
    value = claim.value
    if isinstance(value, tuple):
        if claim.bound != "range":
            return None
        low, high = value
        return float(low), float(high)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if claim.bound in ("at_least", "more_than"):
        return float(value), float("inf")
    if claim.bound in ("at_most", "less_than"):
        return float("-inf"), float(value)
    return float(value), float(value)
