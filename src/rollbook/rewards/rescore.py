"""Judges the same texts twice under every condition, each in a process of its own: one JSON request in, one JSON answer out.

Run as `python -m rollbook.rewards.rescore`. The judge is named by its class, so that whatever judge a run uses is the one proved.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollbook.records import AttemptId, Scored, Segment, Task, Trace, Verdict, canonical, decode, digest, encode
from rollbook.records.recipe import Reward
from rollbook.rewards.conditions import CONDITIONS, Condition, apply
from rollbook.rewards.errors import RewardError

SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """What came out under one condition: hashes of the verdicts, of those of the same judge asked again in another order, of the
    prompts the tasks start with, of symbolic comparisons (None where not made), the judge's own; and counts of verdicts."""

    verdicts: str
    again: str
    prompts: str
    judge: str
    counts: Mapping[str, int]
    symbolic: str | None = None


def rescore(judge: type, settings: Reward, items: Sequence[tuple[Task, str]]) -> dict[Condition, Rescored]:
    """Verdicts of the texts by a fresh judge in a fresh interpreter, under every condition."""
    request = {"judge": f"{judge.__module__}:{judge.__qualname__}", "settings": encode(settings), "paths": sys.path,
               "tasks": [encode(task) for task, _ in items], "texts": [text for _, text in items]}
    try:
        done = subprocess.run([sys.executable, "-m", "rollbook.rewards.rescore"], input=json.dumps(request).encode(),
                              capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise RewardError("re-scoring did not end", got=f"nothing within {SECONDS:.0f} s") from None
    if done.returncode:
        raise RewardError("re-scoring failed", got=done.stderr.decode(errors="replace")[-400:])
    return {condition: Rescored(**found) for condition, found in json.loads(done.stdout).items()}


def fingerprint(judge: Any, items: Sequence[tuple[Task, str]]) -> Rescored:
    """The hashes for this judge in this process."""
    traces = [_trace(index, task, text) for index, (task, text) in enumerate(items)]
    tasks = {task.id: task for task, _ in items}
    verdicts = judge.judge(traces, tasks)
    again = judge.judge(traces[::-1], tasks)[::-1]
    return Rescored(verdicts=_hash(verdicts), again=_hash(again), prompts=prompts_hash([task for task, _ in items]),
                    judge=judge.digest, counts=dict(Counter(map(kind_of, verdicts))))


def prompts_hash(tasks: Sequence[Task]) -> str:
    """Hash of what the tasks start with, in order."""
    return digest(canonical([[message.content for message in task.prompt] for task in tasks]))


def proof_items(tasks: Sequence[Task], count: int) -> list[tuple[Task, str]]:
    """A right answer in the required form, a wrong one and no answer for each of the first `count` tasks."""
    form = "<think>\n</think>\n\\boxed{{{}}}"
    return [(task, text) for task in tasks[:count]
            for text in (form.format(task.reference), form.format(task.reference + "1"), "")]


def kind_of(verdict: Verdict) -> str:
    """Right, wrong, gated (no usable answer) or unscored."""
    if not isinstance(verdict, Scored):
        return "unscored"
    if any("gate failed" in absent.reason for absent in verdict.vector.absent):
        return "gated"
    return "right" if verdict.vector.accuracy == 1.0 else "wrong"


def _hash(verdicts: Sequence[Verdict]) -> str:
    return digest(canonical([encode(verdict) for verdict in verdicts]))


def _symbolic(items: Sequence[tuple[Task, str]]) -> str:
    """Hash of comparisons that plain numbers do not decide, as a worker would make them."""
    from rollbook.rewards.math import equivalent

    found: list[bool | str] = []
    for reference in dict.fromkeys(task.reference for task, _ in items):
        for answer in (f"{reference} + 0", f"{reference} + 1"):
            try:
                found.append(equivalent(answer, reference))
            except Exception as error:  # a parser may raise anything; what it raises must not change either
                found.append(type(error).__name__)
    return digest(canonical(found))


def _trace(index: int, task: Task, text: str) -> Trace:
    body = tuple(range(1, 1 + len(text.split())))
    spoken = Segment(owner="policy", token_ids=body, logps=(0.0,) * len(body), version=0)
    return Trace(attempt=AttemptId(f"proof/{index}"), task=task.id, group="proof", envelope="proof",
                 segments=(Segment(owner="user", token_ids=(0,)), spoken), stop_reason="end_of_turn", text=text)


def main() -> None:
    """Answers the request on standard input: one forked process per condition, after the slow imports."""
    request = json.load(sys.stdin)
    sys.path[:] = request["paths"]
    module, _, name = request["judge"].partition(":")
    import math_verify  # noqa: F401  (once, before the forks)

    judge = getattr(importlib.import_module(module), name)
    print(json.dumps({condition: _forked(condition, judge, request) for condition in CONDITIONS}))


def _forked(condition: Condition, judge: type, request: Mapping[str, Any]) -> dict[str, Any]:
    """The hashes as a forked child under the condition finds them."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            apply(condition)
            items = [(decode(Task, task), text) for task, text in zip(request["tasks"], request["texts"], strict=True)]
            made = judge(decode(Reward, request["settings"]))
            found = dataclasses.replace(fingerprint(made, items), symbolic=_symbolic(items))
            made.close()
            os.write(writer, json.dumps(dataclasses.asdict(found)).encode())
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{condition}: {type(error).__name__}: {error}\n".encode())
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    if os.waitpid(child, 0)[1]:
        sys.exit(f"the judge could not be run under the condition {condition}")
    return json.loads(answer)  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
