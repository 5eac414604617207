"""What rejection sampling and labelling made of sampled answers: kept by the recipe's rule, with the very tokens, all of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from rollbook.audit.detector import Row
from rollbook.audit.index import RunIndex
from rollbook.audit.taught import Taught
from rollbook.records import Candidate, Curation, Demonstration, Ranking, Revised, Scored, StageEnd, digest
from rollbook.records.codec import canonical, encode
from rollbook.records.recipe import Comparisons, Feedback, Oracle, RejectionSampling, Revise

Fault = tuple[str, str]         # evidence, remedy
CLOSE = 1e-9
REVISED = "revise the answers that were sampled, as often and by the principles that the recipe names"
KEEP = "keep what the recipe's rule keeps: all of it and nothing else"
LABEL = "label every answer by the recipe's rule and noise, and rank all of them"


@dataclass(frozen=True, slots=True)
class Answer:
    """What is kept of a sampled answer: its trace, task, accuracy (None unscored), a hash of its tokens and how many they are, a
    hash of its prompt and tokens, whether it may be learnt from, whether it was scored, whether it keeps the format."""

    trace: str
    task: str
    accuracy: float | None
    tokens: int
    length: int
    whole: int
    fit: bool
    scored: bool
    formatted: bool


ByTask = dict[str, list[Answer]]


@dataclass(slots=True)
class Curations:
    """Holds the answers of the stages that sample for others, until their records come and the stage is over."""

    answers: dict[str, ByTask] = field(default_factory=dict)            # stage -> its answers, in order
    kept: dict[str, list[Answer | None]] = field(default_factory=dict)  # stage -> what its Curation keeps, None if never sampled
    shown: Counter[str] = field(default_factory=Counter)                # stage -> its demonstrations so far
    ranks: dict[str, list[tuple[str, bool]]] = field(default_factory=dict)     # stage -> task and heldout of its rankings
    finals: dict[str, set[tuple[str, str]]] = field(default_factory=dict)      # stage -> task and text of its last revisions
    taught: Taught = field(default_factory=Taught)
    checked: int = 0

    def row(self, run: RunIndex, row: Row) -> None:
        """Notes an answer of such a stage."""
        self.taught.row(run, row)
        stage = run.recipe.settings.stages.get(run.table or "") if run.recipe is not None else None
        if isinstance(stage, (RejectionSampling, Comparisons, Revise)):
            verdict, trace = row.verdict, row.trace
            scored = isinstance(verdict, Scored)
            accuracy = verdict.vector.accuracy if isinstance(verdict, Scored) else None
            tokens = tuple(token for segment in trace.policy_segments for token in segment.token_ids)
            formatted = isinstance(verdict, Scored) and (verdict.vector.value("format") or 0.0) > 0.0
            self.answers.setdefault(run.table or "", {}).setdefault(trace.task, []).append(Answer(
                trace=row.id, task=trace.task, accuracy=accuracy, tokens=hash(tokens), length=len(tokens), scored=scored,
                whole=hash(trace.prompt_ids + tokens), fit=scored and bool(tokens) and trace.stop_reason != "length",
                formatted=formatted))

    def record(self, run: RunIndex, record: Curation | Ranking | Demonstration | Revised) -> Iterator[Fault]:
        """What is wrong with one of the records that such a stage leaves."""
        match record:
            case Curation():
                return self.curated(run, record)
            case Ranking():
                return self.ranked(run, record)
            case Demonstration():
                return self.demonstrated(run, record)
            case Revised():
                return self.revised(run, record)

    def curated(self, run: RunIndex, record: Curation) -> Iterator[Fault]:
        """Whether a selection of answers is the one that the recipe's rule makes."""
        stage = run.recipe.settings.stages.get(record.stage) if run.recipe is not None else None
        if not isinstance(stage, RejectionSampling):
            return
        self.checked += 1
        answers = self.answers.get(record.stage, {})
        sampled = {one.trace: one for held in answers.values() for one in held}
        self.kept[record.stage] = [sampled.get(trace) for trace in record.kept]
        kept, rejected = due(answers, stage, record)
        if list(record.kept) != kept:
            stated, wanted = set(record.kept), set(kept)
            yield (f"{record.stage} keeps {len(record.kept)} answers, the rule {stage.keep!r} keeps {len(kept)} "
                   f"({len(stated - wanted)} kept against it, {len(wanted - stated)} left out)", KEEP)
        elif +Counter(record.rejected) != +rejected:
            yield f"{record.stage} reports the rejections {dict(record.rejected)}, there are {dict(+rejected)}", KEEP

    def revised(self, run: RunIndex, record: Revised) -> Iterator[Fault]:
        """Whether a revision is of a sampled answer, in as many rounds and by such principles as the recipe says."""
        stage = run.recipe.settings.stages.get(record.stage) if run.recipe is not None else None
        if not isinstance(stage, Revise):
            return
        self.checked += 1
        if record.trace not in {one.trace for one in self.answers.get(record.stage, {}).get(record.task, ())}:
            yield f"it revises {record.trace}, which {record.stage} did not sample for {record.task}", REVISED
        strange = sorted({one.principle for one in record.rounds} - set(stage.principles))
        if len(record.rounds) != stage.rounds or strange:
            yield (f"{len(record.rounds)} rounds, by {', '.join(strange) or 'known principles'}; the recipe says {stage.rounds}, "
                   f"by {', '.join(sorted(stage.principles))}", REVISED)
        self.finals.setdefault(record.stage, set()).add((record.task, record.final))

    def demonstrated(self, run: RunIndex, record: Demonstration) -> Iterator[Fault]:
        """Whether a demonstration of such a stage is the answer kept in its place by its tokens, a last revision, or a lesson."""
        name = (run.table or "").partition("/")[0]
        yield from self.taught.demonstrated(run, name, record)
        stage = run.recipe.settings.stages.get(name) if run.recipe is not None else None
        if isinstance(stage, Revise) and (record.task, record.messages[-1].content) not in self.finals.get(name, set()):
            yield f"it is not what the last revision of its task by {name} left", REVISED
        if name not in self.kept:
            return
        place, kept = self.shown[name], self.kept[name]
        self.shown[name] += 1
        held = kept[place] if place < len(kept) else None
        if held is None or (held.task, held.whole) != (record.task, hash(tuple(record.token_ids))):
            yield (f"demonstration {place + 1} of {name} is not the answer that was kept in its place",
                   "demonstrate the answers that were kept, with their very tokens")
        elif (record.validation == "verified") != (held.accuracy == 1.0):
            yield (f"its validation is {record.validation!r}, the verdict on its answer is {held.accuracy}",
                   "take validation from the verdict")

    def ranked(self, run: RunIndex, record: Ranking) -> Iterator[Fault]:
        """Whether a ranking is made of sampled answers, token by token, all of them, and labelled as the recipe says."""
        name = (run.table or "").partition("/")[0]
        answers = self.answers.get(name)
        stage = run.recipe.settings.stages.get(name) if run.recipe is not None else None
        if not answers or run.recipe is None or not isinstance(stage, Comparisons):
            return
        self.checked += 1
        self.ranks.setdefault(name, []).append((record.task, record.heldout))
        held = {one.trace: one for one in answers.get(record.task, ())}
        if not record.labeler.startswith(labeler_of(stage)):
            yield f"it was labelled by {record.labeler}, the recipe's labeller is {labeler_of(stage)}", LABEL
        if [one.trace for one in record.candidates] != [trace for trace, one in held.items() if labelled(stage.labeler, one)]:
            yield f"it ranks {len(record.candidates)} answers, not all that were judged of the {len(held)} sampled", LABEL
        for one in record.candidates:
            answer = held.get(one.trace)
            if answer is None or answer.tokens != hash(tuple(one.token_ids)) \
                    or answer.whole != hash(tuple(record.prompt_ids) + tuple(one.token_ids)):
                yield (f"the answer {one.trace} in it is not what was sampled for {record.task}",
                       "rank the answers that were sampled, with their very tokens")
                return
            if one.correct != (None if answer.accuracy is None else answer.accuracy == 1.0):
                yield (f"the answer {one.trace} is called correct={one.correct}, its verdict not",
                       "take correctness from the verdict")
                return
            oracle = stage.labeler
            if isinstance(oracle, Oracle) and (problem := mislabelled(oracle, one, answer, run.recipe.settings.tasks.max_tokens)):
                yield problem, LABEL
                return

    def over(self, run: RunIndex, end: StageEnd) -> Iterator[Fault]:
        """Whether everything that was kept is demonstrated, and every prompt is ranked and the recipe's share kept apart."""
        stage = run.recipe.settings.stages.get(end.stage) if run.recipe is not None else None
        yield from self.taught.over(run, end.stage)
        answers, ranks = self.answers.pop(end.stage, {}), self.ranks.pop(end.stage, [])
        kept, shown = self.kept.pop(end.stage, None), self.shown.pop(end.stage, 0)
        if isinstance(stage, RejectionSampling) and (kept is None or len(kept) != shown):
            yield (f"{end.stage} keeps {'no recorded' if kept is None else len(kept)} answers and shows {shown} demonstrations",
                   "record what was kept, and demonstrate each of it once")
        if isinstance(stage, Comparisons):
            whole = [task for task, held in answers.items() if sum(labelled(stage.labeler, one) for one in held) > 1]
            if isinstance(stage.labeler, Feedback):         # a model may give no label
                ranked = {task for task, _ in ranks}
                whole = [task for task in whole if task in ranked]
            apart = math.ceil(len(whole) * stage.apart)
            if ranks != [(task, place >= len(whole) - apart) for place, task in enumerate(whole)]:
                yield (f"{end.stage} ranks {len(ranks)} prompts and keeps {sum(held for _, held in ranks)} apart; {len(whole)} "
                       f"have two judged answers, of which the last {apart} are to be kept apart",
                       "rank every prompt in its order, and keep the recipe's share apart")


