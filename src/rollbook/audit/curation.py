"""What rejection sampling and labelling made of sampled answers: kept by the recipe's rule, with the very tokens, all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rollbook.audit.detector import Row
from rollbook.audit.index import RunIndex
from rollbook.records import Curation, Demonstration, Ranking, Revised, Scored
from rollbook.records.recipe import Comparisons, RejectionSampling, Revise

Fault = tuple[str, str]         # evidence, remedy
REVISED = "revise the answers that were sampled, as often and by the principles that the recipe names"
KEEP = "keep what the recipe's rule keeps: all of it and nothing else"


@dataclass(frozen=True, slots=True)
class Answer:
    """What is kept of a sampled answer: its trace, task, accuracy (None unscored), a hash of its tokens and how many they are,
    whether it may be learnt from."""

    trace: str
    task: str
    accuracy: float | None
    tokens: int
    length: int
    fit: bool


@dataclass(slots=True)
class Curations:
    """Holds the answers of the stages that sample for others, until their records come."""

    answers: dict[str, list[Answer]] = field(default_factory=dict)      # stage -> its answers, in order
    finals: dict[str, set[tuple[str, str]]] = field(default_factory=dict)      # stage -> task and text of its last revisions
    checked: int = 0

    def row(self, run: RunIndex, row: Row) -> None:
        """Notes an answer of such a stage."""
        stage = run.recipe.settings.stages.get(run.table or "") if run.recipe is not None else None
        if isinstance(stage, (RejectionSampling, Comparisons, Revise)):
            verdict, trace = row.verdict, row.trace
            scored = isinstance(verdict, Scored)
            accuracy = verdict.vector.accuracy if isinstance(verdict, Scored) else None
            tokens = tuple(token for segment in trace.policy_segments for token in segment.token_ids)
            self.answers.setdefault(run.table or "", []).append(
                Answer(row.id, trace.task, accuracy, hash(tokens), len(tokens),
                       scored and bool(tokens) and trace.stop_reason != "length"))

    def curated(self, run: RunIndex, record: Curation) -> Iterator[Fault]:
        """Whether a selection of answers is the one that the recipe's rule makes."""
        stage = run.recipe.settings.stages.get(record.stage) if run.recipe is not None else None
        if not isinstance(stage, RejectionSampling):
            return
        self.checked += 1
        kept, rejected = due(self.answers.get(record.stage, []), stage, record)
        if list(record.kept) != kept:
            stated, wanted = set(record.kept), set(kept)
            yield (f"{record.stage} keeps {len(record.kept)} answers, the rule {stage.keep!r} keeps {len(kept)} "
                   f"({len(stated - wanted)} kept against it, {len(wanted - stated)} left out)", KEEP)
        elif +Counter(record.rejected) != +rejected:
            yield f"{record.stage} reports the rejections {dict(record.rejected)}, there are {dict(+rejected)}", KEEP

    def ranked(self, run: RunIndex, record: Ranking) -> Iterator[Fault]:
        """Whether a ranking is made of sampled answers, token by token."""
        held = {one.trace: one for one in self.answers.get((run.table or "").partition("/")[0], [])}
        if not held:
            return
        self.checked += 1
        for one in record.candidates:
            answer = held.get(one.trace)
            if answer is None or answer.tokens != hash(tuple(one.token_ids)) or answer.task != record.task:
                yield (f"the answer {one.trace} in it is not what was sampled for {record.task}",
                       "rank the answers that were sampled, with their very tokens")
                return
            if one.correct != (None if answer.accuracy is None else answer.accuracy == 1.0):
                yield (f"the answer {one.trace} is called correct={one.correct}, its verdict not",
                       "take correctness from the verdict")
                return


    def revised(self, run: RunIndex, record: Revised) -> Iterator[Fault]:
        """Whether a revision is of a sampled answer, in as many rounds and by such principles as the recipe says."""
        stage = run.recipe.settings.stages.get(record.stage) if run.recipe is not None else None
        if not isinstance(stage, Revise):
            return
        self.checked += 1
        if (record.trace, record.task) not in {(one.trace, one.task) for one in self.answers.get(record.stage, [])}:
            yield f"it revises {record.trace}, which {record.stage} did not sample for {record.task}", REVISED
        strange = sorted({one.principle for one in record.rounds} - set(stage.principles))
        if len(record.rounds) != stage.rounds or strange:
            yield (f"{len(record.rounds)} rounds, by {', '.join(strange) or 'known principles'}; the recipe says {stage.rounds}, "
                   f"by {', '.join(sorted(stage.principles))}", REVISED)
        self.finals.setdefault(record.stage, set()).add((record.task, record.final))

    def demonstrated(self, run: RunIndex, record: Demonstration) -> Iterator[Fault]:
        """Whether a demonstration of a stage that revises is what its last round left."""
        name = (run.table or "").partition("/")[0]
        stage = run.recipe.settings.stages.get(name) if run.recipe is not None else None
        if isinstance(stage, Revise) and (record.task, record.messages[-1].content) not in self.finals.get(name, set()):
            yield f"it is not what the last revision of its task by {name} left", REVISED


def due(answers: Sequence[Answer], stage: RejectionSampling, record: Curation) -> tuple[list[str], Counter[str]]:
    """The traces that the rule keeps, in the order they were sampled, and how many it rejects by reason."""
    by_task: dict[str, list[Answer]] = {}
    for one in answers:
        by_task.setdefault(one.task, []).append(one)
    kept: list[str] = []
    rejected: Counter[str] = Counter()
    for held in by_task.values():
        fit = [one for one in held if one.fit]
        rejected["unfinished or unscored"] += len(held) - len(fit)
        best = fit
        if stage.keep == "correct":
            right = [one for one in fit if one.accuracy == 1.0]
            best = sorted(right, key=lambda one: one.length)[:stage.per_task]
            rejected["wrong"] += len(fit) - len(right)
            rejected["surplus"] += len(right) - len(best)
        elif stage.keep == "best":
            rated = [one for one in fit if one.trace in record.ratings]
            best = [max(rated, key=lambda one: record.ratings[one.trace])] if rated else []
            rejected["not the best"] += len(fit) - len(best)
        names = {one.trace for one in best}
        kept += [one.trace for one in held if one.trace in names]
    return kept, rejected
