"""What an engine says of its weights: their hash without a copy of them all, a probe without a pass that nobody reads."""

import pytest
import torch
from small_runs import small_recipe

from rollbook.models.load import load_policy
from rollbook.models.weights import published_hash, weight_hash
from rollbook.models.working_copy import WorkingCopy
from rollbook.rollouts.engines.embedded import EmbeddedEngine


@pytest.fixture(scope="module")
def policy():
    return load_policy(small_recipe("model.layers=12").settings.model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_working_copys_tensors_come_in_name_order_and_hash_as_the_published_ones(policy, dtype):
    weights = WorkingCopy(policy.decoder, dtype)
    names = [name for name, _ in weights.ordered()]
    assert names == sorted(name for name, _ in weights.named())
    engine = EmbeddedEngine(stop_ids=policy.tokenizer.stop_ids, dtype=dtype, kv_bytes=1 << 26)
    assert engine.load(policy.decoder, 0) == weight_hash(weights.named()) == published_hash(policy.decoder, dtype)


def test_a_probe_decodes_no_token_whose_successor_it_does_not_read(policy, monkeypatch):
    engine, decoded, real = EmbeddedEngine(stop_ids=policy.tokenizer.stop_ids, dtype=torch.float32, kv_bytes=1 << 26), [], \
        WorkingCopy.decode
    engine.load(policy.decoder, 0)
    monkeypatch.setattr(WorkingCopy, "decode",
                        lambda self, token_B, cache: decoded.append(int(token_B)) or real(self, token_B, cache))
    ids = policy.tokenizer.encode("what is 12 + 30?")
    whole = engine.logprobs(ids, 4)
    assert decoded == list(ids[4:-1])
    assert engine.logprobs(ids[:6], 4) == pytest.approx(whole[:2], abs=1e-5) and len(whole) == len(ids) - 4
