"""Stages 7, 11 and 12 done again where weights are stored: log-probs of trajectories, probes of versions, parameter gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from rollbook.audit import deep_support, stored
from rollbook.audit.deep import DeepFinding, Work, failed, not_executed, passed
from rollbook.audit.replay_steps import PolicyStep, new_learner, policy_step, sft_step
from rollbook.audit.ruler import Mismatch, Ruler
from rollbook.audit.sampled import SampledRow
from rollbook.ledger import Ledger
from rollbook.models.cache import Cache
from rollbook.models.layout import Layout, Tree, pack
from rollbook.models.logprobs import action_logprobs, full_logprobs, support_logprobs
from rollbook.models.working_copy import WorkingCopy, working_copy
from rollbook.records import Batch, Credit, Demonstration, PolicyVersion, Probe, SamplingEnvelope, SftReport, Update, content_id
from rollbook.records.graph import START
from rollbook.records.recipe import PolicyGradient, Sft
from rollbook.training.trees import sampled_routes, sampled_supports

OTHER_WEIGHTS = "the tokens were sampled by other weights, or other log-probs were written down: drop the updates made of them"
OTHER_UPDATE = "the update was not computed from its batch as recorded: replay the run, do not use it"
UNPUBLISHED = "restore the weights that were published; nothing in this run speaks for the others"
ONE = {"float32": 1e-3, "bfloat16": 0.2}        # mean |engine - trainer| of one trajectory, nats per token (0.03 seen at 135M)
ALL = {"float32": 2e-4, "bfloat16": 0.05}       # the same over the sample


def logprobs_again(work: Work) -> list[DeepFinding]:
    """Stage 7: the engine's log-probs of sampled trajectories against the stored weights of their version."""
    seen: list[tuple[float, SampledRow, int]] = []
    cut: list[tuple[float, SampledRow]] = []
    restricted = 0
    for index, rows in sorted(work.sample.by_version.items()):
        usable = [row for row in rows if _full(_envelope(work, row)) or (row.trace.kept is not None and row.trace.kept.counts)]
        restricted += len(rows) - len(usable)
        if not usable:
            continue
        work.load(work.versions[index])
        seen += [(_off(work, row), row, index) for row in usable]
        cut += [(float(mass_T.mean()), row) for row in usable if (mass_T := _misplaced(work, row)) is not None]
    notes = [f"{work.sample.elsewhere} of {work.sample.total} trajectories are of versions whose weights are not stored"]
    if restricted:
        notes.append(f"{restricted} were sampled from part of the vocabulary and are not recomputed")
    if not seen:
        return [not_executed(7, "; ".join(notes))]
    name = str(work.dtype).removeprefix("torch.")
    off, row, index = max(seen, key=lambda one: one[0])
    mean = sum(one[0] for one in seen) / len(seen)
    said = f"{mean:.2g} nats per token off in the mean (limit {ALL[name]:g}), the worst {off:.2g} (limit {ONE[name]:g})"
    if not (off <= ONE[name] and mean <= ALL[name]):
        return [failed(7, row.id, f"its recorded log-probs are {off:.3g} nats per token off from those that the stored weights "
                       f"of version {index} give; {len(seen)} trajectories are {said}", OTHER_WEIGHTS)]
    return _drawn_otherwise(cut, name) or [
        passed(7, f"log-probs of {len(seen)} trajectories computed again: {said}; {'; '.join(notes)}")]


def _drawn_otherwise(cut: Sequence[tuple[float, SampledRow]], dtype: str) -> list[DeepFinding]:
    """A finding where tokens were drawn from other ids than their envelope leaves; none where they were not."""
    if not cut:
        return []
    worst, row = max(cut, key=lambda one: one[0])
    mean = sum(one[0] for one in cut) / len(cut)
    if worst <= deep_support.ONE[dtype] and mean <= deep_support.ALL[dtype]:
        return []
    return [failed(7, row.id, f"it drew from other ids than its envelope leaves: {worst:.2g} of a token's probability "
                   f"is on the wrong side (limit {deep_support.ONE[dtype]:g}), {mean:.2g} in the mean of {len(cut)} trajectories "
                   f"(limit {deep_support.ALL[dtype]:g})", deep_support.OTHER_SUPPORT)]


def _envelope(work: Work, row: SampledRow) -> SamplingEnvelope | None:
    return None if row.trace.envelope is None else work.sample.envelopes.get(row.trace.envelope)


def _full(envelope: SamplingEnvelope | None) -> bool:
    return envelope is not None and not envelope.top_k and envelope.top_p >= 1.0 and not envelope.min_p


