"""Lessons in criticising, revising and choosing, written by a program from answers whose verdicts are known.

A model from scratch cannot be asked to criticise itself. These lessons teach it to, in the very words in which a `Constitution`
will ask: a critique says whether the answer is right, a revision is the right answer, a choice is the letter of the better one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollbook.records import Scored, Trace, Verdict
from rollbook.records.demonstrating import TAUGHT, Principle
from rollbook.rewards.judges.constitutional import choice_request, critique_request, drawn, revision_request
from rollbook.rewards.judges.pairwise import OPTIONS

RIGHT, WRONG = "It is right.", "It is wrong."
AUTHOR = "program:lesson/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """An answer with its verdict: what it is worth, and whether it is right."""

    text: str
    worth: float
    right: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What is asked and what the model is to say.

    Example: Lesson(kind="critique", question="Human: 2 + 3 =...Critique:", answer="It is wrong.")
    """

    kind: str
    question: str
    answer: str


def told(trace: Trace, verdict: Verdict | None) -> Told | None:
    """What the trace said with what its verdict says of it; None where it was cut or has no verdict of right or wrong."""
    if not isinstance(verdict, Scored) or verdict.vector.accuracy is None or not trace.action_count:
        return None
    if trace.stop_reason in ("length", "cancelled", "failed"):
        return None
    return Told(text=trace.text, worth=verdict.vector.total, right=verdict.vector.accuracy == 1.0)


def lessons(task: str, told: Sequence[Told], solution: str, principles: Sequence[Principle], *, seed: int,
            teach: Sequence[str] = TAUGHT) -> list[Lesson]:
    """What `teach` names of a critique and a revision of every answer, and a choice in both orders of the first two, the next two
    and so on, where one of the two is worth more.

    `solution` is a right answer to the task; a right answer is revised to itself.
    """
    made: list[Lesson] = []
    for one in told:
        principle = principles[drawn(seed, 0, (task, one.text), len(principles))]
        critique = RIGHT if one.right else WRONG
        made.append(Lesson(kind="critique", question=critique_request(task, one.text, principle), answer=critique))
        made.append(Lesson(kind="revision", question=revision_request(task, one.text, critique, principle),
                           answer=one.text if one.right else solution))
    for one, other in zip(told[::2], told[1::2], strict=False):
        if one.worth == other.worth:
            continue
        principle = principles[drawn(seed, 1, (task, one.text), len(principles))]
        for first, second in ((one, other), (other, one)):
            made.append(Lesson(kind="choice", question=choice_request(task, (first.text, second.text), principle),
                               answer=OPTIONS[first.worth < second.worth]))
    return [lesson for lesson in made if lesson.kind in teach]
