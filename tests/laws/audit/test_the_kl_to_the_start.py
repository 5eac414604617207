"""The KL to the start that an update states, against stored log-probs: only where those are the start's."""

from types import SimpleNamespace

import numpy as np
import pytest

from rollbook.audit.followed import missummed

LOGP = np.array([-1.0, -0.5, -2.0])
REFERENCE = LOGP + np.array([0.5, -0.25, 0.1])


def step(kl, index=3):
    """An update of three tokens whose other numbers are sound."""
    update = SimpleNamespace(clip_fraction=0.0, ratio_min=1.0, ratio_max=1.0, entropy_nats=1.0, mismatch_k3_nats=None, kl_nats=kl,
                             index=index)
    given = {"behavior": LOGP, "reference": REFERENCE, "seq": np.zeros(3, dtype=int)}
    return SimpleNamespace(update=update, given=given, found={"logp": LOGP, "entropy": np.ones(3), "clipped": np.zeros(3)},
                           sampled_T=np.ones(3, dtype=bool), batch=SimpleNamespace(scope="rl/000002/0", compute_dtype="float32"))


@pytest.mark.parametrize(("kl", "at_start", "words"), [
    (float((np.expm1(REFERENCE - LOGP) - (REFERENCE - LOGP)).mean()), True, ""), (0.9, True, "computed"),
    (0.9, False, ""), (-0.1, False, "never negative")])
def test_it_is_compared_where_the_reference_is_the_start_and_only_there(kl, at_start, words):
    found = list(missummed(step(kl), first=False, at_start=at_start))
    assert (found == []) if not words else words in found[0]


def test_before_the_first_update_it_is_zero_whatever_the_reference():
    assert "computed 0" in next(missummed(step(0.9, index=1), first=False, at_start=False))
