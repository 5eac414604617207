"""How well: the format gate, the math verifier behind a hard limit, and Magistral's composition of them."""

from rollbook.rewards.environment import EnvironmentJudge
from rollbook.rewards.errors import RewardError
from rollbook.rewards.judge import MagistralJudge
from rollbook.rewards.magistral import FormatResult, format_gate, length_penalty
from rollbook.rewards.pool import Failure, VerifierPool
from rollbook.rewards.stamps import package_versions

__all__ = ["EnvironmentJudge", "Failure", "FormatResult", "MagistralJudge", "RewardError", "VerifierPool", "format_gate",
           "length_penalty", "package_versions"]
