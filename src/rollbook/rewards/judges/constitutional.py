"""Constitutional AI (2212.08073): critique and revision by principles, and preference labels from a model's own log-probs.

SL-CAI: a response is criticised and revised four times, each time by a principle drawn anew. RL-CAI: the feedback model
chooses between (A) and (B); the two log-probs normalised are the soft label, averaged over principles and both orders; labels
reached through a chain of thought are clamped to 0.4 .. 0.6, the others are not.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollbook.records import ChatModel, Message, Question, Unrated, digest
from rollbook.records.demonstrating import Principle
from rollbook.rewards.errors import RewardError
from rollbook.rewards.judges.options import probabilities
from rollbook.rewards.judges.pairwise import OPTIONS, Pair
from rollbook.rewards.stamps import stamp

REVISIONS = 4
LETTER = "The better option is, in one letter:"
CLAMP = (0.4, 0.6)
SOURCES = ("judges/constitutional.py", "judges/options.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """One round: which principle, what was said against the response, what became of it."""

    principle: int
    critique: str
    response: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Revised:
    """A response with its rounds; the last of them is what is trained on."""

    first: str
    rounds: tuple[Revision, ...]

    @property
    def final(self) -> str:
        return self.rounds[-1].response if self.rounds else self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Probability that `one` of a pair is better, over `asked` questions of which `failed` had no answer."""

    probability: float
    asked: int
    failed: int


class Constitution:
    """The principles with the model that applies them. The stamp covers both."""

    def __init__(self, chat: ChatModel, principles: Sequence[Principle], *, max_tokens: int = 256):
        if not principles:
            raise RewardError("a constitution has at least one principle", got="none")
        self.chat, self.principles, self.max_tokens = chat, tuple(principles), max_tokens
        texts = [[one.critique, one.revision, one.choice] for one in self.principles]
        self.stamp = stamp("judge_constitution", "1", SOURCES, {"model": chat.name, "model_digest": chat.digest,
                                                                "principles": texts, "max_tokens": max_tokens})

    def revise(self, task: str, response: str, *, seed: int, rounds: int = REVISIONS) -> Revised | Unrated:
        """The response criticised and revised `rounds` times; every principle is drawn uniformly, by task, seed and round."""
        [found] = self.revise_all([(task, response)], seed=seed, rounds=rounds)
        return found

    def revise_all(self, pairs: Sequence[tuple[str, str]], *, seed: int, rounds: int = REVISIONS) -> list[Revised | Unrated]:
        """Responses to tasks, asked together round by round; one that cannot be criticised or revised has no outcome."""
        done: list[list[Revision] | Unrated] = [[] for _ in pairs]
        for number in range(rounds):
            open_ = {at: held for at, held in enumerate(done) if not isinstance(held, Unrated)}
            chosen = {at: drawn(seed, number, pairs[at], len(self.principles)) for at in open_}
            so_far = {at: (pairs[at][0], held[-1].response if held else pairs[at][1]) for at, held in open_.items()}
            critiques = self._said({at: critique_request(*so_far[at], self.principles[chosen[at]]) for at in open_})
            revised = self._said({at: revision_request(*so_far[at], said, self.principles[chosen[at]])
                                  for at, said in critiques.items() if not isinstance(said, Unrated)})
            for at, held in open_.items():
                critique, response = critiques[at], revised.get(at)
                if isinstance(critique, Unrated) or response is None or isinstance(response, Unrated):
                    done[at] = critique if isinstance(critique, Unrated) else response or Unrated(code="malformed", detail="none")
                else:
                    held.append(Revision(principle=chosen[at], critique=critique, response=response))
        return [held if isinstance(held, Unrated) else Revised(first=pairs[at][1], rounds=tuple(held))
                for at, held in enumerate(done)]

    def _said(self, texts: Mapping[int, str]) -> dict[int, str | Unrated]:
        """One answer to each text, by its place."""
        asked = [Question(key="say", messages=(_user(text),)) for text in texts.values()]
        given = self.chat.answer(asked, max_tokens=self.max_tokens) if asked else []
        silent = Unrated(code="malformed", detail="the model said nothing")
        return {at: said if isinstance(said, Unrated) else said.strip() or silent
                for at, said in zip(texts, given, strict=True)}

    def label(self, pair: Pair, *, reasoning: bool = False) -> Label | Unrated:
        """The soft label of a pair, over all principles and both orders; with `reasoning` each is thought over and clamped."""
        questions, firsts = self._questions(pair, reasoning)
        found: list[float] = []
        for question_first, answer in zip(firsts, self.chat.option_logps(questions, OPTIONS), strict=True):
            known = probabilities(answer)
            if isinstance(known, Unrated):
                continue
            better = known[0] if question_first else known[1]
            found.append(min(max(better, CLAMP[0]), CLAMP[1]) if reasoning else better)
        if not found:
            return Unrated(code="malformed", detail=f"none of {len(questions)} questions was answered with an option")
        return Label(probability=sum(found) / len(found), asked=len(firsts), failed=len(firsts) - len(found))

    def _questions(self, pair: Pair, reasoning: bool) -> tuple[list[Question], list[bool]]:
        """One question per principle and order, and whether `one` is shown as (A) in it."""
        questions, firsts = [], []
        for number, principle in enumerate(self.principles):
            for one_first in (True, False):
                first, second = (pair.one, pair.other) if one_first else (pair.other, pair.one)
                asked = options(pair.task, (first, second), principle)
                if reasoning:
                    thought = self._say(asked + "Think step by step, then decide.")
                    asked += f"Reasoning: {'' if isinstance(thought, Unrated) else thought}\n\n"
                questions.append(Question(key=f"choice/{number}/{one_first}", messages=(_user(asked + LETTER),)))
                firsts.append(one_first)
        return questions, firsts

    def _say(self, text: str) -> str | Unrated:
        return self._said({0: text})[0]


def drawn(seed: int, number: int, pair: tuple[str, str], count: int) -> int:
    """Which of `count` principles round `number` is about, by task, response and seed."""
    start = int(digest(f"{seed}/{number}/{pair[0]}/{pair[1]}".encode())[:12], 16)
    return random.Random(start).randrange(count)


def critique_request(task: str, response: str, principle: Principle) -> str:
    """What a model is asked that is to criticise a response."""
    return f"Human: {task}\n\nAssistant: {response}\n\nCritique request: {principle.critique}\n\nCritique:"


def revision_request(task: str, response: str, critique: str, principle: Principle) -> str:
    """What a model is asked that is to revise a response after its critique."""
    return (f"Human: {task}\n\nAssistant: {response}\n\nCritique: {critique}\n\nRevision request: {principle.revision}\n\n"
            "Revision:")


def options(task: str, pair: tuple[str, str], principle: Principle) -> str:
    """Two responses as options (A) and (B), and by what they are compared."""
    return (f"Consider this conversation:\n\nHuman: {task}\n\n{principle.choice}\n\nOption A:\n{pair[0]}\n\n"
            f"Option B:\n{pair[1]}\n\n")


def choice_request(task: str, pair: tuple[str, str], principle: Principle) -> str:
    """What a model is asked that is to choose between two responses."""
    return options(task, pair, principle) + LETTER


def _user(text: str) -> Message:
    return Message(role="user", content=text, origin="program")
