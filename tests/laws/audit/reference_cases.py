"""Random settings of every objective, random steps, and the learner's way to their loss: autograd over micro-batches."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

import rollbook.objectives as ro
from rollbook.audit.reference import Step
from rollbook.objectives import ActionTokens, Objective
from rollbook.objectives.settings import to_settings

torch.set_num_threads(1)
AGGREGATES = ("token_mean", "sequence_mean", "group_token_mean", "sequence_sum", "fixed_length")
ESTIMATORS = ("k2", "k3", "unbiased")
FIELDS = ("logp_T", "behavior_T", "anchor_T", "reference_T", "teacher_T", "advantage_T")
Floats = NDArray[np.float64]


def bounds(r: random.Random) -> dict[str, float]:
    return {"low": r.uniform(0, 0.9), "high": r.uniform(0, 1.5)}


def kimi(r: random.Random) -> dict[str, object]:
    return {"tau": r.uniform(0.05, 2), "scale": r.choice(["squared", "published_gradient"])}


def k25(r: random.Random) -> dict[str, object]:
    common = {"tau": r.uniform(0, 1), "tau_mask": r.choice(["all", "kept"]), "ratio_to": r.choice(["anchor", "behavior"])}
    if r.random() < 0.5:
        return {"bound_on": "ratio", **bounds(r), **common}
    return {"bound_on": "log_ratio", "log_low": -r.uniform(0, 0.5), "log_high": r.uniform(0, 0.5), **common}


def decoupled(r: random.Random) -> dict[str, object]:
    rule = r.choice(["none", "cap", "mask"])
    return {"weight_rule": rule, **({} if rule == "none" else {"weight_cap": r.uniform(0.7, 1.5)}), **bounds(r)}


def ppo(r: random.Random) -> dict[str, object]:
    own = bounds(r)
    return {**own, "dual": None if r.random() < 0.5 else 1 + own["high"] + r.uniform(0.01, 0.3)}


RANDOM: dict[str, Callable[[random.Random], Objective]] = {
    "Ppo": lambda r: ro.Ppo(**ppo(r)),
    "PpoPtx": lambda r: ro.PpoPtx(**ppo(r), ptx_aggregate="token_mean"),
    "Grpo": lambda r: ro.Grpo(**bounds(r), beta=r.choice([0.0, 0.04])),
    "R1Printed": lambda r: ro.R1Printed(**bounds(r), kl_estimator=r.choice(ESTIMATORS), kl_aggregate="sequence_sum"),
    "DrGrpo": lambda r: ro.DrGrpo(**bounds(r)),
    "Dapo": lambda r: ro.Dapo(**bounds(r), overlong_filter=r.choice([True, False])),
    "Gspo": lambda r: ro.Gspo(low=r.uniform(0, 0.3), high=r.uniform(0, 0.3)),
    "GspoToken": lambda r: ro.GspoToken(low=r.uniform(0, 0.3), high=r.uniform(0, 0.3)),
    "Sapo": lambda r: ro.Sapo(tau_positive=r.uniform(0.2, 3), tau_negative=r.uniform(0.2, 3)),
    "Cispo": lambda r: ro.Cispo(**bounds(r)),
    "Rloo": lambda r: ro.Rloo(),
    "ReinforcePlusPlus": lambda r: ro.ReinforcePlusPlus(**bounds(r)),
    "ReinforcePlusPlusBaseline": lambda r: ro.ReinforcePlusPlusBaseline(**bounds(r), beta=r.choice([0.0, 0.01])),
    "Magistral": lambda r: ro.Magistral(**bounds(r), ratio_to=r.choice(["anchor", "behavior"])),
    "KimiK15": lambda r: ro.KimiK15(**kimi(r)),
    "KimiK2": lambda r: ro.KimiK2(**kimi(r)),
    "KimiK25": lambda r: ro.KimiK25(**k25(r)),
    "Sao": lambda r: ro.Sao(**bounds(r)),
    "Glm5Reasoning": lambda r: ro.Glm5Reasoning(**bounds(r), beta=r.uniform(1.1, 3)),
    "Glm5Agentic": lambda r: ro.Glm5Agentic(**bounds(r)),
    "Glm5CrossStage": lambda r: ro.Glm5CrossStage(**bounds(r), beta=r.uniform(1.1, 3)),
    "DecoupledPpo": lambda r: ro.DecoupledPpo(**decoupled(r)),
    "Vapo": lambda r: ro.Vapo(**bounds(r), mu=r.choice([0.0, 0.1])),
    "DeepSeekV32": lambda r: ro.DeepSeekV32(**bounds(r), delta=r.uniform(0, 0.3), beta=r.choice([0.0, 0.01])),
    "Mopd": lambda r: ro.Mopd(**bounds(r)),
    "MimoMopd": lambda r: ro.MimoMopd(**bounds(r), alpha=r.choice([0.0, 0.7])),
    "OnPolicyDistill": lambda r: ro.OnPolicyDistill(coefficient=r.uniform(0.1, 2)),
}
CORRECTABLE = ("Ppo", "Grpo", "R1Printed", "Dapo", "Gspo", "GspoToken", "Sapo", "Cispo", "Vapo", "DeepSeekV32")
RULES = ("token_tis", "icepop", "sequence_tis", "sequence_mis", "geometric_band")


def corrected(r: random.Random, rule: str) -> Objective:
    limits = bounds(r) if rule in ("icepop", "geometric_band") else {"cap": r.uniform(0.7, 1.6)}
    return ro.Corrected(objective=RANDOM[r.choice(CORRECTABLE)](r), rule=rule, **limits)


def stored(objective: object) -> Mapping[str, object]:
    """The settings document as a batch record holds it."""
    document: dict[str, object] = json.loads(json.dumps(to_settings(objective)))
    return document


@dataclass(frozen=True)
class Case:
    """A whole optimizer step and a weight per token."""

    step: Step
    weight_T: Floats

    def tokens(self, index_T: NDArray[np.int64], *, renumber: bool) -> ActionTokens:
        """Some of the tokens as a micro-batch; `renumber`: with its own sequences only."""
        seq_T, length_S = self.step.seq_T[index_T], self.step.length_S
        if renumber:
            present, seq_T = np.unique(seq_T, return_inverse=True)
            length_S = length_S[present]
        fields = {name: torch.from_numpy(getattr(self.step, name)[index_T]) for name in FIELDS}
        return ActionTokens(**fields, seq_T=torch.from_numpy(seq_T.copy()), length_S=torch.from_numpy(length_S.copy()))


def case(seed: int, *, scale: float = 0.4, per_token: bool = False, weight: str = "any") -> Case:
    """One to five sequences of 0..4 tokens; other policies differ by `scale` nats. `weight`: an aggregate, or any numbers."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 6))
    length_S = rng.integers(0, 5, count)
    length_S[int(rng.integers(count))] += 1
    seq_T = np.repeat(np.arange(count), length_S)
    size, group_S = seq_T.size, rng.integers(-2, 2, count)
    logp_T = -0.1 - np.abs(rng.normal(size=size))
    others = {name: logp_T + scale * rng.normal(size=size) for name in ("behavior_T", "anchor_T", "reference_T", "teacher_T")}
    advantage_T = rng.normal(size=size) if per_token else rng.normal(size=count)[seq_T]
    step = Step(logp_T=logp_T, advantage_T=advantage_T, seq_T=seq_T, length_S=length_S, group_S=group_S,
                correct_S=rng.random(count) < 0.5, **others)
    if weight == "any":
        return Case(step, rng.uniform(0, 1, size))
    weight_S = ro.sequence_weight(weight, torch.from_numpy(length_S), torch.from_numpy(group_S), max_length=7)
    return Case(step, weight_S.numpy()[seq_T])


