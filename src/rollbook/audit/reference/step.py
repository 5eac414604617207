"""What the reference reads and what it gives.

Legend: T action tokens of the whole optimizer step, S sequences. Log-probs in nats, all floats float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rollbook.records.errors import RollbookError

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]

GUARD: Final = 20.0  # nats; see `exponential`
_PER_TOKEN = ("logp_T", "behavior_T", "anchor_T", "reference_T", "teacher_T", "advantage_T", "entropy_T")


class RecomputeError(RollbookError):
    """A stored step or setting from which the loss cannot be computed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The action tokens of one whole optimizer step: all its micro-batches together, in any order.

    `logp_T` is the trained policy before the update; the other log-probs are constants. `seq_T` indexes `length_S`, the number of
    action tokens of each sequence.
    `entropy_T` is of the trained policy's whole distributions. None means that nothing was scored, never 0.0.

    Example: two sequences of 2 and 1 tokens
        Step(logp_T=array([-1., -.5, -2.]), behavior_T=array([-1., -.5, -2.1]), anchor_T=array([-1.1, -.5, -2.]),
            advantage_T=array([1., 1., -.5]), seq_T=array([0, 0, 1]), length_S=array([2, 1]), group_S=array([0, 0]))
    """

    logp_T: Floats
    behavior_T: Floats
    seq_T: Ids
    length_S: Ids
    group_S: Ids
    anchor_T: Floats | None = None
    reference_T: Floats | None = None
    teacher_T: Floats | None = None
    advantage_T: Floats | None = None
    correct_S: Flags | None = None
    entropy_T: Floats | None = None

    def __post_init__(self) -> None:
        for name in _PER_TOKEN:
            _check(name, getattr(self, name), np.float64, like=("logp_T", self.logp_T))
        _check("seq_T", self.seq_T, np.int64, like=("logp_T", self.logp_T))
        for name, kind in (("length_S", np.int64), ("group_S", np.int64), ("correct_S", np.bool_)):
            _check(name, getattr(self, name), kind, like=("length_S", self.length_S))
        if self.seq_T.size and not 0 <= self.seq_T.min() <= self.seq_T.max() < self.length_S.size:
            raise RecomputeError(f"Step.seq_T must lie in 0 .. {self.length_S.size - 1}",
                                 got=f"{self.seq_T.min()} .. {self.seq_T.max()}", why="it indexes length_S",
                                 fix="number the sequences in the order of length_S")
        present_S = np.bincount(self.seq_T, minlength=self.length_S.size)
        if not np.array_equal(present_S, self.length_S):
            raise RecomputeError("Step needs every action token of its sequences", got=f"{present_S.tolist()} tokens present",
                                 why=f"length_S says {self.length_S.tolist()}; sequence formulas sum over whole sequences",
                                 fix="merge all micro-batches of the optimizer step")

    def read(self, name: str, who: str) -> Floats:
        """The named log-probs or advantages; refused when the step lacks them."""
        value_T: Floats | None = getattr(self, name)
        if value_T is None:
            raise RecomputeError(f"{who} reads {name}", got="None", why="a log-prob that was not stored is not 0.0",
                                 fix=f"store {name} with the batch, as the learner must have had it")
        return value_T

    def sum_S(self, value_T: Floats) -> Floats:
        """Sum over each sequence's tokens."""
        total_S = np.zeros(self.length_S.size)
        np.add.at(total_S, self.seq_T, value_T)
        return total_S

    def mean_S(self, value_T: Floats) -> Floats:
        """(1/L) sum over each sequence's tokens; 0 for an empty sequence."""
        return self.sum_S(value_T) / np.maximum(self.length_S, 1)

    def advantage_S(self, who: str) -> Floats:
        """The one advantage of each sequence; refused when its tokens carry different ones."""
        advantage_T = self.read("advantage_T", who)
        value_S = np.zeros(self.length_S.size)
        value_S[self.seq_T] = advantage_T
        if not np.array_equal(value_S[self.seq_T], advantage_T, equal_nan=True):
            raise RecomputeError(f"{who} takes one advantage per sequence", got="different advantages inside one sequence",
                                 why="its formula has one number per sequence", fix="look at how the batch's credit was made")
        return value_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """A per-token loss and its derivatives, before weights.

    `own_T` is d loss_t / d logp_t with the token's sequence-level numbers held fixed; `pull_S` is d loss_t / d logp_u through
    those numbers, the same for all tokens t, u of a sequence (None: there are none). `clipped_T` marks what the trust rule
    left without gradient (for CISPO: capped).
    """

    loss_T: Floats
    own_T: Floats
    clipped_T: Flags
    pull_S: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """`loss` = coefficient * sum_T weight_T loss_T and `gradient_T` = d loss / d logp_T; `loss_T` is unweighted."""

    loss: float
    gradient_T: Floats
    clipped_T: Flags
    loss_T: Floats


def reduce(formula: Formula, step: Step, weight_T: Floats, coefficient: float = 1.0) -> Reference:
    """The weighted sum and its gradient: own part per token, sequence part weighted by the sequence's total weight."""
    _check("weight_T", weight_T, np.float64, like=("logp_T", step.logp_T))
    gradient_T = weight_T * formula.own_T
    if formula.pull_S is not None:
        gradient_T = gradient_T + (step.sum_S(weight_T) * formula.pull_S)[step.seq_T]
    return Reference(loss=float(coefficient * np.sum(weight_T * formula.loss_T)), gradient_T=coefficient * gradient_T,
                     clipped_T=formula.clipped_T, loss_T=formula.loss_T)


def exponential(x: Floats) -> tuple[Floats, Floats]:
    """e^x and its slope; above x = 20 the tangent there, e^20 (1 + x - 20), whose slope stays e^20.

    No paper prints the tangent: it is rollbook's own bound, so that no ratio overflows, and no other number has it.
    """
    slope = np.exp(np.minimum(x, GUARD))
    return slope * (1 + np.maximum(x - GUARD, 0)), slope


def _check(name: str, value: object, kind: type, *, like: tuple[str, object]) -> None:
    """Refuse what is not a vector of this type and of the length of `like`. None is left to `Step.read`."""
    if value is None:
        return
    if not isinstance(value, np.ndarray) or value.dtype != kind or value.ndim != 1:
        got = f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
        raise RecomputeError(f"{name} must be a vector of {kind.__name__}", got=got,
                             why="the reference computes in double precision", fix=f"convert {name} when reading the batch")
    other = like[1]
    if not isinstance(other, np.ndarray) or value.shape != other.shape:
        raise RecomputeError(f"{name} must have the length of {like[0]}", got=f"shape {value.shape}",
                             why="they describe the same tokens or sequences in the same order", fix="read both from one batch")
