"""The mathematics verifier in the form of the others: the last box of a response against the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollbook.rewards.boxes import last_box
from rollbook.rewards.math import equivalent
from rollbook.rewards.math import warm as warm
from rollbook.rewards.stamps import MATH_PACKAGES, MATH_SOURCES
from rollbook.rewards.verifiers.base import BadReference, VerifierSpec, verdict

SHOWN = 60


def math_answer(response: str, reference: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The last box of the response equals the reference by mathematics. A box that is not closed, or empty, is no answer."""
    if not isinstance(reference, str):
        raise BadReference(f"the reference is a text, got {type(reference).__name__}")
    box = last_box(response)
    if box.answer is None:
        return verdict(False, f"box {box.state}")
    equal = equivalent(box.answer, reference)
    return verdict(equal, f"{box.answer[:SHOWN]} {'=' if equal else '≠'} {reference[:SHOWN]}")


MATH = VerifierSpec(name="math", version="2", work=f"{__name__}:math_answer", packages=MATH_PACKAGES,
                    sources=(*(name for name in MATH_SOURCES if name not in ("pool.py", "worker.py")),
                             "verifiers/math_answers.py"))
