"""From the trajectories of an evaluation to its result: each task's value, the interval, families, what is unscored, the cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollbook.evaluation.attempts import Attempt, Rule, average, best_of_n, majority_at_k, pass_at_k, per_task
from rollbook.evaluation.intervals import ENOUGH, cluster_bootstrap
from rollbook.evaluation.protocols import ProtocolRefused
from rollbook.evaluation.statistics import BOOTSTRAP_SEED, wilson
from rollbook.records import (
    Aggregation,
    EvaluationProtocol,
    EvaluationResult,
    Interval,
    RecordError,
    Scored,
    Spend,
    Task,
    Trace,
    Verdict,
)
from rollbook.rewards.magistral import format_gate


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Whose answers they are: what was asked for, and the hash of the weights (None where they were not seen).

    Example: Origin(policy="magistral-small:rl", weights="cd..")
    """

    policy: str
    weights: str | None


class Tally:
    """What the attempts of an evaluation amount to, taken in one by one."""

    def __init__(self, protocol: EvaluationProtocol, tasks: Sequence[Task]):
        self.protocol = protocol
        self.family_of: dict[str, str] = {task.id: task.family for task in tasks}
        self.attempts: dict[str, list[Attempt]] = {task: [] for task in self.family_of}
        self.tokens = self.read = 0

    def add(self, trace: Trace, verdict: Verdict | None) -> None:
        """One attempt at one of the tasks."""
        self.attempts[trace.task].append(attempt(trace, verdict, self.protocol.aggregation.selector))
        self.tokens, self.read = self.tokens + trace.sampled_count, self.read + trace.read_count

    def result(self, origin: Origin) -> EvaluationResult:
        """The result; refuses where nothing was scored. Whether the attempts are all that the protocol asks for is not said."""
        outcomes = per_task(self.attempts, rule(self.protocol.aggregation))
        known = {task: value for task, value in outcomes.items() if value is not None}
        held = [one for attempts in self.attempts.values() for one in attempts]
        return EvaluationResult(
            protocol=self.protocol.id, policy=origin.policy, weights=origin.weights, value=interval(known, self.family_of),
            unscored_tasks=len(outcomes) - len(known), unscored_attempts=sum(one.accuracy is None for one in held),
            outcomes=outcomes, by_family=by_family(known, self.family_of),
            spend=Spend(tokens=self.tokens, prompt_tokens=self.read, attempts=len(held), environment_attempts=len(held)))


def attempt(trace: Trace, verdict: Verdict | None, selector: str | None) -> Attempt:
    """A trajectory as the aggregations take it. Selectors: `logp` (mean log-prob of the answer) or a component of the reward."""
    scored = isinstance(verdict, Scored)
    answer = format_gate(trace.text).answer
    value = None if selector is None else _selected(trace, verdict, selector)
    return Attempt(accuracy=verdict.vector.accuracy if scored and isinstance(verdict, Scored) else None,
                   answer=None if answer is None else " ".join(answer.split()), selector=value)


def _selected(trace: Trace, verdict: Verdict | None, selector: str) -> float | None:
    if selector == "logp":
        known = [logp for segment in trace.policy_segments for logp in (segment.logps or ())]
        return math.fsum(known) / len(known) if known else None
    if selector == "correctness":
        raise ProtocolRefused("the verdict cannot be the selector", got=selector,
                              why="what is right would choose what is right: that is pass@k", fix="use pass@k, or selector logp")
    return verdict.vector.value(selector) if isinstance(verdict, Scored) else None


def rule(aggregation: Aggregation) -> Rule:
    """The function from a task's attempts to its value."""
    k = aggregation.k
    rules: dict[str, Rule] = {"mean": average, "pass": lambda held: pass_at_k(held, k), "best": lambda held: best_of_n(held, k),
                              "majority": lambda held: majority_at_k(held, k)}
    return rules[aggregation.rule]


def interval(known: Mapping[str, float], family_of: Mapping[str, str]) -> Interval:
    """Wilson's where every task is right or wrong and stands for itself, else the clustered bootstrap."""
    if not known:
        raise RecordError("nothing could be scored", got="every attempt is unscored", why="no data is not 0.0",
                          fix="see why: `rollbook query OUT \"select failure_code, count(*) from traces group by 1\"`")
    many = len({family_of[task] for task in known}) >= ENOUGH
    if not many and (len(known) < 2 or set(known.values()) <= {0.0, 1.0}):
        return wilson(math.fsum(known.values()), len(known))
    clusters: dict[str, list[float]] = {}
    for task, value in known.items():
        clusters.setdefault(family_of[task] if many else task, []).append(value)
    return cluster_bootstrap(clusters, seed=BOOTSTRAP_SEED)


def by_family(known: Mapping[str, float], family_of: Mapping[str, str]) -> dict[str, float]:
    """Mean value of each task family."""
    held: dict[str, list[float]] = {}
    for task, value in known.items():
        held.setdefault(family_of[task], []).append(value)
    return {family: math.fsum(values) / len(values) for family, values in sorted(held.items())}
