"""Random batches, one instance of every objective, and each one's gradient written out by hand (plain floats, no autograd)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor

import rollbook.objectives as ro
from rollbook.objectives import ActionTokens, Objective, sequence_weight

torch.set_num_threads(1)
F64 = torch.float64
FIELDS = ("logp_T", "advantage_T", "anchor_T", "behavior_T", "reference_T", "teacher_T", "entropy_T")

INSTANCES: dict[str, Objective] = {
    "WithEntropy": ro.WithEntropy(objective=ro.Dapo(), coefficient=0.1, entropy_aggregate="token_mean"),
    "ControlledEntropy": ro.ControlledEntropy(objective=ro.Dapo(), start=0.0, step=0.005, maximum=None,
                                              entropy_aggregate="token_mean"),
    "Ppo": ro.Ppo(),
    "PpoDual": ro.Ppo(low=0.2, high=0.2, dual=1.6),
    "PpoPtx": ro.PpoPtx(),
    "Grpo": ro.Grpo(low=0.2, high=0.3),
    "R1Printed": ro.R1Printed(low=0.5, high=0.9, kl_estimator="k3", kl_aggregate="sequence_sum"),
    "DrGrpo": ro.DrGrpo(),
    "Dapo": ro.Dapo(),
    "Gspo": ro.Gspo(low=0.1, high=0.15),
    "GspoToken": ro.GspoToken(low=0.1, high=0.15),
    "Sapo": ro.Sapo(tau_positive=1.0, tau_negative=1.7),
    "Cispo": ro.Cispo(low=0.4, high=0.3),
    "Rloo": ro.Rloo(),
    "ReinforcePlusPlus": ro.ReinforcePlusPlus(),
    "ReinforcePlusPlusBaseline": ro.ReinforcePlusPlusBaseline(beta=0.01),
    "Magistral": ro.Magistral(low=0.2, high=0.28, ratio_to="anchor"),
    "MagistralBehavior": ro.Magistral(low=0.2, high=0.28, ratio_to="behavior"),
    "KimiK15Squared": ro.KimiK15(tau=0.3, scale="squared"),
    "KimiK15": ro.KimiK15(tau=0.3, scale="published_gradient"),
    "KimiK2Squared": ro.KimiK2(tau=0.3, scale="squared"),
    "KimiK2": ro.KimiK2(tau=0.3, scale="published_gradient"),
    "KimiK25Ratio": ro.KimiK25(tau=0.3, bound_on="ratio", low=0.3, high=0.4, tau_mask="all", ratio_to="anchor"),
    "KimiK25Log": ro.KimiK25(tau=0.3, bound_on="log_ratio", log_low=-0.3, log_high=0.35, tau_mask="kept", ratio_to="behavior"),
    "Sao": ro.Sao(low=0.3, high=5.0),
    "SaoNarrow": ro.Sao(low=0.2, high=0.3),
    "Glm5Reasoning": ro.Glm5Reasoning(),
    "Glm5Agentic": ro.Glm5Agentic(low=0.4, high=0.6),
    "Glm5CrossStage": ro.Glm5CrossStage(),
    "DecoupledPpo": ro.DecoupledPpo(weight_rule="none"),
    "DecoupledPpoCap": ro.DecoupledPpo(weight_rule="cap", weight_cap=1.1),
    "DecoupledPpoMask": ro.DecoupledPpo(weight_rule="mask", weight_cap=1.2),
    "Vapo": ro.Vapo(),
    "DeepSeekV32": ro.DeepSeekV32(low=0.2, high=0.3, delta=0.05, beta=0.01),
    "Mopd": ro.Mopd(),
    "MimoMopd": ro.MimoMopd(low=0.4, high=0.8, alpha=0.5),
    "OnPolicyDistill": ro.OnPolicyDistill(),
    "CorrectedIcePop": ro.Corrected(objective=ro.Dapo(), rule="icepop", low=0.5, high=1.0),
    "CorrectedSequenceTis": ro.Corrected(objective=ro.Gspo(low=0.1, high=0.15), rule="sequence_tis", cap=2.0),
}
TEACHERS = ("Mopd", "MimoMopd", "OnPolicyDistill", "Glm5CrossStage")
SQUARED = ("KimiK15Squared", "KimiK2Squared")


@dataclass(frozen=True)
class Case:
    """A whole optimizer step: the packed tokens, group ids and lengths."""

    tokens: ActionTokens
    group_S: Tensor

    def with_logp(self, logp_T: Tensor) -> ActionTokens:
        return replace(self.tokens, logp_T=logp_T)


@st.composite
def cases(draw: st.DrawFn, drift: float = 0.4, sequences: int = 5, per_token: bool = False) -> Case:
    """Lengths 1..4 (an empty sequence now and then), random log-probs whose differences have scale `drift`."""
    lengths = draw(st.lists(st.integers(0, 4), min_size=1, max_size=sequences).filter(lambda ls: sum(ls) > 0))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31 - 1)))
    groups = draw(st.lists(st.integers(-3, 3), min_size=len(lengths), max_size=len(lengths)))
    return build(lengths, groups, generator, drift=drift, per_token=per_token)


def build(lengths: list[int], groups: list[int], generator: torch.Generator, *, drift: float, per_token: bool = False) -> Case:
    length_S = torch.tensor(lengths, dtype=torch.int64)
    seq_T = torch.repeat_interleave(torch.arange(len(lengths)), length_S)
    size = seq_T.numel()

    def noise(n: int = size) -> Tensor:
        return torch.randn(n, generator=generator, dtype=F64)

    logp_T = -0.1 - noise().abs()
    advantage_T = noise() if per_token else noise(len(lengths))[seq_T]
    tokens = ActionTokens(
        logp_T=logp_T,
        advantage_T=advantage_T,
        anchor_T=logp_T + drift * noise(),
        behavior_T=logp_T + drift * noise(),
        reference_T=logp_T + drift * noise(),
        teacher_T=logp_T + drift * noise(),
        entropy_T=-logp_T,
        seq_T=seq_T,
        length_S=length_S,
    )
    return Case(tokens, torch.tensor(groups, dtype=torch.int64))


def on_policy(case: Case) -> Case:
    """The same step with anchor and behavior equal to the trained policy."""
    logp_T = case.tokens.logp_T
    return Case(replace(case.tokens, anchor_T=logp_T.clone(), behavior_T=logp_T.clone()), case.group_S)


def aggregate_of(objective: Objective) -> str:
    return objective.aggregate if isinstance(objective.aggregate, str) else "token_mean"


def weights(case: Case, how: str) -> Tensor:
    return sequence_weight(how, case.tokens.length_S, case.group_S, max_length=7)


def step_value(objective, case: Case, logp_T: Tensor, how: str) -> Tensor:
    """The step's loss in one piece."""
    tokens = case.with_logp(logp_T)
    return (weights(case, how)[tokens.seq_T] * objective(tokens).loss_T).sum()


