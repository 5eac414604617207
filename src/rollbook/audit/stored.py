"""Stored optimizer batches as the learner takes them: the tensors from the store, prompts and trees from the traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

from rollbook.experience.admission import AdmittedGroup
from rollbook.experience.batches import Packed, pack
from rollbook.ledger import Event, Ledger
from rollbook.objectives.core import Objective
from rollbook.records import Batch, Credit, Demonstration, Experience, LedgerError, Scored, TraceId, content_id

INPUTS = {"token_ids": "token_T", "seq": "seq_T", "group": "group_S", "length": "length_S", "correct": "correct_S",
          "behavior": "behavior_T", "version": "version_T", "advantage": "advantage_T", "weight": "weight_KT"}
SCORED = {"anchor": "anchor_T", "reference": "reference_T", "teacher": "teacher_T", "value": "value_T", "return": "return_T",
          "kl": "kl_T", "routes": "routes_LYK"}


def members(ledger: Ledger, table: Event | None, batch: Batch) -> tuple[Experience, ...]:
    """The batch's scored trajectories in its order, read from its step's table in bounded memory."""
    wanted = set(batch.traces)
    held: dict[str, Experience] = {}
    for identity, (trace, verdict, _) in ledger.rows(table) if table is not None else ():
        if identity in wanted and isinstance(verdict, Scored) and TraceId(content_id(trace)) == identity:
            held[identity] = Experience(trace=trace, verdict=verdict)
    lost = [name for name in batch.traces if name not in held]
    if lost:
        raise LedgerError(f"the batch of {batch.scope} was made of trajectories that the run does not hold scored",
                          got=f"{len(lost)} of {len(batch.traces)}, first {lost[0]}",
                          why="an update is computed again from the trajectories and the batch")
    return tuple(held[name] for name in batch.traces)


def rebuilt(found: Sequence[Experience], credit: Credit, objective: Objective, *, max_tokens: int,
            max_length: int | None) -> Packed:
    """The batch as the trajectories, the credit record and the objective give it."""
    by_trace = dict(zip(credit.traces, credit.group_of, strict=True))
    named = [(by_trace.get(one.trace.id, one.trace.group), one) for one in found]
    groups = [AdmittedGroup(id=name, members=tuple(one for _, one in run))
              for name, run in groupby(named, key=lambda item: item[0])]
    return pack(groups, credit, objective, max_tokens=max_tokens, max_length=max_length)


def tensors(ledger: Ledger, name: str) -> Mapping[str, Tensor]:
    """The tensors of a stored blob."""
    return dict(load(ledger.get(name)))


def demonstrations(ledger: Ledger, tables: Sequence[Event | None]) -> dict[str, Demonstration]:
    """The demonstrations of tables by their ids; a table that is absent holds none."""
    return {content_id(one): one for table in tables if table is not None for one in ledger.table_records(table)
            if isinstance(one, Demonstration)}


def as_stored(batch: Batch, given: Mapping[str, Tensor], found: tuple[Experience, ...], credit: Credit) -> Packed:
    """The batch exactly as it is stored."""
    missing = sorted(INPUTS.keys() - given.keys())
    if missing:
        raise LedgerError(f"the batch of {batch.scope} lacks tensors", got=", ".join(missing), why="an update needs them all")
    fields: dict[str, Any] = {field: given[name] for name, field in INPUTS.items()}
    if int(fields["seq_T"].numel()) and int(fields["seq_T"].max()) >= len(found):
        raise LedgerError(f"the batch of {batch.scope} has tokens of sequences that it does not name")
    fields |= {field: given.get(name) for name, field in SCORED.items()}
    return Packed(members=found, max_length=batch.max_length, terms=batch.terms, plan=batch.plan, credit=credit, **fields)


def one_sft_blob(ids: Sequence[Sequence[int]], weight_T: Tensor) -> dict[str, Tensor]:
    """What a supervised step stores, by name."""
    return {"token_ids": torch.tensor([token for one in ids for token in one], dtype=torch.int32),
            "length": torch.tensor([len(one) for one in ids], dtype=torch.int32), "weight": weight_T}
