"""Whether a reward teaches anything here: what a few groups of attempts say before any is trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollbook.records import Scored, Trace, Verdict
from rollbook.rewards.errors import RewardError

SAME = 1e-9                 # as admission has it: rewards closer than this are one reward
LEAST_USEFUL = 0.05         # share of groups with a spread; below it 20 groups are sampled for each that is trained on
MOST_UNSCORED = 0.2
LEAST_AGREEMENT = 0.99
MOST_TRUNCATED = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What was seen.

    `known` counts the groups whose spread is known: those with two scored attempts or more; where a group is one attempt, all
    scored attempts are one group. `solved` and `failed` are groups of which every attempt has a verdict, all right or all wrong.
    `within` and `total` are variances of the reward, `mean` is its mean (None: nothing was scored); `agreement` is the share of
    verdicts that came out the same when judged again (None: nothing was judged twice, or had a verdict); `cost` counts tokens and
    seconds per group with a spread (None: no such group). `doubts` are the reasons against training; none means that there is a
    learning signal.

    Example: Signal(groups=8, known=8, useful=3, solved=1, failed=4, attempts=32, unscored={}, mean=0.4, within=0.08, total=0.2,
        truncated=0.1, agreement=1.0, cost_tokens=410.0, cost_seconds=1.5, doubts=())
    """

    groups: int
    known: int
    useful: int
    solved: int
    failed: int
    attempts: int
    unscored: Mapping[str, int]
    mean: float | None
    within: float | None
    total: float | None
    truncated: float
    agreement: float | None
    cost_tokens: float | None
    cost_seconds: float | None
    doubts: tuple[str, ...]


def signal(traces: Sequence[Trace], verdicts: Sequence[Verdict], *, seconds: float,
           again: Sequence[Verdict] | None = None) -> Signal:
    """The signal in attempts that were judged together; `seconds` is what sampling and judging took, `again` a second
    judgement."""
    if not traces or len(traces) != len(verdicts):
        raise RewardError("a signal is measured on attempts with one verdict each", got=f"{len(traces)} and {len(verdicts)}")
    groups: dict[str, list[Verdict]] = {}
    for trace, verdict in zip(traces, verdicts, strict=True):
        groups.setdefault(trace.group, []).append(verdict)
    rewards = {name: [one.vector.total for one in own if isinstance(one, Scored)] for name, own in groups.items()}
    scored = [reward for own in rewards.values() for reward in own]
    known = [own for own in (rewards.values() if len(traces) > len(groups) else [scored]) if len(own) > 1]
    useful = [own for own in known if max(own) - min(own) > SAME]
    unscored = Counter(one.code for one in verdicts if not isinstance(one, Scored))
    right = [[one.vector.accuracy for one in own if isinstance(one, Scored)] for own in groups.values()]
    whole = [found for found, own in zip(right, groups.values(), strict=True) if len(found) == len(own)]
    tokens = sum(trace.spent for trace in traces)
    agreement = _agreement(verdicts, again)
    truncated = sum(trace.stop_reason == "length" for trace in traces) / len(traces)
    return Signal(
        groups=len(groups), known=len(known), useful=len(useful), attempts=len(traces),
        solved=sum(all(a == 1.0 for a in own) for own in whole), failed=sum(all(a == 0.0 for a in own) for own in whole),
        unscored=dict(sorted(unscored.items())),
        mean=sum(scored) / len(scored) if scored else None, within=_mean([_variance(own) for own in known]),
        total=_variance(scored) if scored else None, truncated=truncated, agreement=agreement,
        cost_tokens=tokens / len(useful) if useful else None, cost_seconds=seconds / len(useful) if useful else None,
        doubts=(*_of_spread(len(scored), known, useful), *_doubts(unscored, len(traces), truncated, agreement),
                *_about_answers(bool(useful), right if len(traces) > len(groups) else [[one for own in right for one in own]])))


def told(found: Signal) -> list[tuple[str, str]]:
    """A signal in words; what was not scored is not known, and called neither zero nor equal."""
    unknown = found.groups - found.known if found.groups < found.attempts else 0
    said = "unknown" if not found.known else "no"
    return [
        ("groups", f"{found.groups}, of which {found.useful} have a spread of rewards, {found.solved} are all right, "
                   f"{found.failed} all wrong" + (f"; of {unknown} the spread is not known" if unknown else "")),
        ("reward", "nothing was scored" if found.mean is None else
         f"mean {found.mean:.3f}, variance {found.total:.4f}, within groups "
         + ("not known" if found.within is None else f"{found.within:.4f}")),
        ("verifier", f"{sum(found.unscored.values())} of {found.attempts} attempts without a verdict"
         + "".join(f", {code} {count}" for code, count in found.unscored.items())
         + ("" if found.agreement is None else f"; judged again, {found.agreement:.1%} the same")),
        ("truncated", f"{found.truncated:.1%} of the attempts"),
        ("cost", f"{found.cost_tokens:.0f} tokens and {found.cost_seconds:.2f} s per group with a spread"
         if found.cost_tokens is not None else "no group with a spread was seen" if found.known else
         "not known: nothing was scored" if found.mean is None else "not known"),
        ("signal", "yes" if not found.doubts else f"{said}: " + "; ".join(found.doubts))]


def _agreement(verdicts: Sequence[Verdict], again: Sequence[Verdict] | None) -> float | None:
    """The share of equal verdicts among the attempts that have one in either judgement."""
    pairs = [] if again is None else [(a, b) for a, b in zip(verdicts, again, strict=True)
                                      if isinstance(a, Scored) or isinstance(b, Scored)]
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else None


def _of_spread(scored: int, known: Sequence[Sequence[float]], useful: Sequence[Sequence[float]]) -> list[str]:
    """What speaks against a signal in the rewards; where they are not known, that they are not."""
    if not scored:
        return ["no attempt has a verdict: whether their rewards differ is not known"]
    if not known:
        return ["no group has two attempts with a verdict: whether their rewards differ is not known"]
    if not useful:
        return [f"{_all(len(known))} one reward: nothing tells its attempts apart"]
    share = len(useful) / len(known)
    return [f"only {share:.1%} of the groups have a spread of rewards"] if share < LEAST_USEFUL else []


def _all(groups: int) -> str:
    return "every group has" if groups > 1 else "the one group with a known spread has"


def _doubts(unscored: Counter[str], attempts: int, truncated: float, agreement: float | None) -> list[str]:
    found = []
    if unscored.total() > MOST_UNSCORED * attempts:
        code, count = unscored.most_common(1)[0]
        found.append(f"{unscored.total()} of {attempts} attempts have no verdict, {count} of them: {code}")
    if agreement is not None and agreement < LEAST_AGREEMENT:
        found.append(f"judged again, only {agreement:.1%} of the verdicts are the same: the environment or judge is at fault, "
                     "not the difficulty")
    if truncated > MOST_TRUNCATED:
        found.append(f"{truncated:.0%} of the attempts are cut by their budget")
    return found


def _about_answers(useful: bool, right: Sequence[Sequence[float | None]]) -> list[str]:
    """Whether the spread is of the answers at all, where the reward says which answers are right."""
    known = [[one for one in own if one is not None] for own in right]
    if not useful or not any(known) or any(own and min(own) < max(own) for own in known):
        return []
    return ["no group has both right and wrong answers: what tells its attempts apart is their form or length alone"]


def _variance(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