def labeler_of(stage: Comparisons) -> str:
    """How the rankings name the recipe's labeller, or how that name begins."""
    if isinstance(stage.labeler, Feedback):
        return f"model:{stage.labeler.policy}:"
    return f"oracle:{digest(canonical(encode(stage.labeler)))[:16]}"


def labelled(oracle: Oracle | Feedback, answer: Answer) -> bool:
    """Whether the labeller has something to say of an answer: all that its rule weighs is known; a model is shown any words."""
    if isinstance(oracle, Feedback):
        return answer.length > 0
    return answer.scored and answer.length > 0 and not (oracle.rule.get("accuracy") and answer.accuracy is None)


def mislabelled(oracle: Oracle, one: Candidate, answer: Answer, budget: int) -> str:
    """How a candidate's label differs from the rule and noise of the recipe; empty when it does not."""
    known = {"accuracy": answer.accuracy or 0.0, "format": float(answer.formatted), "tokens": answer.length / budget}
    truth = math.fsum(weight * known[name] for name, weight in oracle.rule.items() if weight)
    drawn = np.random.default_rng([oracle.seed, int(digest(one.trace.encode())[:15], 16)]).gumbel() if oracle.noise else 0.0
    if one.truth is None or abs(one.truth - truth) > CLOSE:
        return f"the answer {one.trace} has truth {one.truth}, the recipe's rule gives {truth:.6g}"
    score = truth + oracle.noise * float(drawn)
    if oracle.grades is not None:
        score = oracle.grades * round(score / oracle.grades)
    if abs(one.score - score) > CLOSE:
        return f"the answer {one.trace} is scored {one.score:.6g}, rule, noise and grades give {score:.6g}"
    return ""


def due(answers: ByTask, stage: RejectionSampling, record: Curation) -> tuple[list[str], Counter[str]]:
    """The traces that the rule keeps, in the order they were sampled, and how many it rejects by reason."""
    kept: list[str] = []
    rejected: Counter[str] = Counter()
    for held in answers.values():
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
