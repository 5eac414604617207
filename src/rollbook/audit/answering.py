"""Which published weights may have sampled an attempt that was asked for under an envelope."""

from __future__ import annotations

from rollbook.audit.index import RunIndex
from rollbook.records import PolicyVersion, SamplingEnvelope
from rollbook.records.recipe import PolicyGradient


def answers(run: RunIndex, envelope: SamplingEnvelope, held: PolicyVersion) -> bool:
    """Whether this version may have answered: it is the envelope's policy, or a later one in the table of a stage that goes on
    sampling while its learner trains."""
    if held.weights == envelope.policy:
        return True
    stage = run.recipe.settings.stages.get((run.table or "").partition("/")[0]) if run.recipe is not None else None
    if not isinstance(stage, PolicyGradient) or stage.asynchrony is None:
        return False
    return any(one.weights == envelope.policy and one.index <= held.index for one in run.versions.values())
