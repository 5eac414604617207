"""Questions whose answers stand in a corpus that is searched with BM25: a user's own, or an invented world's pages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.environments.builtin.common import Draft, Refused, Tool, ToolEpisode, call, code_digest, graded, schema
from rollbook.environments.builtin.fiction import THEMES
from rollbook.environments.builtin.index import Index, corpus_index, excerpt, world_index
from rollbook.environments.builtin.world import drawn_questions, fiction_of
from rollbook.environments.describing import image_of
from rollbook.environments.waiting import in_thread
from rollbook.records import (
    Action,
    EnvironmentFault,
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

FILES = ("common.py", "index.py", "world.py", "search.py", "fiction")
SYSTEM = ("Answer the question from what the search tool finds; it may not be about the real world. When you know the answer, "
          "write "
          "a line 'Answer: ' followed by a name or a number alone, or several names separated by semicolons.")
PAGE_CHARACTERS = 6000


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuestions:
    """Search over `corpus` with questions from `questions`, or, where they are empty, over invented worlds.

    `corpus` is a folder of text files or a JSON-lines file of {"name", "text"}; `questions` is a JSON-lines file of
    {"question", "answers"}. `results` is how many pages a search shows. `instructed`: a system message says what is to be done.
    """

    corpus: str = ""
    questions: str = ""
    results: int = 5
    themes: tuple[str, ...] = THEMES
    per_world: int = 8
    least_hops: int = 2
    instructed: bool = True

    def image(self) -> EnvironmentImage:
        extra = {"code": code_digest(*FILES)}
        if self.corpus:
            extra["corpus"] = corpus_index(self.corpus).digest
        if self.questions:
            extra["questions"] = digest(Path(self.questions).read_bytes())
        return image_of(self, packages=("bm25s", "numpy"), extra=extra)

    def tasks(self, *, count: int, seed: int) -> TaskSet:
        """Questions of invented worlds (split unit: the world), or the first `count` of the user's (split unit: the question)."""
        drafts = question_drafts(self, family="search", system=SYSTEM if self.instructed else "", tools=("search", "open"),
                                 count=count, seed=seed)
        pairs = [draft.records() for draft in drafts]
        return TaskSet(raw=tuple(raw for raw, _ in pairs), tasks=tuple(task for _, task in pairs))

    def build(self, *, services: Services, seed: int) -> SearchEpisode:
        return SearchEpisode(corpus=self.corpus, results=self.results)

    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade | Ungraded:
        return graded(task, state, {"calls": float(state.facts["calls"]), "opened": float(len(state.facts["opened"]))})

    def solutions(self, task: Task) -> Solutions:
        look = call("search", query=task.prompt[-1].content)
        return Solutions(gold=((look, Action(text=f"Answer: {task.reference}")),),
                         wrong=((look, Action(text="Answer: nothing of this name")), (look,), (Action(text=""),)))


def question_drafts(definition: Any, *, family: str, system: str, tools: tuple[str, ...], count: int, seed: int) -> list[Draft]:
    """Drafts for a definition with the fields corpus, questions, themes, per_world and least_hops."""
    if bool(definition.corpus) != bool(definition.questions):
        raise EnvironmentFault("a corpus and its questions belong together", code="build",
                               got=f"corpus {definition.corpus!r}, questions {definition.questions!r}",
                               fix="give both or neither")
    if definition.corpus:
        asked = read_questions(Path(definition.questions))[:count]
        return [Draft(family=family, text=question, reference="; ".join(answers),
                      unit=f"question:{digest(question.encode())[:16]}",
                      start="corpus", source=Path(definition.questions).name, predicate=f"{family}.answer", licence="as given",
                      lineage={"line": str(number)}, tools=tools, system=system, domain="question answering")
                for number, (question, answers) in enumerate(asked, 1)]
    return [Draft(family=family, text=question.text, reference=question.reference, unit=f"fiction:{world.name}",
                  start=f"fiction:{world.name}", source="rollbook fiction", predicate=f"{family}.answer",
                  lineage={"world": world.name, "template": question.template, "hops": str(question.hops), "sql": question.sql},
                  tools=tools, system=system, domain="question answering")
            for world, question in drawn_questions(definition.themes, count=count, seed=seed, per_world=definition.per_world,
                                                   least_hops=definition.least_hops)]


def read_questions(file: Path) -> list[tuple[str, tuple[str, ...]]]:
    """(question, answers) for each line; an `answer` alone is one answer."""
    if not file.is_file():
        raise EnvironmentFault("a file of questions is not there", code="build", got=str(file))
    found = []
    for place, line in enumerate(file.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
            answers = document["answers"] if "answers" in document else [document["answer"]]
            question = document["question"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise EnvironmentFault("a line of questions cannot be read", code="build", got=f"{file}:{place}: {error}",
                                   fix='a line is {"question": "..", "answers": [".."]}') from error
        if not isinstance(question, str) or not answers or not all(isinstance(answer, str | int | float) for answer in answers):
            raise EnvironmentFault("a line of questions has no question with answers", code="build", got=f"{file}:{place}")
        found.append((question, tuple(map(str, answers))))
    return found


def index_of(task: Task, corpus: str) -> Index:
    """The index that a task is searched in."""
    return corpus_index(corpus) if task.initial_state == "corpus" else world_index(*fiction_of(task))


@dataclass(slots=True)
class SearchEpisode(ToolEpisode):
    """One question, a search over pages, and pages to open."""

    corpus: str = ""
    results: int = 5
    index: Index | None = None
    opened: tuple[str, ...] = ()

    async def reset(self, task: Task) -> Observation:
        self.index = await in_thread(index_of, task, self.corpus)
        self.offered = {tool.schema.name: tool for tool in (
            Tool(schema=schema("search", f"Finds the {self.results} pages that fit best.", ("query",), query={"type": "string"}),
                 run=self._search),
            Tool(schema=schema("open", "Shows a page by its exact name.", ("name",), name={"type": "string"}), run=self._open))}
        return Observation()

    def _search(self, arguments: Mapping[str, Any]) -> str:
        assert self.index is not None
        found = self.index.search(arguments["query"], self.results)
        return "\n".join(f"{page.name}: {excerpt(page, arguments['query'])}" for page in found) or "nothing found"

    def _open(self, arguments: Mapping[str, Any]) -> str:
        assert self.index is not None
        page = self.index.named.get(arguments["name"])
        if page is None:
            raise Refused(f"there is no page named {arguments['name'][:80]!r}")
        self.opened += (page.name,)
        return page.text if len(page.text) <= PAGE_CHARACTERS else f"{page.text[:PAGE_CHARACTERS]}\n[cut]"

    def facts(self) -> dict[str, Any]:
        return {"opened": list(self.opened)}

    def saved(self) -> dict[str, Any]:
        return {"opened": list(self.opened)}

    def load(self, saved: Mapping[str, Any]) -> None:
        self.opened = tuple(saved["opened"])
