"""Stage 9: admission. Every attempt ends once, under a true code; what was accepted is what was trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rollbook.audit.admitted import OF_GROUP, Group, Scope
from rollbook.audit.attempts import Distribution, Issued, Place, compared, latency_class, parse
from rollbook.audit.curation import Curations
from rollbook.audit.curricula import Curricula
from rollbook.audit.detector import Detector, Row
from rollbook.audit.followed import CLOSE, misreported
from rollbook.audit.index import RunIndex
from rollbook.audit.schedule import Schedule
from rollbook.ledger.kinds import TraceTable
from rollbook.ledger.sameness import elsewhere
from rollbook.records import (
    Batch,
    Census,
    Curation,
    CurriculumReport,
    Demonstration,
    Dispatch,
    Outcome,
    Ranking,
    Revised,
    Selection,
    StageEnd,
    StepReport,
    Unscored,
)
from rollbook.records.recipe import PolicyGradient

BY_CHANCE = ("timed_out", "failed", "cancelled")
UNDUE = ("invalid", "resampled")        # codes that say nothing of a trajectory with a verdict
STOPPED = {"truncated": ("length", "context_full"), "failed": ("failed",), "cancelled": ("cancelled",),
           "timed_out": ("cancelled",)}


class AdmissionDetector(Detector):
    """Matches attempts with outcomes, counts each census again, and compares the accepted with the trained."""

    stage, name = 9, "admission"
    absent = "no attempt was issued"

    def __init__(self) -> None:
        super().__init__()
        self.open: dict[str, Issued] = {}
        self.steps: dict[str, Scope] = {}
        self.closed: set[str] = set()
        self.censuses: set[str] = set()
        self.last_census = 0
        self.unproven: Counter[str] = Counter()
        self.issued, self.trained = Distribution(), Distribution()
        self.schedule = Schedule()
        self.curations = Curations()
        self.curricula = Curricula()
        self.made: dict[tuple[str, str], str] = {}      # kind and name -> what stands of it
        self.clocked: set[str] = set()                  # tables with attempts that the clock or a crash ended

    def record(self, run: RunIndex, identity: str, record: object) -> None:
        match record:
            case TraceTable():
                self.made["TraceTable", record.name] = identity
            case Dispatch():
                self.made["Dispatch", record.scope] = identity
                self._dispatched(run, identity, record)
                self._foretold(self.schedule.dispatched(run, identity, record))
                self.curricula.dispatched(run, identity, record)
            case Selection():
                self._foretold(self.schedule.selected(run, identity, record))
            case Curation() | Ranking() | Demonstration() | Revised():
                self._foretold((identity, *fault) for fault in self.curations.record(run, record))
            case Outcome():
                self._ended(run, identity, record)
            case Census():
                self._census(run, identity, record)
            case Batch():
                self._trained(identity, record)
            case CurriculumReport():
                self._foretold(self.curricula.reported(identity, record))
            case StepReport():
                self._foretold(self.curricula.stepped(run, record))
                scope = f"{record.stage}/{record.step:06d}"
                if scope not in self.censuses:
                    self.fail(identity, f"no census was closed over {scope}", "close a census over every step")
                if (held := self.steps.get(scope)) is not None:
                    for evidence in misreported(record, held.solved.due(held.admitted), ("rollout/", "admission/"), CLOSE):
                        self.fail(identity, evidence, "report what the attempts of the step were")
                self._close(scope, identity)
            case StageEnd():
                over = (*self.curations.over(run, record), *self.schedule.over(run, record))
                self._foretold((identity, *fault) for fault in over)
                for scope in [scope for scope in self.steps if scope.startswith(f"{record.stage}/")]:
                    self._close(scope, identity)
            case _:
                pass

    def row(self, run: RunIndex, row: Row) -> None:
        trace, outcome = row.trace, row.outcome
        self.curations.row(run, row)
        self.curricula.row(run, row)
        at = self._ended(run, row.id, outcome)
        if outcome.attempt != trace.attempt or (at is not None and at.task != trace.task):
            self.fail(row.id, f"attempt {outcome.attempt} was issued for another task than {trace.task}",
                      "give every trajectory the attempt and task that it was issued for")
        self._code(row)
        if run.table is not None and (outcome.code in BY_CHANCE or isinstance(row.verdict, Unscored)):
            self.clocked.add(run.table)
        stage = policy_stage(run, run.table or "")
        if run.table is None or stage is None:
            return
        scope = self.steps.setdefault(run.table, Scope())
        length, latency = trace.spent, latency_class(trace.observed)
        self.issued.add(outcome.family, length, latency)
        scope.rows[row.id] = (outcome.code, outcome.family, length, latency)
        scope.solved.attempts += 1
        scope.solved.tokens += length
        scope.solved.cut += trace.stop_reason == "length"
        group = scope.groups.get(trace.group)
        if group is None:
            group = scope.groups[trace.group] = Group(trace.task, row.id)
        group.add(outcome.code, row.verdict)
        self._claimed(run, row, stage, scope)
        if group.task != trace.task:
            self.fail(row.id, f"group {trace.group} holds attempts at {trace.task} and at {group.task}",
                      "group attempts at one task only: they share a baseline")

    def finish(self, run: RunIndex) -> None:
        flying = 0
        for one in self.open.values():
            if not one.missing:
                if run.complete:
                    self.fail(one.identity, f"no census counts the {len(one.ended)} attempts of {one.dispatch.scope}",
                              "close a census over every scope that issues attempts")
            elif run.complete or one.seq < self.last_census:
                self.fail(one.identity, f"{one.missing} of {len(one.ended)} attempts of {one.dispatch.scope} have no outcome",
                          "record an outcome for every attempt, also for one that crashed or was dropped")
            else:
                flying += one.missing
        self._again(run)
        if run.complete:
            for scope in list(self.steps):
                self._close(scope, f"{scope}")
        if flying:
            self.note(f"{flying} attempts are in flight")
        if distribution := compared(self.issued, self.trained):
            self.note(distribution)
        if self.unproven:
            counts = ", ".join(f"{code} {count}" for code, count in sorted(self.unproven.items()))
            self.note(f"codes that no record proves: {counts}")

    def _again(self, run: RunIndex) -> None:
        """What was taken back and made again came out the same: nobody tried until the outcome pleased."""
        if run.recipe is None or any(isinstance(stage, PolicyGradient) and stage.asynchrony is not None
                                     for stage in run.recipe.settings.stages.values()):
            return                      # a recorded host, and who samples while it trains, owes nobody the same samples
        if run.recipe.settings.environment is not None and run.recipe.settings.environment.agent is not None:
            self.note("what was taken back is not compared: an outside agent's calls come when it makes them")
            return
        moved = {seq for event in run.ledger.events("Rollback") if elsewhere(event.observed, run.ledger.manifest)
                 for seq in range(int(event.body["first"]), int(event.body["last"]) + 1)}
        same = apart = 0
        for event in run.ledger.void_events():
            name = str(event.body.get("name" if event.kind == "TraceTable" else "scope"))
            stands = self.made.get((event.kind, name))
            if stands is None and run.complete and event.kind in ("TraceTable", "Dispatch"):
                self.fail(event.id, f"{name} was taken back and never made again ({event.position})",
                          "take back only what is made again")
            if stands is None or name in self.clocked:
                continue
            if stands == event.id:
                same += 1
            elif event.seq in moved:
                apart += 1
            else:
                self.fail(stands, f"{name} was taken back and made again, and came out otherwise: it was {event.id[:24]} "
                          f"({event.position})", "let resuming make the same attempts again; sample once, and keep what came")
        if same:
            self.note(f"{same} dispatches and tables were made a second time and came out the same")
        if apart:
            self.note(f"{apart} came out otherwise when they were made again on another machine")

    def _foretold(self, faults: Iterable[tuple[str, str, str]]) -> None:
        for where, evidence, remedy in faults:
            self.fail(where, evidence, remedy)

    def _dispatched(self, run: RunIndex, identity: str, record: Dispatch) -> None:
        known = [run.tasks.get(task) or run.host_tasks.get(task) for task in record.tasks]
        lost = [task for task, found in zip(record.tasks, known, strict=True) if found is None]
        if lost:
            self.fail(identity, f"{len(lost)} attempts were issued for tasks that are not on record, first {lost[0]}",
                      "record every task before it is tried")
        if record.scope in self.open or (record.scope in self.closed and policy_stage(run, record.scope)):
            self.fail(identity, f"the attempts of {record.scope} were issued a second time under the same names",
                      "name every attempt once; undo an unfinished scope with a rollback before repeating it")
        stage = policy_stage(run, record.scope)
        if stage is not None and stage.asynchrony is None:
            self.steps.setdefault(record.scope.rpartition("/")[0], Scope()).solved.issued += len(record.tasks)
        self.open[record.scope] = Issued(identity, record, tuple("?" if task is None else task.family for task in known), run.seq)

    def _ended(self, run: RunIndex, where: str, outcome: Outcome) -> Place | None:
        """Takes an attempt off those that are open."""
        self.checked()
        at = parse(outcome.attempt)
        one = None if at is None else self.open.get(at.scope)
        if at is None or one is None:
            self.fail(where, f"{outcome.attempt} has an outcome and was never issued, or ended before",
                      "record a Dispatch before the first token and one outcome per attempt")
            return at
        wrong = one.end(at)
        if wrong is not None:
            self.fail(where, f"{outcome.attempt} {wrong}", "record one outcome for every attempt that a Dispatch issues")
            return at
        if one.families[at.place] != outcome.family:
            self.fail(where, f"{outcome.attempt} is counted in family {outcome.family}, its task is of {one.families[at.place]}",
                      "count every attempt in the family of its task")
        one.table = run.table or one.table
        one.codes[outcome.family, outcome.code] += 1
        return at

    def _code(self, row: Row) -> None:
        """Whether the trajectory and its verdict bear out the code."""
        code, verdict, reason = row.outcome.code, row.verdict, row.trace.stop_reason
        unscored = verdict is None or isinstance(verdict, Unscored)
        if unscored and code in OF_GROUP:
            self.fail(row.id, f"{row.trace.attempt} is {code} and has no reward", "give the code unscored to attempts without "
                      "verdict")
        elif code == "unscored" and not unscored:
            self.fail(row.id, f"{row.trace.attempt} is called unscored and has a reward", "reject scored attempts under a true "
                      "code")
        elif code in STOPPED:
            late = isinstance(verdict, Unscored) and (code, verdict.code) in (("timed_out", "timeout"), ("failed", "crash"))
            if reason not in STOPPED[code] and not late:
                self.fail(row.id, f"{row.trace.attempt} is called {code} and stopped with {reason}", "give attempts a true code")
        elif code in UNDUE and not unscored:
            self.fail(row.id, f"{row.trace.attempt} is called {code} and has a reward: nothing on record says why it does not "
                      "count", "reject scored attempts under a code that the record bears out")
        elif code in UNDUE:
            self.unproven[code] += 1

    def _claimed(self, run: RunIndex, row: Row, stage: PolicyGradient, scope: Scope) -> None:
        """What a rejected attempt is called, for the census to judge; one that is called stale is judged here."""
        if stage.asynchrony is not None:
            return                      # groups come and go beside the steps; what is stale is judged with the versions
        tokens, code = hash(row.trace.token_ids), row.outcome.code
        scope.tokens[tokens] += 1
        if code in ("duplicate", "surplus"):
            scope.claims.append((row.id, code, tokens))
        elif code == "stale":
            oldest = min((segment.version or 0 for segment in row.trace.learnt_segments), default=0)
            newest = max(run.versions, default=0)
            if newest - oldest <= stage.max_policy_age:
                self.fail(row.id, f"it is called stale at an age of {newest - oldest} versions, max_policy_age is "
                          f"{stage.max_policy_age}", "reject what is older than the recipe allows, nothing else")

    def _census(self, run: RunIndex, identity: str, record: Census) -> None:
        self.checked()
        self.last_census = run.seq
        if record.scope in self.censuses:
            self.fail(identity, f"the census of {record.scope} comes twice", "close each scope once")
        self.censuses.add(record.scope)
        mine = [one for one in self.open.values() if one.table == record.scope or (one.table is None and (
            one.dispatch.scope == record.scope or one.dispatch.scope.startswith(f"{record.scope}/")))]
        counted: dict[str, Counter[str]] = {}
        issued: Counter[str] = Counter()
        flying: Counter[str] = Counter()
        for one in mine:
            issued += one.issued()
            flying += one.flying()
            for (family, code), count in one.codes.items():
                counted.setdefault(family, Counter())[code] += count
            self.closed.add(one.dispatch.scope)
            if one.missing:
                one.codes.clear()
                one.seq = run.seq
            else:
                del self.open[one.dispatch.scope]
        for what, stated, found in (("issued", record.issued, issued), ("ended", record.outcomes, counted),
                                    ("in flight", record.in_flight, flying)):
            if _plain(stated) != _plain(found):
                self.fail(identity, f"the census of {record.scope} says {what}: {_plain(stated)}; the dispatches and outcomes of "
                          f"this scope say {_plain(found)}", "count a census from the dispatches and outcomes that are on record")
        self._stepped(run, identity, record.scope)

    def _stepped(self, run: RunIndex, identity: str, name: str) -> None:
        """The groups of a policy step, its waves, and what it called surplus."""
        scope, stage = self.steps.get(name), policy_stage(run, name)
        if scope is None or stage is None:
            return
        for evidence in self.schedule.stepped(run, name.partition("/")[0], scope.accepted()):
            self.fail(identity, evidence, "go on to the next wave by the recipe's rule alone, never by what came out")
        for trace, evidence in scope.untrue(stage.groups):
            self.fail(trace, evidence, "reject attempts under a true code")
        for name, group in scope.groups.items():
            if (untrue := group.untrue(stage)) is not None:
                self.fail(group.trace, f"{untrue} ({name})", "admit groups by the rule: two or more scored attempts whose "
                          "rewards differ")

    def _trained(self, identity: str, record: Batch) -> None:
        step = record.scope.rpartition("/")[0]
        scope = self.steps.setdefault(step, Scope())
        for trace in record.traces:
            row = scope.rows.get(trace)
            if row is None:
                self.fail(identity, f"{trace} was trained and is no attempt of {step}", "train on the trajectories of the step")
            elif row[0] != "accepted":
                self.fail(identity, f"{trace} was trained although its outcome is {row[0]}", "train on accepted attempts only")
            elif trace in scope.trained:
                self.fail(identity, f"{trace} was trained twice in {step}", "put each accepted attempt into one batch")
            else:
                self.trained.add(*row[1:])
            scope.trained.add(trace)

    def _close(self, step: str, where: str) -> None:
        """A step is over: what was accepted and is in none of its batches was lost."""
        scope = self.steps.pop(step, None)
        if scope is None:
            return
        lost = [trace for trace, row in scope.rows.items() if row[0] == "accepted" and trace not in scope.trained]
        if lost:
            lengths = sorted(scope.rows[trace][2] for trace in lost)
            self.fail(where, f"{len(lost)} attempts of {step} were accepted and not trained, first {lost[0]} "
                      f"({lengths[0]} to {lengths[-1]} tokens)", "train on everything that is accepted, or reject it under a "
                      "code")


def policy_stage(run: RunIndex, scope: str) -> PolicyGradient | None:
    """The policy-gradient stage that a scope belongs to, None for evaluations and selections."""
    stage = run.recipe.settings.stages.get(scope.partition("/")[0]) if run.recipe is not None else None
    return stage if isinstance(stage, PolicyGradient) else None


def _plain(counts: object) -> object:
    """Counts as a sorted plain mapping, without zeros."""
    if isinstance(counts, int) or not hasattr(counts, "items"):
        return counts
    kept = {key: _plain(value) for key, value in sorted(counts.items())}
    return {key: value for key, value in kept.items() if value}
