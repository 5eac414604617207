"""The penalty for calls that could not be made falls on exactly their tokens, and without one nothing changes."""

import torch
from scripted import ScriptedSampler, do, rollouts, task

from rollbook.environments import open_services
from rollbook.experience.admission import AdmittedGroup
from rollbook.experience.batches import credited, pack
from rollbook.objectives.settings import from_settings
from rollbook.records import Experience, RewardVector, Scored

OBJECTIVE = {"kind": "Magistral", "low": 0.2, "high": 0.3, "ratio_to": "behavior",
             "credit": {"kind": "MinibatchStandardized", "eps": 1e-6, "ddof": 0}}
BROKEN = "<tool_call>{</tool_call>"


def packed(penalty):
    said = {"0": ("so: " + BROKEN + " and " + do("a"), "4"), "1": (do("a"), "5")}
    sampler = ScriptedSampler(lambda name, turn: said[name.rpartition("/")[2]][min(turn, 1)])
    with open_services() as services:
        made = rollouts(sampler, services)
        traces = made.solve([task()], 2, scope="s", envelope=made.envelope("w"))
    members = [Experience(trace=trace, verdict=Scored(trace=trace.id, vector=RewardVector(
        components=(), absent=(), composition="", composition_digest="", total=float(n), accuracy=float(n))))
        for n, trace in enumerate(traces)]
    groups, objective = [AdmittedGroup(id="g", members=tuple(members))], from_settings(OBJECTIVE)
    credit = credited([groups], objective, "rl/0", misfit_penalty=penalty)[0]
    return traces, credit, pack(groups, credit, objective, max_tokens=10_000, max_length=10_000)


def test_the_penalty_is_taken_from_exactly_the_tokens_of_the_misfit():
    traces, credit, batch = packed(0.25)
    plain = packed(0.0)[2].advantage_T
    less = (plain - batch.advantage_T).nonzero()[:, 0].tolist()
    assert less == list(traces[0].misfit_tokens()) == list(range(4, 4 + len(BROKEN)))
    assert torch.allclose(plain[less] - batch.advantage_T[less], torch.tensor(0.25))
    assert credit.misfit_penalty == 0.25 and traces[1].misfit_tokens() == ()


def test_credit_without_a_penalty_has_the_id_it_always_had():
    from rollbook.records import encode
    assert "misfit_penalty" not in encode(packed(0.0)[1]) and "misfit_penalty" in encode(packed(0.25)[1])
