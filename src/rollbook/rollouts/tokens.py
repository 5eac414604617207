"""Places of a text in the ids that spell it, found by decoding beginnings: the ids are never made from the text again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]


def tokens_before(decode: Decode, ids: Sequence[int], characters: int) -> int:
    """How many of the ids it takes to spell at least so many characters of their text.

    Example: tokens_before(decode, ids_of("ab cd"), 2) == 1, where "ab" is one token
    """
    if characters <= 0:
        return 0
    found = bisect_left(range(len(ids)), characters, key=lambda count: len(decode(ids[:count])))
    while found < len(ids) and decode(ids[:found])[-1:] == "\ufffd":         # in the middle of a character
        found += 1
    return found


def token_span(decode: Decode, ids: Sequence[int], start: int, end: int) -> tuple[int, int]:
    """First id and number of ids that the characters `start` to `end` of the text touch."""
    first = tokens_before(decode, ids, start)
    if first and len(decode(ids[:first])) > start:
        first -= 1
    return first, max(0, tokens_before(decode, ids, end) - first)


def without_beginning(decode: Decode, encode: Callable[[str], tuple[int, ...]], ids: Sequence[int],
                      characters: int) -> tuple[int, ...]:
    """The ids of what follows the first characters, unchanged; only the rest of a token that was cut is encoded anew."""
    count = tokens_before(decode, ids, characters)
    rest = decode(ids[:count])[characters:]
    return (*(encode(rest) if rest else ()), *ids[count:])
