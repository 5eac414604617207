"""A protocol with some values changed, for grids that show where a gain comes from: the same problems under another budget, in
another harness, with other tools, before another judge.

Tasks stay what was frozen: what would make other tasks is refused by name, because their outcomes could not be paired.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import yaml

from rollbook.environments import load_definition, open_services
from rollbook.environments.replaying import play
from rollbook.evaluation.heldout import tasks_hash
from rollbook.evaluation.protocols import Bundle, ProtocolRefused, differing, parse_aggregation, reward_name
from rollbook.orchestration.evaluating import check_same_judge, judges_named, measured
from rollbook.orchestration.surroundings import rules_of, spec_of
from rollbook.records import CodecError, EvaluationProtocol, Message, RecordError, RollbookError, Task, TaskSet, decode, encode
from rollbook.records.codec import nearest
from rollbook.records.recipe import EnvironmentSettings, RewardSettings

PLAIN = ("sampling.temperature", "sampling.top_p", "sampling.top_k", "sampling.min_p", "seed", "trials", "aggregation")
OF_TASKS = ("max_tokens", "system_prompt")          # of single turns these stand in the tasks: the same problems, other tasks
OF_JUDGE = ("reward", "judges")
WORLD = tuple(f"world.{field.name}" for field in fields(EnvironmentSettings) if field.name not in ("name", "misfit_penalty"))
KNOWN = (*PLAIN, *OF_TASKS, "context", *WORLD, *OF_JUDGE)
DRAWN = 8           # tasks that an environment makes under both settings, to see whether they are the same
FLOATS = ("sampling.temperature", "sampling.top_p", "sampling.min_p")


def vary(bundle: Bundle, changes: Mapping[str, Any], *, name: str) -> Bundle:
    """The protocol under another name with these values changed; refuses what cannot be changed after it was frozen.

    A value is what the field holds, or its text as a command line has it. Of another judge, harness or environment what follows
    (verifier, image, scaffold, extraction) is measured again, and only where this program measures the frozen one as it was.
    """
    frozen = bundle.protocol
    document: dict[str, Any] = encode(frozen)
    for path, value in changes.items():
        _check_known(path, value, frozen)
        _put(document, path, value)
    tasks = tuple(_task(task, changes, document) for task in bundle.tasks) if frozen.world is None else bundle.tasks
    made = _read(document | {"name": name, "tasks": tasks_hash(tasks)})
    _check_sampling(made)
    if made.world is not None:
        _check_world(bundle, made, changes)
    if _heads(changes) & {*OF_JUDGE, "world"} or (made.world is not None and "max_tokens" in changes):
        made = _with_what_follows(frozen, made, changes)
    return Bundle(protocol=made, tasks=tasks, raws=bundle.raws)


def _heads(changes: Mapping[str, Any]) -> set[str]:
    return {path.partition(".")[0] for path in changes}


def _check_known(path: str, value: Any, frozen: EvaluationProtocol) -> None:
    got = str(value)[:80]
    head = path.partition(".")[0]
    if path == "world.name" or (path not in KNOWN and not path.startswith("world.parameters.") and head not in OF_JUDGE):
        why = {"world.name": "it is the environment's label alone",
               "tools": "the permitted ones are world.tools, or world.no_tools",
               "world.misfit_penalty": "it is paid in training alone"}.get(path, "it follows from other values, or is none")
        raise ProtocolRefused(f"{path} of a protocol cannot be varied", got=got, why=why,
                              fix=f"freeze a run that has it, or vary one of {', '.join(KNOWN)}; nearest: "
                                  f"{nearest(path, list(KNOWN))}")
    if head in ("world", "context") and frozen.world is None:
        raise ProtocolRefused(f"{path} cannot be varied: the tasks of this protocol are single turns", got=got,
                              why="they have no environment, no tools and no harness of turns",
                              fix="freeze an evaluation of a run that has an environment")
    if path == "system_prompt" and frozen.world is not None:
        raise ProtocolRefused("system_prompt of episodes cannot be varied", got=got, why="the environment writes it",
                              fix="freeze a run whose environment.parameters say it")


def _put(document: dict[str, Any], path: str, value: Any) -> None:
    """Puts a value where its path points; refuses a path that leads nowhere."""
    holder, (*steps, last) = document, path.split(".")
    for step in steps:
        if not isinstance(holder.get(step), dict):
            raise ProtocolRefused(f"{path} of a protocol cannot be varied", got=str(value)[:80], why=f"there is no {step}",
                                  fix=f"nearest: {nearest(step, [str(key) for key in holder])}")
        holder = holder[step]
    whole = steps == [] or last in holder or steps[:2] == ["world", "parameters"] or steps == ["world"] or steps[-1] == "criteria"
    if not whole:
        raise ProtocolRefused(f"{path} of a protocol cannot be varied", got=str(value)[:80], why=f"there is no {last}",
                              fix=f"nearest: {nearest(last, [str(key) for key in holder if key != 'kind'])}")
    holder[last] = _value(path, value, holder.get(last))


def _value(path: str, value: Any, held: Any) -> Any:
    if path == "aggregation":
        return encode(parse_aggregation(str(value)))
    found = value
    if isinstance(value, str) and path != "system_prompt":
        found = _spoken(value)
    as_float = path in FLOATS or (type(held) is float and path.startswith(("reward.", "world.")))
    return float(found) if as_float and type(found) is int else found


def _spoken(text: str) -> Any:
    """What a text of a command line says: JSON, a mapping or list as a recipe's YAML writes it, else itself."""
    try:
        return json.loads(text) if text[:1] not in ("{", "[") else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError):
        return text


