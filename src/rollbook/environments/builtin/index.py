"""A corpus of pages and a BM25 index over it: a generated fictional world, or a folder or file that the user points at."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollbook.environments.builtin.fiction import Page, World, build_world, pages_of
from rollbook.records import EnvironmentFault, canonical, digest

WORD = re.compile(r"\w+")
TEXTS = (".txt", ".md", ".rst")
SHORT = 160                              # characters of a result's excerpt
MAX_BYTES = 512 * 2**20


@dataclass(slots=True)
class Index:
    """Pages and their BM25 index; the same pages, query and count give the same results. Not changed after it is made."""

    pages: tuple[Page, ...]
    named: dict[str, Page] = field(init=False)
    _scorer: Any = field(init=False)

    def __post_init__(self) -> None:
        import bm25s
        self.named = {page.name: page for page in self.pages}
        if len(self.named) != len(self.pages):
            raise EnvironmentFault("two pages of a corpus have one name", code="build",
                                   got=str(len(self.pages) - len(self.named)),
                                   why="a page is opened by its name")
        self._scorer = bm25s.BM25()
        self._scorer.index([words(f"{page.name} {page.text}") or [" "] for page in self.pages], show_progress=False)

    @property
    def digest(self) -> str:
        return digest(canonical([[page.name, page.text] for page in self.pages]))

    def search(self, query: str, count: int) -> list[Page]:
        """The best pages, best first; equals in the order of the corpus. None for a query without a word of the corpus."""
        asked = [word for word in dict.fromkeys(words(query)) if word in self._scorer.vocab_dict]
        if not asked:
            return []
        scores = self._scorer.get_scores(asked)
        best = sorted(range(len(self.pages)), key=lambda place: (-float(scores[place]), place))[:count]
        return [self.pages[place] for place in best if scores[place] > 0]


def words(text: str) -> list[str]:
    """Words as they are indexed and searched for."""
    return WORD.findall(text.casefold())


def excerpt(page: Page, query: str) -> str:
    """The line of a page that shares most words with a query."""
    asked = set(words(query))
    lines = [line for line in page.text.splitlines() if line.strip()] or [""]
    best = max(lines, key=lambda line: len(asked.intersection(words(line))))
    return best if len(best) <= SHORT else best[:SHORT - 3] + "..."


@functools.lru_cache(maxsize=64)
def world_of(theme: str, seed: int) -> World:
    """A world, shared by the episodes of a process: nothing changes it."""
    return build_world(theme, seed)


@functools.lru_cache(maxsize=64)
def world_index(theme: str, seed: int) -> Index:
    """The index over a world's pages."""
    return Index(pages=pages_of(world_of(theme, seed)))


@functools.lru_cache(maxsize=8)
def corpus_index(path: str) -> Index:
    """The index over a user's corpus; made once in a process."""
    return Index(pages=tuple(read_corpus(Path(path))))


def read_corpus(path: Path) -> Iterator[Page]:
    """The pages of a folder of text files, or of a JSON-lines file of {"name", "text"} (or "title" or "id" for the name)."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in TEXTS and file.is_file())
        if not files:
            raise EnvironmentFault("a corpus folder holds no text files", code="build", got=str(path),
                                   fix=f"put in {', '.join(TEXTS)}")
        for file in files:
            yield Page(name=str(file.relative_to(path)), text=_text(file))
    elif path.is_file():
        for number, line in enumerate(_text(path).splitlines(), 1):
            if line.strip():
                yield _page(line, f"{path}:{number}")
    else:
        raise EnvironmentFault("a corpus is not there", code="build", got=str(path),
                               fix="give a folder of text files or a JSON-lines file")


def _page(line: str, where: str) -> Page:
    try:
        document = json.loads(line)
        name = next(str(document[key]) for key in ("name", "title", "id") if key in document)
        text = document["text"]
    except (ValueError, KeyError, StopIteration, TypeError, RecursionError):
        name, text = "", None
    if not isinstance(text, str):
        raise EnvironmentFault("a line of a corpus is no page", code="build", got=where,
                               fix='a line is {"name": "..", "text": ".."}')
    return Page(name=name, text=text)


def _text(file: Path) -> str:
    if file.stat().st_size > MAX_BYTES:
        raise EnvironmentFault("a file of a corpus is too large", code="build", got=f"{file}: {file.stat().st_size} bytes",
                               fix=f"split it: at most {MAX_BYTES} bytes are held in memory")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise EnvironmentFault("a file of a corpus is no UTF-8 text", code="not_text", got=f"{file}: {error.reason}") from error
