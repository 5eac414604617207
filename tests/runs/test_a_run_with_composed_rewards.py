"""A run whose stages are judged by composed rewards ends with a clean audit, and its vectors say what was measured."""

import dataclasses

from click.testing import CliRunner
from small_runs import Quiet, small_recipe

from rollbook.cli import main
from rollbook.ledger import Ledger
from rollbook.orchestration.run import run_recipe
from rollbook.records import Composition, EnvironmentProof
from rollbook.records.composition import ComposedReward, Part, SoftLength
from rollbook.records.ready_made import NamedReward

DAPO = NamedReward(composition="dapo", measures={"correctness": "math"}, numbers={"length_max": 32, "length_cache": 8},
                   verify_seconds=20.0, verify_workers=1)
GATED = ComposedReward(name="gated", parts={"form": Part(measure="magistral_format", passed=0.1),
                                            "answer": Part(measure="exact", passed=0.9)}, gates=("form",), accuracy="answer",
                       shaping={"length": SoftLength(length_max=32, length_cache=8, scale=0.1)}, verify_seconds=20.0,
                       verify_workers=1)


def composed_recipe():
    recipe = small_recipe("stages.rl.steps=2", "stages.cold_start.steps=30", "stages.rl.probe=4", "stages.rl.probe_every=1",
                          "stages.select.candidates=6")
    stages = {name: dataclasses.replace(stage, reward="gated") if name == "rl" else stage
              for name, stage in recipe.settings.stages.items()}
    return dataclasses.replace(recipe, settings=dataclasses.replace(recipe.settings, reward=DAPO, rewards={"gated": GATED},
                                                                    stages=stages))


def test_a_run_judged_by_composed_rewards_audits_clean_and_records_each_of_them_with_its_proof(tmp_path):
    out = tmp_path / "run"
    assert run_recipe(composed_recipe(), out, Quiet()) == 0
    with Ledger.open(out) as ledger:
        names = {made.name: made.parts for made in ledger.records(Composition)}
        proofs = list(ledger.records(EnvironmentProof))
    assert names == {"dapo/1": {"correctness": 1.0, "overlong": 1.0}, "gated/1": {"form": 1.0, "answer": 1.0, "length": 1.0}}
    assert len(proofs) == 2 and not any(proof.unproved for proof in proofs)
    done = CliRunner().invoke(main, ["audit", str(out)])
    assert done.exit_code == 0, done.output
