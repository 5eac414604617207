"""What a plan estimates from its probe, against the run itself."""

import dataclasses
import time

import pytest
from small_runs import Quiet
from small_stages import SAMPLED, SFT, pipeline

from rollbook.ledger import Ledger
from rollbook.orchestration.planning.probe import estimates
from rollbook.orchestration.run import run_recipe
from rollbook.records import recipe as r

STAGES = {"sft": dataclasses.replace(SFT, steps=120), "more": dataclasses.replace(SFT, policy="sft", steps=60),
          "held": r.Evaluate(policy="more", sampling=SAMPLED, trials=8, seed=5)}


@pytest.mark.soak
def test_an_estimate_is_within_a_factor_of_two_of_the_run(tmp_path):
    made = pipeline("tasks.heldout=64", **STAGES)
    began = time.monotonic()
    found = {one.stage: one for one in estimates(made, Quiet())}
    probed = time.monotonic() - began
    assert run_recipe(made, tmp_path / "run", Quiet()) == 0
    with Ledger.open(tmp_path / "run", write=False) as ledger:
        began = next(event.time for event in ledger.events() if event.kind == "PolicyVersion")
        ends = [(event.body["stage"], event.time) for event in ledger.events() if event.kind == "StageEnd"]
    taken = {name: at - before for (name, at), before in zip(ends, [began, *(at for _, at in ends)], strict=False)}
    told = {name: (round(found[name].seconds, 1), round(seconds, 1)) for name, seconds in taken.items()}
    print(f"probe {probed:.1f} s; estimated and taken seconds: {told}")
    whole = sum(one.seconds for one in found.values())
    assert 0.5 < whole / sum(taken.values()) < 2.0, told
