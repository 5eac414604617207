"""A text browser in the sense of WebGPT (2112.09332): search, open, find, quote, answer, over a local set of pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollbook.environments.builtin.common import (
    Draft,
    Refused,
    Tool,
    ToolEpisode,
    call,
    code_digest,
    graded,
    plain,
    schema,
)
from rollbook.environments.builtin.fiction import THEMES, Page
from rollbook.environments.builtin.index import Index, corpus_index, excerpt, words
from rollbook.environments.builtin.search import index_of, question_drafts
from rollbook.environments.describing import image_of
from rollbook.environments.waiting import in_thread
from rollbook.records import (
    Action,
    EnvironmentImage,
    FinalState,
    Grade,
    Observation,
    Services,
    Solutions,
    Task,
    TaskSet,
    Ungraded,
    digest,
)

FILES = ("common.py", "index.py", "world.py", "search.py", "browser.py", "fiction")
SYSTEM = ("Answer the question with the browser; it may not be about the real world. Quote the passages that your answer rests "
          "on "
          "while their page is open, then call answer. The answer is a name or a number alone, or several names separated by "
          "semicolons.")
LINES, LONGEST_QUOTE, MOST_QUOTES = 20, 1000, 20
TOOLS = ("search", "open", "scroll", "find", "back", "quote", "answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Browsing:
    """Questions to be answered with quotations. The fields are those of the search environment.

    Accuracy is the answer's. `supported` is 1.0 where a quotation holds the answer itself, absent without a reference.
    """

    corpus: str = ""
    questions: str = ""
    results: int = 5
    themes: tuple[str, ...] = THEMES
    per_world: int = 8
    least_hops: int = 1

    def image(self) -> EnvironmentImage:
        extra = {"code": code_digest(*FILES)}
        if self.corpus:
            extra["corpus"] = corpus_index(self.corpus).digest
        if self.questions:
            with open(self.questions, "rb") as file:
                extra["questions"] = digest(file.read())
        return image_of(self, packages=("bm25s", "numpy"), extra=extra)

    def tasks(self, *, count: int, seed: int) -> TaskSet:
        drafts: list[Draft] = question_drafts(self, family="browser", system=SYSTEM, tools=TOOLS, count=count, seed=seed)
        pairs = [draft.records() for draft in drafts]
        return TaskSet(raw=tuple(raw for raw, _ in pairs), tasks=tuple(task for _, task in pairs))

    def build(self, *, services: Services, seed: int) -> BrowserEpisode:
        return BrowserEpisode(corpus=self.corpus, results=self.results)

    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade | Ungraded:
        quotes = state.facts["quotes"]
        parts = {"quotes": float(len(quotes))}
        wanted = [plain(name) for name in task.reference.split("; ") if plain(name)]
        if wanted:
            said = plain(" ".join(quote["text"] for quote in quotes))
            parts["supported"] = float(all(set(words(name)) <= set(words(said)) for name in wanted))
        return graded(task, state, parts)

    def solutions(self, task: Task) -> Solutions:
        look = call("search", query=task.prompt[-1].content)
        page = index_of(task, self.corpus).search(task.prompt[-1].content, 1)
        read = [call("open", number=1), call("quote", text=page[0].text.splitlines()[0])] if page and page[0].text.strip() else []
        return Solutions(gold=((look, *read, call("answer", text=task.reference)),
                               (look, Action(text=f"Answer: {task.reference}"))),
                         wrong=((look, *read, call("answer", text="nothing of this name")), (look, *read), (Action(text=""),)))


@dataclass(slots=True)
class BrowserEpisode(ToolEpisode):
    """One question, a browser on one page at a time, and what was quoted."""

    corpus: str = ""
    results: int = 5
    index: Index | None = None
    found: tuple[str, ...] = ()              # names of the last search's results
    visited: tuple[str, ...] = ()            # pages, the open one last
    line: int = 0                            # first line shown
    quotes: tuple[tuple[str, str], ...] = ()

    async def reset(self, task: Task) -> Observation:
        self.index = await in_thread(index_of, task, self.corpus)
        text, whole = {"type": "string"}, {"type": "integer", "minimum": 1}
        self.offered = {tool.schema.name: tool for tool in (
            Tool(schema=schema("search", f"Finds the {self.results} pages that fit best.", ("query",), query=text),
                 run=self._search),
            Tool(schema=schema("open", "Opens a result of the last search by its number, or a page by its name.", (),
                               number=whole,
                               name=text), run=self._open),
            Tool(schema=schema("scroll", "Shows the next or the previous part of the page.", ("direction",),
                               direction={"type": "string", "enum": ["down", "up"]}), run=self._scroll),
            Tool(schema=schema("find", "Shows the next part of the page that holds a text.", ("text",), text=text),
                 run=self._find),
            Tool(schema=schema("back", "Goes back to the page before."), run=self._back),
            Tool(schema=schema("quote", "Keeps a passage of the part that is shown, word for word.", ("text",), text=text),
                 run=self._quote),
            Tool(schema=schema("answer", "Ends with this answer.", ("text",), text=text), run=self._answer))}
        return Observation()

    def facts(self) -> dict[str, Any]:
        return {"quotes": [{"page": page, "text": text} for page, text in self.quotes], "visited": list(self.visited)}

    def saved(self) -> dict[str, Any]:
        return {"found": list(self.found), "visited": list(self.visited), "line": self.line,
                "quotes": [list(q) for q in self.quotes]}

    def load(self, saved: Mapping[str, Any]) -> None:
        self.found, self.visited, self.line = tuple(saved["found"]), tuple(saved["visited"]), saved["line"]
        self.quotes = tuple((page, text) for page, text in saved["quotes"])

    def _search(self, arguments: Mapping[str, Any]) -> str:
        assert self.index is not None
        pages = self.index.search(arguments["query"], self.results)
        self.found = tuple(page.name for page in pages)
        return "\n".join(f"[{place}] {page.name}: {excerpt(page, arguments['query'])}"
                         for place, page in enumerate(pages, 1)) or "nothing found"

    def _open(self, arguments: Mapping[str, Any]) -> str:
        assert self.index is not None
        if ("number" in arguments) == ("name" in arguments):
            raise Refused("give a number or a name", "bad_arguments")
        if "number" in arguments:
            if not 1 <= arguments["number"] <= len(self.found):
                raise Refused(f"the last search has no result {arguments['number']}")
            name = self.found[arguments["number"] - 1]
        else:
            name = arguments["name"]
            if name not in self.index.named:
                raise Refused(f"there is no page named {name[:80]!r}")
        self.visited, self.line = (*self.visited, name), 0
        return self._shown()

    def _page(self) -> Page:
        assert self.index is not None
        if not self.visited:
            raise Refused("no page is open")
        return self.index.named[self.visited[-1]]

    def _part(self) -> list[str]:
        return self._page().text.splitlines()[self.line:self.line + LINES]

    def _shown(self) -> str:
        total = len(self._page().text.splitlines())
        part = self._part()
        where = f"{self.visited[-1]} (lines {self.line + 1} to {self.line + len(part)} of {total})"
        return "\n".join([where, *part])

    def _scroll(self, arguments: Mapping[str, Any]) -> str:
        total = len(self._page().text.splitlines())
        moved = self.line + (LINES if arguments["direction"] == "down" else -LINES)
        if moved >= total or (self.line == 0 and moved < 0):
            raise Refused("this is the end of the page" if moved > 0 else "this is the beginning of the page")
        self.line = max(moved, 0)
        return self._shown()

    def _find(self, arguments: Mapping[str, Any]) -> str:
        lines, asked = self._page().text.splitlines(), arguments["text"].casefold()
        places = [place for place, line in enumerate(lines) if asked and asked in line.casefold()]
        after = [place for place in places if place > self.line]
        if not places:
            raise Refused("the page does not hold this text")
        self.line = (after or places)[0]
        return self._shown()

    def _back(self, arguments: Mapping[str, Any]) -> str:
        if len(self.visited) < 2:
            raise Refused("there is no page before")
        self.visited, self.line = self.visited[:-1], 0
        return self._shown()

    def _quote(self, arguments: Mapping[str, Any]) -> str:
        text = " ".join(arguments["text"].split())
        if not text or len(text) > LONGEST_QUOTE or len(self.quotes) >= MOST_QUOTES:
            raise Refused(f"a quotation has 1 to {LONGEST_QUOTE} characters, and there are at most {MOST_QUOTES}")
        if text not in " ".join(" ".join(self._part()).split()):
            raise Refused("this passage does not stand, word for word, in the part of the page that is shown")
        self.quotes += ((self.visited[-1], text),)
        return f"kept as [{len(self.quotes)}]"

    def _answer(self, arguments: Mapping[str, Any]) -> str:
        self.answer, self.ended = arguments["text"], "answered"
        return "answered"

