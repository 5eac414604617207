"""What differs between two evaluations, by name. A gain is attributed only where exactly one thing does.

Some differences bring others along: another judge is another environment image, another system prompt makes other task records of
the same problems. Those are folded into their cause, so that one change counts as one thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rollbook.evaluation.protocols import differing
from rollbook.records import EvaluationProtocol, RollbookError, encode

FOLDED = ("aggregation", "tools")               # a rule with its k and selector is one thing
REWARD = ("reward", "reward.composition", "reward.name")      # another of these is another reward, its judges and numbers with it
REWORDING = ("system_prompt", "max_tokens", "max_turns", "max_seconds", "tools")    # stand in the task records themselves
OF_A_WORLD = {"environment", "verifier", "scaffold", "max_turns", "max_seconds"}      # follow from the environment's settings
SHOWN = 40


class ComparisonRefused(RollbookError):
    """Two evaluations whose difference could not be attributed. Exit code 1: the question was understood, the answer is no."""

    exit_code = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that two evaluations do not share.

    Example: Difference(name="sampling.temperature", before="0.7", after="1.0")
    """

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.name} ({self.before} against {self.after})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything that decides a result: the protocol, the policy, and what it ran on.

    `problems` are the raw tasks in order. `circumstances` are code, packages, precision, engine. `recipe` are the values of the
    run that made the policy by dotted path, None where no run of ours did. `unseen` names circumstances that came with the policy
    and were not shown, as an endpoint's precision is.
    """

    protocol: EvaluationProtocol
    policy: str
    weights: str | None
    problems: tuple[str, ...]
    circumstances: Mapping[str, str]
    recipe: Mapping[str, Any] | None
    unseen: frozenset[str] = frozenset()


def differences(before: Setting, after: Setting, *, policy_as_one: bool = False) -> tuple[Difference, ...]:
    """Everything that differs, consequences folded into their cause. With `policy_as_one`, how two policies came to be is not
    looked into, and what came unseen with one of them is a part of it."""
    played = before.protocol.world is not None and after.protocol.world is not None
    names = _folded(differing(before.protocol, after.protocol), same_problems=before.problems == after.problems, played=played)
    found = [Difference(name=name, before=_value(before.protocol, name), after=_value(after.protocol, name)) for name in names]
    with_it = before.unseen | after.unseen if policy_as_one else frozenset()
    found += [one for one in _of_maps(before.circumstances, after.circumstances) if one.name not in with_it]
    return (*_of_policies(before, after, policy_as_one), *found)


def the_one_difference(before: Setting, after: Setting, *, policy_as_one: bool = False) -> Difference:
    """The single thing that differs; refuses none and several, and tasks that cannot be paired."""
    found = differences(before, after, policy_as_one=policy_as_one)
    if not found:
        raise ComparisonRefused("nothing differs between these evaluations", got="equal policies under equal protocols",
                                why="there is nothing that a gain could come from",
                                fix="compare another policy, or another seed of the protocol")
    if len(found) > 1:
        raise ComparisonRefused(f"{len(found)} things differ between these evaluations", got="; ".join(map(str, found)),
                                why="a gain could come from any of them",
                                fix="evaluate again with all but one of them equal"
                                + ("" if policy_as_one else "; --policy-as-one takes two policies as one difference"))
    if found[0].name == "tasks":
        raise ComparisonRefused("the two evaluations ask different tasks", got=str(found[0]),
                                why="their outcomes cannot be paired, and the tasks may be easier",
                                fix="evaluate both under one protocol")
    return found[0]


def _of_policies(before: Setting, after: Setting, policy_as_one: bool) -> Iterable[Difference]:
    """The policies' weights as one thing, or the recipe values they differ in where both are known."""
    if before.weights == after.weights and (before.weights is not None or before.policy == after.policy):
        return ()
    whole = Difference(name="policy", before=_short(before.weights or before.policy), after=_short(after.weights or after.policy))
    if policy_as_one or before.recipe is None or after.recipe is None:
        return (whole,)
    made = [Difference(name=f"recipe.{one.name}", before=one.before, after=one.after)
            for one in _of_maps(before.recipe, after.recipe)]
    return tuple(made) or (whole,)


def _of_maps(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    return [Difference(name=name, before=_short(before.get(name, "absent")), after=_short(after.get(name, "absent")))
            for name in sorted({*before, *after}) if before.get(name, _ABSENT) != after.get(name, _ABSENT)]


_ABSENT = object()


def _folded(names: Iterable[str], *, same_problems: bool, played: bool) -> list[str]:
    """Names of causes: a field with parts under one name, and no field that follows from another that differs. `played`: both are
    of episodes, whose scaffold is named after environment and budget."""
    held = list(dict.fromkeys(name.partition(".")[0] if name.partition(".")[0] in FOLDED else name for name in names))
    follow: set[str] = set()
    if any(name in REWARD for name in held):
        held = ["reward", *(name for name in held if name.partition(".")[0] not in ("reward", "judges"))]
    if any(name.partition(".")[0] in ("reward", "judges") for name in held):
        follow |= {"verifier", "environment", "extraction"}
    if "verifier" in held or "scaffold" in held or "tools" in held:
        follow.add("environment")
    if any(name.partition(".")[0] == "world" for name in held):
        follow |= OF_A_WORLD
    if played and "max_tokens" in held:
        follow.add("scaffold")
    if same_problems and set(held) & set(REWORDING):
        follow.add("tasks")
    if not same_problems:
        follow.add("task_count")
    return [name for name in held if name not in follow]


def _value(protocol: EvaluationProtocol, name: str) -> str:
    if name == "aggregation":
        return str(protocol.aggregation)
    value: Any = encode(protocol)
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return _short(value)


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= SHOWN else text[:SHOWN - 1] + "…"