def value_and_gradient(objective, case: Case, how: str | None = None) -> tuple[Tensor, Tensor]:
    logp_T = case.tokens.logp_T.clone().requires_grad_()
    value = step_value(objective, case, logp_T, how or aggregate_of(objective))
    (gradient_T,) = torch.autograd.grad(value, logp_T)
    return value.detach(), gradient_T


def advantage_of(objective: Objective, tokens: ActionTokens) -> Tensor:
    """The advantage an objective works with: given, or formed from the teacher."""
    match objective:
        case ro.Mopd() | ro.Glm5CrossStage():
            return tokens.teacher_T - tokens.logp_T
        case ro.MimoMopd():
            return tokens.teacher_T - tokens.logp_T + objective.alpha * tokens.advantage_T
        case ro.OnPolicyDistill():
            return objective.coefficient * (tokens.teacher_T - tokens.behavior_T)
        case _:
            return tokens.advantage_T


def printed_gradient(objective: Objective, tokens: ActionTokens) -> list[float]:
    """d J / d logp of every token before its weight, from the papers' formulas."""
    sequences: dict[int, list[int]] = {}
    for t, s in enumerate(tokens.seq_T.tolist()):
        sequences.setdefault(s, []).append(t)
    result = [0.0] * tokens.logp_T.numel()
    for members in sequences.values():
        for t in members:
            result[t] = _one(objective, tokens, t, members)
    return result


