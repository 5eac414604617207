"""What preference data is: all answers to a prompt, as one labeller put them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rollbook.records.codec import content_id
from rollbook.records.errors import RecordError
from rollbook.records.tasks import TaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One answer to a prompt, with everything a model is trained on: its tokens, without the prompt's.

    `score` is what the labeller gave, in its own unit; `truth` is the score before the labeller's noise, None where no rule knows
    it; `correct` is None where no verifier decided.

    Example: Candidate(trace="Trace:1", token_ids=(5, 9), score=0.7, truth=1.0, correct=True)
    """

    trace: str
    token_ids: tuple[int, ...]
    score: float
    truth: float | None
    correct: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """One round of critique and revision: by which principle, what was said against the response, what became of it."""

    principle: str
    critique: str
    response: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Revised:
    """An answer with its rounds; what the last of them left is what is trained on.

    Example: Revised(stage="revised", task="Task:1f", trace="Trace:1", first="no", rounds=(Revision(...),))
    """

    SCHEMA: ClassVar[int] = 1
    stage: str
    task: TaskId
    trace: str
    first: str
    rounds: tuple[Revision, ...]

    @property
    def final(self) -> str:
        return self.rounds[-1].response if self.rounds else self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """All answers to one prompt, one element of training: every pair of them is learnt from together.

    `labeler` names who gave the scores: a program's rule with its noise, or a model. Nobody is called human who is not.

    Example: Ranking(task="Task:1f", prompt_ids=(1, 4), candidates=(Candidate(...), Candidate(...)), labeler="oracle:ab12..",
        tokenizer="77..", template="9c..", heldout=False)
    """

    SCHEMA: ClassVar[int] = 1
    task: TaskId
    prompt_ids: tuple[int, ...]
    candidates: tuple[Candidate, ...]
    labeler: str
    tokenizer: str
    template: str
    heldout: bool

    def __post_init__(self) -> None:
        if len(self.candidates) < 2:
            raise RecordError("a ranking needs two answers or more", got=str(len(self.candidates)), why="one answer has no rank")

    @property
    def id(self) -> str:
        return content_id(self)

    @property
    def scores(self) -> tuple[float, ...]:
        """The labeller's scores, in the order of the candidates."""
        return tuple(one.score for one in self.candidates)
