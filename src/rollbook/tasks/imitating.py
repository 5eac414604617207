"""Traces of a curated set as demonstrations of its training tasks; what cannot be imitated is left out by its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollbook.records import Demonstration, Message, RawTask, Span, Task, Tokenizer
from rollbook.tasks.curated import rows_in

Right = Callable[[str, Task], bool | None]      # whether a text answers a task; None where that cannot be said at once
AUTHOR = "curated"          # what the author of such a demonstration begins with; what its trace says follows


@dataclass(frozen=True, slots=True, kw_only=True)
class Imitated:
    """The demonstrations, task by task in the order of the training side and of a row's traces; how many traces are left out."""

    shown: tuple[Demonstration, ...]
    left_out: Mapping[str, int]


def imitated(data: bytes, sides: tuple[Sequence[Task], Mapping[str, RawTask]], tokenizer: Tokenizer, right: Right) -> Imitated:
    """The traces of the rows in `data` that training tasks were made from, each as its task's answer; `sides` are those tasks and
    the raw tasks by their ids.

    A trace is an object with its `text`, the whole answer, and what applies of `author`, `passed` and `step`. Left out are traces
    that cannot be read, did not pass, state another answer than the reference, stand twice, spell a control token of the model or
    are longer than the task's budget. Depends on the arguments alone.
    """
    rows = {str(row.number): row for row in rows_in(data)}
    shown: list[Demonstration] = []
    left_out: Counter[str] = Counter()
    train, raws = sides
    for task in train:
        row = rows.get(raws[task.raw].lineage.get("row", ""))
        for found in _of_task(task, row.more.get("traces") or () if row is not None else (), tokenizer, right):
            if isinstance(found, Demonstration):
                shown.append(found)
            else:
                left_out[found] += 1
    return Imitated(shown=tuple(shown), left_out=dict(sorted(left_out.items())))


def _of_task(task: Task, traces: Sequence[Any], tokenizer: Tokenizer, right: Right) -> Iterator[Demonstration | str]:
    prompt, stop = tokenizer.prompt(task.prompt) if traces else (), min(tokenizer.stop_ids)
    seen: set[str] = set()
    for trace in traces:
        text = trace.get("text") if isinstance(trace, Mapping) else None
        if not isinstance(text, str) or not text.strip() or not isinstance(trace.get("author", ""), str):
            yield "cannot be read"
            continue
        known = right(text, task)
        ids = tokenizer.encode_plain(text)
        faults = {"did not pass": trace.get("passed") is False, "states another answer than the reference": known is False,
                  "stands twice": text in seen, "spells a control token": ids != tokenizer.encode(text),
                  "longer than the task's budget": len(ids) >= task.budget.max_tokens}
        fault = next((why for why, holds in faults.items() if holds), None)
        seen |= {text} if fault is None else set()
        answer = Message(role="assistant", content=tokenizer.decode(ids), origin="raw")
        yield fault if fault is not None else Demonstration(
            task=task.id, messages=(*task.prompt, answer), token_ids=(*prompt, *ids, stop), tokenizer=tokenizer.digest,
            owners=(Span(owner="user", length=len(prompt)), Span(owner="policy", length=len(ids) + 1)),
            template=tokenizer.template_digest, author=f"{AUTHOR}:{trace.get('author') or 'unstated'}",
            validation="verified" if known else "none")
