"""The numbers of a step that people follow, once more from its trajectories, its groups and its updates.

A curve is believed before any record is opened: what a step reports must be what its records say. The means of rewards are
computed again with the verdicts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rollbook.audit.detector import StoredStep
from rollbook.records import ModuleUpdate, StepReport

Floats = NDArray[np.float64]

ROUNDED = 1e-4          # relative: means of stored tensors, which the learner took in single precision
CLOSE = 1e-9            # relative: counts and means of counts
KL = {"float32": 1e-3, "bfloat16": 2e-2, "float16": 2e-2}       # nats: two forward passes of one policy
KL_SEQUENCES = 16       # the sequences, first of the batch, that the KL to the start is measured on


@dataclass(slots=True)
class Solved:
    """The attempts of one step: how many, their tokens, how many were cut; the groups issued for it, 0 where they were issued for
    no step of their own."""

    attempts: int = 0
    tokens: int = 0
    cut: int = 0
    issued: int = 0

    def due(self, groups: int) -> dict[str, float | None] | None:
        """What the step must report, `groups` being those that were admitted; None where its attempts are not known."""
        if not self.attempts:
            return None
        found: dict[str, float | None] = {
            "rollout/tokens": float(self.tokens), "rollout/length_mean": self.tokens / self.attempts,
            "rollout/truncated_rate": self.cut / self.attempts, "admission/groups": float(groups),
            "admission/informative_rate": groups / self.issued if self.issued else None}
        if groups:
            found["admission/tokens_per_group"] = self.tokens / groups
        return found


@dataclass(slots=True)
class Moved:
    """The updates of one step so far; `first` is what the first of them, whose weights are the sampler's, says by itself."""

    clipped: int = 0
    tokens: int = 0
    norms: list[float] = field(default_factory=list)
    rate: float = 0.0
    age: int = 0
    first: dict[str, float] = field(default_factory=dict)

    def add(self, step: StoredStep) -> None:
        update, logp_T = step.update, step.found["logp"].astype(np.float64)
        if not self.norms and logp_T.size:
            gap_T = (logp_T - step.given["behavior"].astype(np.float64))[step.sampled_T]
            measured = {"policy/mismatch_k3_nats": update.mismatch_k3_nats, "update/kl_to_start_nats": update.kl_nats}
            self.first = {"policy/entropy_nats": float(step.found["entropy"].astype(np.float64).mean()),
                          "policy/mismatch_abs_nats": float(np.abs(gap_T).mean()),
                          **{name: value for name, value in measured.items() if value is not None}}
        self.clipped += int((step.found["clipped"] != 0).sum())
        self.tokens += logp_T.size
        self.norms.append(update.grad_norm)
        self.rate, self.age = update.learning_rate, max(self.age, step.batch.max_age)

    def due(self) -> dict[str, float] | None:
        """What the step must report; None where it has no update of the policy."""
        if not self.norms or not self.tokens:
            return None
        return {"update/clip_fraction": self.clipped / self.tokens, "update/grad_norm": sum(self.norms) / len(self.norms),
                "update/learning_rate": self.rate, "policy/age_max": float(self.age), **self.first}


@dataclass(slots=True)
class Valued:
    """The critic's optimizer steps within one step of the policy; values and returns, shape (T,), of each batch once."""

    losses: list[float] = field(default_factory=list)
    taken: Counter[str] = field(default_factory=Counter)        # batch -> optimizer steps on it
    batches: dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]] = field(default_factory=dict)

    def add(self, update: ModuleUpdate, batch: Mapping[str, NDArray[np.generic]]) -> None:
        self.losses += update.loss.values()
        self.taken[update.elements[0]] += 1
        if {"value", "return"} <= batch.keys():
            self.batches[update.elements[0]] = batch["value"].astype(np.float32), batch["return"].astype(np.float32)

    def missed(self, batches: Sequence[str], updates: int) -> str:
        """Which batch of a step was not learnt from `updates` times, none other being learnt from; empty where all are."""
        for name in dict.fromkeys((*batches, *self.taken)):
            due = updates if name in batches else 0
            if self.taken[name] != due:
                return f"the critic took {self.taken[name]} optimizer steps on {name[:17]}, {due} are due"
        return ""

    def due(self) -> dict[str, float]:
        """What the step must report: nothing where no critic was trained, no share where the returns do not vary."""
        if not self.losses:
            return {}
        found = {"value/loss": sum(self.losses) / len(self.losses)}
        if self.batches:
            value_T, return_T = (np.concatenate(parts) for parts in zip(*self.batches.values(), strict=True))
            if (spread := float(return_T.astype(np.float64).var())) > 0:
                found["value/explained_variance"] = 1 - float((return_T - value_T).astype(np.float64).var()) / spread
        return found


def misreported(report: StepReport, due: Mapping[str, float | None] | None, kinds: tuple[str, ...],
                close: float) -> Iterator[str]:
    """What of these kinds a step reports otherwise than its records say; what is None there is not known and not compared."""
    stated = {name: value for name, value in report.metrics.items() if name.startswith(kinds)}
    for name in sorted({*stated, *due}) if due is not None else ():
        value, wanted = stated.get(name), due.get(name)
        if name in due and wanted is None:
            continue
        if value is None or wanted is None or not abs(value - wanted) <= close * max(abs(value), abs(wanted)) + 1e-9:
            yield (f"{name} of step {report.step} of {report.stage} is {'absent' if value is None else f'{value:.6g}'}, its "
                   f"records give {'nothing' if wanted is None else f'{wanted:.6g}'}")


def missummed(step: StoredStep, *, first: bool, at_start: bool) -> Iterator[str]:
    """Which numbers of an update are not those of the tensors it names; the `first` of a step is compared with the engine.

    `at_start`: whether the stored reference log-probs are those of the policy that the stage began with.
    """
    update, logp_T = step.update, step.found["logp"].astype(np.float64)
    gap_T = (logp_T - step.given["behavior"].astype(np.float64))[step.sampled_T]
    due = {"clip_fraction": float((step.found["clipped"] != 0).mean()), "ratio_min": float(np.exp(gap_T.min())),
           "ratio_max": float(np.exp(gap_T.max())), "entropy_nats": float(step.found["entropy"].astype(np.float64).mean()),
           "mismatch_k3_nats": float((np.expm1(gap_T) - gap_T).mean()) if first else None}
    for name, value in due.items():
        stated = getattr(update, name)
        if (stated is None) != (value is None) or (stated is not None and value is not None
                                                   and not abs(stated - value) <= ROUNDED * abs(value) + 1e-6):
            yield f"{name} of {step.batch.scope} is recorded as {stated}, the tensors give {value}"
    yield from _kl(step, logp_T, at_start=at_start)


def _kl(step: StoredStep, logp_T: Floats, *, at_start: bool) -> Iterator[str]:
    """The KL to the start policy, where it can be known: 0 before the first update, else from its stored log-probs."""
    stated, room = step.update.kl_nats, KL.get(step.batch.compute_dtype, 2e-2)
    if stated is None:
        return
    due = 0.0 if step.update.index == 1 else None
    if due is None and at_start and "reference" in step.given:
        first_T = step.given["seq"] < KL_SEQUENCES
        gap_T = (step.given["reference"].astype(np.float64) - logp_T)[first_T]
        due = float((np.expm1(gap_T) - gap_T).mean())
    if stated < -1e-6 or (due is not None and abs(stated - due) > room + 0.05 * due):
        yield (f"kl_nats of {step.batch.scope} is recorded as {stated:.4g}, "
               + ("a k3 estimate is never negative" if due is None else f"computed {due:.4g}"))
