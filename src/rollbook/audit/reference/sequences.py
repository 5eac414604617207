"""Objectives with one ratio, mask or square per sequence, and the off-policy corrections. Loss is -J.

Legend: T action tokens, S sequences, L tokens of a sequence. Section numbers are those of the mechanism specification.
"""

from __future__ import annotations

import numpy as np

from rollbook.audit.reference.document import Document
from rollbook.audit.reference.step import Flags, Floats, Formula, Step, exponential
from rollbook.audit.reference.tokens import surrogate


def gspo(settings: Document, step: Step) -> Formula:
    """J = min(s A, clip(s) A), s = exp((1/L) sum (logp - anchor)); dJ/dlogp_u = s A / L for every u of the sequence  [B4]."""
    log_S = step.mean_S(step.logp_T - step.read("anchor_T", settings.kind))
    one = surrogate(log_S, step.advantage_S(settings.kind), low=settings.number("low"), high=settings.number("high"))
    return _shared(one, step, np.ones(log_S.shape), one.own_T / np.maximum(step.length_S, 1))


def gspo_token(settings: Document, step: Step) -> Formula:
    """As GSPO with s_t = sg[s] exp(logp_t - sg[logp_t]): value s, derivative s on its own token only  [B4]."""
    log_S = step.mean_S(step.logp_T - step.read("anchor_T", settings.kind))
    advantage_T = step.read("advantage_T", settings.kind)
    value = surrogate(log_S[step.seq_T], advantage_T, low=settings.number("low"), high=settings.number("high"))
    s_T = exponential(log_S)[0][step.seq_T]
    return Formula(loss_T=value.loss_T, own_T=np.where(value.clipped_T, 0.0, -s_T * advantage_T), clipped_T=value.clipped_T)


def r1_printed(settings: Document, step: Step) -> Formula:
    """J = min(R A, clip(R) A), R = exp(sum (logp - anchor)) of the whole output; each token carries 1/L of it  [B1]."""
    log_S = step.sum_S(step.logp_T - step.read("anchor_T", settings.kind))
    one = surrogate(log_S, step.advantage_S(settings.kind), low=settings.number("low"), high=settings.number("high"))
    share_S = 1 / np.maximum(step.length_S, 1)
    return _shared(one, step, share_S, share_S * one.own_T)


def kimi_square(settings: Document, step: Step) -> Formula:
    """loss = (A - tau Delta)^2, Delta = sum (logp - anchor); d/dlogp_u = -2 tau (A - tau Delta)  [C1, C2].

    "published_gradient" is that over 2 tau, the direction the report prints. Each token carries 1/L of its sequence's square.
    """
    tau, scale = settings.positive("tau"), settings.choice("scale", "squared", "published_gradient")
    gap_S = (step.advantage_S(settings.kind)
             - tau * step.sum_S(step.logp_T - step.read("anchor_T", settings.kind)))
    divisor = 1.0 if scale == "squared" else 2 * tau
    square = Formula(loss_T=gap_S**2 / divisor, own_T=-2 * tau * gap_S / divisor, clipped_T=np.zeros(gap_S.shape, dtype=bool))
    share_S = 1 / np.maximum(step.length_S, 1)
    return _shared(square, step, share_S, share_S * square.own_T)


def deepseek_v32(settings: Document, step: Step) -> Formula:
    """J = M min(rho A, clip(rho) A), M = 0 iff A < 0 and (1/L) sum (behavior - logp) > delta, a constant  [B9]."""
    log_T = step.logp_T - step.read("anchor_T", settings.kind)
    advantage_S = step.advantage_S(settings.kind)
    plain = surrogate(log_T, advantage_S[step.seq_T], low=settings.number("low"), high=settings.number("high"))
    drift_S = step.mean_S(step.behavior_T - step.logp_T)
    off_T = ((advantage_S < 0) & (drift_S > settings.number("delta")))[step.seq_T]
    return Formula(loss_T=np.where(off_T, 0.0, plain.loss_T), own_T=np.where(off_T, 0.0, plain.own_T),
                   clipped_T=plain.clipped_T | off_T)


def correction(settings: Document, step: Step) -> Floats:
    """The constant weight per token of an off-policy correction, c = exp(anchor - behavior)  [E1]. Bands are closed."""
    log_T = step.read("anchor_T", settings.kind) - step.behavior_T
    rule = settings.choice("rule", "token_tis", "icepop", "sequence_tis", "sequence_mis", "geometric_band")
    settings.unused(*(("cap",) if rule in ("icepop", "geometric_band") else ("low", "high")))
    match rule:
        case "token_tis":
            return np.minimum(exponential(log_T)[0], settings.positive("cap"))
        case "icepop":
            c_T, _ = exponential(log_T)
            return np.where(_in_band(c_T, settings), c_T, 0.0)
        case "sequence_tis":
            return np.minimum(exponential(step.sum_S(log_T))[0], settings.positive("cap"))[step.seq_T]
        case "sequence_mis":
            product_S, _ = exponential(step.sum_S(log_T))
            return np.where(product_S <= settings.positive("cap"), product_S, 0.0)[step.seq_T]
        case _:
            return np.where(_in_band(exponential(step.mean_S(log_T))[0], settings), 1.0, 0.0)[step.seq_T]


def _in_band(value: Floats, settings: Document) -> Flags:
    return (1 - settings.number("low") <= value) & (value <= 1 + settings.number("high"))


def _shared(one: Formula, step: Step, share_S: Floats, pull_S: Floats) -> Formula:
    """A formula per sequence as one per token: each carries `share_S` of its sequence's loss, pulled by every token alike."""
    return Formula(loss_T=(share_S * one.loss_T)[step.seq_T], own_T=np.zeros(step.seq_T.shape),
                   clipped_T=one.clipped_T[step.seq_T], pull_S=pull_S)
