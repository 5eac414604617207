"""Stage 8: reward. A scalar is its recorded parts and nothing else, and the parts are what the text deserves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from rollbook.audit.detector import Detector, Row, StoredStep
from rollbook.audit.index import RunIndex
from rollbook.audit.rejudge import SAME, Rejudge, contradiction
from rollbook.audit.sampling import Sample
from rollbook.ledger.kinds import TraceTable
from rollbook.records import (
    Census,
    Composition,
    EvalReport,
    RewardVector,
    Scored,
    Selection,
    StepReport,
    Verdict,
    VerifierStamp,
)
from rollbook.records.recipe import EnvironmentReward, RewardSettings, Settings
from rollbook.rewards.composed.values import composed_name, misfit
from rollbook.rewards.magistral import COMPOSITION

COMPOSE = "store every part with its verifier, name the ones that did not run, and sum by the recorded composition"
UNSCORED = "leave an attempt without a verdict out of every mean and every batch"
AGAIN = "judge the stored texts again with the recorded verifier and rebuild what rests on these verdicts"


@dataclass(slots=True)
class Spread:
    """The distribution of one number."""

    count: int = 0
    total: float = 0.0
    low: float = float("inf")
    high: float = float("-inf")

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        if value < self.low:
            self.low = value
        if value > self.high:
            self.high = value

    def merge(self, other: Spread) -> None:
        self.count += other.count
        self.total += other.total
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)

    @property
    def mean(self) -> float:
        return self.total / self.count


@dataclass(slots=True)
class Tally:
    """The verdicts of one task within a table."""

    scored: int = 0
    unscored: int = 0
    passed: int = 0
    accuracy: float = 0.0


@dataclass(slots=True)
class Judged:
    """The verdicts of the table read last."""

    name: str = ""
    census: str = ""
    spreads: defaultdict[str, Spread] = field(default_factory=lambda: defaultdict(Spread))
    passed_gate: int = 0
    tasks: defaultdict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    judges: set[str] = field(default_factory=set)


class RewardDetector(Detector):
    """Recomputes every scalar from its vector, judges texts again, and follows the verdicts into whatever rests on them."""

    stage, name = 8, "reward"
    absent = "nothing was judged"

    def __init__(self) -> None:
        super().__init__()
        self.stamps: dict[tuple[str, str], VerifierStamp] = {}      # part and composition -> who judges it
        self.spreads: defaultdict[str, Spread] = defaultdict(Spread)
        self.reasons: Counter[str] = Counter()
        self.scored = self.missing = self.left_open = self.steps = 0
        self.codes: Counter[str] = Counter()
        self.table = Judged()
        self.sample = Sample(whole=4096, every=8)
        self.judge: Rejudge | str | None = None
        self.others: Counter[str] = Counter()

    def record(self, run: RunIndex, identity: str, record: object) -> None:
        match record:
            case TraceTable():
                self._gather()
                self.table = Judged(name=record.name)
            case Census() if record.scope == self.table.name:
                self.table.census = identity
            case EvalReport() if f"eval/{record.stage}" == self.table.name:
                self._evaluated(run, identity, record)
            case StepReport() if record.census == self.table.census:
                self._followed(identity, record)
            case Selection() if record.stage == self.table.name:
                self._selected(identity, record)
            case _:
                pass

    def row(self, run: RunIndex, row: Row) -> None:
        verdict = row.verdict
        if verdict is None:
            self.missing += 1
            if row.outcome.code == "accepted":
                self.fail(row.id, "it was accepted without a verdict", "judge an attempt before it is admitted")
            return
        self.checked()
        tally = self.table.tasks[row.trace.task]
        if isinstance(verdict, Scored):
            self._scored(run, row, verdict.vector, tally)
        else:
            tally.unscored += 1
            self.codes[verdict.code] += 1
            self._stamped(row.id, ("verifier that gave up", ""), verdict.verifier)
            if row.outcome.code == "accepted":
                self.fail(row.id, f"it was accepted although it has no verdict ({verdict.code})", UNSCORED)
        if self.sample.takes(row.id):
            self._again(run, row, verdict)

    def step(self, run: RunIndex, step: StoredStep) -> None:
        """No trajectory trains without a verdict, and each with its own."""
        credit = step.credit
        rewards = dict(zip(credit.traces, credit.reward, strict=True)) if credit is not None else {}
        correct = step.given.get("correct")
        for place, identity in enumerate(step.batch.traces):
            held = run.recent.get(identity)
            verdict = None if held is None else held[1]
            problem = mistrained(verdict, rewards.get(identity), None if correct is None else int(correct[place]))
            if held is not None and problem:
                self.fail(step.batch_id, f"{identity}: {problem}", UNSCORED)
                return

    def finish(self, run: RunIndex) -> None:
        self._gather()
        if self.scored:
            parts = [f"{name} mean {one.mean:.4g} ({one.low:.4g} to {one.high:.4g}, absent in "
                     f"{100 * (1 - one.count / self.scored):.0f}%)" for name, one in self.spreads.items()]
            self.note(f"{self.scored} scored: " + ", ".join(parts))
            never = {name for composition in run.compositions.values() for name in composition.parts} - set(self.spreads)
            if never:
                self.note(f"never computed: {', '.join(sorted(never))}")
        if self.reasons:
            self.note("absent because: " + ", ".join(f"{reason} ({count})" for reason, count in self.reasons.most_common(4)))
        if self.steps:
            self.note(f"the means of {self.steps} step reports computed again")
        if self.codes:
            self.note("unscored: " + ", ".join(f"{code} {count}" for code, count in sorted(self.codes.items())))
        if self.missing:
            self.note(f"{self.missing} trajectories without a verdict")
        if self.stamps:
            told = {f"{part} {one.name}/{one.version} {one.digest[:12]}" for (part, _), one in self.stamps.items()}
            self.note("verifiers: " + ", ".join(sorted(told)))
        if isinstance(self.judge, str):
            self.note(f"nothing was judged again: {self.judge}")
        elif self.judge is not None:
            apart = f", {self.left_open} of them left to symbols" if self.left_open else ""
            self.note(f"{self.sample.share} judged again" + apart)
        if self.others:
            name, count = self.others.most_common(1)[0]
            self.note(f"{sum(self.others.values())} could not be judged again: {count} were judged by {name[:12]}, this code "
                      "under the recipe's numbers is another judge")

    def _scored(self, run: RunIndex, row: Row, vector: RewardVector, tally: Tally) -> None:
        self.scored += 1
        tally.scored += 1
        tally.accuracy += vector.accuracy or 0.0
        tally.passed += vector.accuracy == 1.0
        self.table.judges.add(vector.composition_digest)
        spreads = self.table.spreads
        spreads["total"].add(vector.total)
        for part in vector.components:
            self._stamped(row.id, (part.name, vector.composition_digest), part.verifier)
            spreads[part.name].add(part.value)
        for missing in vector.absent:
            self.reasons[missing.reason] += 1
        composition = run.compositions.get(vector.composition_digest)
        if composition is None or composition.name != vector.composition:
            self.fail(row.id, f"its scalar was made by {vector.composition} {vector.composition_digest[:12]}, which is not on "
                      "record", "record the composition before the first verdict")
            return
        if "format" in composition.parts:
            self.table.passed_gate += (vector.value("format") or 0.0) > 0.0
        problem = miscomposed(vector, composition) or ("" if run.recipe is None else impossible(vector, run.recipe.settings))
        if problem:
            self.fail(row.id, problem, COMPOSE)

    def _gather(self) -> None:
        """The table read last enters the distributions of the whole run."""
        for name, one in self.table.spreads.items():
            self.spreads[name].merge(one)

    def _stamped(self, identity: str, key: tuple[str, str], stamp: VerifierStamp) -> None:
        """A part of a composition is judged by one named verifier from the first verdict to the last."""
        first, part = self.stamps.get(key), key[0]
        if first is stamp:
            return
        if first is not None and stamp != first:
            self.fail(identity, f"{part} was judged by {stamp.name}/{stamp.version} {stamp.digest[:12]}, before by {first.name}/"
                      f"{first.version} {first.digest[:12]}", "judge a whole run with one verifier")
        elif first is not None:
            return
        self.stamps.setdefault(key, stamp)
        if not (stamp.name and stamp.version and stamp.digest):
            self.fail(identity, f"{part} was judged by a verifier without name, version or digest", "stamp every verifier")

    def _again(self, run: RunIndex, row: Row, verdict: Verdict) -> None:
        if self.judge is None:
            self.judge = "the run has no recipe" if run.recipe is None else Rejudge.of(run.recipe.settings.reward)
        if isinstance(self.judge, str):
            return
        scored = isinstance(verdict, Scored)
        used = verdict.vector.composition_digest if isinstance(verdict, Scored) else verdict.verifier.digest
        if used != self.judge.digest and (scored or used != self.judge.stamps.correctness.digest):
            self.others[used] += 1
            return
        found = self.judge.vector(row.trace, run.tasks.get(row.trace.task))
        if found is None:
            self.left_open += 1
            return
        problem = contradiction(verdict, found)
        if problem:
            self.fail(row.id, f"{row.trace.attempt}: {problem}", AGAIN)

    def _evaluated(self, run: RunIndex, identity: str, report: EvalReport) -> None:
        """A report leaves out what has no verdict and rests on the judge that its protocol names."""
        unscored = sum(tally.unscored for tally in self.table.tasks.values())
        if report.unscored != unscored:
            self.fail(identity, f"{report.stage} reports {report.unscored} unscored attempts, {unscored} lack verdicts", UNSCORED)
        for task, tally in self.table.tasks.items():
            wanted = tally.accuracy / tally.scored if tally.scored else None
            stated = report.outcomes.get(task)
            if (wanted is None) != (stated is None) or (wanted is not None and abs(wanted - (stated or 0.0)) > SAME):
                self.fail(identity, f"{report.stage} counts {task[:17]} as {stated}, its verdicts give {wanted}", UNSCORED)
                break
        bundle = run.protocols.get(report.protocol)
        if bundle is not None and self.table.judges - {bundle.verifier}:
            self.fail(identity, f"the protocol of {report.stage} names the judge {bundle.verifier[:12]}, its verdicts are from "
                      f"{min(self.table.judges)[:12]}", "evaluate with the judge that the protocol names")

    def _followed(self, identity: str, report: StepReport) -> None:
        """The means that people follow are means over scored attempts."""
        self.steps += 1
        spreads = self.table.spreads
        count = spreads["total"].count if "total" in spreads else 0
        wanted = {f"reward/{name}_mean": one.mean for name, one in spreads.items()}
        if count:
            wanted["reward/format_rate"] = self.table.passed_gate / count
            wanted["reward/accuracy"] = sum(tally.accuracy for tally in self.table.tasks.values()) / count
        for name, value in report.metrics.items():
            if name.startswith("reward/") and not abs(value - wanted.get(name, float("nan"))) <= 1e-9:
                found = f"{wanted[name]:.6g}" if name in wanted else "nothing"
                self.fail(identity, f"{name} of step {report.step} is {value:.6g}, its {count} scored attempts give {found}",
                          UNSCORED)

    def _selected(self, identity: str, selection: Selection) -> None:
        """A pass count exists for tasks with a verdict for every sample, and is what the verdicts say."""
        for task, tally in self.table.tasks.items():
            stated = selection.pass_counts.get(task)
            if stated != (None if tally.unscored else tally.passed) or (task in selection.kept and tally.unscored):
                self.fail(identity, f"{selection.stage} counts {stated} passes of {task[:17]}, its verdicts are {tally.passed} "
                          f"passes with {tally.unscored} unscored", UNSCORED)
                return


def miscomposed(vector: RewardVector, composition: Composition) -> str:
    """How a vector breaks its composition; empty when it does not."""
    values = {part.name: part.value for part in vector.components}
    absent = {part.name for part in vector.absent}
    if len(values) != len(vector.components) or values.keys() & absent:
        return "a part of the reward stands in the vector twice"
    strangers = (values.keys() | absent) - composition.parts.keys()
    if strangers:
        return f"{min(strangers)} is no part of the composition {composition.name}"
    lost = composition.parts.keys() - values.keys() - absent
    if lost:
        return f"{min(lost)} is neither computed nor named as absent"
    if any(not part.reason.strip() for part in vector.absent):
        return "a part is absent for no reason"
    if any(not 0.0 <= part.confidence <= 1.0 for part in vector.components):
        return "a confidence lies outside 0 to 1"
    wanted = scalar(values, composition.gate, composition.parts)
    if abs(wanted - vector.total) > SAME:
        shown = ", ".join(f"{name} {value:g}" for name, value in values.items())
        return f"the scalar is {vector.total!r}, its parts ({shown}) compose to {wanted!r}"
    return ""


def scalar(values: Mapping[str, float], gate: str | None, weights: Mapping[str, float]) -> float:
    """0 where the gate is not above zero, else the weighted sum of the parts that ran."""
    if gate is not None and not values.get(gate, 0.0) > 0.0:
        return 0.0
    total = 0.0
    for name, value in values.items():
        total += weights[name] * value
    return total


def impossible(vector: RewardVector, settings: Settings) -> str:
    """A part that the numbers of no reward of this name in the recipe can give, or an accuracy that contradicts the part it rests
    on; empty when there is none."""
    found = ""
    for reward in (settings.reward, *settings.rewards.values()):
        if isinstance(reward, RewardSettings) and vector.composition == COMPOSITION:
            found = misvalued(vector, reward)
        elif isinstance(reward, EnvironmentReward):
            found = misgraded(vector, reward)
        elif not isinstance(reward, RewardSettings) and vector.composition == composed_name(reward):
            found = misfit(vector, reward)
        else:
            continue
        if not found:
            return ""
    return found


def misgraded(vector: RewardVector, settings: EnvironmentReward) -> str:
    """The same for an environment's verifier."""
    paid, accuracy, value = vector.value("correctness"), vector.accuracy, vector.value("format")
    if paid is not None and abs(paid - settings.correct_reward * (accuracy or 0.0)) > SAME:
        return f"correctness is {paid:g} for an accuracy of {accuracy}, the recipe gives {settings.correct_reward:g} for 1"
    return "" if value in (None, 0.0, settings.format_reward) else f"format is {value:g}, the recipe gives 0 or its own"


