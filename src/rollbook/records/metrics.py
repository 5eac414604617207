"""The catalogue of metrics: name -> unit, meaning, denominator. A metric outside it is an error; no observation is absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollbook.records.errors import RecordError


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """What a number is: its unit, what it says, what it is divided by."""

    unit: str
    meaning: str
    denominator: str


def _spec(unit: str, meaning: str, denominator: str) -> MetricSpec:
    return MetricSpec(unit=unit, meaning=meaning, denominator=denominator)


CATALOGUE: Mapping[str, MetricSpec] = {
    "reward/total_mean": _spec("reward", "mean scalar reward", "scored attempts of the step"),
    "reward/format_mean": _spec("reward", "mean format component", "scored attempts of the step"),
    "reward/correctness_mean": _spec("reward", "mean correctness component", "attempts whose gate passed"),
    "reward/length_mean": _spec("reward", "mean length penalty", "attempts whose gate passed"),
    "reward/format_rate": _spec("share", "attempts whose format gate passed", "scored attempts of the step"),
    "reward/accuracy": _spec("share", "attempts with a verified answer", "scored attempts of the step"),
    "rollout/tokens": _spec("tokens", "tokens sampled", "step"),
    "rollout/length_mean": _spec("tokens", "mean response length", "attempts of the step"),
    "rollout/truncated_rate": _spec("share", "attempts cut by length", "attempts of the step"),
    "rollout/tokens_per_s": _spec("tokens/s", "sampled tokens over sampling time", "seconds of sampling"),
    "admission/groups": _spec("groups", "groups admitted", "step"),
    "admission/tokens_per_group": _spec("tokens", "tokens sampled for each group that is trained on", "groups admitted"),
    "admission/informative_rate": _spec("share", "groups admitted", "groups issued in the step"),
    "update/clip_fraction": _spec("share", "action tokens without gradient by the trust rule", "action tokens of the step"),
    "update/grad_norm": _spec("norm", "gradient norm before clipping, mean over the step's updates", "updates"),
    "update/kl_to_start_nats": _spec("nats", "k3 estimate against the stage's first policy", "action tokens of a sample"),
    "update/learning_rate": _spec("rate", "learning rate of the step's last update", "none"),
    "policy/entropy_nats": _spec("nats", "mean entropy of the sampled positions", "action tokens of the first minibatch"),
    "policy/mismatch_k3_nats": _spec("nats", "k3 between engine and trainer at equal weights", "tokens of the first minibatch"),
    "policy/mismatch_abs_nats": _spec("nats", "mean |log-prob gap| of engine and trainer", "tokens of the first minibatch"),
    "policy/age_max": _spec("versions", "age of the oldest token trained on", "none"),
    "time/step_s": _spec("s", "wall time of the step", "none"),
    "time/rollout_s": _spec("s", "wall time of sampling", "none"),
    "time/update_s": _spec("s", "wall time of scoring and updates", "none"),
    "value/loss": _spec("reward squared", "value loss, mean over the step's critic updates", "action tokens of a minibatch"),
    "value/explained_variance": _spec("share", "variance of the returns that the values before the step explain",
                                      "action tokens of the step"),
    "module/loss": _spec("loss", "loss of a module beside the policy, or of a policy on pairs", "elements of the batch"),
    "sft/loss_nats": _spec("nats", "mean negative log-likelihood", "policy tokens of the batch"),
    "eval/heldout_accuracy": _spec("share", "verified answers on the held-out side", "scored attempts"),
    "eval/probe_accuracy": _spec("share", "verified answers on the held-out probe", "scored attempts"),
    "eval/done": _spec("attempts", "attempts evaluated so far", "none"),
}


def checked(metrics: Mapping[str, float]) -> Mapping[str, float]:
    """The metrics as floats; refuses a name outside the catalogue."""
    unknown = sorted(set(metrics) - set(CATALOGUE))
    if unknown:
        raise RecordError("a metric outside the catalogue", got=", ".join(unknown),
                          why="a number nobody defined has no unit and no denominator", fix="add it to records/metrics.py")
    return {name: float(value) for name, value in metrics.items()}
