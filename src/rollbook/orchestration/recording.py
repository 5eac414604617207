"""The optimizer batch and its update as records: tensors into the store, everything else into the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from safetensors.torch import save
from torch import Tensor

from rollbook.experience.batches import Packed
from rollbook.ledger import Ledger
from rollbook.objectives.core import Objective
from rollbook.objectives.settings import to_settings
from rollbook.records import Batch, Demonstration, PolicyVersion, Update, content_id
from rollbook.training.policy import Measurement


def batch_record(ledger: Ledger, packed: Packed, objective: Objective, *, policy: PolicyVersion, dtype: torch.dtype) -> Batch:
    """The batch exactly as it will be used, its tensors stored."""
    return Batch(scope=packed.credit.scope, traces=packed.credit.traces, tensors=ledger.put(blob(packed.tensors())),
                 objective=to_settings(objective), terms=packed.terms, plan=packed.plan, action_tokens=packed.seq_T.numel(),
                 groups=len(set(packed.credit.group_of)), max_age=int(policy.index - packed.version_T[packed.sampled_T].min()),
                 max_length=packed.max_length, threads=torch.get_num_threads(), deterministic=True,
                 compute_dtype=str(dtype).removeprefix("torch."),
                 pretraining=() if packed.mixed is None else tuple(content_id(one) for one in packed.mixed.shown),
                 control=packed.control)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The optimizer step an update is about: its number, the weight hashes around it, whether the weights before it were the
    sampler's, and the KL to the start policy (nats) where it was measured."""

    index: int
    before: str
    after: str
    at_sampler: bool
    kl_nats: float | None


def update_record(ledger: Ledger, packed: Packed, measured: Measurement, batch: str, moved: Moved) -> Update:
    """What the optimizer step did; ratios are to the behavior policy, the mismatch is known only before the trainer moved."""
    gap_T = (measured.logp_T - packed.behavior_T)[packed.sampled_T]
    ratio_T, gap_T = torch.exp(gap_T), gap_T.double()
    beside = {} if measured.mixed_T is None else {"pretraining_logp": measured.mixed_T}
    return Update(
        batch=batch, index=moved.index, tensors=ledger.put(blob({"logp": measured.logp_T, "entropy": measured.entropy_T,
                                                             "gradient": measured.gradient_T,
                                                             "clipped": measured.clipped_T.to(torch.uint8)} | beside)),
        loss=measured.loss, grad_norm=measured.stepped.grad_norm, grad_clipped=measured.stepped.clipped,
        clip_fraction=float(measured.clipped_T.float().mean()), ratio_min=float(ratio_T.min()), ratio_max=float(ratio_T.max()),
        entropy_nats=float(measured.entropy_T.mean()), kl_nats=moved.kl_nats,
        mismatch_k3_nats=float((torch.exp(gap_T) - 1 - gap_T).mean()) if moved.at_sampler else None,
        learning_rate=measured.stepped.learning_rate, weights_before=moved.before, weights_after=moved.after)


def sft_tensors(ledger: Ledger, batch: Sequence[Demonstration], weight_T: Tensor) -> str:
    """The tokens a supervised step saw and the weight each had in its loss, stored; the blob's hash."""
    ids = torch.tensor([token for one in batch for token in one.token_ids], dtype=torch.int32)
    length = torch.tensor([len(one.token_ids) for one in batch], dtype=torch.int32)
    return ledger.put(blob({"token_ids": ids, "length": length, "weight": weight_T}))


def blob(tensors: Mapping[str, Tensor]) -> bytes:
    """The tensors as one safetensors blob."""
    return bytes(save({name: value.contiguous() for name, value in tensors.items()}))
