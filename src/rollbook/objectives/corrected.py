"""An objective times an off-policy correction. Suffix: T action tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from rollbook.objectives import correction
from rollbook.objectives.around import Around
from rollbook.objectives.checks import check_bounds, check_cap, check_choice
from rollbook.objectives.core import ActionTokens, Objective, TokenLoss, read
from rollbook.objectives.critic_policies import DecoupledPpo, Glm5Reasoning
from rollbook.objectives.errors import ObjectiveError
from rollbook.objectives.exploring import ControlledEntropy, WithEntropy
from rollbook.objectives.kimi import KimiK2, KimiK15, KimiK25
from rollbook.objectives.ratios import weighted
from rollbook.objectives.teacher_policies import Glm5CrossStage

CAPPED = ("token_tis", "sequence_tis", "sequence_mis")
BANDED = ("icepop", "geometric_band")


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected(Around):
    """`objective`'s policy loss times a weight of c = exp(anchor - behavior), without gradient, outside its clip.

    Gradient: the weight times the objective's. The KL and other extra terms are not weighted, nor is the squared penalty inside
    K2.5's loss: c corrects what is a surrogate of the reward. Refused for an objective whose ratio is already to `behavior`, has
    no ratio, or that corrects by itself: it would count c twice, or change what it names. A token of weight 0 has loss 0.
    """

    rule: Literal["token_tis", "icepop", "sequence_tis", "sequence_mis", "geometric_band"]
    cap: float | None = None
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        check_choice("Corrected", "rule", self.rule, (*CAPPED, *BANDED))
        wanted = ("cap",) if self.rule in CAPPED else ("low", "high")
        given = tuple(name for name in ("cap", "low", "high") if getattr(self, name) is not None)
        if given != wanted:
            raise ObjectiveError(
                f'Corrected with rule = "{self.rule}" takes {" and ".join(wanted)}',
                got=", ".join(given) or "none",
                why="another bound would be ignored",
                fix=f"set {' and '.join(wanted)} only",
            )
        if self.cap is not None:
            check_cap("Corrected", cap=self.cap)
        if self.low is not None and self.high is not None:
            check_bounds("Corrected", low=self.low, high=self.high)
        why = uncorrectable(self.objective)
        if why is not None:
            raise ObjectiveError(
                f"{type(self.objective).__name__} cannot be corrected",
                got=f"rule = {self.rule!r}",
                why=why,
                fix="use it alone, or choose an objective whose ratio is to the anchor",
            )

    @property
    def reads(self) -> frozenset[str]:  # type: ignore[override]
        return self.objective.reads | {"anchor_T", "behavior_T"}

    @property
    def scope(self) -> Literal["token", "sequence"]:  # type: ignore[override]
        return self.objective.scope if self.rule in ("token_tis", "icepop") else "sequence"

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        weight_T = self.weight(tokens)
        if not isinstance(self.objective, KimiK25):
            return weighted(weight_T, self.objective(tokens))
        plain = self.objective.policy(tokens)
        policy = weighted(weight_T, plain)
        return TokenLoss(policy.loss_T + self.objective.penalty(tokens, ~plain.clipped_T), policy.clipped_T)

    def weight(self, tokens: ActionTokens) -> Tensor:
        """The correction of each token."""
        anchor_T, behavior_T = read(tokens, self, "anchor_T", "behavior_T")
        if self.scope == "sequence":
            tokens.require_whole(self)
        cap, low, high = self.cap or 0.0, self.low or 0.0, self.high or 0.0
        match self.rule:
            case "token_tis":
                return correction.token_tis(anchor_T, behavior_T, cap=cap)
            case "icepop":
                return correction.icepop(anchor_T, behavior_T, low=low, high=high)
            case "sequence_tis":
                return correction.sequence_tis(anchor_T, behavior_T, tokens.seq_T, cap=cap)
            case "sequence_mis":
                return correction.sequence_mis(anchor_T, behavior_T, tokens.seq_T, cap=cap)
            case "geometric_band":
                return correction.geometric_band(anchor_T, behavior_T, tokens.seq_T, low=low, high=high)


def uncorrectable(objective: object) -> str | None:
    """Why c = exp(anchor - behavior) must not multiply this objective; None: it may."""
    match objective:
        case Corrected() | DecoupledPpo() | Glm5Reasoning() | Glm5CrossStage():
            return "it already weighs by anchor / behavior: c would count twice"
        case KimiK15() | KimiK2():
            return "its square of the log-ratio is no importance-weighted surrogate: a weight would move its optimum's meaning"
        case WithEntropy() | ControlledEntropy():
            return "its bonus is no surrogate of the reward: a correction goes inside"
        case Objective() if "anchor_T" in objective.reads:
            return None
        case Objective() if "behavior_T" in objective.reads:
            return "its ratio is to the behavior policy: c would count twice"
        case Objective():
            return "it has no ratio to a policy that c could connect to the behavior"
        case _:
            return "it is no objective"
