"""Fill in the middle (2207.14255): a document is cut in two places and its middle moved to the end, where prefix and suffix
predict it.

    PSM: <|fim_prefix|> prefix <|fim_suffix|> suffix <|fim_middle|> middle
    SPM: <|fim_prefix|> <|fim_suffix|> suffix <|fim_middle|> prefix middle
"""

from __future__ import annotations

import random
import re

PREFIX, SUFFIX, MIDDLE = "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"
WRITTEN = re.compile(f"{re.escape(PREFIX)}(.*?){re.escape(SUFFIX)}(.*?){re.escape(MIDDLE)}(.*)", re.DOTALL)


def filled_in(text: str, rng: random.Random) -> str:
    """The document with its middle at the end, in one of the two forms; cut between characters, uniformly."""
    one, other = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    prefix, middle, suffix = text[:one], text[one:other], text[other:]
    if rng.random() < 0.5:
        return f"{PREFIX}{prefix}{SUFFIX}{suffix}{MIDDLE}{middle}"
    return f"{PREFIX}{SUFFIX}{suffix}{MIDDLE}{prefix}{middle}"


def restored(text: str) -> str:
    """The document as it was written; one that was left as it is comes out unchanged.

    Example: restored("<|fim_prefix|>2+<|fim_suffix|>=5<|fim_middle|>3") == "2+3=5"
    """
    found = WRITTEN.fullmatch(text)
    if found is None:
        return text
    prefix, suffix, middle = found.groups()
    return f"{prefix}{middle}{suffix}"
