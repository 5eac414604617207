"""The guard over one episode: each deed through all rules, findings with their rule's measure, counts by rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollbook.environments.guard.events import Deed, Setting, deed_of, deeds
from rollbook.environments.guard.rules import RULES, VERSION, Measure, Rule, Severity
from rollbook.records import Action, EnvironmentFault, ToolCall

LONGEST = 20_000                         # characters of a deed that are looked at
ORDER: tuple[Measure, ...] = ("flag", "block", "zero", "reject")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a rule found in a deed; `number` counts the deeds of the episode from 0.

    Example: Finding(rule="upstream", severity="high", measure="zero", matched="github.com", number=3)
    """

    rule: str
    severity: Severity
    measure: Measure
    matched: str
    number: int


def chosen_rules(measures: Mapping[str, str]) -> tuple[Rule, ...]:
    """All rules with these measures instead of their own; `off` takes one away. An unknown rule or measure is refused."""
    known = {rule.id for rule in RULES}
    for name, measure in measures.items():
        if name not in known or measure not in (*ORDER, "off"):
            raise EnvironmentFault("the guard has no such rule or measure", code="build", got=f"{name}: {measure}",
                                   fix=f"measures: {', '.join(ORDER)}, off; rules: {', '.join(sorted(known))}")
    return tuple(Rule(id=rule.id, title=rule.title, severity=rule.severity, find=rule.find,
                      measure=measures.get(rule.id, rule.measure))           # type: ignore[arg-type]
                 for rule in RULES if measures.get(rule.id) != "off")


@dataclass(slots=True)
class Guard:
    """Looks at what a policy does in one episode. The same deeds give the same findings."""

    setting: Setting
    rules: Sequence[Rule] = RULES
    done: list[Deed] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def look(self, deed: Deed) -> tuple[Finding, ...]:
        """What the rules find in this deed, after those before it."""
        cut = Deed(kind=deed.kind, text=deed.text[:LONGEST], path=deed.path[:LONGEST], old=deed.old[:LONGEST])
        found = tuple(Finding(rule=rule.id, severity=rule.severity, measure=rule.measure, matched=matched, number=len(self.done))
                      for rule in self.rules if (matched := rule.find(cut, self.setting, self.done)) is not None)
        self.done.append(cut)
        self.findings += found
        return found

    def look_at_call(self, call: ToolCall) -> tuple[Finding, ...]:
        return self.look(deed_of(call))

    def look_at_action(self, action: Action) -> tuple[Finding, ...]:
        return tuple(finding for deed in deeds(action) for finding in self.look(deed))

    @property
    def verdict(self) -> Measure | None:
        """The strictest measure of all findings; None where nothing was found."""
        return max((finding.measure for finding in self.findings), key=ORDER.index, default=None)

    def report(self) -> dict[str, Any]:
        """Findings and counts as JSON values, with the version of the rules."""
        return {"version": VERSION, "verdict": self.verdict, "counts": dict(sorted(Counter(f.rule
                                                                                           for f in self.findings).items())),
                "findings": [{"rule": f.rule, "severity": f.severity, "measure": f.measure, "matched": f.matched,
                              "deed": f.number}
                             for f in self.findings]}
