"""The graph of a recipe's stages: every input names a stage that leaves what is needed, and none waits for itself."""

from __future__ import annotations

from collections.abc import Mapping

from rollbook.recipes.stage_checks import refuse
from rollbook.records import graph
from rollbook.records.codec import nearest
from rollbook.records.problems import Problems
from rollbook.records.recipe import (
    Comparisons,
    Conversations,
    Distill,
    Evaluate,
    Lessons,
    Merge,
    PassRate,
    PolicyGradient,
    Preference,
    Prune,
    RejectionSampling,
    Revise,
    RewardModel,
    Sft,
    Stage,
)

TRAINED: tuple[type, ...] = (Sft, PolicyGradient, Preference, Merge, Distill, Prune)       # kinds that leave a policy
POLICY = (TRAINED, "policy")
RANKINGS: tuple[tuple[type, ...], str] = ((Comparisons, Conversations), "rankings")
SOURCES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "policy": POLICY, "reference": POLICY, "merging.base": POLICY, "base": POLICY, "policies": POLICY, "labeler.policy": POLICY,
    "compare_to": ((Evaluate,), "evaluation report"), "tasks": ((PassRate,), "selection of tasks"),
    "teachers": POLICY, "scorer": ((RewardModel,), "reward model"), "critic.start": ((RewardModel,), "reward model"),
    "pretraining": ((Sft, RejectionSampling, Revise, Conversations), "demonstrations"),
    "hard": ((Sft, RejectionSampling, Revise, Conversations), "demonstrations")}
DATA: Mapping[type, tuple[tuple[type, ...], str]] = {
    Sft: ((RejectionSampling, Revise, Lessons, Conversations), "demonstrations"), RewardModel: RANKINGS, Preference: RANKINGS}

RESERVED = {graph.START: "the initial model", graph.TRAIN: "the training tasks", graph.CURATED: "the traces of a curated set"}


def check(stages: Mapping[str, Stage], problems: Problems) -> None:
    """Adds every missing input, every input of another kind, reserved names and cycles."""
    if not stages:
        refuse(problems, "stages must name at least one stage", "none", "there is nothing to run", "add one")
    for name, means in RESERVED.items():
        if name in stages:
            refuse(problems, f"stages.{name} is a reserved name", repr(name), f"it means {means}", "rename the stage")
    for name, stage in stages.items():
        for field, source in graph.inputs(stage).items():
            _check_input(stages, name, field, source, problems)
    for loop in graph.cycles(stages):
        refuse(problems, "stages wait for each other in a cycle", " -> ".join(loop), "none of them could ever start",
               "let one of them read `start`")
    ready = graph.order(stages)                     # what waits for itself, or for a stage that does, has no shape yet
    for name in ready:
        _check_shape(stages, name, stages[name], problems)


def _check_shape(stages: Mapping[str, Stage], name: str, stage: Stage, problems: Problems) -> None:
    """What is merged with a policy has its shape: it was pruned as that one was."""
    others: Mapping[str, str] = {}
    if isinstance(stage, Merge):
        others = {f"policies.{other}": other for other in stage.policies}
    elif isinstance(stage, Preference) and stage.merging is not None:
        others = {"merging.base": stage.merging.base}
    mine = graph.shape(stages, graph.begins(stage)) if others else None
    for field, other in others.items():
        if mine != (theirs := graph.shape(stages, other)):
            refuse(problems, f"stages.{name}.{field} names a policy of another shape", f"{theirs or 'the model itself'} for "
                   f"{mine or 'the model itself'}", "weights of different shapes cannot be added",
                   "name policies that the same stage pruned, or none did")


def leaves_as(wanted: tuple[type, ...]) -> str:
    """The form of conversations that may stand where stages of these kinds may."""
    return "pairs" if wanted == RANKINGS[0] else "demonstrations"


def _check_input(stages: Mapping[str, Stage], name: str, field: str, source: str, problems: Problems) -> None:
    head = field if field in SOURCES else field.partition(".")[0]
    wanted, leaves = DATA[type(stages[name])] if head == "data" else SOURCES[head]
    path = f"stages.{name}.{field}"
    fitting = [other for other, kind in stages.items() if isinstance(kind, wanted) and other != name]
    mine = graph.own(field)
    fix = f"nearest names: {nearest(source, ([] if mine is None else [mine]) + fitting)}"
    if source not in stages:
        refuse(problems, f"{path} names no earlier stage", repr(source), "a stage reads what another one left", fix)
    elif not isinstance(stages[source], wanted):
        refuse(problems, f"{path} names a stage of another kind", f"{source!r} ({type(stages[source]).__name__})",
               f"it leaves no {leaves}", fix)
    elif isinstance(other := stages[source], Conversations) and other.form != leaves_as(wanted):
        refuse(problems, f"{path} names conversations of another form", f"{source!r} (form {other.form})",
               f"it leaves no {leaves}", f"set stages.{source}.form = {leaves_as(wanted)}")
    elif head in ("pretraining", "hard") and isinstance(kind := stages[source], Sft) and not (kind.traces or kind.general_share):
        refuse(problems, f"{path} names a stage that writes no demonstrations of its own", repr(source),
               "it learns from what other stages left", f"name one of those: {', '.join(kind.data)}")
