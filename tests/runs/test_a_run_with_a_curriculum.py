"""A curriculum's pools are of the run: an interrupted one goes on with the same pools, draws and weights, and audits clean."""

import dataclasses

import pytest
from click.testing import CliRunner
from small_runs import Quiet, small_recipe

from rollbook.cli import main
from rollbook.ledger import Ledger
from rollbook.orchestration.run import resume_run, run_recipe
from rollbook.orchestration.stages import policy_gradient
from rollbook.records import CurriculumReport, PolicyVersion, SamplingEnvelope
from rollbook.records.curriculum import Curriculum

RULE = Curriculum(low=0.01, high=0.9, renew=3, explore=0.5, easy=0.0, hard=0.25, report=1)


def recipe():
    made = small_recipe("stages.cold_start.steps=30", "stages.rl.steps=4", "stages.rl.probe=0", "stages.rl.probe_every=0",
                        "stages.select.candidates=4")
    rl = dataclasses.replace(made.settings.stages["rl"], curriculum=RULE, tasks="train", max_tokens=24)
    return dataclasses.replace(made, settings=dataclasses.replace(made.settings, stages={**made.settings.stages, "rl": rl}))


def ended(folder):
    with Ledger.open(folder, write=False) as ledger:
        return list(ledger.records(PolicyVersion))[-1].weights, list(ledger.records(CurriculumReport)), ledger.semantic_hash()


def test_a_killed_run_with_a_curriculum_ends_as_if_it_had_not_been_killed(tmp_path, monkeypatch):
    assert run_recipe(recipe(), tmp_path / "whole", Quiet()) == 0
    real = policy_gradient.step

    def killed(run, source, version, number):
        if number == 4:
            raise KeyboardInterrupt
        return real(run, source, version, number)
    with monkeypatch.context() as m:
        m.setattr(policy_gradient, "step", killed)
        with pytest.raises(KeyboardInterrupt):
            run_recipe(recipe(), tmp_path / "killed", Quiet())
    assert resume_run(tmp_path / "killed", Quiet()) == 0
    whole, again = ended(tmp_path / "whole"), ended(tmp_path / "killed")
    assert whole == again
    reports = whole[1]
    assert [report.step for report in reports] == [1, 2, 3, 4] and all(sum(r.pools.values()) == 64 for r in reports)
    assert reports[0].measured > 0 and any(" > " in key for report in reports for key in report.moved)
    with Ledger.open(tmp_path / "whole", write=False) as ledger:
        assert {one.max_tokens for one in ledger.records(SamplingEnvelope)} == {24, 32}
    assert CliRunner().invoke(main, ["audit", str(tmp_path / "whole")]).exit_code == 0
