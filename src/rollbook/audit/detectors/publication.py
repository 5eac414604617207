"""Stage 12: publication. Whoever samples holds the published weights, and every published weight is explained."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from rollbook.audit.answering import answers
from rollbook.audit.checkpoints import files_otherwise
from rollbook.audit.detector import Detector, Row, StoredStep
from rollbook.audit.index import RunIndex
from rollbook.audit.starts import Starts
from rollbook.models.weights import stored_hash
from rollbook.records import Merged, ModelError, ModuleUpdate, PolicyVersion, Probe, RunEnd, SftReport, StageEnd, StepReport
from rollbook.records.recipe import PolicyGradient

AGREE = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 5e-2}        # mean absolute difference of log-probs, nats per token
PROBED = 8          # tokens at least, where the prompt has as many after its first
SHARE = {"float32": 1e-4, "bfloat16": 5e-2, "float16": 5e-2}        # of a probe's mean log-prob: unlikely tokens round coarsely
LOADED = "let a consumer sample only after it acknowledged the published hash"
RESTORE = "restore the checkpoint from a copy of the run, or compute it again with `rollbook replay`"
EXPLAINED = "publish after every step, with everything trained since the parent in the window"


@dataclass(slots=True)
class Pending:
    """What a stage has trained since its last publication: record ids, and the weights before the first and after the last."""

    window: list[str] = field(default_factory=list)
    before: str | None = None
    after: str | None = None


class PublicationDetector(Detector):
    """Follows versions, their windows and acknowledgements; checks the version of every segment against what was published."""

    stage, name = 12, "publication"
    absent = "no policy was published"

    def __init__(self) -> None:
        super().__init__()
        self.starts = Starts()
        self.held: set[int] = set()             # versions that their consumers acknowledged with the published hash
        self.last: dict[str, PolicyVersion] = {}
        self.pending: defaultdict[str, Pending] = defaultdict(Pending)
        self.probes: dict[str, tuple[PolicyVersion, Probe]] = {}
        self.sampled: set[int] = set()          # versions of the policy trajectories of the open step
        self.stale: dict[str, list[int]] = {}   # versions of its groups that are called stale
        self.cut: set[str] = set()              # those of them that were cancelled
        self.segments = 0
        self.gaps: dict[str, tuple[float, float]] = {}      # the largest so far, with its limit
        self.unchecked: Counter[str] = Counter()
        self.probed: tuple[int, ...] = ()       # the tokens of the first probe
        self.over: set[str] = set()             # stages that have ended
        self.merged: set[str] = set()           # versions made of others, which no optimizer has touched
        self.end: str | None = None             # how the run ended
        self.kept = 0                           # checkpoints that hold the weights of their version

    def record(self, run: RunIndex, identity: str, record: object) -> None:
        self.starts.take(record)
        match record:
            case PolicyVersion():
                self._published(run, identity, record)
            case SftReport():
                self.pending[record.stage].window.append(identity)
            case ModuleUpdate() if record.module == "policy":
                pending = self.pending[record.stage]
                if not pending.window:
                    pending.before = record.weights_before
                pending.window.append(identity)
                pending.after = record.weights_after
            case Merged():
                self.pending[record.stage] = Pending(window=[identity], after=record.weights)
                self.merged.add(identity)
            case StepReport():
                self._step_over(run, identity, record)
            case StageEnd():
                self._stage_over(run, identity, record)
            case RunEnd():
                self.end = record.status
            case _:
                pass

    def row(self, run: RunIndex, row: Row) -> None:
        """Each of the policy's segments: its version was published and acknowledged before, and is the envelope's."""
        envelope = run.envelopes.get(row.trace.envelope or "")
        for segment in row.trace.sampled_segments:
            self.segments += 1
            version = segment.version
            if version is None or version not in self.held:
                known = "was not acknowledged with its published hash" if version in run.versions else "was not published"
                self.fail(row.id, f"{row.trace.attempt} has tokens of version {version}, which {known} before they were sampled",
                          LOADED)
            elif envelope is not None and envelope.policy is not None and not answers(run, envelope, run.versions[version]):
                self.fail(row.id, f"{row.trace.attempt} has tokens of version {version} with weights "
                          f"{run.versions[version].weights[:12]}; "
                          f"its envelope asked for {envelope.policy[:12]}", "stamp tokens with the version that sampled them")
            if version is not None and run.table is not None and self._policy(run, run.table) is not None:
                if row.outcome.code == "stale":
                    self.stale.setdefault(row.trace.group, []).append(version)
                else:
                    self.sampled.add(version)
        if row.outcome.code == "stale" and row.trace.stop_reason == "cancelled":
            self.cut.add(row.trace.group)

    def step(self, run: RunIndex, step: StoredStep) -> None:
        self.checked()
        stage = step.batch.scope.partition("/")[0]
        pending = self.pending[stage]
        if not pending.window:
            pending.before = step.update.weights_before
        pending.window.append(step.batch_id)
        pending.after = step.update.weights_after
        self._behavior(run, step)
        version_T = step.given.get("version")
        if version_T is None or not step.sampled_T.any():
            return
        current, oldest = self._current(run, stage), int(version_T[step.sampled_T].min())
        if current is not None and step.batch.max_age != current.index - oldest:
            self.fail(step.batch_id, f"max_age {step.batch.max_age} is stated, the oldest token is of version "
                      f"{oldest} and the policy of version "
                      f"{current.index}", "count age in publications from the policy that is trained")
        found = [run.recent.get(trace) for trace in step.batch.traces]
        own = [(s.version or 0, len(s.token_ids)) for pair in found if pair is not None
               for s in run.learnt(step.batch.scope, pair[0]).learnt_segments]
        if all(pair is not None for pair in found) and not np.array_equal(np.repeat([v for v, _ in own], [n for _, n in own]),
                                                                          version_T):
            self.fail(step.batch_id, f"the versions of the tokens of {step.batch.scope} are not those of the trajectories",
                      "carry the version of every segment into the batch")

    def finish(self, run: RunIndex) -> None:
        if self.segments:
            self.note(f"{self.segments} segments, {len(run.versions)} versions")
        if run.recipe is not None and self.end != "completed":
            self.note("the run has not ended" if self.end is None else f"the run {self.end}")
        if self.kept:
            self.note(f"{self.kept} checkpoints hold the weights of their versions")
        for what, (gap, limit) in sorted(self.gaps.items()):
            self.note(f"engine and trainer are {gap:.2g} nats per token apart at most, {what} (limit {limit:.2g})")
        for what, count in sorted(self.unchecked.items()):
            self.note(f"{count} {what}")
        if run.complete:
            for name in run.recipe.settings.stages if run.recipe is not None else ():
                if name not in self.starts.ended:
                    self.fail(f"stage {name}", "the run is complete, and this stage of its recipe never ended", EXPLAINED)
            for stage, pending in self.pending.items():
                if pending.window:
                    self.fail(pending.window[-1], f"{len(pending.window)} updates of {stage} were never published", EXPLAINED)

    def _gap(self, what: str, gap: float, limit: float) -> None:
        self.gaps[what] = max(self.gaps.get(what, (0.0, limit)), (gap, limit))

    def _policy(self, run: RunIndex, scope: str) -> PolicyGradient | None:
        stage = run.recipe.settings.stages.get(scope.partition("/")[0]) if run.recipe is not None else None
        return stage if isinstance(stage, PolicyGradient) else None

    def _current(self, run: RunIndex, stage: str) -> PolicyVersion | None:
        """The version that the stage stands at."""
        return self.last.get(stage) or self.starts.of(run, stage)

    def _published(self, run: RunIndex, identity: str, version: PolicyVersion) -> None:
        self.checked()
        if version.stage in self.over:
            self.fail(identity, f"version {version.index} was published by {version.stage}, which had ended", EXPLAINED)
        due = len(run.versions) - 1
        if run.host is not None:
            self.unchecked["versions of a recorded host, whose parents and windows are not checked"] += 1
        else:
            if version.index != due:
                self.fail(identity, f"version {version.index} was published where {due} is due", "number publications one by one")
            self._explained(run, identity, version)
        if not version.healthy:
            self.fail(identity, f"version {version.index} was published as not healthy", "publish finite weights only")
        trained = not set(version.window) <= self.merged
        if version.updates and trained and version.optimizer is None and run.host is None:
            self.fail(identity, f"version {version.index} follows {version.updates} updates and names no optimizer state",
                      "record the hash of the optimizer's state with the weights")
        before = self.last.get(version.stage)
        if version.updates and version.optimizer is not None and before is not None and before.optimizer == version.optimizer:
            self.fail(identity, f"version {version.index} follows {version.updates} updates and names the optimizer state of "
                      f"version {before.index}: a step moves it", "hash the optimizer's state as it is after the updates")
        wrong = [one for one in version.acknowledged if one.weights != version.published]
        for one in wrong:
            self.fail(identity, f"{one.consumer} acknowledged {one.weights[:12]} for version {version.index}, published is "
                      f"{version.published[:12]}", LOADED)
        if version.acknowledged and not wrong:
            self.held.add(version.index)
        if version.acknowledged and (version.probe is not None or run.host is None):
            self._probed(run, identity, version)
        self.last[version.stage] = version
        self.pending[version.stage] = Pending()

    def _explained(self, run: RunIndex, identity: str, version: PolicyVersion) -> None:
        """Parent, window, count and weights against what was trained since."""
        pending, parent = self.pending[version.stage], self._current(run, version.stage)
        stated = run.versions.get(run.version_ids.get(version.parent, -1)) if version.parent is not None else None
        if version.index == 0:
            if version.parent is not None or version.window:
                self.fail(identity, f"the first version has parent {version.parent} and a window of {len(version.window)}",
                          EXPLAINED)
            return
        if stated is None or (parent is not None and stated.index != parent.index):
            self.fail(identity, f"version {version.index} names parent {version.parent}, the stage {version.stage} stood at "
                      f"{'no known version' if parent is None else f'version {parent.index}'}", "name the version that was "
                      "trained on")
        if list(version.window) != pending.window:
            missing, extra = set(pending.window) - set(version.window), set(version.window) - set(pending.window)
            self.fail(identity, f"the window of version {version.index} holds {len(version.window)} records, "
                      f"{len(pending.window)} were trained since its parent ({len(missing)} left out, {len(extra)} not "
                      f"trained)", EXPLAINED)
        if version.updates != len(pending.window):
            self.fail(identity, f"version {version.index} counts {version.updates} updates, {len(pending.window)} were recorded "
                      f"since its parent", EXPLAINED)
        before = stated.weights if stated is not None else None
        if pending.before is not None and before is not None and pending.before != before:
            self.fail(identity, f"the updates of version {version.index} start from weights {pending.before[:12]}, its parent "
                      f"has {before[:12]}", "train on from the parent's weights")
        if pending.after is not None and version.weights != pending.after:
            self.fail(identity, f"version {version.index} has weights {version.weights[:12]}, its last update ended with "
                      f"{pending.after[:12]}", "publish the weights that the updates made")
        if not pending.window and before is not None and version.weights != before:
            self.fail(identity, f"version {version.index} has other weights than its parent and no update explains them",
                      EXPLAINED)

    def _probed(self, run: RunIndex, identity: str, version: PolicyVersion) -> None:
        """Consumer and trainer on the same tokens; a consumer that did not move while the trainer did is stale."""
        probe = version.probe
        if probe is None:
            self.fail(identity, f"version {version.index} was acknowledged without a probe of its log-probs",
                      "compare consumer and trainer on fixed tokens after every publication")
            return
        count = len(probe.token_ids) - probe.given
        if len(probe.consumer) != count or len(probe.trainer) != count or count < 1:
            self.fail(identity, f"the probe of version {version.index} is of {count} tokens and has {len(probe.consumer)} and "
                      f"{len(probe.trainer)} log-probs", "probe every token after the given ones, on both sides")
            return
        least = min(PROBED, len(probe.token_ids) - 1)
        if run.recipe is not None and count < least:
            self.fail(identity, f"the probe of version {version.index} is of {count} token{'s' * (count > 1)}, of this prompt "
                      f"{least} are due", f"probe the last {PROBED} tokens of a prompt: a few that all are sure of show nothing")
        due = run.recipe.settings.run.dtype if run.recipe is not None else "auto"
        if due not in ("auto", probe.dtype):
            self.fail(identity, f"the probe of version {version.index} is in {probe.dtype}, the recipe computes in {due}",
                      "probe in the precision of the run: its limit is that precision's")
        tokens = self.probed or probe.token_ids
        if probe.token_ids != tokens and run.recipe is not None:
            self.fail(identity, f"version {version.index} was probed on other tokens than the version before it",
                      "probe every publication on the same tokens: a consumer that stands still is seen by them")
        self.probed = tokens
        gap = sum(abs(a - b) for a, b in zip(probe.consumer, probe.trainer, strict=True)) / count
        limit = max(AGREE.get(probe.dtype, 5e-2), SHARE.get(probe.dtype, 5e-2) * sum(map(abs, probe.trainer)) / count)
        self._gap(f"probes in {probe.dtype}", gap, limit)
        if not gap <= limit:
            self.fail(identity, f"consumer and trainer differ by {gap:.3g} nats per probe token after version {version.index} "
                      f"(limit {limit:g} in {probe.dtype})", "load the published weights into the engine that samples")
        for name in {one.consumer for one in version.acknowledged}:
            earlier = self.probes.get(name)
            self.probes[name] = (version, probe)
            if earlier is None or earlier[1].token_ids != probe.token_ids:
                continue
            if earlier[0].published == version.published:
                if earlier[0].weights != version.weights and earlier[1].trainer != probe.trainer:
                    self.fail(identity, f"version {version.index} is published under the hash of version {earlier[0].index}, and "
                              "the trainer's log-probs moved between them", "hash what consumers must hold at every publication")
                continue
            if earlier[1].consumer == probe.consumer and earlier[1].trainer != probe.trainer:
                self.fail(identity, f"{name} gives exactly the log-probs of version {earlier[0].index} after version "
                          f"{version.index} was loaded, while the trainer's moved: it holds the old "
                          f"weights", "load the published weights into the "
                          "engine")

    def _behavior(self, run: RunIndex, step: StoredStep) -> None:
        """What the engine reported when sampling against the trainer at the same weights."""
        version_T, behavior_T, logp_T = (step.given.get("version"), step.given.get("behavior"), step.found.get("logp"))
        if version_T is None or behavior_T is None or logp_T is None or behavior_T.shape != logp_T.shape:
            return
        same = [index for index in map(int, np.unique(version_T))
                if index in run.versions and run.versions[index].weights == step.update.weights_before]
        chosen_T = np.isin(version_T, same) & ~self._kept(run, step)
        if not chosen_T.any():
            return
        traces = [run.recent.get(trace) for trace in step.batch.traces[:1]]
        envelope = run.envelopes.get(traces[0][0].envelope or "") if traces and traces[0] is not None else None
        stage = run.policy_stage(step.batch.scope)
        cut = envelope is None or envelope.top_p < 1 or envelope.top_k > 0 or envelope.min_p > 0
        if envelope is None or envelope.temperature == 0 or (cut and not (stage is not None and stage.sampling_mask)):
            self.unchecked["batches sampled from a cut distribution, not compared with the trainer"] += 1
            return
        gap = float(np.abs(logp_T[chosen_T].astype(np.float64) - behavior_T[chosen_T]).mean())
        dtype = step.batch.compute_dtype
        limit = AGREE.get(dtype, 5e-2)
        self._gap(f"batches in {dtype}", gap, limit)
        if not (math.isfinite(gap) and gap <= limit):
            self.fail(step.batch_id, f"the engine's log-probs of {step.batch.scope} differ from the trainer's at the same "
                      f"weights by {gap:.3g} nats per token (limit {limit:g} in "
                      f"{dtype})", "sample with the weights that the version names")

    def _kept(self, run: RunIndex, step: StoredStep) -> np.ndarray:
        """Tokens of sequences that went on under new weights with the keys and values of old ones: no weights alone gave them."""
        version_T, seq_T = step.given["version"], step.given.get("seq")
        stage = self._policy(run, step.batch.scope)
        if seq_T is None or seq_T.shape != version_T.shape or stage is None or stage.asynchrony is None \
                or stage.asynchrony.on_update != "keep":
            return np.zeros(version_T.shape, dtype=bool)
        several = {int(seq) for seq in np.unique(seq_T) if len(np.unique(version_T[seq_T == seq])) > 1}
        if several:
            self.unchecked["sequences of several versions with kept keys and values, not compared"] += len(several)
        return np.isin(seq_T, list(several))

    def _step_over(self, run: RunIndex, identity: str, record: StepReport) -> None:
        """After a step nothing waits for publication, and its trajectories were young enough."""
        current, stage = self.last.get(record.stage), self._policy(run, record.stage)
        pending = self.pending[record.stage]
        if pending.window:
            self.fail(identity, f"{len(pending.window)} updates of step {record.step} of {record.stage} were not published",
                      EXPLAINED)
        named = run.versions.get(run.version_ids.get(record.policy, -1))
        published = run.version_ids.get(record.published)
        if current is not None and published != current.index:
            self.fail(identity, f"step {record.step} reports {record.published} as published, the last publication is version "
                      f"{current.index}", "report the version that was published")
        if stage is not None and named is not None and self.sampled:
            oldest, newest = min(self.sampled), max(self.sampled)
            if newest > named.index or named.index - oldest > stage.max_policy_age:
                self.fail(identity, f"step {record.step} trained version {named.index} on tokens of versions "
                          f"{oldest} to {newest}; max_policy_age is {stage.max_policy_age}",
                          "reject stale trajectories, or raise max_policy_age")
        self.sampled = set()
        if stage is not None and named is not None:
            self._stale(identity, named.index, stage.max_policy_age)

    def _stale(self, identity: str, version: int, most: int) -> None:
        """A group that is called stale was too old to be trained, or was cancelled before it could be."""
        for group, versions in self.stale.items():
            if group not in self.cut and version - min(versions) <= most:
                self.fail(identity, f"group {group} is called stale at version {version}, its oldest token is of version "
                          f"{min(versions)}; max_policy_age is {most}", "call a group stale only where its age says so")
        self.stale, self.cut = {}, set()

    def _stage_over(self, run: RunIndex, identity: str, record: StageEnd) -> None:
        pending, current = self.pending[record.stage], self.last.get(record.stage)
        if record.stage in self.over:
            self.fail(identity, f"stage {record.stage} ends a second time", "end a stage once, with what it trained last")
        self.over.add(record.stage)
        self.sampled, self.stale, self.cut = set(), {}, set()       # what was left over when the stage ended trained nothing
        if pending.window:
            self.fail(identity, f"stage {record.stage} ended with {len(pending.window)} updates that were never published",
                      EXPLAINED)
        ended = run.version_ids.get(record.ended)
        if ended is None or (current is not None and ended != current.index):
            self.fail(identity, f"stage {record.stage} ends with {record.ended}, its last publication is "
                      f"{'none' if current is None else f'version {current.index}'}", "end a stage with the version it published")
        if record.checkpoint is not None and ended is not None:
            self._checkpoint(run, identity, record, run.versions[ended])

    def _checkpoint(self, run: RunIndex, identity: str, end: StageEnd, version: PolicyVersion) -> None:
        """The weights that a stage left are those of the version it ended with."""
        folder = str(end.checkpoint)
        place = run.ledger.root / folder
        if not place.is_dir():
            self.unchecked["checkpoints are not in this copy of the run"] += 1
            return None
        try:
            held = stored_hash(place)
        except ModelError as error:
            return self.fail(identity, f"{folder} holds no weights that can be read ({error.got})", RESTORE)
        if held != version.weights:
            return self.fail(identity, f"{folder} holds weights {held[:12]}, the stage ended with version {version.index}, which "
                             f"has {version.weights[:12]}", RESTORE)
        if (evidence := next(files_otherwise(run, place, end.stage), None)) is not None:
            return self.fail(identity, f"{folder} holds the weights of version {version.index}, and {evidence}", RESTORE)
        self.kept += 1
        return None
