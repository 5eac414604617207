"""Judges that are asked in words: rubric, pairwise, constitutional; through the embedded engine or a server."""

from rollbook.rewards.judges.agreement import Agreement, PositionBias, agreement, position_bias
from rollbook.rewards.judges.constitutional import Constitution, Label, Revised
from rollbook.rewards.judges.local import LocalChat
from rollbook.rewards.judges.pairwise import Pair, PairwiseJudge, PairwiseScorer, Preferred
from rollbook.rewards.judges.rubric import RubricJudge
from rollbook.rewards.judges.server import ServerChat

__all__ = ["Agreement", "Constitution", "Label", "LocalChat", "Pair", "PairwiseJudge", "PairwiseScorer", "PositionBias",
           "Preferred", "Revised", "RubricJudge", "ServerChat", "agreement", "position_bias"]
