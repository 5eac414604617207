"""Texts as arrays of word ids, so that two hundred thousand of them can be compared in a few seconds.

Suffix: W words of all texts end to end, N texts. Hashes are of this process's own vocabulary and never leave it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rollbook.tasks.errors import TaskError

WORD = re.compile(r"\w+|[^\w\s]")
QUANTITY = re.compile(r"\d+(?:[.,]\d+)*|[+*/^=<>%×÷·√≤≥≠]|(?<![\w-])-(?=[\s\d(])")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
MIX = np.uint64(0x9E3779B97F4A7C15)
PERMUTATIONS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """`id_W` with the bounds of every text, `numbers_N` a hash of each text's numbers and operators in their order."""

    id_W: np.ndarray
    start_N: np.ndarray         # N + 1 bounds
    numbers_N: np.ndarray

    def __len__(self) -> int:
        return len(self.start_N) - 1

    def words(self, place: int) -> np.ndarray:
        return self.id_W[self.start_N[place]:self.start_N[place + 1]]


def quantities(text: str) -> list[str]:
    """The numbers and operators of a text in order.

    Example: quantities("Is 3 + 4 = 7?") == ["3", "+", "4", "=", "7"]
    """
    return QUANTITY.findall(folded(text))


def skeleton(text: str) -> str:
    """The text with every number masked: what the problems of one template have in common.

    Example: skeleton("Tom has 12 apples.") == "tom has # apples."
    """
    return NUMBER.sub("#", folded(text))


def folded(text: str) -> str:
    """The text without case and typography."""
    return text.casefold() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()


def corpus(texts: Sequence[str], *, letters_only: bool = False) -> Corpus:
    """The words of the texts; with `letters_only` punctuation is left out, so that it cannot keep two texts apart."""
    vocabulary: dict[str, int] = {}
    ids: list[np.ndarray] = []
    numbers = np.zeros(len(texts), dtype=np.uint64)
    for place, text in enumerate(texts):
        plain = folded(text)
        words = re.findall(r"\w+", plain) if letters_only else WORD.findall(plain)
        ids.append(np.fromiter((vocabulary.setdefault(word, len(vocabulary) + 1) for word in words), np.uint64, len(words)))
        found = quantities(plain)
        if found:
            numbers[place] = np.uint64(hash(tuple(found)) & 0xFFFFFFFFFFFFFFFF)
    lengths = np.fromiter((len(one) for one in ids), np.int64, len(ids))
    return Corpus(id_W=np.concatenate(ids) if ids else np.zeros(0, np.uint64), start_N=np.concatenate(([0], np.cumsum(lengths))),
                  numbers_N=numbers)


def grams(of: Corpus, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of all runs of `size` words that lie within one text, and which text each is of."""
    count = len(of.id_W) - size + 1
    if count <= 0:
        return np.zeros(0, np.uint64), np.zeros(0, np.int64)
    with np.errstate(over="ignore"):
        mixed = of.id_W * MIX
        mixed ^= mixed >> np.uint64(29)
        run = np.zeros(count, dtype=np.uint64)
        for offset in range(size):
            run = run * np.uint64(0x100000001B3) + mixed[offset:offset + count]
        run ^= run >> np.uint64(32)
        run *= MIX
    owner = np.repeat(np.arange(len(of)), np.diff(of.start_N))
    inside = owner[:count] == owner[size - 1:size - 1 + count]
    return run[inside], owner[:count][inside]


def shingles(of: Corpus, size: int) -> Iterator[np.ndarray]:
    """The distinct 32-bit hashes of every text's runs of `size` words; a shorter text is one run, an empty one none."""
    run, owner = grams(of, size)
    ends = np.searchsorted(owner, np.arange(len(of) + 1))
    for place in range(len(of)):
        own = run[ends[place]:ends[place + 1]]
        if not len(own) and len(words := of.words(place)):
            own = np.array([hash(tuple(words.tolist())) & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)
        yield np.unique((own >> np.uint64(32)).astype(np.uint32))


def signatures(sets: Sequence[np.ndarray]) -> np.ndarray:
    """MinHash signatures [N, PERMUTATIONS] by datasketch; an empty set has the signature of nothing."""
    try:
        from datasketch import MinHash
    except ImportError:
        raise TaskError("near duplicates are found by datasketch, which is not installed",
                        fix="pip install 'rollbook[curation]'") from None
    found = np.empty((len(sets), PERMUTATIONS), dtype=np.uint32)
    empty = MinHash(num_perm=PERMUTATIONS, seed=13, hashfunc=int)
    for place, own in enumerate(sets):
        sketch = empty.copy()
        if len(own):
            sketch.update_batch(own.tolist())
        found[place] = sketch.hashvalues.astype(np.uint32)
    return found


def candidate_groups(signature: np.ndarray, keep_apart_N: np.ndarray, rows: int) -> Iterator[np.ndarray]:
    """Places that share a band of `rows` values and the value of `keep_apart_N`, band by band, each at least two."""
    for start in range(0, PERMUTATIONS - rows + 1, rows):
        key = keep_apart_N.copy()
        with np.errstate(over="ignore"):
            for column in range(start, start + rows):
                key = (key ^ signature[:, column].astype(np.uint64)) * np.uint64(0x100000001B3)
                key ^= key >> np.uint64(29)
        order = np.argsort(key, kind="stable")
        ordered = key[order]
        bounds = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1], [True])))
        for low, high in pairwise(bounds.tolist()):
            if high - low > 1:
                yield order[low:high]


class Joined:
    """Union-find over places: the root of a set is its smallest member."""

    def __init__(self, count: int):
        self.parent = np.arange(count)

    def root(self, place: int) -> int:
        while self.parent[place] != place:
            self.parent[place] = self.parent[self.parent[place]]
            place = int(self.parent[place])
        return place

    def join(self, one: int, other: int) -> None:
        a, b = self.root(one), self.root(other)
        if a != b:
            self.parent[max(a, b)] = min(a, b)

    def roots(self) -> np.ndarray:
        return np.fromiter((self.root(place) for place in range(len(self.parent))), np.int64, len(self.parent))
