"""Distillation: the whole next-token distribution, or the sampled token only.

Suffixes: T token positions, V vocabulary. Teachers are detached. Gradients never pass through the sampling of the prefix.
"""

from __future__ import annotations

from typing import Literal, assert_never, get_args

import torch
from torch import Tensor

from rollbook.objectives.checks import (
    check_choice,
    check_float,
    check_no_infinity,
    check_number,
    check_positive,
    check_same_floats,
)
from rollbook.objectives.errors import ObjectiveError

Direction = Literal["reverse", "forward"]


def sampled_token_advantage(logp_T: Tensor, teacher_T: Tensor, *, coefficient: float) -> Tensor:
    """-coefficient (logp - teacher), detached: positive where the teacher finds the sampled token likelier.

    The teacher's log-probabilities are finite; where the student's is -inf the advantage is +inf.
    """
    check_same_floats("sampled_token_advantage", logp_T=logp_T, teacher_T=teacher_T)
    check_no_infinity("sampled_token_advantage", teacher_T=teacher_T)
    check_positive("sampled_token_advantage", coefficient=coefficient)
    return coefficient * (teacher_T - logp_T).detach()


def full_kl(student_TV: Tensor, teacher_TV: Tensor, *, direction: Direction) -> Tensor:
    """Exact KL per position from logits: "reverse" KL(student || teacher) (DeepSeek V4, 2606.19348), "forward" the reverse roles.

    Gradient wrt the student's logits: reverse p (log p - log q - KL), forward p - q; rows sum to 0. Refused where the KL is
    infinite: its gradient would be NaN. Logits are rows of positions over one vocabulary; NaN stays NaN, on its own row.
    """
    _check_vocabulary(student_TV, teacher_TV)
    _check_allows("teacher_TV", teacher_TV)
    check_choice("full_kl", "direction", direction, get_args(Direction))
    log_p_TV, log_q_TV = student_TV.log_softmax(-1), teacher_TV.detach().log_softmax(-1)
    match direction:
        case "reverse":
            return _finite(_kl(log_p_TV, log_q_TV))
        case "forward":
            return _finite(_kl(log_q_TV, log_p_TV))
        case _:
            assert_never(direction)


def generalized_jsd(student_TV: Tensor, teacher_TV: Tensor, *, beta: float) -> Tensor:
    """GKD's JSD(beta) (2306.13649): beta KL(teacher || m) + (1-beta) KL(student || m), m = beta teacher + (1-beta) student.

    0 < beta < 1; near 0 it behaves as beta times the forward KL, near 1 as 1-beta times the reverse KL.
    """
    _check_vocabulary(student_TV, teacher_TV)
    _check_allows("teacher_TV", teacher_TV)
    check_number("generalized_jsd", "beta", beta)
    if not 0 < beta < 1:
        raise ObjectiveError("generalized_jsd needs 0 < beta < 1", got=repr(beta), why="at the ends it is 0", fix="use full_kl")
    log_p_TV, log_q_TV = student_TV.log_softmax(-1), teacher_TV.detach().log_softmax(-1)
    share = torch.tensor([1 - beta, beta], dtype=log_p_TV.dtype, device=log_p_TV.device).log()
    dead_TV = (log_p_TV == -torch.inf) & (log_q_TV == -torch.inf)
    alive_p_TV = torch.where(dead_TV, torch.zeros_like(log_p_TV), log_p_TV)  # logaddexp has no gradient at two -inf
    log_m_TV = torch.logaddexp(alive_p_TV + share[0], log_q_TV + share[1])
    return beta * _kl(log_q_TV, log_m_TV) + (1 - beta) * _kl(log_p_TV, log_m_TV)


def soft_target(student_TV: Tensor, target_TV: Tensor) -> Tensor:
    """Cross-entropy with soft targets (codistillation): -sum_v target log p. Gradient wrt logits p - target.

    A token with target 0 contributes 0, also where the student's logit is -inf; with a target above 0 the loss is infinite there.
    Targets are probabilities: each row is >= 0 and sums to 1 up to the rounding of its precision (the square root of its eps).
    """
    _check_vocabulary(student_TV, target_TV)
    _check_distribution(target_TV)
    target_TV = target_TV.detach()
    product_TV = target_TV * student_TV.log_softmax(-1)
    return -torch.where(target_TV == 0, torch.zeros_like(product_TV), product_TV).sum(-1)


def _kl(log_p_TV: Tensor, log_q_TV: Tensor) -> Tensor:
    """sum_v p (log p - log q); a token with p = 0 contributes 0."""
    p_TV = log_p_TV.exp()
    gap_TV = torch.where(p_TV > 0, log_p_TV - log_q_TV, torch.zeros_like(p_TV))
    return (p_TV * gap_TV).sum(-1)


def _finite(kl_T: Tensor) -> Tensor:
    if bool((kl_T == torch.inf).any()):
        raise ObjectiveError(
            "full_kl needs a second distribution that allows what the first does",
            got=f"an infinite KL at position {', '.join(map(str, (kl_T == torch.inf).nonzero().tolist()[0]))}",
            why="a token of probability 0 there has an infinite log-ratio, and a NaN gradient",
            fix="take both over the same support, or use generalized_jsd, which is bounded",
        )
    return kl_T


def _check_vocabulary(student_TV: Tensor, teacher_TV: Tensor) -> None:
    check_float("distill", student_TV=student_TV, teacher_TV=teacher_TV)
    if student_TV.dim() < 2 or student_TV.shape[-1] == 0:
        raise ObjectiveError(
            "distill: logits must be rows of positions over a vocabulary",
            got=f"shape {tuple(student_TV.shape)}",
            why="each position has a distribution of its own, and sums over it",
            fix="pass [positions, vocabulary], a single position as [1, vocabulary]",
        )
    if student_TV.shape != teacher_TV.shape:
        raise ObjectiveError(
            "student and teacher must share positions and vocabulary",
            got=f"{tuple(student_TV.shape)} and {tuple(teacher_TV.shape)}",
            why="the sum runs over the same tokens in both",
            fix="use the same tokenizer and cut padded vocabulary rows from both",
        )
    _check_allows("student_TV", student_TV)


def _check_allows(name: str, logits_TV: Tensor) -> None:
    """Refuse rows that allow no token, or one without bound."""
    bad_T = logits_TV.detach().amax(-1).isinf()
    if bool(bad_T.any()):
        raise ObjectiveError(
            f"distill: {name} must allow a token at every position, and none infinitely",
            got=f"a largest logit of {logits_TV.detach().amax(-1)[bad_T].tolist()[0]} at {bad_T.nonzero().tolist()[0]}",
            why="such a row is no distribution: its softmax is NaN",
            fix="leave the position out",
        )


def _check_distribution(target_TV: Tensor) -> None:
    off_T = (target_TV.detach().double().sum(-1) - 1).abs()
    slack = torch.finfo(target_TV.dtype).eps ** 0.5
    bad_T = ~(off_T <= slack) | (target_TV < 0).any(-1)
    if bool(bad_T.any()):
        place = bad_T.nonzero().tolist()[0]
        raise ObjectiveError(
            "soft_target needs targets that are probabilities of the whole vocabulary",
            got=f"a sum of {float(target_TV[tuple(place)].sum()):g} at position {', '.join(map(str, place))}, or one below 0",
            why="the gradient p - target sums to 0 only then; a truncated target pulls every logit down",
            fix="renormalise the targets over the tokens that they cover",
        )
