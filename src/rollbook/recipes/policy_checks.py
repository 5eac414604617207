"""What a policy stage must have beside its objective: a critic where credit reads values, teachers where the loss reads them."""

from __future__ import annotations

from collections.abc import Mapping

from rollbook.recipes import objective
from rollbook.recipes.stage_checks import refuse
from rollbook.records.problems import Problems
from rollbook.records.recipe import PolicyGradient

WITH_CRITIC = ("Gae", "LengthAdaptiveGae")
WITH_PRETRAINING = "PpoPtx"
WITH_TEACHER = ("Mopd", "MimoMopd", "OnPolicyDistill", "Glm5CrossStage")


def check(stage: PolicyGradient, path: str, problems: Problems) -> None:
    """Adds what is missing, and what is there and would be ignored."""
    kind, rule = str(stage.objective.get("kind")), str(credit_kind(stage))
    if (rule in WITH_CRITIC) != (stage.critic is not None):
        refuse(problems, f"{path}.critic goes with credit that reads values", f"credit {rule}, critic "
               f"{'there' if stage.critic is not None else 'absent'}", "a critic that nobody reads would be trained for nothing",
               f"set {path}.critic and {path}.objective.credit.kind = Gae or LengthAdaptiveGae, or neither")
    if (kind in WITH_TEACHER) != bool(stage.teachers):
        refuse(problems, f"{path}.teachers goes with an objective that reads a teacher",
               f"{kind}, {len(stage.teachers)} teachers", "a teacher that nobody reads would be ignored",
               f"set {path}.teachers, or another objective")
    if stage.filter != "none" and stage.per_task == 1 and not objective.needs_group(stage.objective):
        refuse(problems, f"{path}.filter must be none where {path}.per_task is 1", stage.filter,
               "a group of one is always uniform: nothing would ever be trained on", f"set {path}.filter = none")
    if (kind == WITH_PRETRAINING) != (stage.pretraining is not None and bool(stage.pretraining.data)):
        refuse(problems, f"{path}.pretraining goes with an objective that has a term for it",
               f"{kind}, {'no data' if stage.pretraining is None else ', '.join(stage.pretraining.data) or 'no stage'}",
               "data without a term, or a term without data, would be ignored",
               f"set {path}.pretraining and {path}.objective.kind = {WITH_PRETRAINING}, or neither")
    critic = stage.critic
    if critic is None:
        return
    if (critic.loss == "clipped") != (critic.clip is not None):
        refuse(problems, f"{path}.critic.clip goes with {path}.critic.loss = clipped", f"loss {critic.loss}, clip {critic.clip}",
               "a width without its loss, or the loss without its width, would be ignored", "set both or neither")
    if critic.warmup >= stage.steps:
        refuse(problems, f"{path}.critic.warmup must be below {path}.steps = {stage.steps}", critic.warmup,
               "the policy would never be trained", f"lower {path}.critic.warmup")


def credit_kind(stage: PolicyGradient) -> object:
    """The kind of the credit rule, inside a correction or beside a bonus too; None where the objective's own is used."""
    own: object = stage.objective
    while isinstance(own, Mapping) and "objective" in own:
        own = own["objective"]
    credit = own.get("credit") if isinstance(own, Mapping) else None
    return credit.get("kind") if isinstance(credit, Mapping) else None
