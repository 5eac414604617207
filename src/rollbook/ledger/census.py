"""The census: every attempt that was issued has exactly one final outcome, or is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from rollbook.records import AttemptId, Census, Outcome, RecordError

NAMED = 5


def close_census(scope: str, issued: Mapping[AttemptId, str], outcomes: Sequence[Outcome],
                 in_flight: Collection[AttemptId] = ()) -> Census:
    """The census of a scope; `issued` maps each attempt to its family. RecordError names attempts that do not add up."""
    ended = Counter(outcome.attempt for outcome in outcomes)
    flying = set(in_flight)
    families = {outcome.attempt: outcome.family for outcome in outcomes}
    _refuse(scope, "ended more than once", [attempt for attempt, times in ended.items() if times > 1])
    _refuse(scope, "ended without having been issued", [attempt for attempt in ended if attempt not in issued])
    _refuse(scope, "are in flight without having been issued", [attempt for attempt in flying if attempt not in issued])
    _refuse(scope, "ended and are still in flight", [attempt for attempt in ended if attempt in flying])
    _refuse(scope, "ended in another family than they were issued in",
            [attempt for attempt, family in families.items() if issued[attempt] != family])
    _refuse(scope, "have no outcome", [attempt for attempt in issued if attempt not in ended and attempt not in flying])
    codes: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        codes.setdefault(outcome.family, Counter())[outcome.code] += 1
    return Census(scope=scope, issued=_sorted(Counter(issued.values())),
                  outcomes={family: _sorted(codes[family]) for family in sorted(codes)},
                  in_flight=_sorted(Counter(issued[attempt] for attempt in flying)))


def merge(censuses: Iterable[Census], *, scope: str = "run") -> Census:
    """One census over several scopes; RecordError when a scope comes twice."""
    issued: Counter[str] = Counter()
    in_flight: Counter[str] = Counter()
    codes: dict[str, Counter[str]] = {}
    seen: set[str] = set()
    for census in censuses:
        if census.scope in seen:
            raise RecordError(f"the census of {census.scope} comes twice", why="its attempts would be counted twice")
        seen.add(census.scope)
        issued.update(census.issued)
        in_flight.update(census.in_flight)
        for family, counts in census.outcomes.items():
            codes.setdefault(family, Counter()).update(counts)
    return Census(scope=scope, issued=_sorted(issued), outcomes={family: _sorted(codes[family]) for family in sorted(codes)},
                  in_flight=_sorted(in_flight))


def _refuse(scope: str, what: str, attempts: Sequence[AttemptId]) -> None:
    if attempts:
        named = sorted(attempts)[:NAMED]
        more = f" and {len(attempts) - NAMED} more" if len(attempts) > NAMED else ""
        raise RecordError(f"the census of {scope} does not close: {len(attempts)} attempts {what}", got=", ".join(named) + more,
                          why="each issued attempt has exactly one final outcome")


def _sorted(counts: Mapping[str, int]) -> dict[str, int]:
    return {key: counts[key] for key in sorted(counts)}