def _clip_gradient(rho: float, a: float, low: float, high: float) -> float:
    if (a > 0 and rho > 1 + high) or (a < 0 and rho < 1 - low):
        return 0.0
    return rho * a


def _one(objective: Objective, tokens: ActionTokens, t: int, members: list[int]) -> float:
    p = tokens.logp_T.tolist()
    anchor, behavior = tokens.anchor_T.tolist(), tokens.behavior_T.tolist()
    a = advantage_of(objective, tokens).tolist()[t]
    rho, r, c = math.exp(p[t] - anchor[t]), math.exp(p[t] - behavior[t]), math.exp(anchor[t] - behavior[t])
    total = sum(p[k] - anchor[k] for k in members)
    match objective:
        case ro.WithEntropy() | ro.ControlledEntropy():
            return _one(objective.objective, tokens, t, members)
        case ro.Corrected(objective=ro.Dapo()):
            weight = c if 1 - objective.low <= c <= 1 + objective.high else 0.0
            return weight * _clip_gradient(rho, a, 0.2, 0.28)
        case ro.Corrected():
            weight = min(math.exp(sum(anchor[k] - behavior[k] for k in members)), objective.cap)
            return weight * _one(objective.objective, tokens, t, members)
        case ro.Gspo() | ro.GspoToken():
            return _clip_gradient(math.exp(total / len(members)), a, objective.low, objective.high)
        case ro.R1Printed():
            return _clip_gradient(math.exp(total), a, objective.low, objective.high)
        case ro.Sapo():
            tau = objective.tau_positive if a > 0 else objective.tau_negative
            gate = 1 / (1 + math.exp(-tau * (rho - 1)))
            return 4 * gate * (1 - gate) * rho * a
        case ro.Cispo():
            return min(max(rho, 1 - objective.low), 1 + objective.high) * a
        case ro.Rloo():
            return a
        case ro.KimiK15() | ro.KimiK2():
            return (2 * objective.tau if objective.scale == "squared" else 1.0) * (a - objective.tau * total)
        case ro.KimiK25():
            x = p[t] - (anchor if objective.ratio_to == "anchor" else behavior)[t]
            if objective.bound_on == "ratio":
                keep = 1 - objective.low <= math.exp(x) <= 1 + objective.high
            else:
                keep = objective.log_low <= x <= objective.log_high
            penalty = 2 * objective.tau * x if keep or objective.tau_mask == "all" else 0.0
            return (math.exp(x) * a if keep else 0.0) - penalty
        case ro.Sao() | ro.Glm5Agentic():
            return r * a if 1 - objective.low < r < 1 + objective.high else 0.0
        case ro.Mopd() | ro.MimoMopd():
            return r * a if 1 - objective.low <= r <= 1 + objective.high else 0.0
        case ro.OnPolicyDistill():
            return r * a
        case ro.Glm5Reasoning() | ro.Glm5CrossStage():
            pop = c if 1 / objective.beta <= c <= objective.beta else 0.0
            return pop * _clip_gradient(rho, a, objective.low, objective.high)
        case ro.DecoupledPpo():
            cap = objective.weight_cap or math.inf
            weight = {"none": c, "cap": min(c, cap), "mask": c if c <= cap else 0.0}[objective.weight_rule]
            return weight * _clip_gradient(rho, a, objective.low, objective.high)
        case ro.DeepSeekV32():
            drift = sum(behavior[k] - p[k] for k in members) / len(members)
            return 0.0 if a < 0 and drift > objective.delta else _clip_gradient(rho, a, objective.low, objective.high)
        case ro.Magistral(ratio_to="behavior"):
            return _clip_gradient(r, a, objective.low, objective.high)
        case ro.Ppo(dual=float() as dual) if a < 0 and rho > dual:
            return 0.0
        case _:
            return _clip_gradient(rho, a, objective.low, objective.high)