def _read(document: Mapping[str, Any]) -> EvaluationProtocol:
    try:
        made: EvaluationProtocol = decode(EvaluationProtocol, dict(document), "protocol")
        return made
    except (CodecError, RecordError, RollbookError) as error:
        raise ProtocolRefused("this is no protocol", got=str(error).splitlines()[0], fix="correct the value") from error


def _check_sampling(made: EvaluationProtocol) -> None:
    s = made.sampling
    if not (0.0 <= s.temperature < math.inf and 0.0 < s.top_p <= 1.0 and s.top_k >= 0 and 0.0 <= s.min_p <= 1.0):
        raise ProtocolRefused("nothing can be sampled like this", got=", ".join(f"{k} {v}" for k, v in encode(s).items()),
                              fix="temperature >= 0, 0 < top_p <= 1, top_k >= 0, 0 <= min_p <= 1")


def _check_world(bundle: Bundle, made: EvaluationProtocol, changes: Mapping[str, Any]) -> None:
    """Refuses a harness that cannot be played, tools that are not offered, and an environment that would make other tasks."""
    world, before = made.world, bundle.protocol.world
    assert world is not None and before is not None
    if (world.compaction == "none") != (world.compact_at == 0):
        raise ProtocolRefused("world.compaction needs world.compact_at, and the other way round",
                              got=f"{world.compaction}, {world.compact_at}", why="one says what is done, the other when",
                              fix="set both or none")
    least = min(world.subagents, world.keep_turns, world.compact_at)
    if (world.turn_tokens or 0) > made.max_tokens or least < 0 or min(world.subagent_tokens, made.context or 0) < 1:
        raise ProtocolRefused("no episode can be played like this", got=f"turn_tokens {world.turn_tokens}, max_tokens "
                              f"{made.max_tokens}, subagents {world.subagents} of {world.subagent_tokens} tokens, compact_at "
                              f"{world.compact_at}, keep_turns {world.keep_turns}, context {made.context}",
                              fix="turn_tokens at most max_tokens, subagent_tokens and context at least 1, nothing below 0")
    rules_of(world)
    if any(path.startswith(("world.parameters", "world.definition")) for path in changes):
        _check_same_tasks(before, world, made.max_tokens)
    if changes.keys() & {"world.tools", "world.no_tools"}:
        _check_tools(bundle, world, made.max_tokens)


def _check_same_tasks(before: EnvironmentSettings, world: EnvironmentSettings, max_tokens: int) -> None:
    def drawn(settings: EnvironmentSettings) -> TaskSet:
        return load_definition(spec_of(settings, max_tokens)).tasks(count=DRAWN, seed=0)
    one, other = drawn(before), drawn(world)
    if one != other:
        apart = sum(a != b for a, b in zip(one.tasks, other.tasks, strict=False)) or abs(len(one.tasks) - len(other.tasks))
        raise ProtocolRefused("another environment makes other tasks", got=f"{apart} of {DRAWN} drawn with one seed differ",
                              why="the frozen tasks are of the environment that made them, and others could not be paired",
                              fix="freeze a run that has it, and compare policies under that protocol")


def _check_tools(bundle: Bundle, world: EnvironmentSettings, max_tokens: int) -> None:
    with open_services() as services:
        shown = asyncio.run(play(load_definition(spec_of(world, max_tokens)), bundle.tasks[0], (), services=services, seed=0))
    offered = [tool.name for tool in shown.tools]
    strange = [name for name in world.tools if name not in offered]
    if strange or (world.no_tools and not offered):
        raise ProtocolRefused(f"the environment {world.name} offers no tool {strange[0]!r}" if strange else
                              f"the environment {world.name} offers no tool that could be taken away",
                              got=f"{', '.join(offered) or 'none'} are offered", fix="correct world.tools")


def _with_what_follows(frozen: EvaluationProtocol, made: EvaluationProtocol, changes: Mapping[str, Any]) -> EvaluationProtocol:
    """With verifier, image, harness and extraction as they follow from what was changed."""
    if made.aggregation.rule == "majority" and not isinstance(made.reward, RewardSettings):
        raise ProtocolRefused("a majority needs answers that can be compared as text", got=str(made.aggregation),
                              why="only the reward `magistral` says how an answer is read out of a response",
                              fix="choose mean, pass@k or best@k:SELECTOR")
    judges = judges_named(made.reward, made.judges or {})
    if "judges" in _heads(changes) and (idle := sorted({*(made.judges or {})} - {*judges})):
        raise ProtocolRefused(f"no part of the reward is measured by judge:{idle[0]}", got=reward_name(made.reward),
                              why="a judge that is not asked changes nothing", fix="name it in a part of the reward")
    then = measured(frozen.reward, frozen.judges or {}, frozen.world, frozen.max_tokens)
    check_same_judge(frozen, then.verifier)
    now = measured(made.reward, judges, made.world, made.max_tokens)
    known = {"environment": now.environment, "verifier": now.verifier, "scaffold": now.scaffold,
             "extraction": reward_name(made.reward), "judges": judges or None}
    turns = {} if made.world is None else {"max_turns": made.world.max_turns, "max_seconds": made.world.max_seconds}
    found = replace(made, **known, **turns)     # type: ignore[arg-type]
    if not differing(frozen, found):
        raise ProtocolRefused("nothing would change", got=", ".join(changes), why="the protocol holds these values already",
                              fix="give other values")
    return found


def _task(task: Task, changes: Mapping[str, Any], protocol: Mapping[str, Any]) -> Task:
    """A single turn with the budget and the words of the protocol."""
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
