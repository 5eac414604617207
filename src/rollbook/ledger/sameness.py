"""Is this the machine a run was made on? What differs from its manifest, and what equal bits depend on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

UPDATE = frozenset({"machine.system", "machine.architecture", "machine.cpu", "packages.torch", "settings.MKL_CBWR", "threads",
                    "learner", "device", "kernels"})
OWN = frozenset({"packages.rollbook"})      # the code, which should be the same
WATCHED = ("python", "implementation", "machine", "packages", "code", "settings", "threads", "learner", "device", "kernels")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlike:
    """One thing that is not as it was when the run was made; `moves_update`: the same optimizer step may give other bits here.

    `moves_run`: sampling, tasks or verdicts may come out otherwise too. Another code is stated and excuses nothing.

    Example: Unlike(what="threads", there="1", here="2", moves_update=True, moves_run=True)
    """

    what: str
    there: str
    here: str
    moves_update: bool
    moves_run: bool

    def __str__(self) -> str:
        return f"{self.what}: {self.there} there, {self.here} here"


def unlike(there: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[Unlike, ...]:
    """Where two manifests of runs differ in machine, packages, code, settings or threads; what one lacks is `not recorded`."""
    recorded, found = dict(_leaves(there)), dict(_leaves(here))
    return tuple(Unlike(what=name, there=recorded.get(name, "not recorded"), here=found.get(name, "not recorded"),
                        moves_update=name in UPDATE,
                        moves_run=name in UPDATE or (name.startswith("packages.") and name not in OWN))
                 for name in sorted({*recorded, *found}) if recorded.get(name) != found.get(name))


def elsewhere(observed: Mapping[str, Any] | None, manifest: Mapping[str, Any]) -> bool:
    """Whether a rollback was noted on another machine than the run's: what is made again there may have other bits."""
    there = manifest.get("machine")
    here = (observed or {}).get("machine")
    if not isinstance(there, Mapping) or not isinstance(here, Mapping):
        return False
    return any(there.get(name) != here.get(name) for name in ("system", "architecture", "cpu", "cores", "usable_cores"))


def in_words(found: Sequence[Unlike], *, limit: int = 6) -> str:
    """The differences in one line."""
    more = f" and {len(found) - limit} more" if len(found) > limit else ""
    return "; ".join(map(str, found[:limit])) + more


def _leaves(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in WATCHED:
        value = manifest.get(name)
        if isinstance(value, Mapping):
            yield from ((f"{name}.{key}", str(item)) for key, item in value.items())
        elif value is not None:
            yield name, str(value)
