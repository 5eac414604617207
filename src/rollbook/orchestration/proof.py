"""Stage 4 while it can still be run: the environment built twice, reset twice, and re-scored under changed conditions."""

from __future__ import annotations

import time
from typing import get_args

from rollbook.environments import single_turn_image
from rollbook.orchestration.session import JudgeWithStamp
from rollbook.records import EnvironmentImage, EnvironmentProof, Task, Trial, content_id
from rollbook.records.recipe import Reward
from rollbook.rewards import package_versions
from rollbook.rewards.conditions import DESCRIPTIONS, Changed
from rollbook.rewards.rescore import Rescored, fingerprint, proof_items, rescore

PROVED = 8          # tasks, each with a right, a wrong and an empty text


def prove(image: EnvironmentImage, judge: JudgeWithStamp, reward: Reward, tasks: tuple[Task, ...]) -> EnvironmentProof:
    """The proof for a single-turn environment: what it shows and how it judges depend on nothing but the records."""
    began = time.monotonic()
    items = proof_items(tasks, PROVED)
    mine = fingerprint(judge, items)
    handed: str | None = getattr(judge, "unprovable", None)
    if handed is not None:
        return _built(image, judge, (mine, fingerprint(judge, items)), handed)
    found = rescore(type(judge), reward, items)
    again = single_turn_image(verifier=judge.stamp, dependencies=package_versions())
    ordinary = found["ordinary"]
    count = len(items)
    trials = [Trial(kind="build", changed="another build", first=image.digest, second=again.digest, items=1),
              Trial(kind="build", changed="the judge in a fresh process", first=mine.judge, second=ordinary.judge, items=1),
              Trial(kind="reset", changed="a fresh process", first=mine.prompts, second=ordinary.prompts, items=count),
              Trial(kind="reset", changed="a fresh judge", first=mine.verdicts, second=ordinary.verdicts, items=count),
              Trial(kind="reset", changed="the same judge again, in reverse order", first=mine.verdicts, second=mine.again,
                    items=count)]
    for name in get_args(Changed):
        changed = DESCRIPTIONS[name]
        trials.append(Trial(kind=name, changed=changed, first=mine.verdicts, second=found[name].verdicts, items=count))
        trials.append(Trial(kind=name, changed=f"{changed}, symbolic comparison", first=str(ordinary.symbolic),
                            second=str(found[name].symbolic), items=2 * len({task.reference for task, _ in items})))
    unproved = {}
    if not mine.counts.get("right") or not mine.counts.get("wrong"):
        unproved["clock"] = "boxed references are the only right answers that can be written here, and this reward takes none"
    return EnvironmentProof(environment=content_id(image), judge=mine.judge, trials=tuple(trials), verdicts=mine.counts,
                            unproved=unproved, observed={"seconds": time.monotonic() - began})


def _built(image: EnvironmentImage, judge: JudgeWithStamp, twice: tuple[Rescored, Rescored], why: str) -> EnvironmentProof:
    """The proof of a judge that no fresh process can make: its image is built again, everything else is named as unproved."""
    mine, repeated = twice
    again = single_turn_image(verifier=judge.stamp, dependencies=package_versions())
    trials = (Trial(kind="build", changed="another build", first=image.digest, second=again.digest, items=1),
              Trial(kind="build", changed="the judge asked again", first=mine.judge, second=judge.digest, items=1),
              Trial(kind="reset", changed="the prompts rendered again", first=mine.prompts, second=repeated.prompts,
                    items=sum(mine.counts.values())),
              Trial(kind="reset", changed="the same judge again, in reverse order", first=mine.verdicts, second=mine.again,
                    items=sum(mine.counts.values())))
    return EnvironmentProof(environment=content_id(image), judge=mine.judge, trials=trials, verdicts=mine.counts,
                            unproved=dict.fromkeys(get_args(Changed), why))
