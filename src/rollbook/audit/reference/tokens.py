"""Objectives whose loss of a token depends on that token alone, as printed. Loss is -J.

Legend: T action tokens. rho = exp(logp - anchor), r = exp(logp - behavior), c = exp(anchor - behavior), A the advantage.
sg[x] is x as a constant. Section numbers in brackets are those of the mechanism specification.
"""

from __future__ import annotations

import numpy as np

from rollbook.audit.reference.document import Document
from rollbook.audit.reference.step import Flags, Floats, Formula, Step, exponential


def surrogate(log_T: Floats, advantage_T: Floats, *, low: float, high: float, dual: float | None = None) -> Formula:
    """J = min(x A, clip(x, 1-low, 1+high) A) with x = e^log; for A < 0 with `dual` C: max(that, C A)  [A1].

    dJ/dlog = x A; 0 iff (A > 0, x > 1+high) or (A < 0, x < 1-low) or (A < 0, x > C). At equality it is kept.
    """
    x_T, slope_T = exponential(log_T)
    value_T = np.minimum(x_T * advantage_T, np.clip(x_T, 1 - low, 1 + high) * advantage_T)
    flat_T = ((advantage_T > 0) & (x_T > 1 + high)) | ((advantage_T < 0) & (x_T < 1 - low))
    if dual is not None:
        value_T = np.where(advantage_T < 0, np.maximum(value_T, dual * advantage_T), value_T)
        flat_T = flat_T | ((advantage_T < 0) & (x_T > dual))
    return Formula(loss_T=-value_T, own_T=np.where(flat_T, 0.0, -slope_T * advantage_T), clipped_T=flat_T)


def constant_times_logp(weight_T: Floats, step: Step, clipped_T: Flags) -> Formula:
    """J = sg[weight] logp; dJ/dlogp = weight. A weight of 0 gives 0, also where logp is -inf."""
    with np.errstate(invalid="ignore"):
        loss_T = np.where(weight_T == 0, 0.0, -weight_T * step.logp_T)
    return Formula(loss_T=loss_T, own_T=-weight_T, clipped_T=clipped_T)


def times(factor_T: Floats, formula: Formula) -> Formula:
    """A loss per token times a constant per token; a token of factor 0 counts as clipped. Token formulas only."""
    assert formula.pull_S is None
    return Formula(loss_T=factor_T * formula.loss_T, own_T=factor_T * formula.own_T,
                   clipped_T=formula.clipped_T | (factor_T == 0))


def clipped(settings: Document, step: Step) -> Formula:
    """The clipped surrogate on rho: PPO, GRPO, Dr.GRPO, DAPO, REINFORCE++, VAPO  [A1, A4, B1-B3, B7]."""
    log_T = step.logp_T - step.read("anchor_T", settings.kind)
    dual = settings.optional("dual") if "dual" in settings.values else None
    return surrogate(log_T, step.read("advantage_T", settings.kind), low=settings.number("low"), high=settings.number("high"),
                     dual=dual)


def magistral(settings: Document, step: Step) -> Formula:
    """The clipped surrogate on the ratio to the policy that `ratio_to` names  [B8]."""
    other = settings.choice("ratio_to", "anchor", "behavior") + "_T"
    return surrogate(step.logp_T - step.read(other, settings.kind), step.read("advantage_T", settings.kind),
                     low=settings.number("low"), high=settings.number("high"))


def sapo(settings: Document, step: Step) -> Formula:
    """J = (4/tau) p A, p = sigmoid(tau (rho - 1)), tau by the sign of A; dJ/dlogp = 4 p (1-p) rho A  [B5]."""
    rho_T, slope_T = exponential(step.logp_T - step.read("anchor_T", settings.kind))
    advantage_T = step.read("advantage_T", settings.kind)
    tau_T = np.where(advantage_T > 0, settings.positive("tau_positive"), settings.positive("tau_negative"))
    with np.errstate(over="ignore"):
        gate_T, other_T = 1 / (1 + np.exp(-tau_T * (rho_T - 1))), 1 / (1 + np.exp(tau_T * (rho_T - 1)))
    return Formula(loss_T=-4 / tau_T * gate_T * advantage_T, own_T=-4 * gate_T * other_T * slope_T * advantage_T,
                   clipped_T=np.zeros(rho_T.shape, dtype=bool))


def cispo(settings: Document, step: Step) -> Formula:
    """J = sg[clip(rho, 1-low, 1+high)] A logp; dJ/dlogp = clip(rho) A, for A != 0 only 0 where rho is and low >= 1  [B6]."""
    rho_T, _ = exponential(step.logp_T - step.read("anchor_T", settings.kind))
    low, high = 1 - settings.number("low"), 1 + settings.number("high")
    weight_T = np.clip(rho_T, low, high) * step.read("advantage_T", settings.kind)
    return constant_times_logp(weight_T, step, (rho_T < low) | (rho_T > high))


def rloo(settings: Document, step: Step) -> Formula:
    """J = A logp; dJ/dlogp = A, no ratio  [B7]."""
    advantage_T = step.read("advantage_T", settings.kind)
    return constant_times_logp(advantage_T, step, np.zeros(advantage_T.shape, dtype=bool))