def _off(work: Work, row: SampledRow) -> float:
    """Mean absolute difference of the trajectory's log-probs; 0 where it has no action."""
    recorded = torch.tensor([x for s in row.trace.learnt_segments for x in s.logps or ()])
    if not recorded.numel():
        return 0.0
    with torch.no_grad():
        support = sampled_supports([row.trace])
        how: dict[str, Any] = {"temperature": _temperature(work, row), "dtype": work.dtype}
        layout = _layout(work, row)
        again = (action_logprobs(work.decoder, layout, **how) if support is None else
                 support_logprobs(work.decoder, layout, support, **how)).logp_T
    return float((again - recorded).abs().mean())


def _misplaced(work: Work, row: SampledRow) -> torch.Tensor | None:
    """Per token, the probability of the ids that stand on the wrong side of its support; None where none was kept."""
    support, envelope = sampled_supports([row.trace]), _envelope(work, row)
    if support is None or envelope is None:
        return None
    parts = full_logprobs(work.decoder, _layout(work, row), temperature=_temperature(work, row), dtype=work.dtype)
    return deep_support.misplaced(parts, support, envelope)


def _temperature(work: Work, row: SampledRow) -> float:
    envelope = _envelope(work, row)
    return 1.0 if envelope is None else envelope.temperature or 1.0


def _layout(work: Work, row: SampledRow) -> Layout:
    """The trajectory as a forward pass takes it, along the experts that it keeps."""
    a = work.decoder.architecture
    trees = tuple(Tree(prompt=one.prompt_ids, continuations=(tuple(t for s in one.segments[1:] for t in s.token_ids),),
                       actions=(tuple(s.owner == "policy" for s in one.segments[1:] for _ in s.token_ids),))
                  for one in row.trace.contexts())
    layout = pack(trees, window=a.window)
    if row.trace.kept is None or not row.trace.kept.routes:
        return layout
    return replace(layout, routes_LYK=sampled_routes([row.trace], trees, layers=a.layers, per_token=a.experts_per_token))


def probes_again(work: Work) -> list[DeepFinding]:
    """Stage 12: stored weights hash to their version, and its probe comes out as recorded, by engine path and trainer path."""
    ruler, probed, plain = work.ruler(), 0, 0
    for version in work.versions.values():
        if version.id not in work.stored:
            plain += 1
            continue
        weights = work.load(version)
        if weights != version.weights and (work.exact or work.stored[version.id] is not None):
            where = work.stored[version.id] or "the recipe's model"
            return [failed(12, version.id, f"{where} holds weights {weights[:12]}, version {version.index} was published as "
                           f"{version.weights[:12]}", UNPUBLISHED)]
        if version.probe is not None:
            ruler.at(version.stage, f"version {version.index}", version.id)
            _probe(work, ruler, version.probe)
            probed += 1
    if ruler.found:
        return [_failing(12, ruler.found, "the consumer did not hold these weights, or the probe was not taken from them")]
    note = f"{plain} versions have no stored weights"
    return [passed(12, f"weights of {len(work.versions) - plain} versions hashed again, {probed} probes equal; {note}")]


def _probe(work: Work, ruler: Ruler, probe: Probe) -> None:
    ids, given = probe.token_ids, probe.given
    limit = ONE[str(work.dtype).removeprefix("torch.")]
    ruler.tensor("probe.consumer", torch.tensor(probe.consumer, dtype=torch.float64),
                 torch.tensor(_decoded(working_copy(work.decoder, work.dtype), ids, given), dtype=torch.float64), limit)
    tree = Tree(prompt=ids[:given], continuations=(ids[given:],), actions=((True,) * (len(ids) - given),))
    with torch.no_grad():
        layout = pack((tree,), window=work.decoder.architecture.window)
        trainer = action_logprobs(work.decoder, layout, temperature=1.0, dtype=work.dtype).logp_T
    ruler.tensor("probe.trainer", torch.tensor(probe.trainer, dtype=torch.float64), trainer.double(), limit)


def _decoded(weights: WorkingCopy, ids: Sequence[int], given: int) -> list[float]:
    """Log-probs of the tokens after the first `given` by prefill and decoding, as a sampler computes them."""
    arena = Cache.empty(weights.architecture, 1, len(ids), weights.dtype, weights.device)
    logits, cache = weights.prefill(torch.tensor([list(ids[:given])]), torch.tensor([given]))
    arena.put(0, cache, torch.tensor([0]))
    found = []
    for token in ids[given:]:
        found.append(float(torch.log_softmax(logits.float(), -1)[0, token]))
        logits = weights.decode(torch.tensor([token]), arena.first(1))
    return found


