"""The pretraining term of a stored step, computed again from the tensors beside its batch: which data, how weighed, what loss.

Legend: T trained tokens of the demonstrations end to end, S demonstrations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rollbook.audit.detector import StoredStep
from rollbook.audit.reference import weights
from rollbook.records import TermSpec

CLOSE = 1e-5            # relative: sums of single-precision numbers
GIVEN = ("pretraining_ids", "pretraining_length", "pretraining_weight")
AS_STATED = "train on the data, the weights and the coefficient that the recipe states"


def faults(step: StoredStep, spec: TermSpec, due: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    """What is wrong, and the record it is wrong in; nothing where the term is what the recipe and the tensors say.

    `due` are the demonstrations that recipe and seed foretell for this step, None where they foretell none.
    """
    batch, update = step.batch, step.update
    if due is not None and list(batch.pretraining) != list(due):
        left, strange = set(due) - set(batch.pretraining), set(batch.pretraining) - set(due)
        yield step.batch_id, (f"{batch.scope} was trained beside {len(batch.pretraining)} demonstrations that are not the "
                              f"{len(due)} that are due ({len(left)} left out, {len(strange)} not due)")
    lacking = [name for name in GIVEN if name not in step.given] + ["pretraining_logp"] * ("pretraining_logp" not in step.found)
    if lacking:
        yield step.batch_id, f"tensors of the pretraining term are not stored: {', '.join(lacking)}"
        return
    length_S = step.given["pretraining_length"].astype(np.int64)
    weight_T = step.given["pretraining_weight"].astype(np.float64)
    logp_T = step.found["pretraining_logp"].astype(np.float64)
    total = int(length_S.sum())
    if length_S.size != len(batch.pretraining) or not weight_T.size == logp_T.size == step.given["pretraining_ids"].size == total:
        yield step.batch_id, (f"{len(batch.pretraining)} demonstrations, {length_S.size} lengths that sum to {total}, "
                              f"{weight_T.size} weights, {logp_T.size} log-probs")
        return
    due_T = np.repeat(weights(spec.aggregate, length_S, np.arange(length_S.size), batch.max_length), length_S)
    if not np.allclose(weight_T, due_T, rtol=CLOSE, atol=0.0):
        at = int(np.abs(weight_T - due_T).argmax())
        yield step.batch_id, (f"pretraining token {at} of {batch.scope} weighs {weight_T[at]:.6g}, {spec.aggregate} gives "
                              f"{due_T[at]:.6g}")
    loss, stated = -spec.coefficient * float(weight_T @ logp_T), update.loss.get(spec.name)
    if stated is None or not abs(stated - loss) <= CLOSE * abs(loss) + 1e-9:
        yield step.update_id, f"the loss term {spec.name} of {batch.scope} is recorded as {stated}, computed {loss:.6g}"
