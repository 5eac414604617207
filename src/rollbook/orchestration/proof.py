"""Stage 4 while it can still be run: the environment built twice, reset twice, and re-scored under changed conditions."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rollbook.environments import single_turn_image
from rollbook.orchestration.session import JudgeWithStamp
from rollbook.records import EnvironmentImage, EnvironmentProof, Task, Trial, content_id
from rollbook.records.recipe import Settings
from rollbook.rewards import package_versions
from rollbook.rewards.conditions import DESCRIPTIONS
from rollbook.rewards.rescore import fingerprint, rescore

PROVED = 8          # tasks, each with a right, a wrong and an empty text


def prove(image: EnvironmentImage, judge: JudgeWithStamp, settings: Settings, train: tuple[Task, ...]) -> EnvironmentProof:
    """The proof for a single-turn environment: what it shows and how it judges depend on nothing but the records."""
    began = time.monotonic()
    items = _items(train)
    mine = fingerprint(judge, items)
    found = rescore(type(judge), settings.reward, items)
    again = single_turn_image(verifier=judge.stamp, dependencies=package_versions())
    ordinary = found["ordinary"]
    trials = [Trial(kind="build", changed="another build", first=image.digest, second=again.digest, items=1),
              Trial(kind="build", changed="the judge in a fresh process", first=mine.judge, second=ordinary.judge, items=1),
              Trial(kind="reset", changed="a fresh process", first=mine.prompts, second=ordinary.prompts, items=len(items))]
    kinds: Mapping[str, str] = DESCRIPTIONS
    trials += [Trial(kind=name, changed=kinds[name], first=mine.verdicts, second=found[name].verdicts, items=len(items))
               for name in ("clock", "network", "packages")]
    return EnvironmentProof(environment=content_id(image), trials=tuple(trials), unproved={},
                            observed={"seconds": time.monotonic() - began})


def _items(train: tuple[Task, ...]) -> list[tuple[Task, str]]:
    """A right answer in the required form, a wrong one and no answer for each of the first tasks."""
    form = "<think>\n</think>\n\\boxed{{{}}}"
    return [(task, text) for task in train[:PROVED]
            for text in (form.format(task.reference), form.format(task.reference + "1"), "")]
