"""The claims at hand: by id, by release; and the refusal of a value whose claim does not carry it."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rollbook.evidence import index
from rollbook.evidence.agreement import UNSTATED, agrees
from rollbook.evidence.claims import Claim, Release, covers
from rollbook.evidence.errors import EvidenceError, raise_any
from rollbook.evidence.vocabulary import LABELS
from rollbook.records.codec import nearest

CLAIMS = Path(__file__).parent / "claims"
CITABLE = ("D", "C", "R")


class Registry:
    """Claims and releases by id. A claim's record is made when it is first asked for.

    Example: builtin().cite("mistral.magistral-small.epsilon_high", release="Magistral Small (2025-06)", label="D", value=0.3)
    """

    def __init__(self, releases: Mapping[str, Release], claims: Mapping[str, Claim | str]):
        self.releases = dict(releases)
        self._claims: dict[str, Claim | str] = dict(claims)
        self._subjects = {release.subject: release for release in releases.values()}

    @property
    def ids(self) -> tuple[str, ...]:
        """Every claim's id, sorted."""
        return tuple(sorted(self._claims))

    def claim(self, name: str) -> Claim:
        """The claim of an id. Raises EvidenceError with the nearest ids."""
        found = self._claims.get(name)
        if found is None:
            raise EvidenceError("unknown claim", got=repr(name),
                                why="a value is disclosed only where a listed source discloses it",
                                fix=f"nearest ids: {nearest(name, list(self._claims))}")
        if not isinstance(found, Claim):
            found = self._claims[name] = index.claim(name, found)
        return found

    def release(self, name: str) -> Release:
        """The release of an id or of a recipe's subject, `Magistral Small (2025-06)`."""
        found = self.releases.get(name) or self._subjects.get(name)
        if found is None:
            raise EvidenceError("unknown release", got=repr(name), why="a claim is about one release, named with its date",
                                fix=f"nearest names: {nearest(name, [*self.releases, *self._subjects])}")
        return found

    def about(self, release: str) -> Iterator[Claim]:
        """Every claim that a recipe of the release may cite, the unknowns among them, in the order of their ids."""
        wanted = self.release(release)
        yield from (claim for name in self.ids if covers(claim := self.claim(name), wanted))

    def cite(self, name: str, *, release: str, label: str, value: Any = UNSTATED) -> Claim:
        """The claim, where a value with this label may cite it for this release; raises EvidenceError where it may not."""
        claim, wanted = self.claim(name), self.release(release)
        if not covers(claim, wanted):
            raise self.out_of_scope(claim, wanted)
        if label not in CITABLE or claim.label != label:
            fix = f"use label {claim.label}" if claim.label in CITABLE else "use I with a reason, or leave it unknown"
            raise EvidenceError(f"claim {name} is cited as {label} but is {claim.label}", got=LABELS[claim.label],
                                why="a value is as well known as what it cites, no better", fix=fix)
        if value is not UNSTATED and not agrees(claim, value):
            raise EvidenceError(f"claim {name} has another value", got=f"{value!r} against {claim.bound} {claim.value!r}",
                                why=f"{claim.says} ({claim.at})",
                                fix="write the source's value, or label the changed one I with a reason")
        for other in self.rivals(claim):
            if other.label in CITABLE and covers(other, wanted):
                raise EvidenceError(f"claim {name} is contradicted by {other.id}", got=f"{claim.value!r} against {other.value!r}",
                                    why=f"the sources of {wanted.subject} do not agree, so it is not known which holds",
                                    fix="label the value I and say in `reason:` which source is followed")
        return claim

    def out_of_scope(self, claim: Claim, wanted: Release) -> EvidenceError:
        """The refusal of a claim for a release it does not speak of; names the release it belongs to."""
        return _out_of_scope(claim, wanted, self.releases[claim.release])

    def rivals(self, claim: Claim) -> Iterator[Claim]:
        """The claims that contradict this one, whichever of the two says so."""
        yield from (self.claim(name) for name in sorted(self._rivals.get(claim.id, ())))

    @functools.cached_property
    def _rivals(self) -> Mapping[str, set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for name, claim in list(self._claims.items()):
            if isinstance(claim, str) and '"contradicts":' not in claim:
                continue        # a compiled claim without the field; making records of all would take too long
            for other in self.claim(name).contradicts:
                found[name].add(other)
                found[other].add(name)
        return found

    def check_runs(self, has_run: Callable[[str], bool]) -> None:
        """Refuses every R claim whose run `has_run` does not know."""
        claims = [claim for name in self.ids if (claim := self.claim(name)).label == "R"]
        raise_any([EvidenceError(f"{claim.at}: {claim.id} names a run that is not in the ledger", got=repr(claim.run),
                                 why="what was reproduced here can be shown here", fix="run it again, or change the label")
                   for claim in claims if not has_run(str(claim.run))])


def _out_of_scope(claim: Claim, wanted: Release, owner: Release) -> EvidenceError:
    reasons = [boundary.reason for boundary in claim.not_for if boundary.release == wanted.id]
    why = reasons[0] if reasons else "what one release discloses is not known of another, however alike they are"
    return EvidenceError(f"claim {claim.id} belongs to {owner.subject}", got=wanted.subject, why=why,
                         fix=f"use a claim about {wanted.name}, or label the value I with a reason; "
                             f"this one is in scope for: {', '.join(claim.scope) or 'no release'}")


def read_folder(folder: Path) -> Registry:
    """The claims of every YAML file of a folder. Raises EvidenceError with every problem, each with file and line."""
    from rollbook.evidence.consistency import problems  # only who changes claims reads their files
    from rollbook.evidence.reading import read

    found: list[EvidenceError] = []
    laboratories = [read(file.read_text(encoding="utf-8"), file.name, found) for file in sorted(folder.glob("*.yaml"))]
    raise_any(found)
    raise_any(list(problems(laboratories)))
    return Registry({key: release for laboratory in laboratories for key, release in laboratory.releases.items()},
                    {key: claim for laboratory in laboratories for key, claim in laboratory.claims.items()})


@functools.cache
def builtin() -> Registry:
    """The claims of the package, from their compiled index."""
    return Registry(*index.load())
