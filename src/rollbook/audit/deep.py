"""Re-execution on a sample: what the artifacts alone cannot show is done again and compared with what was recorded."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import torch

from rollbook.audit.played import compared as played_again
from rollbook.audit.replay import beginning, prepared
from rollbook.audit.ruler import TOLERANCES, Ruler
from rollbook.audit.sampled import Sample, SampledRow, draw
from rollbook.environments import single_turn_image
from rollbook.ledger import Ledger, environment_manifest
from rollbook.ledger.sameness import in_words, unlike
from rollbook.models.decoder import Decoder
from rollbook.models.load import load_policy, placed
from rollbook.models.runtime import named, nearest
from rollbook.models.shape import load_shaped
from rollbook.models.tokenizer import ChatTokenizer
from rollbook.models.weights import read_tensors, weight_hash
from rollbook.records import (
    EnvironmentImage,
    EnvironmentProof,
    LedgerError,
    PolicyVersion,
    ResolvedRecipe,
    Scored,
    StageEnd,
    Task,
    TaskId,
    TokenizerFile,
    Unscored,
    Verdict,
    content_id,
)
from rollbook.records.composition import ComposedReward
from rollbook.records.ready_made import NamedReward
from rollbook.records.recipe import EnvironmentReward, RewardSettings
from rollbook.rewards import MagistralJudge, RewardError, package_versions
from rollbook.rewards.composed import ComposedJudge
from rollbook.rewards.rescore import fingerprint, proof_items, rescore

Told = Callable[[str], None]
PROVED = 8          # tasks that a proof is made with, see orchestration
CHANCE = ("timeout", "crash", "out_of_memory", "unavailable")      # verdicts that may come out otherwise without anybody's fault


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepFinding:
    """What re-execution showed about one stage; `not_executed` says what could not be done again, and why.

    Example: DeepFinding(stage=8, result="pass", record=None, evidence="64 trajectories judged again: equal verdicts",
        remedy=None)
    """

    stage: int
    result: Literal["pass", "fail", "not_executed"]
    record: str | None
    evidence: str
    remedy: str | None


@dataclass(slots=True, kw_only=True)
class Work:
    """What the parts of a deep audit share. `stored` maps a version id to the folder of its weights, None for the start."""

    ledger: Ledger
    recipe: ResolvedRecipe
    versions: Mapping[int, PolicyVersion]
    stored: Mapping[str, str | None]
    decoder: Decoder
    tokenizer: ChatTokenizer
    dtype: torch.dtype
    exact: bool
    sample: Sample

    def ruler(self) -> Ruler:
        return Ruler(exact=self.exact, tolerance=TOLERANCES[str(self.dtype).removeprefix("torch.")])

    def load(self, version: PolicyVersion) -> str:
        """Puts the stored weights of a version into the decoder; their hash."""
        folder = self.stored[version.id]
        if folder is None:
            load_shaped(self.decoder, dict(load_policy(self.recipe.settings.model).decoder.named_parameters()))
        else:
            load_shaped(self.decoder, read_tensors(self.ledger.root / folder))
        return weight_hash(self.decoder.named_parameters())


def deep_findings(path: str | os.PathLike[str], *, sample: int, told: Told = lambda _: None) -> tuple[DeepFinding, ...]:
    """Environments, verdicts, log-probs and gradients of a run done again on about `sample` trajectories, always the same ones.

    `told` is called with a line of text when a part begins. Raises LedgerError where the run's chain of hashes is broken.
    """
    from rollbook.audit.deep_models import gradients_again, logprobs_again, probes_again
    from rollbook.audit.deep_samples import samples_again

    if sample < 1:
        raise LedgerError("a deep audit needs a sample", got=str(sample), fix="ask for 1 trajectory or more")
    ledger = Ledger.open(Path(path), write=False)
    told("reading the run")
    work = _work(ledger, sample)
    found: list[DeepFinding] = []
    if not work.exact:
        differ = [one for one in unlike(ledger.manifest, _here(work)) if one.moves_update]
        found.append(not_executed(11, f"bits are not compared: {in_words(differ)}; numbers are, within {work.ruler().tolerance}"))
    told(f"resetting the environment and judging {len(work.sample.judged)} trajectories again")
    found += _judged(work)
    told("sampling attempts again")
    found += samples_again(work, sample)
    told("log-probs of sampled trajectories")
    found += logprobs_again(work)
    told("probes of versions whose weights are stored")
    found += probes_again(work)
    told("gradients of the first update of each training stage")
    found += gradients_again(work)
    return tuple(found)


def passed(stage: int, evidence: str) -> DeepFinding:
    return DeepFinding(stage=stage, result="pass", record=None, evidence=evidence, remedy=None)


def failed(stage: int, record: str, evidence: str, remedy: str) -> DeepFinding:
    return DeepFinding(stage=stage, result="fail", record=record, evidence=evidence, remedy=remedy)


def not_executed(stage: int, evidence: str) -> DeepFinding:
    return DeepFinding(stage=stage, result="not_executed", record=None, evidence=evidence, remedy=None)


def _work(ledger: Ledger, sample: int) -> Work:
    recipe, first = beginning(ledger)
    dtype, _ = prepared(ledger, recipe, first, None)
    versions = {version.index: version for version in ledger.records(PolicyVersion)}
    stored: dict[str, str | None] = {first.id: None}
    for end in ledger.records(StageEnd):
        if end.checkpoint is not None and (ledger.root / end.checkpoint).is_dir():
            stored[end.ended] = end.checkpoint
    policy = placed(load_policy(recipe.settings.model), nearest(recipe.settings.run.device))
    kept = next(iter(ledger.records(TokenizerFile)), None)
    tokenizer = policy.tokenizer if kept is None else ChatTokenizer.from_document(ledger.get(kept.blob))
    known = [index for index, version in versions.items() if version.id in stored]
    work = Work(ledger=ledger, recipe=recipe, versions=versions, stored=stored, decoder=policy.decoder, tokenizer=tokenizer,
                dtype=dtype, exact=True, sample=draw(ledger, sample, known))
    work.exact = not any(one.moves_update for one in unlike(ledger.manifest, _here(work)))
    return work


def _here(work: Work) -> Mapping[str, object]:
    return {**named(work.decoder.device, work.dtype), **environment_manifest(), "threads": torch.get_num_threads()}


def _judged(work: Work) -> list[DeepFinding]:
    """Stages 4 and 8: the same initial states from the task records, the same verdicts from the judge built anew."""
    rows = work.sample.judged
    wanted = {row.trace.task for row in rows}
    tasks: dict[TaskId, Task] = {}
    for task in work.ledger.records(Task):
        if task.id in wanted:
            tasks[task.id] = task
    reward = work.recipe.settings.reward
    if isinstance(reward, EnvironmentReward):
        return [DeepFinding(stage=stage, result=result, record=record, evidence=evidence, remedy=remedy)
                for stage, result, record, evidence, remedy in played_again(work.ledger, reward, rows, tasks)]
    if not isinstance(reward, RewardSettings):
        return _judged_composed(rows, tasks, reward, work.tokenizer)
    with MagistralJudge(reward) as judge:
        image = single_turn_image(verifier=judge.stamp, dependencies=package_versions())
        recorded = [content_id(one) for one in work.ledger.records(EnvironmentImage)]
        same = content_id(image) in recorded
        verdicts = judge.judge([row.trace for row in rows], tasks)
        proof = _proof_again(work, judge) if same else not_executed(4, "the judge here is another than the run's: its proof was "
                                                                       "not made again")
    why = "" if same else "; the judge's code, settings or packages here are not those of the run, so only numbers were compared"
    return [proof, _reset(rows, tasks, work.tokenizer, built=same), _compared(rows, verdicts, exact=same, why=why)]


def _proof_again(work: Work, judge: MagistralJudge) -> DeepFinding:
    """Stage 4: the proof's trials made again: the judge's verdicts now, and in a fresh process under every changed condition."""
    proof = next(iter(work.ledger.records(EnvironmentProof)), None)
    table = next((event for event in work.ledger.events("RecordTable") if event.body["name"] == "tasks/train"), None)
    if proof is None or table is None:
        return not_executed(4, "the run holds no proof of its environment, or no training tasks to make it again with")
    items = proof_items(list(islice(work.ledger.table_records(table), PROVED)), PROVED)
    mine = fingerprint(judge, items)
    found = rescore(type(judge), work.recipe.settings.reward, items)
    made = 0
    for trial in proof.trials:
        if trial.kind not in found or "symbolic" in trial.changed:
            continue
        if (trial.first, trial.second) != (mine.verdicts, found[trial.kind].verdicts):
            return failed(4, content_id(proof), f"its trial {trial.kind} ({trial.changed}) is recorded as {trial.first[:12]} and "
                          f"{trial.second[:12]}; made again it is {mine.verdicts[:12]} and {found[trial.kind].verdicts[:12]}",
                          "prove the environment again; its verdicts depend on what changed, or the proof was not made")
        made += 1
    return passed(4, f"{made} trials of its proof made again: equal verdicts")


def _judged_composed(rows: Sequence[SampledRow], tasks: Mapping[TaskId, Task], reward: ComposedReward | NamedReward,
                     tokenizer: ChatTokenizer) -> list[DeepFinding]:
    """The same for a composed reward: every part is measured again; a batch's whitening is not, for want of a batch."""
    reset = _reset(rows, tasks, tokenizer, built=False)
    try:
        with ComposedJudge(reward) as judge:
            mine = [(row, row.verdict) for row in rows
                    if isinstance(row.verdict, Scored) and row.verdict.vector.composition_digest == judge.digest]
            verdicts = judge.judge([row.trace for row, _ in mine], tasks)
            parts = set(judge.reward.parts)
    except RewardError as error:
        return [reset, not_executed(8, f"the composed reward cannot be made here: {error.what}")]
    if not mine:
        return [reset, not_executed(8, "no sampled verdict is by the judge that this code makes of the default reward")]
    for (row, recorded), now in zip(mine, verdicts, strict=True):
        was, again = _parts(recorded, parts), _parts(now, parts)
        if again != was and not (isinstance(now, Unscored) and now.code in CHANCE):
            return [reset, failed(8, row.id, f"judged again, {row.trace.attempt} gets {_shown(now)}; the record says "
                                  f"{_shown(recorded)}", "the recorded parts did not come from this judge and this text")]
    return [reset, passed(8, f"{len(mine)} trajectories judged again: every part is the same")]


