"""A protocol with one thing changed, for grids that show where a gain comes from: the same problems under another budget."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rollbook.evaluation.heldout import tasks_hash
from rollbook.evaluation.protocols import Bundle, ProtocolRefused, parse_aggregation
from rollbook.records import CodecError, EvaluationProtocol, Message, RecordError, Task, decode, encode
from rollbook.records.codec import nearest

PLAIN = ("sampling.temperature", "sampling.top_p", "sampling.top_k", "sampling.min_p", "seed", "trials", "aggregation")
OF_TASKS = ("max_tokens", "system_prompt")          # stand in the tasks: the same problems become other tasks
KNOWN = (*PLAIN, *OF_TASKS)


def vary(bundle: Bundle, changes: Mapping[str, str], *, name: str) -> Bundle:
    """The protocol under another name with these values changed; refuses what cannot be changed after it was frozen."""
    protocol: dict[str, Any] = encode(bundle.protocol)
    for path, text in changes.items():
        if path not in KNOWN:
            raise ProtocolRefused(f"{path} of a protocol cannot be varied", got=text,
                                  why="environment, tools, judge and harness are measured from a run's settings",
                                  fix=f"freeze a run that has it, or vary one of {', '.join(KNOWN)}; nearest: "
                                      f"{nearest(path, list(KNOWN))}")
        if path in OF_TASKS and bundle.protocol.world is not None:
            raise ProtocolRefused(f"{path} of episodes cannot be varied", got=text,
                                  why="it is a part of their environment and of its harness", fix="freeze a run that has it")
        holder = protocol if "." not in path else protocol[path.partition(".")[0]]
        holder[path.rpartition(".")[2]] = _value(path, text)
    tasks = tuple(_task(task, changes, protocol) for task in bundle.tasks)
    try:
        made = decode(EvaluationProtocol, protocol | {"name": name, "tasks": tasks_hash(tasks)}, "protocol")
    except (CodecError, RecordError) as error:
        raise ProtocolRefused("this is no protocol", got=str(error).splitlines()[0], fix="correct the value") from error
    s = made.sampling
    if not (0.0 <= s.temperature < math.inf and 0.0 < s.top_p <= 1.0 and s.top_k >= 0 and 0.0 <= s.min_p <= 1.0):
        raise ProtocolRefused("nothing can be sampled like this", got=", ".join(f"{k} {v}" for k, v in encode(s).items()),
                              fix="temperature >= 0, 0 < top_p <= 1, top_k >= 0, 0 <= min_p <= 1")
    return Bundle(protocol=made, tasks=tasks, raws=bundle.raws)


def _value(path: str, text: str) -> Any:
    if path == "system_prompt":
        return text
    if path == "aggregation":
        return encode(parse_aggregation(text))
    try:
        found = json.loads(text)
    except ValueError:
        found = text
    return float(found) if path in ("sampling.temperature", "sampling.top_p", "sampling.min_p") and type(found) is int else found


def _task(task: Task, changes: Mapping[str, str], protocol: Mapping[str, Any]) -> Task:
    if "max_tokens" in changes:
        task = replace(task, budget=replace(task.budget, max_tokens=protocol["max_tokens"]))
    if "system_prompt" in changes:
        told = protocol["system_prompt"]
        if any(message.role != "system" for message in task.prompt if message.origin == "recipe"):
            raise ProtocolRefused("the recipe's words stand within the tasks' own", got=task.id[:20],
                                  why="they cannot be taken out of them", fix="freeze a run with the other prompt")
        asked = tuple(message for message in task.prompt if message.origin != "recipe")
        task = replace(task, prompt=(*((Message(role="system", content=told, origin="recipe"),) if told else ()), *asked))
    return task
