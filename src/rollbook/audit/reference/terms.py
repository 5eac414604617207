"""Terms beside the policy loss, per action token.

Legend: T action tokens, S sequences. d = logp - reference, rho = exp(logp - anchor).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from rollbook.audit.reference.document import Document, kind_of, read
from rollbook.audit.reference.step import GUARD, Floats, Formula, RecomputeError, Reference, Step, exponential, reduce
from rollbook.records.codec import nearest

TERMS: Final = {"kl": ("KlTerm", ("estimator", "coefficient")), "positive_nll": ("PositiveNll", ("coefficient",)),
                "entropy": ("EntropyBonus", ("coefficient",))}
NOT_STORED: Final = {
    "ptx": "it is the loss of pretraining text, which a policy batch does not hold",
}


def term_loss(name: str, settings_of_term: Mapping[str, object], step: Step, weight_T: Floats) -> Reference:
    """coefficient * sum_T weight_T loss_T of the named term and its gradient; `weight_T` are the weights of its own population.

    Example: term_loss("kl", {"kind": "KlTerm", "estimator": "k3", "coefficient": 0.04, "aggregate": "token_mean"}, step, w_T)
    """
    if name in NOT_STORED:
        raise RecomputeError(f"the term {name} cannot be recomputed from a policy batch", got=f"name = {name!r}",
                             why=NOT_STORED[name], fix="check it where that data is at hand")
    if name not in TERMS:
        raise RecomputeError("the reference knows no term of this name", got=repr(name), why="its formula is not written here",
                             fix=f"nearest: {nearest(name, list(TERMS))}")
    kind, needs = TERMS[name]
    document = read(settings_of_term, kind_of(settings_of_term, (kind,), f"{name} term"), needs=needs, may=("aggregate",))
    formulas = {"kl": lambda: kl(document, step), "positive_nll": lambda: positive_nll(step), "entropy": lambda: entropy(step)}
    formula = formulas[name]()
    return reduce(formula, step, weight_T, document.number("coefficient"))


def kl(settings: Document, step: Step) -> Formula:
    """KL(pi || reference) estimates  [0.5]: k2 d^2/2, gradient d; k3 e^-d - 1 + d, gradient 1 - e^-d; rho k3, gradient rho d."""
    reference_T = step.read("reference_T", settings.kind)
    d_T = step.logp_T - reference_T
    none_T = np.zeros(d_T.shape, dtype=bool)
    estimator = settings.choice("estimator", "k2", "k3", "unbiased")
    if estimator == "k2":
        return Formula(loss_T=d_T**2 / 2, own_T=d_T, clipped_T=none_T)
    k3_T, k3_slope_T = _k3(d_T)
    if estimator == "k3":
        return Formula(loss_T=k3_T, own_T=k3_slope_T, clipped_T=none_T)
    anchor_T = step.read("anchor_T", settings.kind)
    rho_T, slope_T = exponential(step.logp_T - anchor_T)
    far_T = -d_T > GUARD  # rho k3 written as ref/anchor + rho (d - 1), so that e^-d does not appear
    value_T = np.where(far_T, exponential(reference_T - anchor_T)[0] + rho_T * (d_T - 1), rho_T * k3_T)
    return Formula(loss_T=value_T, own_T=slope_T * d_T, clipped_T=none_T)  # rho d, where rho is its own slope


def entropy(step: Step) -> Formula:
    """-H, as the trainer measured it; it depends on the whole distribution and has no slope at the sampled token's log-prob."""
    entropy_T = step.read("entropy_T", "EntropyBonus")
    return Formula(loss_T=-entropy_T, own_T=np.zeros(entropy_T.shape), clipped_T=np.zeros(entropy_T.shape, dtype=bool))


def positive_nll(step: Step) -> Formula:
    """-logp on the tokens of correct sequences, 0 on the others  [A4]. Weights: token_mean over correct sequences only."""
    if step.correct_S is None:
        raise RecomputeError("positive_nll reads correct_S", got="None", why="it sums over correct sequences only",
                             fix="take it from the verdicts")
    right_T = step.correct_S[step.seq_T]
    return Formula(loss_T=np.where(right_T, -step.logp_T, 0.0), own_T=np.where(right_T, -1.0, 0.0),
                   clipped_T=np.zeros(right_T.shape, dtype=bool))


def _k3(d_T: Floats) -> tuple[Floats, Floats]:
    """e^-d - 1 + d and its slope 1 - e^-d; e^-d with the tangent of `exponential`."""
    x_T = -d_T
    near_T = np.minimum(x_T, GUARD)
    return np.expm1(near_T) + np.exp(GUARD) * np.maximum(x_T - GUARD, 0) - x_T, -np.expm1(near_T)
