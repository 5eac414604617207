"""From a recipe, and the numbers that it cannot know, to what a simulation is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollbook.orchestration.planning.inputs import Load, Machines, Rules, Spread
from rollbook.records import RecipeError
from rollbook.records.asynchrony import AReaLCode, Asynchrony
from rollbook.records.recipe import PolicyGradient, ResolvedRecipe

GIVEN: Mapping[str, tuple[str, float | None]] = {      # name -> meaning, and the value where it may be left out
    "prompt_tokens": ("tokens of a prompt", None),
    "answer_tokens": ("median tokens of an answer or turn", None),
    "answer_sigma": ("sigma of the log-normal of answers", 0.0),
    "turns": ("turns of an attempt", 1.0),
    "wait_s": ("median seconds that the environment makes a turn wait", 0.0),
    "wait_sigma": ("sigma of the log-normal of waits", 0.0),
    "wait_tail": ("share of waits that are `wait_tail_factor` times as long", 0.0),
    "wait_tail_factor": ("how much longer those are", 1.0),
    "verify_s": ("seconds of a verdict", 0.0),
    "verifiers": ("verdicts at a time", 1.0),
    "informative": ("share of groups that carry a signal", 1.0),
    "pass_s": ("seconds of a decoding pass, whatever its rows", None),
    "row_s": ("seconds that a row adds to it", 0.0),
    "prefill_token_s": ("seconds a token of a prompt", 0.0),
    "kv_bytes": ("bytes for keys and values on a generator", None),
    "position_bytes": ("bytes that a position of them takes", None),
    "update_s": ("seconds of an update, whatever its size", 0.0),
    "update_token_s": ("seconds that a trained token adds, on one trainer", None),
    "weight_bytes": ("bytes of a publication", None),
    "broadcast_bytes_s": ("bytes a second on the way to the generators", None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One stage of a recipe with everything that its loop is simulated from."""

    stage: str
    load: Load
    machines: Machines
    rules: Rules


def asked(recipe: ResolvedRecipe, *, given: Mapping[str, float], generators: int, trainers: int) -> list[Asked]:
    """What is simulated of each policy-gradient stage; refuses numbers of unknown names, and lists those that are missing with
    their meaning."""
    stages = {key: stage for key, stage in recipe.settings.stages.items() if isinstance(stage, PolicyGradient)}
    if not stages:
        raise RecipeError("the recipe has no policy-gradient stage whose loop could be simulated", got="none")
    if unknown := sorted(set(given) - set(GIVEN)):
        raise RecipeError("no such number of a plan", got=", ".join(unknown), fix=f"one of: {', '.join(GIVEN)}")
    missing = [f"{key}: {meaning}" for key, (meaning, value) in GIVEN.items() if value is None and key not in given]
    if missing:
        raise RecipeError("a plan needs numbers that a recipe does not hold", got="none of " + "; ".join(missing),
                          why="what is simulated from guesses predicts nothing", fix="--given NAME=VALUE for each, as measured")
    v = {key: given.get(key, value) or 0.0 for key, (_, value) in GIVEN.items()}
    broken = [f"{key}={v[key]:g}" for key in ("turns", "verifiers") if v[key] != int(v[key])]
    if broken:
        raise RecipeError("turns and verifiers are counted", got=", ".join(broken), why="a part of one would be left out unseen",
                          fix="whole numbers")
    machines = _machines(v, generators, trainers)
    return [_of_stage(name, stage, v, machines, stage.max_tokens or recipe.settings.tasks.max_tokens)
            for name, stage in stages.items()]


def _of_stage(name: str, chosen: PolicyGradient, v: Mapping[str, float], machines: Machines, budget: int) -> Asked:
    load = Load(prompt_tokens=v["prompt_tokens"], turns=int(v["turns"]), informative=v["informative"],
                answer_tokens=Spread(median=v["answer_tokens"], sigma=v["answer_sigma"], cap=float(budget)),
                wait_s=Spread(median=v["wait_s"], sigma=v["wait_sigma"], tail=v["wait_tail"], tail_factor=v["wait_tail_factor"]),
                verify_s=Spread(median=v["verify_s"]))
    rules = Rules(groups=chosen.groups, per_task=chosen.per_task, max_policy_age=chosen.max_policy_age,
                  asynchrony=chosen.asynchrony or _in_turns(chosen))
    return Asked(stage=name, load=load, machines=machines, rules=rules)


def _machines(v: Mapping[str, float], generators: int, trainers: int) -> Machines:
    return Machines(generators=generators, trainers=trainers, verifiers=int(v["verifiers"]), pass_s=v["pass_s"],
                    row_s=v["row_s"], prefill_token_s=v["prefill_token_s"], kv_bytes=v["kv_bytes"],
                    position_bytes=v["position_bytes"], update_s=v["update_s"], update_token_s=v["update_token_s"],
                    weight_bytes=v["weight_bytes"], broadcast_bytes_s=v["broadcast_bytes_s"])


def _in_turns(stage: PolicyGradient) -> Asynchrony:
    """Sampling and training that take turns, in the words of the loop: nothing starts before the publication."""
    size = stage.groups * stage.per_task
    return Asynchrony(throttle=AReaLCode(eta=0), concurrency=size, on_update="keep", late="wait", queue=size, stall_s=1.0)
