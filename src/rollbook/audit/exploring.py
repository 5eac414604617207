"""A controlled bonus for entropy, followed a second time: alpha from step to step, and what it makes of the batch's entropy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from rollbook.audit.detector import StoredStep
from rollbook.records import Batch

KIND = "ControlledEntropy"
CLOSE = 1e-4            # nats: one more pass over the same weights, and sums in single precision
EXACT = 1e-12
AS_CONTROLLED = "move the coefficient of the bonus as the recipe's controller does, once per optimizer step"


def as_used(batch: Batch) -> Mapping[str, object]:
    """The batch's objective with the coefficient that its bonus for entropy had at this step."""
    if batch.objective.get("kind") != KIND or batch.control is None:
        return batch.objective
    return {"kind": "WithEntropy", "objective": batch.objective["objective"], "coefficient": batch.control.coefficient,
            "entropy_aggregate": batch.objective["entropy_aggregate"]}


@dataclass(slots=True)
class Controlled:
    """alpha that is due at the next optimizer step of each stage."""

    due: dict[str, float] = field(default_factory=dict)

    def faults(self, step: StoredStep) -> Iterator[str]:
        """What is wrong with what a batch says of its controller."""
        batch = step.batch
        control, settings = batch.control, batch.objective
        if (control is None) != (settings.get("kind") != KIND):
            said = "nothing of its controller" if control is None else "that a controller moved its bonus"
            yield (f"{batch.scope} says {said}, its objective is {settings.get('kind')}")
        if control is None or settings.get("kind") != KIND:
            return
        stage = batch.scope.partition("/")[0]
        target, move = float(str(settings["target"])), float(str(settings["step"]))
        alpha = self.due.get(stage, float(str(settings["start"])))
        if abs(control.alpha - alpha) > EXACT:
            yield f"alpha of {batch.scope} is {control.alpha:.9g}, the controller has come to {alpha:.9g}"
        entropy = float(step.found["entropy"].astype(np.float64).mean())
        if abs(control.entropy_nats - entropy) > CLOSE:
            yield (f"the controller of {batch.scope} was told an entropy of {control.entropy_nats:.6g}, its tokens have "
                   f"{entropy:.6g}")
        wanted = control.alpha if control.entropy_nats <= target else 0.0
        if control.coefficient != wanted:
            yield (f"the bonus of {batch.scope} has the coefficient {control.coefficient:.9g}, {wanted:.9g} is due at an entropy "
                   f"of {control.entropy_nats:.6g} for a target of {target:g}")
        after = control.alpha + (move if control.entropy_nats < target else -move)
        most = settings.get("maximum")
        self.due[stage] = max(0.0, after if most is None else min(after, float(str(most))))
