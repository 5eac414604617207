"""The policy loss of any objective's settings document, and the extra terms that such a document implies.

Legend: T action tokens of the whole optimizer step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rollbook.audit.reference import sequences, tokens
from rollbook.audit.reference.document import Document, kind_of, read
from rollbook.audit.reference.step import Floats, Formula, RecomputeError, Reference, Step, reduce

Settings = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Kind:
    """An objective: its formula, the settings the loss needs, and settings that the loss does not read."""

    formula: Callable[[Document, Step], Formula]
    needs: tuple[str, ...]
    may: tuple[str, ...] = ()


BOUNDS = ("low", "high")
KINDS: Final[dict[str, Kind]] = {
    "Ppo": Kind(tokens.clipped, (*BOUNDS, "dual")),
    "PpoPtx": Kind(tokens.clipped, (*BOUNDS, "dual", "ptx_coefficient"), ("ptx_aggregate",)),
    "Grpo": Kind(tokens.clipped, (*BOUNDS, "beta")),
    "R1Printed": Kind(sequences.r1_printed, (*BOUNDS, "beta", "kl_estimator"), ("kl_aggregate",)),
    "DrGrpo": Kind(tokens.clipped, BOUNDS),
    "Dapo": Kind(tokens.clipped, BOUNDS, ("overlong_filter",)),
    "Gspo": Kind(sequences.gspo, BOUNDS),
    "GspoToken": Kind(sequences.gspo_token, BOUNDS),
    "Sapo": Kind(tokens.sapo, ("tau_positive", "tau_negative")),
    "Cispo": Kind(tokens.cispo, BOUNDS),
    "Rloo": Kind(tokens.rloo, ()),
    "ReinforcePlusPlus": Kind(tokens.clipped, BOUNDS),
    "ReinforcePlusPlusBaseline": Kind(tokens.clipped, (*BOUNDS, "beta")),
    "Magistral": Kind(tokens.magistral, (*BOUNDS, "ratio_to")),
    "KimiK15": Kind(sequences.kimi_square, ("tau", "scale")),
    "KimiK2": Kind(sequences.kimi_square, ("tau", "scale")),
    "KimiK25": Kind(tokens.kimi_k25, ("tau", "bound_on", "tau_mask", "ratio_to", *BOUNDS, "log_low", "log_high")),
    "Sao": Kind(tokens.masked_importance, BOUNDS),
    "Glm5Reasoning": Kind(tokens.glm5_reasoning, (*BOUNDS, "beta")),
    "Glm5Agentic": Kind(tokens.masked_importance, BOUNDS),
    "Glm5CrossStage": Kind(tokens.glm5_cross_stage, (*BOUNDS, "beta")),
    "DecoupledPpo": Kind(tokens.decoupled_ppo, (*BOUNDS, "weight_rule", "weight_cap")),
    "Vapo": Kind(tokens.clipped, (*BOUNDS, "mu")),
    "DeepSeekV32": Kind(sequences.deepseek_v32, (*BOUNDS, "delta", "beta")),
    "Mopd": Kind(tokens.mopd, BOUNDS),
    "MimoMopd": Kind(tokens.mopd, (*BOUNDS, "alpha")),
    "OnPolicyDistill": Kind(tokens.on_policy_distill, ("coefficient",)),
}
WITH_ENTROPY = ("objective", "coefficient", "entropy_aggregate")
CORRECTED = ("objective", "rule", "cap", "low", "high")
COMMON = ("credit", "aggregate")  # what the advantages and weights are made with; the loss is given both
OTHER_DATA: Final = {
    "Dpo": "it reads pairs of responses",
    "Llama3Dpo": "it reads pairs of responses",
    "Ptx": "it reads pretraining text",
    "KlTerm": "it is a term beside the policy loss: use term_loss",
    "PositiveNll": "it is a term beside the policy loss: use term_loss",
}
# rule (iii) of the specification: c never multiplies what already holds it, nor a ratio to the behavior policy, nor no ratio
UNCORRECTABLE: Final = ("Corrected", "DecoupledPpo", "Glm5Reasoning", "Glm5CrossStage", "KimiK15", "KimiK2", "Rloo", "Sao",
                        "Glm5Agentic", "Mopd", "MimoMopd", "OnPolicyDistill")


def policy_loss(settings: Settings, step: Step, weight_T: Floats) -> Reference:
    """loss = sum_T weight_T loss_T of the policy term and d loss / d logp_T, for the document stored with the batch.

    Example: policy_loss({"kind": "Magistral", "low": 0.2, "high": 0.28, "ratio_to": "anchor"}, step, weight_T)
    """
    if settings.get("kind") == "WithEntropy":
        return policy_loss(_explored(settings)[0], step, weight_T)
    if settings.get("kind") == "Corrected":
        return _corrected(read(settings, "Corrected", needs=CORRECTED, may=()), step, weight_T)
    document = _document(settings)
    return reduce(KINDS[document.kind].formula(document, step), step, weight_T)


def extra_terms(settings: Settings) -> tuple[tuple[str, dict[str, object]], ...]:
    """(name, settings for `term_loss`) of each term beside the policy loss, in their order; a coefficient of 0 is no term."""
    if settings.get("kind") == "WithEntropy":
        held, bonus = _explored(settings)
        return (*extra_terms(held), ("entropy", bonus))
    if settings.get("kind") == "Corrected":
        return extra_terms(_inner(read(settings, "Corrected", needs=CORRECTED, may=())))
    document = _document(settings)
    match document.kind:
        case "Grpo":
            return _kl(document, "k3", "aggregate")
        case "ReinforcePlusPlusBaseline":
            return _kl(document, "k2", "aggregate")
        case "R1Printed":
            return _kl(document, document.choice("kl_estimator", "k2", "k3", "unbiased"), "kl_aggregate")
        case "DeepSeekV32":
            return _kl(document, "unbiased", "aggregate")
        case "Vapo":
            mu = document.number("mu")
            return (("positive_nll", {"kind": "PositiveNll", "coefficient": mu, "aggregate": "token_mean"}),) if mu else ()
        case "PpoPtx":
            term = {"kind": "Ptx", "coefficient": document.number("ptx_coefficient")}
            return (("ptx", term | _aggregate(document, "ptx_aggregate")),)
        case _:
            return ()


def _explored(settings: Settings) -> tuple[Settings, dict[str, object]]:
    """The objective under a bonus for entropy, and the bonus as a term."""
    outer = read(settings, "WithEntropy", needs=WITH_ENTROPY, may=())
    held = outer.values["objective"]
    if not isinstance(held, Mapping) or held.get("kind") == "WithEntropy":
        raise RecomputeError("WithEntropy.objective is no objective with a policy loss of its own", got=repr(held)[:80],
                             why="the bonus stands beside exactly one objective", fix="look at how the batch was written")
    bonus = {"kind": "EntropyBonus", "coefficient": outer.number("coefficient")}
    return held, bonus | {"aggregate": outer.values["entropy_aggregate"]}


def _document(settings: Settings) -> Document:
    given = settings.get("kind")
    if isinstance(given, str) and given in OTHER_DATA:
        raise RecomputeError(f"{given} is no objective of a policy batch", got=f"kind = {given!r}", why=OTHER_DATA[given],
                             fix=f"a policy batch has one of {', '.join(KINDS)}")
    kind = kind_of(settings, (*KINDS, "Corrected"), "policy objective")
    return read(settings, kind, needs=KINDS[kind].needs, may=(*KINDS[kind].may, *COMMON))


def _corrected(outer: Document, step: Step, weight_T: Floats) -> Reference:
    """The inner objective's loss per token times the correction: its gradient is that of weights scaled by the correction.

    K2.5's loss holds a penalty, which no correction multiplies: it is the loss without tau, corrected, plus the loss without A.
    """
    inner = _inner(outer)
    factor_T = sequences.correction(outer, step)
    if inner.get("kind") == "KimiK25":
        policy = _times(policy_loss({**inner, "tau": 0.0}, step, weight_T * factor_T), factor_T)
        still = replace(step, advantage_T=np.zeros(step.logp_T.shape))
        penalty = policy_loss(inner, still, weight_T)
        return Reference(loss=policy.loss + penalty.loss, gradient_T=policy.gradient_T + penalty.gradient_T,
                         clipped_T=policy.clipped_T, loss_T=policy.loss_T + penalty.loss_T)
    return _times(policy_loss(inner, step, weight_T * factor_T), factor_T)


def _times(plain: Reference, factor_T: Floats) -> Reference:
    """A loss whose weights hold the factor already, with the factor in its loss per token too."""
    return Reference(loss=plain.loss, gradient_T=plain.gradient_T, clipped_T=plain.clipped_T | (factor_T == 0),
                     loss_T=factor_T * plain.loss_T)


def _inner(outer: Document) -> Settings:
    inner = outer.values["objective"]
    if not isinstance(inner, Mapping) or inner.get("kind") in UNCORRECTABLE or inner.get("ratio_to") == "behavior":
        raise RecomputeError("Corrected.objective cannot be weighted by c = exp(anchor - behavior)",
                             got=repr(inner.get("kind") if isinstance(inner, Mapping) else inner),
                             why="it already holds c, has no ratio to the anchor, or is no objective",
                             fix="look at how the batch was written")
    return inner


def _kl(document: Document, estimator: str, aggregate: str) -> tuple[tuple[str, dict[str, object]], ...]:
    beta = document.number("beta")
    term: dict[str, object] = {"kind": "KlTerm", "estimator": estimator, "coefficient": beta}
    return (("kl", term | _aggregate(document, aggregate)),) if beta else ()


def _aggregate(document: Document, name: str) -> dict[str, object]:
    return {"aggregate": document.values[name]} if name in document.values else {}
