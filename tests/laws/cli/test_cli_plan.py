"""The plan of a recipe is printed without a model; a run stops after a named stage and goes on."""

import sys
from subprocess import run

import pytest
from click.testing import CliRunner
from small_runs import Quiet
from small_stages import SFT, outcome, pipeline

from rollbook.cli import main
from rollbook.orchestration.run import resume_run, run_recipe
from rollbook.recipes.plan import parameters, plan
from rollbook.records import RecipeError, recipe


def test_a_plan_names_every_stage_in_order_with_what_it_reads_and_costs():
    printed = CliRunner().invoke(main, ["plan", "magistral-small", "--scale", "tiny"])
    assert printed.exit_code == 0
    heads = [line.split()[0] for line in printed.output.splitlines() if " <- " in line]
    assert heads == ["start_eval", "cold_start", "cold_eval", "select", "rl", "final_eval"]
    assert "rl          PolicyGradient <- policy: cold_start, tasks: select" in printed.output


def test_a_plan_needs_no_torch():
    program = ("import sys; from rollbook.recipes import load, resolve; from rollbook.recipes.plan import plan; "
               "plan(resolve(load('magistral-small'), 'tiny')); print('torch' in sys.modules)")
    assert run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip() == "False"


def test_parameters_are_counted_as_the_model_has_them():
    from rollbook.models.load import load_policy
    made = pipeline(sft=SFT)
    counted = sum(p.numel() for p in load_policy(made.settings.model).decoder.parameters())
    assert parameters(made.settings) == counted
    assert plan(made)[0].trained_tokens == SFT.steps * SFT.batch * made.settings.tasks.max_tokens


def test_a_run_stops_after_the_named_stage_and_resumes_to_the_same_end(tmp_path):
    short = SFT.__class__(**{**{name: getattr(SFT, name) for name in SFT.__dataclass_fields__}, "steps": 5})
    made = pipeline(sft=short, soup=recipe.Merge(policies={"sft": 1.0}, method="average"))
    with pytest.raises(RecipeError, match="no stage to stop after"):
        run_recipe(made, tmp_path / "none", Quiet(), until="nowhere")
    assert not (tmp_path / "none").exists()
    assert run_recipe(made, tmp_path / "halves", Quiet(), until="sft") == 0
    assert resume_run(tmp_path / "halves", Quiet()) == 0
    assert run_recipe(made, tmp_path / "whole", Quiet()) == 0
    assert outcome(tmp_path / "halves") == outcome(tmp_path / "whole")
