"""Every value that a recipe calls known, against the claim it cites: it exists, is about this release and says this value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollbook.evidence.agreement import UNSTATED, shown
from rollbook.evidence.claims import Claim, covers
from rollbook.evidence.errors import EvidenceError
from rollbook.evidence.registry import Registry
from rollbook.recipes.stated import written
from rollbook.recipes.units import units
from rollbook.recipes.values import DISCLOSED, OBJECTIVE_KIND, Entry, Tree, entries
from rollbook.records.errors import RecipeError
from rollbook.records.problems import Problems

NAMED = ("path", "ratio_to")  # texts that a claim names too; others (stages, generators, prompts) are the recipe's own words


@dataclass(frozen=True, slots=True, kw_only=True)
class Cited:
    """A part of a document whose values are checked. In `facts` a text must be the claim's own; `prefix` is said before paths.

    A `statement` may repeat its claim as it is, bound and all; a setting has one value and must be within the bound.
    """

    tree: Tree
    prefix: str = ""
    facts: bool = False
    statement: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The release that a recipe is about, the file it stands in, and where its problems go."""

    release: str
    source: str
    line: int | None
    problems: Problems

    def refuse(self, line: int | None, error: EvidenceError | RecipeError, path: str = "") -> None:
        where = f"{self.source}:{line}: " if line else f"{self.source}: "
        what = f"{path}: {error.what}" if path else error.what
        self.problems.add(RecipeError(where + what, got=error.got, why=error.why, fix=error.fix))


def check(parts: tuple[Cited, ...], subject: Subject, registry: Callable[[], Registry]) -> None:
    """Adds a problem for every value whose claim does not carry it. The registry is asked for only where something is cited."""
    cited = [(part, path, entry) for part in parts for path, entry in entries(part.tree) if entry.claim]
    if not cited:
        return
    known = registry()
    try:
        known.release(subject.release)
    except EvidenceError as error:
        subject.refuse(subject.line, error, "subject")
        return
    for part, path, entry in cited:
        try:
            _check(part, path, entry, Known(registry=known, release=subject.release))
        except EvidenceError as error:
            subject.refuse(entry.line, error, part.prefix + path)


def check_objectives(settings: Tree, subject: Subject) -> None:
    """Adds a problem for every objective whose name stands there as if it were a choice about the machine."""
    for path, entry in entries(settings):
        if path.endswith(OBJECTIVE_KIND) and entry.label is None:
            subject.refuse(entry.line, RecipeError(
                f"{path} has no label", got=repr(entry.value),
                why="which objective a release was trained with is a statement about it",
                fix="write {value: NAME, label: D, claim: ...}, or {value: NAME, label: I, reason: ...}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The claims at hand and the release they are wanted for."""

    registry: Registry
    release: str

    def cite(self, entry: Entry, value: Any) -> Claim:
        return self.registry.cite(str(entry.claim), release=self.release, label=str(entry.label), value=value)


def _check(part: Cited, path: str, entry: Entry, known: Known) -> None:
    """Raises the first thing that speaks against one citation."""
    if entry.label not in DISCLOSED:
        _check_mention(known.registry, entry, known.release)
    elif path.endswith(OBJECTIVE_KIND):
        _check_objective(known.cite(entry, UNSTATED), entry.value)
    elif part.statement and _repeated(known.registry.claim(str(entry.claim)), entry.value):
        known.cite(entry, UNSTATED)
    else:
        claim = known.cite(entry, entry.value)
        said = written(claim)
        compared = isinstance(entry.value, str | list) and (part.facts or path.rpartition(".")[2] in NAMED)
        if compared and entry.value != said:
            raise _other_value(claim, entry.value)
        if not part.facts:
            _check_unit(claim, path, entry.value)


def _repeated(claim: Claim, value: Any) -> bool:
    """Whether a fact is the claim's own value, whatever its bound, or its own sentence."""
    return value == claim.says or (value is not None and value == written(claim))


def _check_mention(registry: Registry, entry: Entry, release: str) -> None:
    """An inference may name the claim it is drawn from, an unknown the claim that says so."""
    claim, wanted = registry.claim(str(entry.claim)), registry.release(release)
    if not covers(claim, wanted):
        raise registry.out_of_scope(claim, wanted)
    if (entry.label == "U") != (claim.label == "U"):
        raise EvidenceError(f"claim {claim.id} is cited as {entry.label} but is {claim.label}", got=shown(claim),
                            why="what is unknown has no claim that states it, and nothing is inferred from what is unknown",
                            fix="cite another claim, or none")


def _check_objective(claim: Claim, kind: Any) -> None:
    if kind not in claim.objectives:
        raise EvidenceError(f"claim {claim.id} does not name the objective {kind}",
                            got=", ".join(claim.objectives) or "a claim about something else", why=f"{claim.says} ({claim.at})",
                            fix="cite the claim that names it, or label it I with a reason")


def _check_unit(claim: Claim, path: str, value: Any) -> None:
    allowed = units(path)
    if allowed is None or claim.unit is None or claim.unit in allowed or isinstance(value, bool | str):
        return
    raise EvidenceError(f"claim {claim.id} counts something else", got=shown(claim),
                        why=f"{path} counts {' or '.join(allowed)}", fix="cite a claim in that unit, or label the value I")


def _other_value(claim: Claim, value: Any) -> EvidenceError:
    return EvidenceError(f"claim {claim.id} has another value", got=f"{value!r} against {claim.value!r}",
                         why=f"{claim.says} ({claim.at})",
                         fix="write the source's value, or label the changed one I with a reason")
