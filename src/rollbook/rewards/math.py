r"""Whether a boxed answer equals the reference: exact numbers, words, our own grammar, math-verify.

Runs in a worker process: nothing here is bounded in time beyond the sizes it refuses, and no text is ever evaluated as Python.
Decimals are exact: 0.333 is not one third, 30% is 3/10. docs/verifiers.md has the rules of what counts as equal.
"""

from __future__ import annotations

import re

from rollbook.records.reward import FailureCode
from rollbook.rewards.notation import clean, depth, flat, is_wording, words
from rollbook.rewards.numbers import compare
from rollbook.rewards.verifiers.mathematics.exact import TooLarge, exact
from rollbook.rewards.verifiers.mathematics.nodes import Malformed, Node, Undecided, Unsupported
from rollbook.rewards.verifiers.mathematics.wording import NO_ANSWER, as_mathematics, stated_in_words

MAX_CHARACTERS = 4000
LOOSE_SPACE = re.compile(r"(?<![\d,;]) | (?![\d,;])")      # between digits and behind a comma a space can mean something
MAX_DEPTH = 32
RECURSION = 20_000       # a product of MAX_TOKENS factors is a tree of that depth

__all__ = ["Undecided", "UnparsableReference", "equivalent"]


class UnparsableReference(Exception):
    """The reference is no mathematics that a parser can read, and no words either."""

    code: FailureCode = "unparsable_reference"


def warm() -> None:
    """The slow imports, and a comparison that makes ours, before anything is timed."""
    import sys

    import math_verify  # noqa: F401
    import sympy  # noqa: F401

    sys.setrecursionlimit(RECURSION)
    for answer, reference in ((r"\sin x", r"\cos x"), ("x>2", r"(2,\infty)")):
        equivalent(answer, reference)


def equivalent(answer: str, reference: str) -> bool:
    """Whether the two are the same answer.

    Raises UnparsableReference where the reference cannot decide, Undecided where both were read and no method can tell.
    """
    known = compare(answer, reference)
    if known is not None:
        return known
    if len(reference) > MAX_CHARACTERS or (words(reference) or reference.strip()) in NO_ANSWER:
        raise UnparsableReference(f"{len(reference)} characters" if len(reference) > MAX_CHARACTERS else "it states nothing")
    if len(answer) > MAX_CHARACTERS:
        return False
    if depth(answer) > MAX_DEPTH and depth(answer := flat(answer)) > MAX_DEPTH:
        return False
    worded = stated_in_words(answer, reference)
    if worded is not None:
        return worded
    left, right = clean(as_mathematics(answer)), clean(as_mathematics(reference))
    if LOOSE_SPACE.sub("", left) == LOOSE_SPACE.sub("", right):
        return True
    return _mathematics(left, right)


def _mathematics(answer: str, reference: str) -> bool:
    """The two as our own grammar reads them; as math-verify does where it does not know the notation."""
    from rollbook.rewards.verifiers.mathematics.decide import same
    from rollbook.rewards.verifiers.mathematics.fallback import same_by_math_verify

    try:
        wanted = _read(reference)
        if isinstance(wanted, Malformed):
            if words(reference) is None and not is_wording(reference):
                raise UnparsableReference(f"{reference[:80]}: {wanted}")
            return False
        found = _read(answer)
        if isinstance(found, Malformed):
            return False
        if isinstance(wanted, Node) and isinstance(found, Node):
            try:
                return same(found, wanted)
            except Unsupported:
                pass
        if isinstance(wanted, Node) and _is_too_large(wanted):
            raise Undecided("a reference too large to be computed, and an answer in another notation")
        return same_by_math_verify(answer, reference)
    except Malformed:
        return _refused(wanted)
    except RecursionError:
        raise Undecided("nested too deeply") from None
    except Unsupported as error:
        if isinstance(wanted, Node):
            return False
        raise UnparsableReference(str(error)) from None


def _read(text: str) -> Node | Malformed | Unsupported:
    from rollbook.rewards.verifiers.mathematics.grammar import read

    try:
        return read(text)
    except (Malformed, Unsupported) as error:
        return error


def _is_too_large(node: Node) -> bool:
    try:
        exact(node)
    except TooLarge:
        return True
    except Malformed:
        pass
    return False


def _refused(wanted: Node | Malformed | Unsupported) -> bool:
    """An answer without a value is wrong; a reference without one cannot decide."""
    if isinstance(wanted, Node):
        try:
            exact(wanted)
        except Malformed as error:
            raise UnparsableReference(str(error)) from None
        except TooLarge:
            pass
    return False
