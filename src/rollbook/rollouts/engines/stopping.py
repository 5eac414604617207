"""What ends a request besides its length: ids, and strings found in the text as it grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

UNREADABLE = "\ufffd"       # stands for bytes that are no whole character yet
MARGIN = 4                  # tokens more than a string has bytes: the first of a cut may be the rest of a character


@dataclass(frozen=True, slots=True, kw_only=True)
class Stops:
    """The ids and strings of one request; `decode` turns ids into text, token by token or with their neighbours' bytes.

    Limit: a token is taken to add at least one byte of text, as tokens of byte-level and byte-fallback vocabularies do.
    """

    ids: frozenset[int]
    strings: tuple[str, ...]
    decode: Callable[[Sequence[int]], str] | None

    def met(self, token_ids: Sequence[int]) -> int | str | None:
        """What the last of the tokens completed: a stop id, else the string that ends first in the text (the longest of several).

        Only so many tokens are decoded as can hold the strings; the answer is that of decoding all of them after every token.
        """
        if token_ids[-1] in self.ids:
            return token_ids[-1]
        if not self.strings or self.decode is None:
            return None
        reach = max(len(one.encode()) for one in self.strings) + MARGIN
        text = self.decode(token_ids[-reach:])
        found = [(text.find(one) + len(one), -len(one), one) for one in self.strings if one in text]
        return min(found)[2] if found else None


def unusable(strings: Sequence[str]) -> str | None:
    """Which of the strings can never be matched exactly, and why."""
    for one in strings:
        if not one:
            return "an empty stop string would end every request before its first token"
        if UNREADABLE in one:
            return f"the stop string {one!r} holds the sign for bytes that are no character, which comes and goes as text grows"
    return None
