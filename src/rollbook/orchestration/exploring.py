"""The controller of a bonus for entropy during a policy stage: its coefficient before every optimizer step, and its own state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rollbook.experience.batches import Packed, with_control
from rollbook.objectives import ControlledEntropy
from rollbook.objectives.core import Objective
from rollbook.records import Batch, EntropyControl
from rollbook.training.policy import PolicyLearner


@dataclass(slots=True)
class Controller:
    """`alpha` is the controller's value at the next optimizer step."""

    objective: ControlledEntropy
    alpha: float

    def take(self, packed: Packed, learner: PolicyLearner) -> tuple[Packed, Objective]:
        """The batch with what the controller makes of its entropy, the objective of this step; alpha goes on to the next."""
        entropy, rule = learner.entropy(packed), self.objective.rule
        control = EntropyControl(alpha=self.alpha, entropy_nats=entropy, coefficient=rule.coefficient(self.alpha, entropy))
        self.alpha = rule.advance(self.alpha, entropy)
        return with_control(packed, control), self.objective.at(control.coefficient)


def controller_of(objective: Objective, stage: str, batches: Iterable[Batch]) -> Controller | None:
    """The controller as the stage's batches so far have left it; None where the objective has none."""
    if not isinstance(objective, ControlledEntropy):
        return None
    alpha = objective.start
    for batch in batches:
        if batch.control is not None and batch.scope.startswith(f"{stage}/"):
            alpha = objective.rule.advance(batch.control.alpha, batch.control.entropy_nats)
    return Controller(objective=objective, alpha=alpha)
