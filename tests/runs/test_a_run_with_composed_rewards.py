"""A run whose stages are judged by composed rewards ends with a clean audit, and its vectors say what was measured."""

import dataclasses

from answered import task, trace
from click.testing import CliRunner
from small_runs import Quiet, small_recipe

from rollbook.cli import main
from rollbook.ledger import Ledger
from rollbook.models.load import load_policy
from rollbook.models.weights import save_checkpoint
from rollbook.orchestration.judges import make_judge, written_judges
from rollbook.orchestration.run import run_recipe
from rollbook.recipes.rewards import check
from rollbook.records import Composition, EnvironmentProof
from rollbook.records.composition import ComposedReward, Part, SoftLength
from rollbook.records.problems import Problems
from rollbook.records.ready_made import NamedReward
from rollbook.records.recipe import JudgeSettings

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


def test_a_judge_of_the_recipe_measures_a_part_through_a_local_model(tmp_path):
    recipe = composed_recipe()
    folder = tmp_path / "judge"
    policy = load_policy(recipe.settings.model)
    save_checkpoint(folder, policy.decoder, policy.tokenizer)
    judges = {"taste": JudgeSettings(form="rubric", model=str(folder), context=512, criteria={"It is good.": 1.0})}
    judged = ComposedReward(name="judged", parts={"answer": Part(measure="exact"), "taste": Part(measure="judge:taste")},
                            accuracy="answer", verify_seconds=20.0, verify_workers=1)
    scorers = written_judges(judged, judges)
    with make_judge(judged, scorers) as judge:
        seven = task()
        [verdict] = judge.judge([trace("7", seven)], {seven.id: seven})
    code = getattr(verdict, "code", None)
    assert code == "malformed" or 0.0 <= verdict.vector.value("taste") <= 1.0
    assert judge.unprovable is not None and "judge:taste" in judge.unprovable
    problems = Problems()
    check(dataclasses.replace(recipe.settings, rewards={"judged": judged}), problems)
    assert any("judge:taste" in str(problem) for problem in problems.found)