def kimi_k25(settings: Document, step: Step) -> Formula:
    """J = Clip(rho) A - tau (log rho)^2; dJ/dlogp = keep rho A - 2 tau log rho, whatever the sign of A  [C3].

    Bounds on the log-ratio mask: outside, the first part is 0. Bounds on the ratio clip: outside, it is the bound times A.
    Both intervals are closed. `tau_mask` "kept" drops the second part outside too.
    """
    log_T = step.logp_T - step.read(settings.choice("ratio_to", "anchor", "behavior") + "_T", settings.kind)
    advantage_T, tau = step.read("advantage_T", settings.kind), settings.number("tau")
    rho_T, slope_T = exponential(log_T)
    if settings.choice("bound_on", "ratio", "log_ratio") == "ratio":
        settings.unused("log_low", "log_high")
        low, high = 1 - settings.number("low"), 1 + settings.number("high")
        keep_T, value_T = (low <= rho_T) & (rho_T <= high), np.clip(rho_T, low, high)
    else:
        settings.unused("low", "high")
        keep_T = (settings.number("log_low", least=None) <= log_T) & (log_T <= settings.number("log_high"))
        value_T = np.where(keep_T, rho_T, 0.0)
    charged_T = keep_T | (settings.choice("tau_mask", "all", "kept") == "all")
    return Formula(loss_T=-(value_T * advantage_T - np.where(charged_T, tau * log_T**2, 0.0)),
                   own_T=-(np.where(keep_T, slope_T * advantage_T, 0.0) - np.where(charged_T, 2 * tau * log_T, 0.0)),
                   clipped_T=~keep_T)


def masked_importance(settings: Document, step: Step) -> Formula:
    """J = sg[f] A logp, f = r strictly inside (1-low, 1+high), else 0, whatever the sign of A  [D1, D2]."""
    r_T, _ = exponential(step.logp_T - step.behavior_T)
    inside_T = (1 - settings.number("low") < r_T) & (r_T < 1 + settings.number("high"))
    weight_T = np.where(inside_T, r_T, 0.0) * step.read("advantage_T", settings.kind)
    return constant_times_logp(weight_T, step, ~inside_T)


def mopd(settings: Document, step: Step) -> Formula:
    """J = sg[w a] logp, a = teacher - logp, w = r on the closed 1-low .. 1+high, else 0  [F2]. MiMo: a + alpha A."""
    r_T, _ = exponential(step.logp_T - step.behavior_T)
    inside_T = (1 - settings.number("low") <= r_T) & (r_T <= 1 + settings.number("high"))
    gain_T = step.read("teacher_T", settings.kind) - step.logp_T
    if "alpha" in settings.values and settings.number("alpha") > 0:
        gain_T = gain_T + settings.number("alpha") * step.read("advantage_T", settings.kind)
    with np.errstate(invalid="ignore"):
        return constant_times_logp(np.where(inside_T, r_T * gain_T, 0.0), step, ~inside_T)


def on_policy_distill(settings: Document, step: Step) -> Formula:
    """J = r A, A = -coefficient (behavior - teacher) a constant; dJ/dlogp = r A  [F1]."""
    r_T, slope_T = exponential(step.logp_T - step.behavior_T)
    gain_T = -settings.number("coefficient") * (step.behavior_T - step.read("teacher_T", settings.kind))
    return Formula(loss_T=-r_T * gain_T, own_T=-slope_T * gain_T, clipped_T=np.zeros(r_T.shape, dtype=bool))


def decoupled_ppo(settings: Document, step: Step) -> Formula:
    """J = sg[w] min(rho A, clip(rho) A), w = c, min(c, cap) or c 1[c <= cap]  [A5]."""
    weight_T, _ = exponential(step.read("anchor_T", settings.kind) - step.behavior_T)
    rule = settings.choice("weight_rule", "none", "cap", "mask")
    if rule == "cap":
        weight_T = np.minimum(weight_T, settings.positive("weight_cap"))
    elif rule == "mask":
        weight_T = np.where(weight_T <= settings.positive("weight_cap"), weight_T, 0.0)
    else:
        settings.unused("weight_cap")
    return times(weight_T, clipped(settings, step))


def glm5_reasoning(settings: Document, step: Step) -> Formula:
    """J = pop(c) min(rho A, clip(rho) A), pop(c) = c on the closed 1/beta .. beta, else 0  [D2]."""
    return times(_pop(settings, step), clipped(settings, step))


def glm5_cross_stage(settings: Document, step: Step) -> Formula:
    """GLM-5's reasoning loss with A = sg[teacher - logp]  [D2]. Where logp is -inf, rho A has the limit 0."""
    anchor_T, teacher_T = step.read("anchor_T", settings.kind), step.read("teacher_T", settings.kind)
    gain_T = np.where(step.logp_T == -np.inf, 0.0, teacher_T - step.logp_T)
    plain = surrogate(step.logp_T - anchor_T, gain_T, low=settings.number("low"), high=settings.number("high"))
    return times(_pop(settings, step), plain)


def _pop(settings: Document, step: Step) -> Floats:
    c_T, _ = exponential(step.read("anchor_T", settings.kind) - step.behavior_T)
    beta = settings.number("beta", least=1.0)
    return np.where((1 / beta <= c_T) & (c_T <= beta), c_T, 0.0)
