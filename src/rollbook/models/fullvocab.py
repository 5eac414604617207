"""Sums over the whole vocabulary through a chunked head: exact KL to a teacher and entropy, both with gradient.

    reverse  KL(p || q) = sum_v p (log p - log q)     d/dz_v = p (log p - log q - KL) / temperature   (DeepSeek V4, 2606.19348)
    forward  KL(q || p) = sum_v q (log q - log p)     d/dz_v = (p - q) / temperature
    entropy  H(p) = -sum_v p log p                    d/dz_v = -p (log p + H) / temperature

p is the student's softmax of z / temperature, z = h W^T, q the teacher's at the same temperature. Rows of each gradient sum to 0.
The teacher, given as hidden states and head, carries none. Logits are recomputed in backward, `chunk` positions at a time, so
that positions x vocabulary is never held. Sums are fp32, or fp64 for fp64 hidden states.

Legend: T positions, H width (student's and teacher's may differ), R head rows, V real vocabulary, C positions of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, assert_never

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rollbook.records import ModelError

CHUNK = 256
Direction = Literal["reverse", "forward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """An output matrix: its first `real_vocab` rows are tokens, the rest padding. `vocabulary` is the tokenizer's digest."""

    weight_RH: Tensor
    real_vocab: int
    vocabulary: str

    def __post_init__(self) -> None:
        if self.weight_RH.dim() != 2 or not 0 < self.real_vocab <= self.weight_RH.shape[0]:
            raise ModelError("a head needs a matrix and 0 < real_vocab <= its rows",
                             got=f"{tuple(self.weight_RH.shape)}, real_vocab {self.real_vocab}",
                             why="rows beyond the tokenizer's ids are padding and must not receive probability")

    @property
    def weight_VH(self) -> Tensor:
        """The rows that are tokens."""
        return self.weight_RH[: self.real_vocab]


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """A teacher's last hidden states at the student's positions, and its head."""

    hidden_TH: Tensor
    head: Head


def full_vocabulary_kl(hidden_TH: Tensor, head: Head, teacher: Teacher, *, direction: Direction, temperature: float,
                       chunk: int = CHUNK) -> Tensor:
    """KL per position in nats, with gradient to the student's hidden states and head."""
    _check(hidden_TH, head, temperature, chunk)
    if direction not in ("reverse", "forward"):
        raise ModelError("direction must be reverse, KL(student || teacher), or forward", got=repr(direction))
    own, other = (head.vocabulary, head.real_vocab), (teacher.head.vocabulary, teacher.head.real_vocab)
    if own != other:
        raise ModelError("teacher and student must share the vocabulary", got=f"student {own}, teacher {other}",
                         why="the sum runs over the same tokens in both, and equal ids of other tokenizers are other words",
                         fix="use a teacher with the student's tokenizer")
    _check(teacher.hidden_TH, teacher.head, temperature, chunk)
    if teacher.hidden_TH.shape[0] != hidden_TH.shape[0]:
        raise ModelError("the teacher needs a hidden state for each position", got=f"{teacher.hidden_TH.shape[0]} for "
                         f"{hidden_TH.shape[0]}", why="position t of one is position t of the other")
    source = _Source(hidden_TH=teacher.hidden_TH.detach(), weight_VH=teacher.head.weight_VH.detach())
    return _summed(hidden_TH, head, source, _How(direction, temperature, chunk))


def full_vocabulary_entropy(hidden_TH: Tensor, head: Head, *, temperature: float, chunk: int = CHUNK) -> Tensor:
    """Entropy per position in nats, with gradient to hidden states and head."""
    _check(hidden_TH, head, temperature, chunk)
    return _summed(hidden_TH, head, None, _How("entropy", temperature, chunk))


