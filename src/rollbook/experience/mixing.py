"""Pretraining data beside a policy batch (PPO-ptx): demonstrations whose likelihood is one more term of the step's loss.

Legend: T trained tokens of the demonstrations end to end, S demonstrations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rollbook.objectives import sequence_weight
from rollbook.objectives.core import Objective
from rollbook.objectives.terms import Ptx
from rollbook.records import Demonstration, RecordError

POPULATION = "pretraining"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """The demonstrations of one optimizer step. `weight_T` is fixed here, once, over all of them; `coefficient` is the term's.

    Only tokens that the policy is to write are trained: `length_S` counts them. `plan` lists the demonstrations of each
    micro-batch.
    """

    shown: tuple[Demonstration, ...]
    coefficient: float
    length_S: Tensor
    token_T: Tensor
    weight_T: Tensor
    plan: tuple[tuple[int, ...], ...]

    def tensors(self) -> dict[str, Tensor]:
        """What is stored of it beside the batch, by name."""
        return {"pretraining_ids": self.token_T, "pretraining_length": self.length_S, "pretraining_weight": self.weight_T}


def mixed(shown: Sequence[Demonstration], objective: Objective, *, max_tokens: int, max_length: int | None) -> Mixed:
    """The demonstrations as the objective's pretraining term weighs them; refuses an objective without one, and no data."""
    term = next((one for one in objective.extra_terms if isinstance(one, Ptx)), None)
    if term is None or not shown:
        raise RecordError("pretraining data goes with an objective that has a term for it",
                          got=f"{len(shown)} demonstrations, {type(objective).__name__}",
                          why="a term without data, or data without a term, would be ignored",
                          fix="use objective.kind = PpoPtx and set pretraining.data, or neither")
    own = [tuple(_trained(one)) for one in shown]
    length_S = torch.tensor([len(tokens) for tokens in own], dtype=torch.long)
    weight_S = sequence_weight(term.aggregate, length_S, torch.arange(len(own)), max_length=max_length)
    return Mixed(shown=tuple(shown), coefficient=term.coefficient, length_S=length_S,
                 token_T=torch.tensor([token for tokens in own for token in tokens], dtype=torch.long),
                 weight_T=torch.repeat_interleave(weight_S, length_S), plan=_plan(shown, max_tokens))


def _trained(one: Demonstration) -> list[int]:
    """The tokens of a demonstration that the policy is to write."""
    owner = [span.owner for span in one.owners for _ in range(span.length)]
    return [token for token, who in zip(one.token_ids, owner, strict=True) if who == "policy"]


def _plan(shown: Sequence[Demonstration], max_tokens: int) -> tuple[tuple[int, ...], ...]:
    """Demonstrations in their order, cut into parts of at most `max_tokens` tokens; a longer one stands alone."""
    parts: list[list[int]] = []
    used = 0
    for place, one in enumerate(shown):
        size = len(one.token_ids)
        if not parts or used + size > max_tokens:
            parts.append([])
            used = 0
        parts[-1].append(place)
        used += size
    return tuple(map(tuple, parts))