@dataclass(frozen=True)
class Learned:
    """What the learner's code gives for a whole step."""

    loss: float
    gradient_T: Floats
    clipped_T: NDArray[np.bool_]
    loss_T: Floats


def learned(objective: Callable[[ActionTokens], object], scope: str, case: Case, seed: int) -> Learned:
    """Loss and gradient summed over up to three shuffled micro-batches, cut between sequences where `scope` asks for it."""
    r = random.Random(seed)
    step, size = case.step, case.step.logp_T.size
    units = step.seq_T if scope == "sequence" else np.arange(size)
    part_of = np.array([r.randrange(3) for _ in range(int(units.max()) + 1)])
    loss, gradient_T, loss_T, clipped_T = 0.0, np.full(size, np.nan), np.full(size, np.nan), np.zeros(size, dtype=bool)
    for part in r.sample(range(3), 3):
        index_T = np.flatnonzero(part_of[units] == part)
        if index_T.size == 0:
            continue
        tokens = case.tokens(index_T, renumber=r.random() < 0.5)
        logp_T = tokens.logp_T.clone().requires_grad_()
        given = objective(replace(tokens, logp_T=logp_T))
        each_T = given.loss_T if isinstance(given, ro.TokenLoss) else given
        share = (torch.from_numpy(case.weight_T[index_T]) * each_T).sum()
        gradient_T[index_T] = torch.autograd.grad(share, logp_T)[0].numpy()
        loss, loss_T[index_T] = loss + float(share.detach()), each_T.detach().numpy()
        if isinstance(given, ro.TokenLoss):
            clipped_T[index_T] = given.clipped_T.numpy()
    return Learned(loss, gradient_T, clipped_T, loss_T)
