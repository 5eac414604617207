"""The verdict of a stored text, reached again by this code from the task's reference and the recipe's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError

from rollbook.records import RewardVector, Scored, Task, Trace, Verdict
from rollbook.records.recipe import EnvironmentReward, Reward, RewardSettings
from rollbook.rewards import MagistralJudge, RewardError, format_gate
from rollbook.rewards.magistral import Stamps, gated_vector, graded_vector
from rollbook.rewards.numbers import compare

SAME = 1e-12


class Rejudge:
    """The pure part of the judge: format, plain numbers, length. What only symbols decide is left open.

    `digest` names the judge that this code would be; verdicts of another one cannot be reached again here.
    """

    def __init__(self, settings: RewardSettings):
        self.settings = settings
        judge = MagistralJudge(settings)            # for its stamps: no worker starts before a symbolic comparison
        self.stamps: Stamps = judge.stamps
        self.digest: str = judge.digest
        self.parts: Mapping[str, float] = judge.composition.parts
        judge.close()

    @classmethod
    def of(cls, settings: Reward) -> Rejudge | str:
        """The judge for these settings, or why there is none."""
        if isinstance(settings, EnvironmentReward):
            return "an environment's verifier judges its final state; `audit --deep` plays and grades it again"
        if not isinstance(settings, RewardSettings):
            return "a composed reward is judged again by `audit --deep` alone"
        try:
            return cls(settings)
        except PackageNotFoundError as error:
            return f"a package that the verifier's digest covers is not installed: {error.name}"
        except RewardError as error:
            return str(error.what)

    def vector(self, trace: Trace, task: Task | None) -> RewardVector | None:
        """The vector that the text deserves; None where the pure part cannot tell or no verdict is due."""
        if trace.stop_reason in ("cancelled", "failed") or task is None or not task.reference.strip():
            return None
        gate = format_gate(trace.text)
        if not gate.passed:
            return gated_vector(gate, self.stamps, self.digest)
        correct = compare(str(gate.answer), task.reference)
        if correct is None:
            return None
        return graded_vector(correct=correct, length=trace.action_count, settings=self.settings, stamps=self.stamps, detail="",
                             composition_digest=self.digest)


def contradiction(verdict: Verdict, found: RewardVector) -> str:
    """How a recorded verdict differs from the one reached again; empty when it does not."""
    if not isinstance(verdict, Scored):
        return (f"it was left unscored ({verdict.code}: {verdict.detail[:60]}), its text and reference decide it: "
                f"{found.total:g}")
    recorded = verdict.vector
    for part in found.components:
        value = recorded.value(part.name)
        if value is None or abs(value - part.value) > SAME:
            shown = "absent" if value is None else f"{value:g}"
            return f"component {part.name} is {shown} on record, the text and the reference give {part.value:g}"
        stated = next(one.confidence for one in recorded.components if one.name == part.name)
        if stated != part.confidence:
            return f"component {part.name} has a confidence of {stated:g} on record, its rule has {part.confidence:g}"
    extra = {part.name for part in recorded.components} - {part.name for part in found.components}
    if extra:
        return f"component {min(extra)} was computed although the text gives no cause for it"
    reasons = {part.name: part.reason for part in found.absent}
    for absent in recorded.absent:
        if absent.reason != reasons.get(absent.name):
            return (f"component {absent.name} is absent on record because {absent.reason!r}, the text gives as a reason "
                    f"{reasons.get(absent.name)!r}")
    if recorded.accuracy != found.accuracy:
        return f"accuracy is {recorded.accuracy} on record, the text and the reference give {found.accuracy}"
    if abs(recorded.total - found.total) > SAME:
        return f"the total is {recorded.total:g} on record, this code's composition gives {found.total:g}"
    stamps = {part.name: part.verifier for part in found.components}
    for part in recorded.components:
        if part.verifier != stamps[part.name]:
            return f"component {part.name} names the verifier {part.verifier.digest[:12]} under a composition of another"
    return ""
