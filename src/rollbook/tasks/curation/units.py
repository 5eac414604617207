"""Split units: what must not stand on both sides of a split. Semantic clusters, templates, lineage, declared families."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rollbook.tasks.curation.filters import Filtered, Helpers, near_pairs
from rollbook.tasks.curation.rows import Candidate
from rollbook.tasks.curation.words import Joined, corpus, skeleton
from rollbook.tasks.errors import TaskError

LINEAGE = ("parent", "repository", "template", "seed_problem")      # keys that join rows where their values are equal
BLOCK = 1024
Embed = Callable[[Sequence[str]], np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticClusters:
    """Writes a `cluster` into every row: rows of one template (equal but for numbers), templates that are near duplicates
    (`jaccard`), and those whose embeddings have a cosine of at least `cosine`; joined through others as well.

    One text of each set of alike templates is embedded, at most `embed_at_most` in all. `per_cluster` keeps that many rows of
    each cluster (None: all).
    """

    cosine: float = 0.9
    jaccard: float = 0.8
    embed_at_most: int = 50_000
    per_cluster: int | None = None

    def apply(self, rows: Sequence[Candidate], helpers: Helpers) -> Filtered:
        embed: Embed = helpers.need("embed", "SemanticClusters")        # type: ignore[assignment]
        template_of, texts = templates(rows)
        joined = alike_templates(texts, self.jaccard)
        shown = sorted({joined.root(place) for place in range(len(texts))})
        if len(shown) > self.embed_at_most:
            raise TaskError(f"{len(shown)} different templates are more than embed_at_most", got=str(self.embed_at_most),
                            why="a cluster that was not looked for would be cut by a split",
                            fix="raise embed_at_most (about 100 texts a second and core), or lower jaccard")
        for one, other in similar(embed([texts[place] for place in shown]), self.cosine):
            joined.join(shown[one], shown[other])
        roots = joined.roots()
        done = Filtered(kept=[])
        seen: dict[str, int] = defaultdict(int)
        for row, template in zip(rows, template_of, strict=True):
            name = f"c{roots[template]}"
            seen[name] += 1
            if self.per_cluster is not None and seen[name] > self.per_cluster:
                done.rejected[row.number] = "cluster is full"
            else:
                done.kept.append(replace(row, more={**row.more, "cluster": name}))
        done.changed["cluster written"] = len(done.kept)
        done.notes = {"templates": len(texts), "texts embedded": len(shown), "clusters": len(seen),
                      "largest cluster": max(seen.values(), default=0)}
        return done


def alike_templates(texts: Sequence[str], jaccard: float) -> Joined:
    """Templates joined where they are near duplicates, through others as well."""
    joined = Joined(len(texts))
    for one, other, _ in near_pairs(corpus(texts, letters_only=True), jaccard, 3, known=joined):
        joined.join(one, other)
    return joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Writes a `side` and its `unit` into every row: about `heldout` rows held out, whole units at a time, by `seed`.

    A unit is everything joined by an equal `cluster`, an equal value of a lineage key, an equal family where `families` is
    true, or near duplication (`jaccard`, whatever the numbers). TaskError where no choice of units comes within a tenth of
    `heldout`.
    """

    heldout: int
    seed: int
    families: bool = False
    jaccard: float = 0.8

    def apply(self, rows: Sequence[Candidate], helpers: Helpers) -> Filtered:
        unit = units(rows, families=self.families, jaccard=self.jaccard)
        sizes: dict[int, int] = defaultdict(int)
        for one in unit:
            sizes[one] += 1
        order = sorted(sizes)
        random.Random(f"curation/{self.seed}").shuffle(order)
        held: set[int] = set()
        left = self.heldout
        for one in order:
            if sizes[one] <= left:
                held.add(one)
                left -= sizes[one]
        if left > self.heldout * 0.1:
            raise TaskError(f"no units of together about {self.heldout} rows to hold out", got=f"{self.heldout - left}",
                            why=f"{len(sizes)} units, the largest of {max(sizes.values(), default=0)} rows, may not be cut",
                            fix="hold out fewer rows, or raise the cosine that joins clusters")
        done = Filtered(kept=[replace(row, more={**row.more, "side": "heldout" if one in held else "train", "unit": f"u{one}"})
                              for row, one in zip(rows, unit, strict=True)])
        done.changed["side written"] = len(done.kept)
        done.notes = {"units": len(sizes), "largest unit": max(sizes.values(), default=0), "heldout rows": self.heldout - left}
        return done


def units(rows: Sequence[Candidate], *, families: bool = False, jaccard: float = 0.8) -> list[int]:
    """The split unit of every row, named by its first row's place."""
    joined = Joined(len(rows))
    first: dict[tuple[str, str], int] = {}
    for place, row in enumerate(rows):
        keys = [(key, row.lineage[key]) for key in LINEAGE if row.lineage.get(key)]
        if row.more.get("cluster"):
            keys.append(("cluster", str(row.more["cluster"])))
        if families and row.family:
            keys.append(("family", row.family))
        for key in keys:
            joined.join(first.setdefault(key, place), place)
    template_of, texts = templates(rows)
    alike = alike_templates(texts, jaccard) if any(not row.more.get("cluster") for row in rows) else Joined(len(texts))
    firsts: dict[int, int] = {}
    for place, (row, template) in enumerate(zip(rows, template_of, strict=True)):
        if not row.lineage.get("generator"):
            joined.join(firsts.setdefault(alike.root(template), place), place)
    return [joined.root(place) for place in range(len(rows))]


def crossings(rows: Sequence[Candidate], *, families: bool = False, jaccard: float = 0.8) -> list[int]:
    """Numbers of the held-out rows whose unit, found again from the rows alone, has rows on the other side too."""
    unit = units(rows, families=families, jaccard=jaccard)
    seen: dict[int, set[str]] = defaultdict(set)
    for row, one in zip(rows, unit, strict=True):
        seen[one].add(str(row.more.get("side", "train")))
    return [row.number for row, one in zip(rows, unit, strict=True) if row.more.get("side") == "heldout" and len(seen[one]) > 1]


def templates(rows: Iterable[Candidate]) -> tuple[list[int], list[str]]:
    """Which template each row is of, and one text per template: the first row's, numbers masked."""
    known: dict[str, int] = {}
    return [known.setdefault(skeleton(row.problem), len(known)) for row in rows], list(known)


def similar(vector_ND: np.ndarray, cosine: float) -> Iterable[tuple[int, int]]:
    """Pairs of unit vectors whose product is at least `cosine`, block by block; memory stays at BLOCK x N."""
    count = len(vector_ND)
    for start in range(0, count, BLOCK):
        rows = vector_ND[start:start + BLOCK]
        product = rows @ vector_ND[start:].T
        one, other = np.nonzero(product >= cosine)
        for a, b in zip(one.tolist(), other.tolist(), strict=True):
            if b > a:
                yield start + a, start + b


def sides(rows: Iterable[Candidate]) -> Mapping[str, int]:
    """How many rows each side has; rows that no split has seen count as train."""
    found: dict[str, int] = defaultdict(int)
    for row in rows:
        found[str(row.more.get("side", "train"))] += 1
    return dict(found)