@dataclass(frozen=True, slots=True)
class _How:
    what: Literal["reverse", "forward", "entropy"]
    temperature: float
    chunk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Where logits come from: hidden states and the rows of a head."""

    hidden_TH: Tensor
    weight_VH: Tensor

    def logp(self, part: slice, temperature: float) -> Tensor:
        """Log-softmax of the part's logits, [C, V]."""
        logits_CV = self.hidden_TH[part] @ self.weight_VH.to(self.hidden_TH.dtype).T
        return (logits_CV.to(_wide(self.hidden_TH)) / temperature).log_softmax(-1)


def _summed(hidden_TH: Tensor, head: Head, teacher: _Source | None, how: _How) -> Tensor:
    value_T: Tensor = _Summed.apply(hidden_TH, head.weight_VH, teacher, how)  # type: ignore[no-untyped-call]
    return value_T


class _Summed(torch.autograd.Function):
    """The vocabulary sum per position; backward recomputes the chunk's distributions."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, teacher: _Source | None, how: _How) -> Tensor:
        student = _Source(hidden_TH=hidden, weight_VH=weight)
        value_T = torch.empty(hidden.shape[0], dtype=_wide(hidden), device=hidden.device)
        for part in _parts(hidden.shape[0], how.chunk):
            value_T[part] = _value(student, teacher, part, how)
        ctx.save_for_backward(hidden, weight, value_T)
        ctx.teacher, ctx.how = teacher, how
        return value_T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_T: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden, weight, value_T = ctx.saved_tensors
        student = _Source(hidden_TH=hidden, weight_VH=weight)
        grad_hidden = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros(weight.shape, dtype=_wide(hidden), device=weight.device) if ctx.needs_input_grad[1] else None
        for part in _parts(hidden.shape[0], ctx.how.chunk):
            slope_CV = _slope(student, ctx.teacher, part, ctx.how, value_T[part])
            slope_CV = slope_CV.mul_(grad_T[part, None] / ctx.how.temperature).to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = slope_CV @ weight.to(hidden.dtype)
            if grad_weight is not None:
                grad_weight += slope_CV.T @ hidden[part]
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None


def _value(student: _Source, teacher: _Source | None, part: slice, how: _How) -> Tensor:
    log_p_CV = student.logp(part, how.temperature)
    if teacher is None:
        return -(log_p_CV.exp() * log_p_CV).sum(-1)
    log_q_CV = teacher.logp(part, how.temperature)
    if how.what == "reverse":
        return (log_p_CV.exp() * (log_p_CV - log_q_CV)).sum(-1)
    return (log_q_CV.exp() * (log_q_CV - log_p_CV)).sum(-1)


def _slope(student: _Source, teacher: _Source | None, part: slice, how: _How, value_C: Tensor) -> Tensor:
    """d value / d scaled logits, [C, V]."""
    log_p_CV = student.logp(part, how.temperature)
    if teacher is None:
        return -log_p_CV.exp() * (log_p_CV + value_C[:, None])
    log_q_CV = teacher.logp(part, how.temperature)
    match how.what:
        case "reverse":
            return log_p_CV.exp() * (log_p_CV - log_q_CV - value_C[:, None])
        case "forward":
            return log_p_CV.exp() - log_q_CV.exp()
        case "entropy":
            raise AssertionError("entropy has no teacher")
        case _:
            assert_never(how.what)


def _wide(hidden: Tensor) -> torch.dtype:
    return torch.float64 if hidden.dtype == torch.float64 else torch.float32


def _parts(positions: int, chunk: int) -> Iterator[slice]:
    return (slice(at, at + chunk) for at in range(0, positions, chunk))


def _check(hidden_TH: Tensor, head: Head, temperature: float, chunk: int) -> None:
    if hidden_TH.dim() != 2 or hidden_TH.shape[1] != head.weight_RH.shape[1]:
        raise ModelError("hidden states and head must share the width", got=f"{tuple(hidden_TH.shape)} and "
                         f"{tuple(head.weight_RH.shape)}")
    if not 0 < temperature < float("inf") or chunk < 1:
        raise ModelError("a vocabulary sum needs a finite temperature > 0 and chunk >= 1",
                         got=f"temperature {temperature}, chunk {chunk}",
                         why="logits are divided by the temperature and computed chunk by chunk")
