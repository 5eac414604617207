"""The contract of a verifier as data, and the check that it keeps it: right accepted, wrong refused, everything bounded."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rollbook.rewards.pool import Failure
from rollbook.rewards.verifiers.base import Judged, Judgement, Verifier

Clause = Literal["accepts gold", "refuses near misses", "refuses nothing at all", "bounds what is huge", "survives adversaries",
                 "says when it cannot judge", "is deterministic", "is bounded in time"]
Item = tuple[str, Any]
SLACK_SECONDS = 2.0
HUGE = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What a verifier has to do. `gold` are responses in every surface form that is right, `near` those that almost are,
    `adversarial` those that are made to be accepted, to crash or to last; `unjudgeable` have a reference that decides nothing,
    with the code of the failure.

    Example: Contract(gold=[("B", "B")], near=[("A", "B")], adversarial=[], unjudgeable=[(("B", ""), "no_reference")])
    """

    gold: Sequence[Item]
    near: Sequence[Item]
    adversarial: Sequence[Item]
    unjudgeable: Sequence[tuple[Item, str]]
    empty: Sequence[str] = ("", " \n\t", "\\boxed{}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A clause that was broken, by which item, and how."""

    clause: Clause
    item: str
    found: str


def breaches(verifier: Verifier, contract: Contract) -> list[Breach]:
    """Every breach of a contract; none for a verifier that keeps it."""
    return list(_breaches(verifier, contract))


def _breaches(verifier: Verifier, contract: Contract) -> Iterator[Breach]:
    references = list({repr(reference): reference for _, reference in contract.gold}.values())
    empty = [(response, reference) for reference in references for response in contract.empty]
    huge = [(filler * HUGE, references[0]) for filler in ("7", "a ", "(", "{", "\\boxed{", "\n", "[", "é", "``", "<a>")]
    yield from _expected(verifier, contract.gold, "accepts gold", accept=True)
    yield from _expected(verifier, contract.near, "refuses near misses", accept=False)
    yield from _expected(verifier, empty, "refuses nothing at all", accept=False)
    yield from _expected(verifier, huge, "bounds what is huge", accept=None, failing=True)
    yield from _expected(verifier, contract.adversarial, "survives adversaries", accept=False, failing=True)
    for (item, code), found in zip(contract.unjudgeable, verifier.judge([item for item, _ in contract.unjudgeable]), strict=True):
        if not isinstance(found, Failure) or found.code != code:
            yield _breach("says when it cannot judge", item, found)
    steady = [*contract.gold, *contract.near]
    first, again = verifier.judge(steady), verifier.judge(steady[::-1])[::-1]
    yield from (_breach("is deterministic", item, two) for item, one, two in zip(steady, first, again, strict=True) if one != two)


def _expected(verifier: Verifier, items: Sequence[Item], clause: Clause, *, accept: bool | None,
              failing: bool = False) -> Iterator[Breach]:
    """Items that are not judged as they should be; without `accept` both verdicts will do; `failing` says that a failure but
    a crash is as good as a refusal."""
    for item in items:
        began = time.monotonic()
        [found] = verifier.judge([item])
        if time.monotonic() - began > verifier.spec.seconds + SLACK_SECONDS:
            yield _breach("is bounded in time", item, found)
        right = accept in (None, found.passed) if isinstance(found, Judged) else failing and found.code != "crash"
        if not right:
            yield _breach(clause, item, found)


def _breach(clause: Clause, item: Item, found: Judgement) -> Breach:
    return Breach(clause=clause, item=repr(item)[:200], found=repr(found)[:200])
