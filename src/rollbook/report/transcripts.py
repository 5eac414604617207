"""Transcripts before and after, on the same held-out tasks: a mix chosen by task id, tokens with owner and probability."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rollbook.records import (
    Comparison,
    EvalReport,
    Outcome,
    RollbookError,
    Scored,
    Task,
    Trace,
    Unscored,
    Verdict,
    digest,
)
from rollbook.records import Part as Context
from rollbook.report.facts import Facts
from rollbook.report.heldout import PROBE
from rollbook.report.text import clip, number, percent
from rollbook.report.tokens import TokenTexts, owners, token_texts

EACH = 3            # transcripts of each kind
TOKENS = 240        # tokens of one segment shown
TOKEN_CHARS = 40    # characters of one token shown
NOTE_CHARS = 400    # characters of a reference, reason or detail shown; four times as many of a question
KINDS = ("improved", "regressed", "both right", "both wrong", "partly right")
LEVELS = ((0.9, "p4"), (0.5, "p3"), (0.1, "p2"), (0.0, "p1"))

Attempt = tuple[Trace, Verdict | None, Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token (or the tokens that make one character): its text, its style and what hovering says."""

    text: str
    css: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Consecutive tokens of one owner; `more` counts those not shown, `text` stands in where token texts are absent."""

    owner: str
    tokens: tuple[Token, ...]
    more: int
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One attempt as a reader sees it. `components` are (name, value, detail), `absent` (name, reason)."""

    stage: str
    mark: str
    verdict: str
    parts: tuple[Part, ...]
    components: tuple[tuple[str, str, str], ...]
    absent: tuple[tuple[str, str], ...]
    facts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One task with its attempts under one or two policies. `prompt` is shown once where both saw the same."""

    kind: str
    task: str
    family: str
    question: str
    reference: str
    prompt: Part | None
    sides: tuple[Side, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcripts:
    """The cards, how many tasks are of each kind, and what is missing."""

    cards: tuple[Card, ...]
    counts: tuple[tuple[str, int], ...]
    before: str | None
    after: str
    absent: str | None
    token_note: str | None


def transcripts(facts: Facts) -> Transcripts | None:
    """The newest compared pair of evaluations, else the newest evaluation alone; None when there is none."""
    pair = _pair(facts)
    if pair is None:
        return None
    before, after = pair
    kinds = _kinds(before, after)
    chosen = [(kind, task) for kind, tasks in kinds.items() for task in tasks[:EACH]]
    texts = token_texts(facts)
    found = Transcripts(cards=(), absent=None, counts=tuple((kind, len(tasks)) for kind, tasks in kinds.items()),
                        before=before.stage if before else None, after=after.stage, token_note=texts.absent)
    try:
        tasks = _tasks(facts, {task for _, task in chosen})
        sides = [(report, _attempts(facts, report, {task for _, task in chosen})) for report in pair if report is not None]
    except (RollbookError, OSError) as error:
        return replace(found, absent=str(error))
    return replace(found, cards=tuple(_card(kind, task, tasks.get(task), sides, texts) for kind, task in chosen))


def _pair(facts: Facts) -> tuple[EvalReport | None, EvalReport] | None:
    reports = {entry.id: entry.record for entry in facts.entries(EvalReport)}
    for comparison in reversed(facts.all(Comparison)):
        if comparison.before in reports and comparison.after in reports:
            return reports[comparison.before], reports[comparison.after]
    full = [report for report in reports.values() if PROBE not in report.stage]
    return (None, full[-1]) if full else None


def _kinds(before: EvalReport | None, after: EvalReport) -> dict[str, list[str]]:
    """Task ids by kind, in the order of the hash of the id: a choice that depends on no outcome and no text."""
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for task, value in after.outcomes.items():
        earlier = value if before is None else before.outcomes.get(task)
        if value is not None and earlier is not None:
            found[_kind(earlier, value)].append(task)
    if before is None:
        found = {kind.replace("both ", ""): tasks for kind, tasks in found.items() if tasks}
    return {kind: sorted(tasks, key=lambda task: digest(task.encode("utf-8", "surrogatepass"))) for kind, tasks in found.items()
            if tasks or kind != "partly right"}


def _kind(before: float, after: float) -> str:
    if after != before:
        return "improved" if after > before else "regressed"
    return "both right" if after == 1.0 else "both wrong" if after == 0.0 else "partly right"


def _tasks(facts: Facts, wanted: set[str]) -> dict[str, Task]:
    return {task.id: task for task in facts.ledger.records(Task) if task.id in wanted}


def _attempts(facts: Facts, report: EvalReport, wanted: set[str]) -> dict[str, Attempt]:
    """The first attempt at each wanted task."""
    found: dict[str, Attempt] = {}
    for row in facts.ledger.read_traces(f"eval/{report.stage}"):
        if row[0].task in wanted:
            found.setdefault(row[0].task, row)
    return found


def _card(kind: str, task: str, contract: Task | None, sides: Sequence[tuple[EvalReport, Mapping[str, Attempt]]],
          texts: TokenTexts) -> Card:
    attempts = [(report.stage, held[task]) for report, held in sides if task in held]
    prompts = {trace.prompt_ids for _, (trace, _, _) in attempts if trace.segments}
    shared = len(prompts) == 1
    first = attempts[0][1][0].segments[0] if shared else None
    question = next((m.content for m in reversed(contract.prompt) if m.role == "user"), "") if contract else ""
    return Card(kind=kind, task=task, family=contract.family if contract else "family not recorded",
                question=clip(question, 4 * NOTE_CHARS),
                reference=clip(contract.reference, NOTE_CHARS) if contract else "not recorded",
                prompt=_part(first.owner, first.token_ids, None, texts) if first else None,
                sides=tuple(_side(stage, attempt, texts, skip=int(shared)) for stage, attempt in attempts))


def _side(stage: str, attempt: Attempt, texts: TokenTexts, *, skip: int) -> Side:
    trace, verdict, _ = attempt
    parts = [part for place in (*range(1, len(trace.parts) + 1), 0) for part in _context(trace, place, texts, skip=skip)]
    if texts.tokenizer is None:
        parts = [Part(owner="policy", tokens=(), more=0, text=trace.text)]
    counts: dict[str, int] = {}
    for segment in (one for place in range(len(trace.parts) + 1) for one in trace.segments_of(place)):
        counts[segment.owner] = counts.get(segment.owner, 0) + segment.count
    logps = [logp for segment in trace.sampled_segments for logp in segment.logps or ()]
    versions = sorted({s.version for s in trace.sampled_segments if s.version is not None})
    mean = f", mean log-prob {number(sum(logps) / len(logps), 3)} nats a policy token" if logps else ""
    facts = (f"stopped by {trace.stop_reason}; tokens: {owners(counts)}; policy version "
             f"{', '.join(map(str, versions)) or 'none'}{mean}")
    mark, said = _verdict(verdict)
    ran, missing = (verdict.vector.components, verdict.vector.absent) if isinstance(verdict, Scored) else ((), ())
    return Side(stage=stage, mark=mark, verdict=said, parts=tuple(parts), facts=facts,
                components=tuple((part.name, number(part.value), clip(part.detail, NOTE_CHARS)) for part in ran),
                absent=tuple((part.name, clip(part.reason, NOTE_CHARS)) for part in missing))


def _context(trace: Trace, place: int, texts: TokenTexts, *, skip: int) -> Iterator[Part]:
    """The segments of one context, under its title where there are several; the prompt that is shown once is not repeated."""
    segments = trace.segments_of(place)
    if trace.parts:
        yield Part(owner="context", tokens=(), more=0, text=context_title(trace.parts, place))
    known = skip and segments and segments[0].token_ids == trace.prompt_ids
    for segment in segments[1 if known else 0:]:
        yield _part(segment.owner, segment.token_ids, segment.logps or None, texts)


def context_title(parts: Sequence[Context], place: int) -> str:
    """What a context of an attempt is; 0 is the one that it ended in, n its part n - 1.

    Example: context_title(parts, 1) == "context 1 of 2, compacted"
    """
    kind = "" if not place else parts[place - 1].kind
    told = {"": "the one it ended in", "compacted": "compacted", "context": "left for another", "subagent": "a subagent's"}[kind]
    return f"context {place or len(parts) + 1} of {len(parts) + 1}, {told}"


def _verdict(verdict: Verdict | None) -> tuple[str, str]:
    """Style and words: right, wrong, or why there is no verdict."""
    if verdict is None:
        return "none", "no verdict recorded"
    if isinstance(verdict, Unscored):
        return "none", f"unscored: {verdict.code} ({clip(verdict.detail, 200)})"
    total, accuracy = number(verdict.vector.total), verdict.vector.accuracy
    if accuracy is None:
        return "none", f"reward {total}, correctness not judged"
    word = "right" if accuracy == 1.0 else "wrong" if accuracy == 0.0 else f"correct to {percent(accuracy)}"
    return ("right" if accuracy == 1.0 else "wrong"), f"{word}, reward {total}"


def _part(owner: str, ids: Sequence[int], logps: Sequence[float] | None, texts: TokenTexts) -> Part:
    if texts.tokenizer is None:
        return Part(owner=owner, tokens=(), more=0, text=f"[{len(ids)} tokens]")
    kept = tuple(ids[:TOKENS])
    tokens, at = [], 0
    for length, text in texts.pieces(kept):
        own = tuple(logps[at:at + length]) if logps is not None else None
        tokens.append(_token(kept[at:at + length], text, own))
        at += length
    return Part(owner=owner, tokens=tuple(tokens), more=len(ids) - len(kept), text=None)


def _token(ids: Sequence[int], text: str, logps: Sequence[float] | None) -> Token:
    shown = clip(text.replace("\n", "⏎\n"), TOKEN_CHARS)
    name = f"token{'s' if len(ids) > 1 else ''} {', '.join(map(str, ids))}"
    if logps is None:
        return Token(text=shown, css="", title=f"{name}: not sampled, no log-prob")
    chance = math.exp(min(sum(logps), 0.0))
    css = next(level for least, level in LEVELS if chance >= least)
    said = f"log-prob {', '.join(map(number, logps))} nats, probability {percent(chance, 2)}"
    return Token(text=shown, css=css, title=f"{name}: {said}")
