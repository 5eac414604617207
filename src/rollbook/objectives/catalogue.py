"""Every objective by name: a literal mapping, nothing registers itself."""

from __future__ import annotations

from typing import Final

from rollbook.objectives.core import Objective
from rollbook.objectives.critic_policies import DecoupledPpo, Glm5Agentic, Glm5Reasoning, Ppo, PpoPtx, Sao, Vapo
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

OBJECTIVES: Final[dict[str, type[Objective]]] = {
    "Ppo": Ppo,
    "PpoPtx": PpoPtx,
    "Grpo": Grpo,
    "R1Printed": R1Printed,
    "DrGrpo": DrGrpo,
    "Dapo": Dapo,
    "Gspo": Gspo,
    "GspoToken": GspoToken,
    "Sapo": Sapo,
    "Cispo": Cispo,
    "Rloo": Rloo,
    "ReinforcePlusPlus": ReinforcePlusPlus,
    "ReinforcePlusPlusBaseline": ReinforcePlusPlusBaseline,
    "Magistral": Magistral,
    "KimiK15": KimiK15,
    "KimiK2": KimiK2,
    "KimiK25": KimiK25,
    "Sao": Sao,
    "Glm5Reasoning": Glm5Reasoning,
    "Glm5Agentic": Glm5Agentic,
    "Glm5CrossStage": Glm5CrossStage,
    "DecoupledPpo": DecoupledPpo,
    "Vapo": Vapo,
    "DeepSeekV32": DeepSeekV32,
    "Mopd": Mopd,
    "MimoMopd": MimoMopd,
    "OnPolicyDistill": OnPolicyDistill,
}
