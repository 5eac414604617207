"""Which tokens of a demonstration only repeat what stands before them: these carry no loss (`records.Repeats`; label I)."""

from __future__ import annotations

from collections.abc import Sequence

from rollbook.records import Demonstration
from rollbook.records.recipe import Repeats


def repeated(one: Demonstration, rule: Repeats | None) -> tuple[bool, ...]:
    """True for every token that the rule leaves out of the loss, in the order of `token_ids`; none where there is no rule.

    Spans lie within one turn of the policy: what it repeats of others' words is its own to learn.
    """
    left: list[bool] = []
    for span in one.owners:
        ids = one.token_ids[len(left):len(left) + span.length]
        left += again(ids, rule) if rule is not None and span.owner == "policy" else [False] * span.length
    return tuple(left)


def again(ids: Sequence[int], rule: Repeats) -> list[bool]:
    """True for the tokens of a turn that stand in a span of repetition, after its first `copies` units.

    A token repeats at a period p where it equals the one p places before; an unbroken run of such tokens is, with the p tokens in
    front of it, a span of period p. A token that any period up to `period` leaves out is left out.

    Example: again([7, 1, 2, 1, 2, 1, 2, 9], Repeats(period=2, copies=1, span=6)) leaves out the four tokens in places 3 to 6.
    """
    left = [False] * len(ids)
    for period in range(1, min(rule.period, len(ids) - 1) + 1):
        begins = 0                                  # of the span that the token before stands in
        for at in range(period, len(ids) + 1):
            if at < len(ids) and ids[at] == ids[at - period]:
                continue
            kept = begins + rule.copies * period
            if at - begins >= rule.span and at > kept:
                left[kept:at] = [True] * (at - kept)
            begins = at - period + 1
    return left