def _parts(verdict: Verdict, names: Set[str]) -> dict[str, float] | None:
    if not isinstance(verdict, Scored):
        return None
    return {part.name: part.value for part in verdict.vector.components if part.name in names}


def _reset(rows: Sequence[SampledRow], tasks: Mapping[TaskId, Task], tokenizer: ChatTokenizer, *, built: bool) -> DeepFinding:
    """Stage 4: the prompt a task starts with, rendered again."""
    for row in rows:
        task = tasks.get(row.trace.task)
        if task is None:
            return failed(4, row.id, f"its task {row.trace.task} is not in the run",
                          "the trajectory cannot be traced to a problem; leave it out and find what issued it")
        again = tokenizer.prompt(task.prompt)
        if again != row.trace.prompt_ids:
            at = next((i for i, (a, b) in enumerate(zip(again, row.trace.prompt_ids, strict=False)) if a != b), None)
            return failed(4, row.id, f"reset again, task {task.id} starts with {len(again)} tokens, the trajectory with "
                          f"{len(row.trace.prompt_ids)}" + ("" if at is None else f"; first difference at {at}"),
                          "the environment showed something else than its task records: find what depends on time or place")
    note = "the image was built again with the same digest" if built else "the image built here has another digest"
    return passed(4, f"{len(rows)} initial states made again from the task records: equal tokens; {note}")


