"""What an experiment is before it is run: hypothesis, factor, levels, budget, metric and the rule that decides, in one file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from rollbook.evidence.errors import EvidenceError
from rollbook.evidence.yamltext import Dialect, parse
from rollbook.records.codec import decode, nearest
from rollbook.records.errors import CodecError

SCHEMA = "rollbook.experiment/1"
FOLDER = Path(__file__).parent / "definitions"
LEAST_SEEDS = 5
Quantity = Literal["tokens generated", "tokens trained", "attempts"]
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)
_DIALECT = Dialect(name="a definition of an experiment", refusal=EvidenceError, merges=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One value of the factor: settings over the base. `needs` says what is missing here for it to be run at all."""

    set: Mapping[str, Any] = field(default_factory=dict)
    recipe: str | None = None
    needs: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Which difference (treatment minus baseline) the claim expects, and the smallest that matters.

    `lower` and `higher` are confirmed by an interval beyond zero, and not confirmed by one that excludes the margin. `same` is
    confirmed by an interval within the margin on both sides, and not confirmed by one beyond zero that leaves it. Everything else
    is inconclusive.
    `if_diverged` is the score of a run that diverged; without it such a run leaves the experiment inconclusive.
    """

    expects: Literal["lower", "higher", "same"]
    margin: float
    if_diverged: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """The quantity that levels spend alike, and the largest difference of their means that still counts as alike, as a share."""

    quantity: Quantity
    tolerance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """An experiment. `base` holds settings of every run, `seeded` those that take the seed, `metric` the evaluation compared.

    Example: Definition(name="minibatches", claim="mistral.magistral.minibatch_limit", levels={"one": Level(), "eight": ...},
        baseline="one", treatment="eight", metric="final_eval", seeds=(1, 2, 3, 4, 5), ...)
    """

    name: str
    claim: str
    hypothesis: str
    recipe: str
    scale: Literal["full", "lab", "tiny"]
    factor: str
    levels: Mapping[str, Level]
    baseline: str
    treatment: str
    metric: str
    decision: Decision
    matched: Matched
    seeds: tuple[int, ...]
    minutes_per_run: float
    seeded: tuple[str, ...] = ("run.seed",)
    base: Mapping[str, Any] = field(default_factory=dict)

    @property
    def runs(self) -> tuple[tuple[str, int], ...]:
        """(level, seed) of every run, seed by seed, so that an interrupted queue has compared levels."""
        return tuple((name, seed) for seed in self.seeds for name, level in self.levels.items() if not level.needs)

    @property
    def needs(self) -> tuple[str, ...]:
        """What is missing here before the two levels that decide can be run."""
        return tuple(f"{name}: {level.needs}" for name, level in self.levels.items()
                     if level.needs and name in (self.baseline, self.treatment))

    @property
    def absent(self) -> tuple[str, ...]:
        """Further levels that are left out, with what is missing."""
        return tuple(f"{name}: {level.needs}" for name, level in self.levels.items()
                     if level.needs and name not in (self.baseline, self.treatment))

    def overrides(self, level: str, seed: int) -> dict[str, Any]:
        """The settings of one run over its recipe."""
        return {**self.base, **self.levels[level].set, **dict.fromkeys(self.seeded, seed)}


def names() -> tuple[str, ...]:
    """The experiments of the package."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def load(name: str | Path) -> Definition:
    """The experiment of a name, of a claim that one of the package tries, or of a YAML file."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return _file(path)
    if str(name) in names():
        return _file(FOLDER / f"{name}.yaml")
    held = {one.claim: one for one in (_file(FOLDER / f"{stem}.yaml") for stem in names())}
    if str(name) not in held:
        raise EvidenceError("no experiment of this name or claim", got=repr(str(name)),
                            fix=f"nearest names: {nearest(str(name), [*names(), *held])}; or give a YAML file")
    return held[str(name)]


def _file(path: Path) -> Definition:
    try:
        return read(path.read_text(encoding="utf-8"), path.name)
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceError(f"experiment {path} cannot be read", got=str(error), fix="give a readable UTF-8 YAML file") from None


def read(text: str, source: str) -> Definition:
    """The experiment of a YAML text. Raises EvidenceError with what is wrong with it."""
    body = parse(text, source, _DIALECT).value
    if not isinstance(body, Mapping) or body.get("schema") != SCHEMA:
        got = body.get("schema") if isinstance(body, Mapping) else type(body).__name__
        raise EvidenceError(f"{source}: an experiment must begin with `schema: {SCHEMA}`", got=repr(got),
                            why="another version may mean other things by the same words")
    plain = {key: item for key, item in body.items() if key != "schema"}
    if isinstance(levels := plain.get("levels"), Mapping):
        plain["levels"] = {name: {} if item is None else item for name, item in levels.items()}
    try:
        found: Definition = decode(Definition, plain)
    except CodecError as error:
        raise EvidenceError(f"{source}: {error.what}", got=error.got, why=error.why, fix=error.fix) from None
    _check(found, source)
    return found


def _check(found: Definition, source: str) -> None:
    def refuse(what: str, got: Any, why: str, fix: str) -> None:
        raise EvidenceError(f"{source}: {what}", got=str(got), why=why, fix=fix)

    if len(found.levels) < 2:
        refuse("an experiment needs at least two levels", len(found.levels), "one has nothing to be compared with", "add one")
    for key in ("baseline", "treatment"):
        if getattr(found, key) not in found.levels:
            refuse(f"{key} names no level", getattr(found, key), "", f"one of: {', '.join(found.levels)}")
    if found.baseline == found.treatment:
        refuse("baseline and treatment are one level", found.baseline, "a level does not differ from itself", "name another")
    if len(set(found.seeds)) < LEAST_SEEDS or len(set(found.seeds)) != len(found.seeds):
        refuse(f"an experiment needs at least {LEAST_SEEDS} different seeds", found.seeds,
               "fewer say little about how runs differ by chance", "write `seeds: [1, 2, 3, 4, 5]`")
    if not (found.decision.margin > 0 and found.matched.tolerance > 0):
        refuse("margin and tolerance must be above 0", f"{found.decision.margin}, {found.matched.tolerance}",
               "without a margin no absence of an effect can be shown", "write the smallest difference that matters")
