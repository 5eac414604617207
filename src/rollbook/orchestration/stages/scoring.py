"""A trained reward model as a scorer of finished answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import torch

from rollbook.models.layout import Tree, pack
from rollbook.models.scalar import ScalarModel
from rollbook.orchestration.session import Session
from rollbook.orchestration.stages.modules import scalar_of
from rollbook.records import ModuleVersion, Rated, Task, TaskId, Trace, Unrated, VerifierStamp

MODULE = "reward_model"
TOGETHER = 64       # answers that are scored in one pass


class RewardModelScorer:
    """Rates an answer by the number that a reward model reads after its last token, in the model's own unit."""

    def __init__(self, version: ModuleVersion, model: ScalarModel, dtype: torch.dtype):
        self.version, self.model, self.dtype = version, model, dtype
        self.stamp = VerifierStamp(name=f"{MODULE}:{version.stage}", version="1", digest=version.weights)

    @classmethod
    def of(cls, session: Session, stage: str) -> Self:
        """The scorer of the reward model that a stage trained."""
        return cls(*scalar_of(session, stage, MODULE), session.dtype)

    def score(self, traces: Sequence[Trace], tasks: Mapping[TaskId, Task]) -> list[Rated | Unrated]:
        """One rating per trace, in order; an attempt that did not finish has none."""
        found: list[Rated | Unrated] = [Unrated(code="not_finished", detail=f"the attempt ended as {one.stop_reason}")
                                        for one in traces]
        whole = [at for at, one in enumerate(traces) if one.action_count and one.stop_reason not in ("cancelled", "failed")]
        with torch.no_grad():
            for start in range(0, len(whole), TOGETHER):
                part = whole[start:start + TOGETHER]
                trees = [_tree(traces[at]) for at in part]
                score_S = self.model.answers(pack(trees, window=self.model.body.architecture.window), self.dtype)
                for at, value in zip(part, score_S.tolist(), strict=True):
                    found[at] = Rated(value=value)
        return found

    def close(self) -> None:
        """Nothing is held outside this process."""


def _tree(trace: Trace) -> Tree:
    own = tuple(token for segment in trace.segments[1:] for token in segment.token_ids)
    return Tree(prompt=trace.prompt_ids, continuations=(own,), actions=((True,) * len(own),))
