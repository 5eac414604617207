"""What the claims of all laboratories must be together: known releases, no loose reference, no silent contradiction."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from rollbook.evidence.claims import Claim, Release, interval
from rollbook.evidence.errors import EvidenceError
from rollbook.evidence.reading import Laboratory
from rollbook.records.codec import nearest


def problems(laboratories: Sequence[Laboratory]) -> Iterator[EvidenceError]:
    """Every refusal that no single file shows."""
    releases: dict[str, Release] = {}
    for laboratory in laboratories:
        for release in laboratory.releases.values():
            if (other := releases.get(release.id)) is not None:
                yield EvidenceError(f"{laboratory.name}.yaml: release {release.id} is also in {other.laboratory}.yaml",
                                    why="a release has one entry", fix="remove one; a claim may name a release of another file")
            releases[release.id] = release
    yield from _alike(releases)
    claims = {claim.id: claim for laboratory in laboratories for claim in laboratory.claims.values()}
    for claim in claims.values():
        yield from _references(claim, claims, releases)
    yield from _disagreements(claims)


def _alike(releases: Mapping[str, Release]) -> Iterator[EvidenceError]:
    seen: dict[str, str] = {}
    for release in releases.values():
        if (other := seen.setdefault(release.subject, release.id)) != release.id:
            yield EvidenceError(f"{release.laboratory}.yaml: releases {other} and {release.id} have one name and date",
                                got=release.subject, why="a recipe names its release by both", fix="tell them apart in `name`")


def _references(claim: Claim, claims: Mapping[str, Claim], releases: Mapping[str, Release]) -> Iterator[EvidenceError]:
    boundaries = [boundary.release for boundary in claim.not_for]
    for name in dict.fromkeys((claim.release, *claim.scope, *boundaries)):
        if name not in releases:
            yield EvidenceError(f"{claim.at}: {claim.id} names an unknown release", got=repr(name),
                                fix=f"nearest names: {nearest(name, list(releases))}; or add it to its laboratory's releases")
    if claim.model is not None and claim.release in releases and claim.model not in releases[claim.release].models:
        yield EvidenceError(f"{claim.at}: {claim.id} names an unknown model of {claim.release}", got=repr(claim.model),
                            fix=f"nearest names: {nearest(claim.model, list(releases[claim.release].models))}")
    for name in set(boundaries) & set(claim.scope):
        yield EvidenceError(f"{claim.at}: {claim.id} has {name} both in its scope and in not_for", fix="remove one")
    for name in (*claim.contradicts, *claim.supersedes):
        if name not in claims or name == claim.id:
            yield EvidenceError(f"{claim.at}: {claim.id} refers to an unknown claim", got=repr(name),
                                fix=f"nearest names: {nearest(name, list(claims))}")
        elif claim.id in claims[name].supersedes and name in claim.supersedes:
            yield EvidenceError(f"{claim.at}: {claim.id} and {name} supersede each other", fix="keep the later one's")


def _disagreements(claims: Mapping[str, Claim]) -> Iterator[EvidenceError]:
    subjects: dict[tuple[str, str | None, str, str], list[Claim]] = defaultdict(list)
    for claim in claims.values():
        subjects[claim.subject].append(claim)
    for same in subjects.values():
        for first, second in itertools.combinations(same, 2):
            linked = second.id in (*first.contradicts, *first.supersedes) or first.id in (*second.contradicts, *second.supersedes)
            if not linked and (how := _disagree(first, second)):
                yield EvidenceError(
                    f"{second.at}: {second.id} {how} {first.id} ({first.at})", got=f"{_shown(second)} against {_shown(first)}",
                    why="two answers to one question, and nothing says which to use",
                    fix="correct one, name what differs in `quantity`, link them by `contradicts:` or `supersedes:` with a note")


def _disagree(first: Claim, second: Claim) -> str | None:
    """How two claims on one subject exclude each other, or None."""
    if "U" in (first.label, second.label):
        if {first.label, second.label} <= {"U", "I"}:
            return None
        return "states what is unknown to" if first.label == "U" else "calls unknown what is stated by"
    if first.value is None or second.value is None:
        return None
    if first.unit != second.unit:
        return "has another unit than"
    if first.denominator != second.denominator:
        return None
    one, two = _span(first), _span(second)
    if one is None or two is None:
        return "contradicts" if first.value != second.value else None
    return "contradicts" if one[1] < two[0] or two[1] < one[0] else None


def _span(claim: Claim) -> tuple[float, float] | None:
    """The numbers that do not contradict the claim: those that agree with it, and for a rounded one those within 5 percent."""
    span = interval(claim)
    if span is None or claim.bound != "about":
        return span
    return min(span[0] * 0.95, span[0] * 1.05), max(span[1] * 0.95, span[1] * 1.05)


def _shown(claim: Claim) -> str:
    bound = "" if claim.bound == "exact" else f"{claim.bound} "
    return f"{claim.label} {bound}{claim.value} {claim.unit or ''}".rstrip()
