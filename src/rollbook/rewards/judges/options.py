"""From log-probs of options to a probability, and what counts as an answer at all."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rollbook.records import Unrated

LEAST_MASS = 0.01       # a judge that puts less than this on all options together has not answered the question


def probabilities(logps: Sequence[float] | Unrated, *, least_mass: float = LEAST_MASS) -> tuple[float, ...] | Unrated:
    """The options' probabilities among themselves; Unrated where the judge would have said something else.

    Example: probabilities((log .3, log .1)) == (.75, .25)
    """
    if isinstance(logps, Unrated):
        return logps
    if any(math.isnan(x) or x > 1e-6 for x in logps):
        return Unrated(code="malformed", detail=f"log-probs of options are numbers up to 0, got {tuple(logps)}"[:200])
    mass_O = [math.exp(x) for x in logps]
    total = math.fsum(mass_O)
    if total < least_mass:
        return Unrated(code="malformed", detail=f"the options have {total:.2g} of the judge's probability: it answers otherwise")
    return tuple(mass / total for mass in mass_O)