def _compared(rows: Sequence[SampledRow], verdicts: Sequence[Verdict], *, exact: bool, why: str) -> DeepFinding:
    """Stage 8: recorded verdicts against those given now."""
    equal = left = 0
    for row, now in zip(rows, verdicts, strict=True):
        if row.verdict is None or (isinstance(row.verdict, Unscored) and row.verdict.code in CHANCE) or (
                isinstance(now, Unscored) and now.code in CHANCE):
            left += 1
            continue
        was = row.verdict
        if (content_id(was) != content_id(now)) if exact else (_numbers(was) != _numbers(now)):
            return failed(8, row.id, f"judged again, {row.trace.attempt} gets {_shown(now)}; the record says {_shown(was)}",
                          "the recorded reward did not come from this judge and this text: do not train on the run")
        equal += 1
    unsure = f"; {left} without a verdict, or ended by the clock or a crash, were left out" if left else ""
    if not equal:
        return not_executed(8, f"no sampled trajectory has a verdict that can be given again{unsure}{why}")
    return passed(8, f"{equal} trajectories judged again: equal verdicts{unsure}{why}")


def _numbers(verdict: Verdict) -> object:
    if isinstance(verdict, Scored):
        parts = tuple((part.name, part.value) for part in verdict.vector.components)
        return parts, verdict.vector.total, verdict.vector.accuracy
    return verdict.code


def _shown(verdict: Verdict) -> str:
    if isinstance(verdict, Scored):
        parts = ", ".join(f"{part.name} {part.value:g} {part.detail}".strip() for part in verdict.vector.components)
        return f"{verdict.vector.total:g} ({parts})"
    return f"no score ({verdict.code})"


