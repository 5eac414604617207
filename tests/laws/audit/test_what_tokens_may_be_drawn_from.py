"""The ids that top-k, top-p and min-p leave, against those that a trajectory says its tokens were drawn from."""

from dataclasses import replace

import pytest
import torch
from policies import request as asked

from rollbook.audit.deep_support import misplaced
from rollbook.models.support import Support
from rollbook.records import SamplingEnvelope
from rollbook.rollouts.engines.sampling import support

LOGP = torch.tensor([[0.4, 0.3, 0.2, 0.06, 0.04], [0.04, 0.9, 0.02, 0.03, 0.01]]).log()


def envelope(**rules):
    given = {"top_p": 1.0, "top_k": 0, "min_p": 0.0} | rules
    return SamplingEnvelope(policy=None, temperature=1.0, seed=1, max_tokens=8, max_turns=1, max_seconds=None, stop=(),
                            template="", scaffold="", **given)


@pytest.mark.parametrize("rules", [{"top_p": 0.8}, {"top_k": 3}, {"min_p": 0.12}, {"top_p": 0.85, "top_k": 3, "min_p": 0.05}])
@pytest.mark.parametrize("seed", range(3))
def test_what_the_engine_keeps_stands_on_the_right_side(rules, seed):
    logits = 3 * torch.randn(200, 50, generator=torch.Generator().manual_seed(seed))
    kept = support(logits, replace(asked("a", (1,), max_tokens=1), **rules))
    ids = Support.of([row[:count].tolist() for row, count in zip(kept.id_BC, kept.count_B.tolist(), strict=True)])
    parts = logits.log_softmax(-1).split(64)
    assert float(misplaced(parts, ids, envelope(**rules)).max()) == 0.0


@pytest.mark.parametrize(("rules", "ids", "mass"), [
    ({"top_p": 0.8}, [[0, 1, 2], [1]], [0.0, 0.0]), ({"top_p": 0.8}, [[0, 1], [1, 0]], [0.2, 0.04]),
    ({"top_p": 0.8}, [[0, 1, 2, 3, 4], [1]], [0.1, 0.0]), ({"top_k": 2}, [[0, 2], [1, 0]], [0.5, 0.0]),
    ({"min_p": 0.45}, [[0, 1, 2], [1]], [0.0, 0.0]), ({"min_p": 0.45}, [[0], [1, 0, 3]], [0.5, 0.07]),
    ({"top_k": 3, "top_p": 0.75}, [[0, 1], [1]], [0.0, 0.0]), ({"top_k": 3, "top_p": 0.75}, [[0, 1, 2], [1]], [0.0, 0.0])])
def test_the_probability_of_what_stands_on_the_wrong_side_is_counted(rules, ids, mass):
    assert misplaced([LOGP[:1], LOGP[1:]], Support.of(ids), envelope(**rules)).tolist() == pytest.approx(mass, abs=1e-6)
