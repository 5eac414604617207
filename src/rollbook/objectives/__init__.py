"""What is optimised: pure functions on packed action tokens. Imports torch and nothing else of rollbook.

`objective(tokens) -> TokenLoss` is unreduced; `sequence_weight` gives the denominator once per optimizer step; a step's loss is
the sum of `Term`s. `credit` makes advantages; `kl`, `terms`, `value` the losses beside the policy's; `correction` and `corrected`
the off-policy weights; `preference` and `distill` the other families; `select` what is trained on; `schema` the JSON Schema.
"""

from rollbook.objectives.aggregate import Aggregate, sequence_weight, token_weight
from rollbook.objectives.catalogue import OBJECTIVES
from rollbook.objectives.core import ActionTokens, ExtraTerm, Objective, Term, TokenLoss, Unstated, all_reads, total_loss
from rollbook.objectives.corrected import Corrected
from rollbook.objectives.critic_policies import DecoupledPpo, Glm5Agentic, Glm5Reasoning, Ppo, PpoPtx, Sao, Vapo
from rollbook.objectives.errors import ObjectiveError
from rollbook.objectives.exploring import ControlledEntropy, WithEntropy
from rollbook.objectives.group_policies import (
    Dapo,
    DeepSeekV32,
    DrGrpo,
    Grpo,
    Magistral,
    R1Printed,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    Rloo,
)
from rollbook.objectives.kimi import KimiK2, KimiK15, KimiK25
from rollbook.objectives.soft_policies import Cispo, Gspo, GspoToken, Sapo
from rollbook.objectives.teacher_policies import Glm5CrossStage, MimoMopd, Mopd, OnPolicyDistill

__all__ = [
    "OBJECTIVES",
    "ActionTokens",
    "Aggregate",
    "Cispo",
    "ControlledEntropy",
    "Corrected",
    "Dapo",
    "DecoupledPpo",
    "DeepSeekV32",
    "DrGrpo",
    "ExtraTerm",
    "Glm5Agentic",
    "Glm5CrossStage",
    "Glm5Reasoning",
    "Grpo",
    "Gspo",
    "GspoToken",
    "KimiK2",
    "KimiK15",
    "KimiK25",
    "Magistral",
    "MimoMopd",
    "Mopd",
    "Objective",
    "ObjectiveError",
    "OnPolicyDistill",
    "Ppo",
    "PpoPtx",
    "R1Printed",
    "ReinforcePlusPlus",
    "ReinforcePlusPlusBaseline",
    "Rloo",
    "Sao",
    "Sapo",
    "Term",
    "TokenLoss",
    "Unstated",
    "Vapo",
    "WithEntropy",
    "all_reads",
    "sequence_weight",
    "token_weight",
    "total_loss",
]
