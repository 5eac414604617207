"""The numbers a person follows, computed from records; what was not observed is absent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollbook.experience.batches import Packed
from rollbook.records import Scored, Update, Verdict
from rollbook.training.policy import Measurement

if TYPE_CHECKING:
    from rollbook.orchestration.step import Gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """An update with what it measured and the batch it was taken on."""

    update: Update
    measured: Measurement
    packed: Packed


def step_metrics(gathered: Gathered, updated: Sequence[Updated], *, version: int, update_s: float,
                 step_s: float) -> dict[str, float]:
    """All metrics of a step by catalogue name."""
    tokens = sum(trace.spent for trace in gathered.traces)
    cut = sum(trace.stop_reason == "length" for trace in gathered.traces)
    metrics = {
        **reward_metrics(gathered.verdicts), "rollout/tokens": float(tokens),
        "rollout/length_mean": tokens / len(gathered.traces),
        "rollout/truncated_rate": cut / len(gathered.traces), "rollout/tokens_per_s": tokens / gathered.rollout_s,
        "admission/groups": float(len(gathered.admission.groups)),
        "admission/informative_rate": len(gathered.admission.groups) / sum(len(one.tasks) for one in gathered.issued),
        "time/step_s": step_s, "time/rollout_s": gathered.rollout_s, "time/update_s": update_s,
    }
    if gathered.admission.groups:
        metrics["admission/tokens_per_group"] = tokens / len(gathered.admission.groups)
    if updated:
        metrics |= update_metrics(updated, version)
    return metrics


def reward_metrics(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Means over scored attempts; a component's mean is over the attempts where it ran."""
    vectors = [verdict.vector for verdict in verdicts if isinstance(verdict, Scored)]
    if not vectors:
        return {}
    metrics = {"reward/total_mean": sum(v.total for v in vectors) / len(vectors)}
    if any(v.value("format") is not None for v in vectors):
        metrics["reward/format_rate"] = sum((v.value("format") or 0.0) > 0.0 for v in vectors) / len(vectors)
    known = [v.accuracy for v in vectors if v.accuracy is not None]
    if known:
        metrics["reward/accuracy"] = sum(known) / len(known)
    for part in ("format", "correctness", "length"):
        ran = [value for v in vectors if (value := v.value(part)) is not None]
        if ran:
            metrics[f"reward/{part}_mean"] = sum(ran) / len(ran)
    return metrics


def update_metrics(updated: Sequence[Updated], version: int) -> dict[str, float]:
    """Means over the step's updates; mismatch, entropy and KL from the first, whose weights are the sampler's."""
    first = updated[0]
    count = sum(u.packed.seq_T.numel() for u in updated)
    gap_T = (first.measured.logp_T - first.packed.behavior_T)[first.packed.sampled_T].abs()
    metrics = {
        "update/clip_fraction": sum(float(u.measured.clipped_T.sum()) for u in updated) / count,
        "update/grad_norm": sum(u.update.grad_norm for u in updated) / len(updated),
        "update/learning_rate": updated[-1].update.learning_rate, "policy/entropy_nats": float(first.measured.entropy_T.mean()),
        "policy/mismatch_abs_nats": float(gap_T.mean()),
        "policy/age_max": float(max(version - int(u.packed.version_T[u.packed.sampled_T].min()) for u in updated)),
    }
    if first.update.mismatch_k3_nats is not None:
        metrics["policy/mismatch_k3_nats"] = first.update.mismatch_k3_nats
    if first.update.kl_nats is not None:
        metrics["update/kl_to_start_nats"] = first.update.kl_nats
    return metrics
