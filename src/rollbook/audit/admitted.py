"""The groups of a policy step as its trajectories make them, and whether their codes are true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rollbook.audit.advantages import AXES
from rollbook.audit.estimator import inner, whole
from rollbook.audit.followed import Solved
from rollbook.audit.step_advantages import STEPS
from rollbook.records import Scored, Verdict
from rollbook.records.recipe import PolicyGradient

SAME = 1e-9             # rewards closer than this are one reward
LEAST = 2               # a baseline needs two scored attempts
OF_GROUP = ("accepted", "uniform", "group_incomplete")


@dataclass(slots=True)
class Group:
    """What a group's members have in common: task, the codes given, scored attempts and the range of their rewards."""

    task: str
    trace: str
    codes: set[str] = field(default_factory=set)
    scored: int = 0
    low: float = 0.0
    high: float = 0.0
    accuracies: set[float | None] = field(default_factory=set)

    def add(self, code: str, verdict: Verdict | None) -> None:
        if isinstance(verdict, Scored):
            total = verdict.vector.total
            self.low, self.high = (min(self.low, total), max(self.high, total)) if self.scored else (total, total)
            self.scored += 1
            self.accuracies.add(verdict.vector.accuracy)
            self.codes.add(code)

    def untrue(self, stage: PolicyGradient | None = None) -> str | None:
        """What is not true of the codes under the stage's rule, None if all is."""
        filtered = stage.filter if stage is not None else "reward"
        least = LEAST if stage is None or of_group(stage) else 1
        alike = filtered == "accuracy" and len(self.accuracies) == 1 and None not in self.accuracies
        same = self.high - self.low <= SAME or alike
        kinds = sorted(self.codes)
        if len(kinds) > 1 and set(kinds) & set(OF_GROUP):
            return f"the scored attempts of one group are {' and '.join(kinds)}"
        code, span = (kinds or [""])[0], f"{self.scored} rewards between {self.low:g} and {self.high:g}"
        if code == "uniform" and (filtered == "none" or not same):
            return f"the group is called uniform and has {span}"
        if code == "accepted" and filtered != "none" and same:
            what = "rewards are all" if self.high - self.low <= SAME else "accuracies are all equal, its rewards from"
            return f"the group was accepted although its {self.scored} {what} {self.low:g}"
        if code == "accepted" and self.scored < least:
            return f"the group was accepted with {self.scored} scored attempts"
        if code == "group_incomplete" and self.scored >= least:
            return f"the group is called incomplete and has {span}"
        return None


@dataclass(slots=True)
class Scope:
    """The trajectories of one policy step that is still open: code, family, length and latency by trace id; the groups."""

    rows: dict[str, tuple[str, str, int, int | None]] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)
    tokens: Counter[int] = field(default_factory=Counter)           # hash of a trajectory's tokens -> how often it was drawn
    claims: list[tuple[str, str, int]] = field(default_factory=list)    # trace, duplicate or surplus, hash of its tokens
    solved: Solved = field(default_factory=Solved)

    @property
    def admitted(self) -> int:
        """Accepted groups."""
        return sum("accepted" in group.codes for group in self.groups.values())

    def accepted(self) -> Counter[int]:
        """Accepted groups per wave."""
        names = (name.split("/") for name, group in self.groups.items() if "accepted" in group.codes)
        return Counter(int(parts[2]) for parts in names if len(parts) > 3 and parts[2].isdigit())

    def untrue(self, least: int) -> Iterator[tuple[str, str]]:
        """Attempts called a duplicate or surplus that are none, `least` being the groups a step waits for."""
        held = self.accepted().total()
        for trace, code, tokens in self.claims:
            if code == "duplicate" and self.tokens[tokens] < 2:
                yield trace, "it is called a duplicate, and no other attempt of its step has its tokens"
            elif code == "surplus" and held < least:
                yield trace, f"it is called surplus, and its step accepted {held} groups of the {least} that it waits for"


def of_group(stage: PolicyGradient) -> bool:
    """Whether the stage's baseline is made of the other attempts at the same task."""
    credit = inner(whole(stage.objective)).get("credit")
    rule = credit if isinstance(credit, Mapping) else {}
    return rule.get("kind") in (*AXES, STEPS) or rule.get("baseline") == "group_mean"