def misvalued(vector: RewardVector, settings: RewardSettings) -> str:
    """The same for Magistral's numbers."""
    format_value, correctness, length = (vector.value(name) for name in ("format", "correctness", "length"))
    for name, value, full in (("format", format_value, settings.format_reward),
                              ("correctness", correctness, settings.correct_reward)):
        if value not in (None, 0.0, full):
            return f"{name} is {value:g}, the recipe gives 0 or {full:g}"
    if length is not None and not -settings.length_penalty <= length <= 0.0:
        return f"length is {length:g}, the recipe gives -{settings.length_penalty:g} to 0"
    if correctness is None:
        return f"accuracy is {vector.accuracy:g} where correctness did not run" if vector.accuracy else ""
    if settings.correct_reward > 0.0 and vector.accuracy != float(correctness > 0.0):
        return f"accuracy is {vector.accuracy}, correctness {correctness:g}"
    return ""


def mistrained(verdict: Verdict | None, reward: float | None, correct: int | None) -> str:
    """How a trained trajectory contradicts its verdict; empty when it does not."""
    if not isinstance(verdict, Scored):
        return "it trains without a verdict" + ("" if verdict is None else f" ({verdict.code}), as a reward of {reward}")
    vector = verdict.vector
    if reward is not None and abs(reward - vector.total) > SAME:
        return f"its credit is computed from a reward of {reward:g}, its verdict is {vector.total:g}"
    known = -1 if vector.accuracy is None else int(vector.accuracy == 1.0)
    if correct is not None and correct != known:
        return f"the batch holds it for {'correct' if correct == 1 else 'wrong' if correct == 0 else 'unknown'}, its verdict not"
    if vector.hidden_test_access:
        return "it had access to hidden tests and trains on their verdict"
    return ""
