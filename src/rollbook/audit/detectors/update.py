"""Stage 11: update. The estimator that was used is the one that is named: loss, gradient, weights and schedule by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rollbook.audit import mixing
from rollbook.audit.detector import Detector, Row, StoredStep
from rollbook.audit.estimator import (
    ELSEWHERE,
    Expected,
    Floats,
    Recomputed,
    differences,
    expected_terms,
    expected_weights,
    inner,
    rate,
    recompute,
    stored_step,
    whole,
    within_rounding,
)
from rollbook.audit.exploring import AS_CONTROLLED, Controlled, as_used
from rollbook.audit.followed import ROUNDED, Moved, Valued, misreported, missummed
from rollbook.audit.index import RunIndex
from rollbook.audit.module_steps import ModuleSteps
from rollbook.audit.reference import RecomputeError, Step
from rollbook.audit.starts import Starts
from rollbook.records import (
    Batch,
    Merged,
    ModuleUpdate,
    PolicyVersion,
    Scored,
    SftReport,
    StageEnd,
    StepReport,
    TermSpec,
    Update,
)
from rollbook.records.recipe import PolicyGradient, Preference, RewardModel, Sft

GRADIENT = 1e-4         # of the largest gradient of the step: tensors are stored in single precision
LOSS = 1e-4             # of the sum of the sizes of what the loss adds up
WEIGHT = 1e-6           # of the largest weight
GIVEN = ("behavior", "advantage", "weight", "seq", "length", "group", "correct")
FOUND = ("logp", "entropy", "clipped", "gradient")
UNALIGNED = ("length", "group", "correct", "routes")        # tensors that are not one value per action token
ESTIMATOR = "train with the objective that the recipe names; change the recipe if another is wanted"
ARITHMETIC = "record what the update computed, from the tensors it used"


@dataclass(slots=True)
class StageState:
    """Where a policy stage stands: updates done, weights after the last, and what the open step holds."""

    index: int = 0
    after: str | None = None
    batches: list[str] = field(default_factory=list)
    updates: list[str] = field(default_factory=list)
    untrained: set[str] = field(default_factory=set)
    groups: int = 0
    steps: int = 0
    began: str | None = None        # weights before the first update of the open step
    moved: Moved = field(default_factory=Moved)


class UpdateDetector(Detector):
    """Computes each optimizer step again from its stored tensors; holds one step at a time."""

    stage, name = 11, "update"
    absent = "no optimizer step was taken on a policy batch"

    def __init__(self) -> None:
        super().__init__()
        self.stages: dict[str, StageState] = {}
        self.starts = Starts()
        self.tokens = self.clipped = 0
        self.anchored = self.at_anchor = 0
        self.unhashed = 0
        self.waiting: dict[str, int] = {}           # batches without an update so far, with their groups
        self.modules = ModuleSteps()
        self.controlled = Controlled()
        self.computed: dict[str, str] = {}          # precision -> the first batch computed in it

    def record(self, run: RunIndex, identity: str, record: object) -> None:
        self.starts.take(record)
        self.modules.record(run, identity, record, self.starts.ended, self.fail)
        match record:
            case Batch():
                self._state(record.scope).untrained.add(identity)
                self.waiting[identity] = record.groups
            case ModuleUpdate():
                self.checked()
                self.modules.take(run, identity, record, self.fail)
                if record.family == "value" and record.elements[0] in self.waiting:      # a step that trains the critic alone
                    state = self._state(f"{record.stage}/")
                    state.untrained.discard(record.elements[0])
                    state.batches.append(record.elements[0])
                    state.groups += self.waiting.pop(record.elements[0])
            case PolicyVersion() if record.stage in self.stages:
                after = self.stages[record.stage].after
                if after is not None and record.weights != after:
                    self.fail(identity, f"version {record.index} holds weights {record.weights[:12]}, the last update of "
                              f"{record.stage} ended with {after[:12]}", "publish the weights that the updates made")
            case Merged() if record.stage in self.stages:
                self.stages[record.stage].after = record.weights        # a moving average of the stage's own weights
            case StepReport():
                self._step_over(run, identity, record)
            case StageEnd():
                self._stage_over(run, identity, record)
            case SftReport():
                stage = run.recipe.settings.stages.get(record.stage) if run.recipe is not None else None
                if isinstance(stage, Sft):
                    self._rate(identity, record, rate(stage.optimizer, record.step, stage.steps))
            case _:
                pass

    def row(self, run: RunIndex, row: Row) -> None:
        self.modules.row(run, row.id, row.trace.action_count)

    def step(self, run: RunIndex, step: StoredStep) -> None:
        self.checked()
        state = self._state(step.batch.scope)
        state.untrained.discard(step.batch_id)
        self.waiting.pop(step.batch_id, None)
        state.batches.append(step.batch_id)
        state.updates.append(step.update_id)
        state.groups += step.batch.groups
        if len(state.batches) == 1:
            state.began = step.update.weights_before
        self._optimizer(run, step, state)
        if not self._finite(step):
            return
        self._frozen(run, step, state)
        self._fingerprint(run, step)
        for evidence in self.controlled.faults(step):
            self.fail(step.batch_id, evidence, AS_CONTROLLED)
        try:
            self._estimator(run, step)
        except (RecomputeError, KeyError, IndexError, ValueError) as error:
            self.fail(step.batch_id, f"the loss of {step.batch.scope} cannot be computed again: {error}", ESTIMATOR)
        self._summary(run, step, state)

    def finish(self, run: RunIndex) -> None:
        if self.tokens:
            self.note(f"{self.clipped / self.tokens:.2%} of {self.tokens} tokens clipped")
        if self.anchored and self.at_anchor == self.anchored:
            self.note(f"the anchor was the trained policy itself in all {self.anchored} updates that read it: the ratio to it "
                      f"was 1")
        probed = {version.probe.dtype for version in run.versions.values() if version.probe is not None}
        for dtype, where in self.computed.items() if run.recipe is not None and probed else ():
            if dtype not in probed:
                self.fail(where, f"it was computed in {dtype}, and the policies of the run were published and probed in "
                          f"{', '.join(sorted(probed))}", "record the precision that was computed in")
        if self.unhashed:
            self.note(f"{self.unhashed} updates without weight hashes")

    def _state(self, scope: str) -> StageState:
        return self.stages.setdefault(scope.partition("/")[0], StageState())

    def _optimizer(self, run: RunIndex, step: StoredStep, state: StageState) -> None:
        """Numbering, chain of weights, learning rate, gradient norm."""
        update, where, stage = step.update, step.update_id, step.batch.scope.partition("/")[0]
        state.index += 1
        if update.index != state.index:
            self.fail(where, f"update {update.index} of {stage} comes where number {state.index} is due", "number updates from 1")
            state.index = update.index
        start = self.starts.of(run, stage)
        before = state.after if state.after is not None else (start.weights if start is not None else None)
        if update.weights_before is None or update.weights_after is None:
            self.unhashed += 1
        elif before is not None and update.weights_before != before:
            self.fail(where, f"update {update.index} of {stage} starts from weights {update.weights_before[:12]}, what came "
                      f"before ended with {before[:12]}", "let each update start from the weights the last one ended with")
        elif update.weights_before == update.weights_after and update.learning_rate > 0 and update.grad_norm > 0:
            self.fail(where, f"update {update.index} of {stage} has gradient norm {update.grad_norm:g} and left the weights as "
                      f"they were", "apply the optimizer step that is recorded")
        state.after = update.weights_after
        settings = run.recipe.settings.stages.get(stage) if run.recipe is not None else None
        if isinstance(settings, PolicyGradient):
            self._rate(where, update, rate(settings.optimizer, update.index, settings.steps * settings.minibatches))
            if update.grad_clipped != (update.grad_norm > settings.optimizer.max_grad_norm):
                said = "clipped" if update.grad_clipped else "not clipped"
                self.fail(where, f"gradient norm {update.grad_norm:g} with a limit of {settings.optimizer.max_grad_norm:g} is "
                          f"recorded as {said}", "clip at the recipe's max_grad_norm")

    def _rate(self, where: str, record: Update | SftReport, due: float) -> None:
        if not abs(record.learning_rate - due) <= 1e-9 * max(abs(due), 1e-12):
            self.fail(where, f"the step was taken at learning rate {record.learning_rate:g}, the recipe's schedule gives {due:g}",
                      "follow the recipe's warm-up and schedule")
        if not (np.isfinite(record.grad_norm) and record.grad_norm >= 0):
            self.fail(where, f"the gradient norm is {record.grad_norm}", "stop before a step that is not finite")

    def _frozen(self, run: RunIndex, step: StoredStep, state: StageState) -> None:
        """Anchor and reference are evaluated at frozen weights: they cannot follow the trained policy."""
        logp_T, where, before = step.found["logp"], step.batch_id, step.update.weights_before
        start = self.starts.of(run, step.batch.scope.partition("/")[0])
        for name, moved, whose in (("anchor", before != state.began, "the step began"),
                                   ("reference", start is not None and before != start.weights, "the stage began")):
            if moved and name in step.given and logp_T.size and np.array_equal(step.given[name], logp_T):
                self.fail(where, f"the {name} of {step.batch.scope} is the trained policy itself: all {logp_T.size} log-probs "
                          f"are equal, and the weights have moved since {whose}", "evaluate it at the weights that were frozen")

    def _fingerprint(self, run: RunIndex, step: StoredStep) -> None:
        """Objective, terms, plan and sizes against the recipe."""
        batch, where = step.batch, step.batch_id
        settings = run.recipe.settings if run.recipe is not None else None
        stage = settings.stages.get(batch.scope.partition("/")[0]) if settings is not None else None
        if settings is not None and isinstance(stage, PolicyGradient):
            unlike = differences(batch.objective, whole(stage.objective))
            if unlike:
                self.fail(where, f"the batch of {batch.scope} was trained with another objective than the recipe's: "
                          + "; ".join(unlike), ESTIMATOR)
            budget = stage.max_tokens or settings.tasks.max_tokens
            if batch.max_length != budget:
                self.fail(where, f"max_length {batch.max_length} for a budget of {budget} tokens", ESTIMATOR)
            if ("routes" in step.given) != (stage.routing == "replayed" and not batch.scope.endswith("/0")):
                self.fail(where, f"{batch.scope} with routes: {'routes' in step.given}; routing is {stage.routing}", ESTIMATOR)
        if settings is not None and settings.run.dtype not in ("auto", batch.compute_dtype):
            self.fail(where, f"{batch.scope} was computed in {batch.compute_dtype}, the recipe says {settings.run.dtype}",
                      ESTIMATOR)
        if settings is not None and not batch.deterministic:
            self.fail(where, f"{batch.scope} is recorded as not deterministic, and every update of a run is", ARITHMETIC)
        self.computed.setdefault(batch.compute_dtype, where)
        planned = sorted(index for part in batch.plan for index in part)
        if planned != list(range(len(batch.traces))):
            self.fail(where, f"the micro-batches of {batch.scope} hold {len(planned)} sequences ({len(set(planned))} different), "
                      f"the batch {len(batch.traces)}", "put every sequence into exactly one micro-batch")
        if batch.action_tokens != step.given["seq"].size:
            self.fail(where, f"{batch.action_tokens} action tokens are stated, {step.given['seq'].size} stored", ARITHMETIC)

    def _finite(self, step: StoredStep) -> bool:
        """Every tensor is there, of one length, and finite."""
        size = step.given["seq"].size if "seq" in step.given else -1
        for where, tensors, names in ((step.batch_id, step.given, GIVEN), (step.update_id, step.found, FOUND)):
            lacking = [name for name in names if name not in tensors]
            if lacking:
                self.fail(where, f"tensors are not stored: {', '.join(lacking)}", "store every tensor of the step")
                return False
            for name, value in tensors.items():
                if value.dtype.kind == "f" and not np.isfinite(value).all():
                    self.fail(where, f"{int((~np.isfinite(value)).sum())} values of {name} are not finite",
                              "stop before a step that is not finite")
                    return False
                if name not in UNALIGNED and not name.startswith("pretraining_") and value.shape[-1] != size:
                    self.fail(where, f"{name} has {value.shape[-1]} values for {size} action tokens", ARITHMETIC)
                    return False
        if step.found["logp"].max(initial=-1.0) > 1e-4 or step.found["entropy"].min(initial=1.0) < -1e-4:
            self.fail(step.update_id, f"largest log-prob {step.found['logp'].max():g}, least entropy "
                      f"{step.found['entropy'].min():g}",
                      ARITHMETIC)
        return True

    def _estimator(self, run: RunIndex, step: StoredStep) -> None:
        """Terms, weights, loss and gradient."""
        batch = step.batch
        terms, data = expected_terms(as_used(batch)), stored_step(step.given, step.found)
        if tuple(term.spec for term in terms) != batch.terms or step.given["weight"].shape != (len(terms), data.seq_T.size):
            self.fail(step.batch_id, f"the loss of {batch.scope} has the terms {_named(batch.terms)} and "
                      f"{len(step.given['weight'])} rows of weights, its objective implies "
                      f"{_named([term.spec for term in terms])}", ESTIMATOR)
            return
        dropped_S = self._trajectories(run, step)
        weight_KT: list[Floats] = []
        for term, stored_T in zip(terms, step.given["weight"], strict=True):
            found_T = (np.zeros(data.seq_T.shape) if term.spec.name in ELSEWHERE else
                       expected_weights(term.spec, data, batch.max_length, dropped_S))
            weight_KT.append(found_T)
            off_T = np.abs(stored_T - found_T)
            if off_T.max(initial=0.0) > WEIGHT * float(np.abs(found_T).max(initial=0.0)):
                at = int(off_T.argmax())
                self.fail(step.batch_id, f"token {at} of {batch.scope} weighs {stored_T[at]:.6g} in the term {term.spec.name}, "
                          f"{term.spec.aggregate} gives {found_T[at]:.6g}", "weigh tokens as the named aggregate does")
        for spec in (term.spec for term in terms if term.spec.name in ELSEWHERE):
            for where, what in mixing.faults(step, spec, self.modules.beside(run, batch)):
                self.fail(where, what, mixing.AS_STATED)
        self._gradient(step, terms, (data, weight_KT))

    def _trajectories(self, run: RunIndex, step: StoredStep) -> np.ndarray | None:
        """Behavior log-probs and correctness against the trajectories; which sequences an overlong filter drops."""
        found = [run.recent.get(trace) for trace in step.batch.traces]
        known = [(run.learnt(step.batch.scope, pair[0]), pair[1]) for pair in found if pair is not None]
        if len(known) < len(found):
            return None
        own = np.array([x for trace, _ in known for segment in trace.learnt_segments for x in segment.logps or ()],
                       dtype=np.float32)
        if own.shape != step.given["behavior"].shape or not np.array_equal(own, step.given["behavior"]):
            count = int((own != step.given["behavior"]).sum()) if own.shape == step.given["behavior"].shape else abs(
                own.size - step.given["behavior"].size)
            self.fail(step.batch_id, f"{count} behavior log-probs of {step.batch.scope} are not those of the trajectories",
                      "train with the log-probs that the engine reported when it sampled")
        accuracy = [verdict.vector.accuracy if isinstance(verdict, Scored) else None for _, verdict in known]
        correct = np.array([-1 if value is None else int(value == 1.0) for value in accuracy])
        if not np.array_equal(correct, step.given["correct"]):
            self.fail(step.batch_id, f"{int((correct != step.given['correct']).sum())} sequences of {step.batch.scope} are "
                      f"marked correct or wrong against their verdict", "take correctness from the verdicts")
        if inner(step.batch.objective).get("overlong_filter") is not True:
            return None
        return np.array([trace.stop_reason == "length" for trace, _ in known])

    def _gradient(self, step: StoredStep, terms: list[Expected], inputs: tuple[Step, list[Floats]]) -> None:
        """d loss / d logp of every token, the clips, and the loss of every term."""
        data, weight_KT = inputs
        ways = [recompute(terms, data, weight_KT)]
        stored_T, flags_T = step.found["gradient"].astype(np.float64), step.found["clipped"].astype(bool)
        room = GRADIENT * float(np.abs(ways[0].gradient_T).max(initial=0.0)) + 1e-12
        off_T, flagged_T = _off(stored_T, flags_T, ways, room)
        if off_T.any() or flagged_T.any():
            ways += within_rounding(terms, data, weight_KT)
            off_T, flagged_T = _off(stored_T, flags_T, ways, room)
        scope = step.batch.scope
        if off_T.any():
            at = int(np.abs(np.where(off_T, stored_T - ways[0].gradient_T, 0.0)).argmax())
            scale = float(stored_T @ ways[0].gradient_T / max(float(ways[0].gradient_T @ ways[0].gradient_T), 1e-30))
            self.fail(step.update_id, f"the gradient of {int(off_T.sum())} of {off_T.size} tokens of {scope} is not that of "
                      f"{step.batch.objective.get('kind')}: token {at} has {stored_T[at]:.6g}, computed "
                      f"{ways[0].gradient_T[at]:.6g} (best multiple {scale:.3g})", ESTIMATOR)
        if flagged_T.any():
            self.fail(step.update_id, f"{int(flagged_T.sum())} of {flagged_T.size} tokens of {scope} are marked clipped "
                      f"otherwise than {step.batch.objective.get('kind')} clips", ESTIMATOR)
        if step.update.loss.keys() - set(ELSEWHERE) != ways[0].loss.keys():
            self.fail(step.update_id, f"losses are recorded for {', '.join(sorted(step.update.loss))}, the terms are "
                      f"{', '.join(sorted(ways[0].loss))}", ESTIMATOR)
        for name in ways[0].loss.keys() & step.update.loss.keys():
            stated, due = step.update.loss[name], ways[0].loss[name]
            if not abs(stated - due) <= LOSS * ways[0].size[name] + 1e-9:
                self.fail(step.update_id, f"the loss term {name} of {scope} is recorded as {stated:.6g}, computed {due:.6g}",
                          ESTIMATOR)
        if step.update.grad_norm > 0 and not stored_T.any() and not step.batch.pretraining:
            self.fail(step.update_id, f"no token of {scope} has a gradient, the gradient norm is {step.update.grad_norm:g}",
                      ARITHMETIC)

    def _summary(self, run: RunIndex, step: StoredStep, state: StageState) -> None:
        """The numbers of the record against the tensors it names."""
        size = step.found["logp"][step.sampled_T].size
        if not size:
            return
        stage = run.policy_stage(step.batch.scope)
        at_start = stage is None or stage.reference in (None, stage.policy)
        for evidence in missummed(step, first=len(state.batches) == 1, at_start=at_start):
            self.fail(step.update_id, evidence, ARITHMETIC)
        state.moved.add(step)
        self.tokens += size
        self.clipped += int((step.found["clipped"] != 0).sum())
        if "anchor" in step.given:
            self.anchored += 1
            self.at_anchor += bool(np.array_equal(step.given["anchor"], step.found["logp"]))

    def _step_over(self, run: RunIndex, identity: str, record: StepReport) -> None:
        state = self._state(record.stage)
        if list(record.batches) != state.batches or list(record.updates) != state.updates:
            self.fail(identity, f"step {record.step} of {record.stage} reports {len(record.batches)} batches and "
                      f"{len(record.updates)} updates, {len(state.updates)} were "
                      f"taken", "report the batches and updates of the step in order")
        if state.untrained:
            self.fail(identity, f"{len(state.untrained)} batches of step {record.step} have no update, first "
                      f"{min(state.untrained)}",
                      "record the update of every batch")
        stage = run.recipe.settings.stages.get(record.stage) if run.recipe is not None else None
        if isinstance(stage, PolicyGradient) and len(state.batches) != min(stage.minibatches, state.groups):
            self.fail(identity, f"step {record.step} of {record.stage} took {len(state.batches)} optimizer steps on "
                      f"{state.groups} groups, the recipe says {stage.minibatches} minibatches", ESTIMATOR)
        valued, self.modules.valued = self.modules.valued, Valued()
        critic = stage.critic if isinstance(stage, PolicyGradient) else None
        if critic is not None and (evidence := valued.missed(record.batches, critic.updates)):
            self.fail(identity, f"{evidence} in step {record.step} of {record.stage}", ESTIMATOR)
        for evidence in (*misreported(record, state.moved.due(), ("update/", "policy/"), ROUNDED),
                         *misreported(record, valued.due(), ("value/",), ROUNDED)):
            self.fail(identity, evidence, "report the numbers of the step's own updates")
        if record.step != state.steps + 1:
            self.fail(identity, f"step {record.step} of {record.stage} is reported where step {state.steps + 1} is due",
                      "report every step, in turn")
        self.stages[record.stage] = StageState(index=state.index, after=state.after, steps=record.step)

    def _stage_over(self, run: RunIndex, identity: str, record: StageEnd) -> None:
        """A stage ends when the recipe says so, not when its curve looks best."""
        stage = run.recipe.settings.stages.get(record.stage) if run.recipe is not None else None
        if isinstance(stage, PolicyGradient) and self._state(record.stage).steps != stage.steps:
            self.fail(identity, f"{record.stage} ended after {self._state(record.stage).steps} steps, the recipe says "
                      f"{stage.steps}", "train as long as the recipe says")
        taken = sum(count for (name, _), count in self.modules.steps.items() if name == record.stage)
        if isinstance(stage, (Preference, RewardModel)) and taken != stage.steps:
            self.fail(identity, f"{record.stage} ended after {taken} steps, the recipe says {stage.steps}",
                      "train as long as the recipe says")


def _off(stored_T: Floats, flags_T: np.ndarray, ways: list[Recomputed], room: float) -> tuple[np.ndarray, np.ndarray]:
    """Tokens whose gradient, and whose clip, is none of those computed."""
    off_T = np.all([np.abs(stored_T - way.gradient_T) > room for way in ways], axis=0)
    return off_T, np.all([flags_T != way.clipped_T for way in ways], axis=0)


def _named(terms: Sequence[TermSpec]) -> str:
    return ", ".join(f"{t.coefficient:g} {t.name} by {t.aggregate} over {t.population}" for t in terms) or "none"
