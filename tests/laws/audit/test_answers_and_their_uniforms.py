"""An answer lies where its uniforms point, whatever batch it was sampled in; another one does not."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from policies import engine_of, prompts, tiny_policy
from policies import request as asked

from rollbook.audit.deep_samples import STRAYED, astray
from rollbook.records import SamplingEnvelope, Segment, Trace

ENVELOPE = SamplingEnvelope(policy=None, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=5, max_tokens=24, max_turns=1,
                            max_seconds=None, stop=(), template="", scaffold="single_turn/1")


def answers(policy, dtype, **sampling):
    """Some answers sampled together, as trajectories under the name that drew their uniforms."""
    requests = [asked(f"a/{place}", prompt, **sampling) for place, prompt in enumerate(prompts(policy) * 4)]
    return [Trace(attempt=one.key, task="t", group="a", envelope="e", stop_reason="length", text="", segments=(
                Segment(owner="user", token_ids=request.prompt_ids),
                Segment(owner="policy", token_ids=one.token_ids, logps=one.logps, version=0)))
            for request, one in zip(requests, engine_of(policy, dtype=dtype).sample(requests), strict=True) if one.token_ids]


@pytest.mark.parametrize("sampling", [{}, {"top_p": 0.8}, {"top_k": 7, "min_p": 0.01}, {"temperature": 0.7}])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_only_the_answer_that_was_drawn_lies_near_its_uniforms(sampling, dtype, near):
    policy = tiny_policy("llama")
    work, envelope = SimpleNamespace(decoder=policy.decoder, dtype=dtype), replace(ENVELOPE, **sampling)
    traces = answers(policy, dtype, **sampling)
    assert max(astray(work, trace, envelope) for trace in traces) < near < STRAYED
    other = [astray(work, replace(trace, attempt=f"{trace.attempt}/again"), envelope) for trace in traces]
    assert sum(share > STRAYED for share in other) >= 0.9 * len(other)
