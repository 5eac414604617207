"""The guard beside an environment's check: whether it leaves the environment's own solutions alone, and how good it is."""

from __future__ import annotations

from collections.abc import Sequence

from rollbook.environments.guard.corpus import TRANSCRIPTS, Quality, measured, read_transcripts
from rollbook.environments.guard.events import Setting
from rollbook.environments.guard.guarded import Guarded, shown_examples
from rollbook.environments.guard.rules import RULES, Rule
from rollbook.environments.guard.watching import Finding, Guard, chosen_rules
from rollbook.records import EnvironmentDefinition, Task


def rules_of(definition: EnvironmentDefinition) -> Sequence[Rule]:
    """The rules that a definition is watched by; all with their own measures where it is not."""
    return chosen_rules(definition.measures) if isinstance(definition, Guarded) else RULES


def false_alarms(definition: EnvironmentDefinition, tasks: Sequence[Task]) -> list[tuple[Task, Finding]]:
    """What the rules find in gold solutions: each is a rule that this environment would have to turn off."""
    found = []
    for task in tasks:
        text = "\n".join(message.content for message in task.prompt if message.role == "user")
        for actions in definition.solutions(task).gold:
            guard = Guard(Setting(where=task.family, task=text, examples=shown_examples(text)), rules_of(definition))
            found += [(task, finding) for action in actions for finding in guard.look_at_action(action)]
    return found


def blind_quality(definition: EnvironmentDefinition) -> Quality:
    """Precision and recall of these rules on the transcripts that were written before them."""
    return measured(read_transcripts(TRANSCRIPTS / "blind.yaml"), rules_of(definition))