def gradients_again(work: Work) -> list[DeepFinding]:
    """Stage 11: loss and parameter gradients of each training stage's first update, whose weights before are stored."""
    told, lost = [], []
    ends: dict[str, PolicyVersion] = {START: work.versions[0]}
    by_id = {version.id: version for version in work.versions.values()}
    for event in work.ledger.events("StageEnd"):
        ends[str(event.body["stage"])] = by_id[str(event.body["ended"])]
    for name, stage in work.recipe.settings.stages.items():
        if not isinstance(stage, (Sft, PolicyGradient)):
            continue
        start = ends.get(stage.policy)
        if start is None or start.id not in work.stored:
            lost.append(f"{name} (its start weights are not stored)")
            continue
        ruler = work.ruler()
        if isinstance(stage, Sft):
            norm = _first_sft(work, ruler, name, stage, start)
        else:
            norm = _first_policy(work, ruler, name, stage, start)
        if ruler.found:
            return [_failing(11, ruler.found, OTHER_UPDATE)]
        if norm is None:
            lost.append(f"{name} (no update is recorded)")
        else:
            told.append(f"{name} {norm:.6g}")
    rest = "later updates begin at weights that are not stored: `rollbook replay` computes them all"
    missing = f"; not {', '.join(lost)}" if lost else ""
    if not told:
        return [not_executed(11, f"no update could be computed again{missing}")]
    return [passed(11, f"the first update taken again, gradient norm and a policy's weights after it equal: {', '.join(told)}"
                   f"{missing}; {rest}")]


def _first_sft(work: Work, ruler: Ruler, name: str, stage: Sft, start: PolicyVersion) -> float | None:
    ledger = work.ledger
    event = next((one for one in ledger.events("SftReport") if one.body["stage"] == name), None)
    names = {f"{source}/demonstrations" for source in (name, *stage.data)}
    tables = [one for one in ledger.events("RecordTable") if one.body["name"] in names]
    if event is None or not tables:
        return None
    report: SftReport = event.record()
    wanted = set(report.demonstrations)
    held = {identity: one for table in tables for one in ledger.table_records(table)
            if (identity := content_id(one)) in wanted}
    ruler.at(name, f"{name} step {report.step}", event.id)
    if len(held) < len(wanted):
        ruler.say("demonstrations", str(len(wanted)), str(len(held)), "the others are not in the run")
        return None
    work.load(start)
    sft_step(ruler, new_learner(work.decoder, stage, dtype=work.dtype), stage, [held[one] for one in report.demonstrations],
             report, stored.tensors(ledger, report.tensors))
    return report.grad_norm


def _first_policy(work: Work, ruler: Ruler, name: str, stage: PolicyGradient, start: PolicyVersion) -> float | None:
    ledger, batches, credits = work.ledger, {}, {}
    for event in ledger.events():
        if event.kind == "Credit":
            credit: Credit = event.record()
            credits[credit.scope] = credit
        elif event.kind == "Batch":
            batches[event.id] = event.record()
        elif event.kind == "Update":
            update: Update = event.record()
            batch: Batch | None = batches.get(update.batch)
            if batch is None or not batch.scope.startswith(f"{name}/") or batch.scope not in credits:
                continue
            table = next((one for one in ledger.events("TraceTable") if one.body["name"] == batch.scope.rpartition("/")[0]), None)
            ruler.at(name, batch.scope, event.id)
            work.load(start)
            policy_step(ruler, ledger, new_learner(work.decoder, stage, dtype=work.dtype), stage,
                        PolicyStep(batch_id=update.batch, batch=batch, credit=credits[batch.scope], table=table,
                                   update=update, shown=_beside(ledger, batch)))
            return update.grad_norm
    return None


def _beside(ledger: Ledger, batch: Batch) -> tuple[Demonstration, ...]:
    """The pretraining data of a minibatch, as far as the run holds it."""
    if not batch.pretraining:
        return ()
    tables = [one for one in ledger.events("RecordTable") if str(one.body["name"]).endswith("/demonstrations")]
    held = stored.demonstrations(ledger, tables)
    return tuple(held[name] for name in batch.pretraining if name in held)


def _failing(stage: int, found: Sequence[Mismatch], remedy: str) -> DeepFinding:
    more = f" ({len(found)} values in all)" if len(found) > 1 else ""
    return failed(stage, found[0].record, str(found[0]) + more, remedy)
