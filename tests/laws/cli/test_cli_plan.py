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


def test_a_plan_counts_the_suites_that_are_asked_along_the_run():
    asked = ["--set", "suites={abilities: [chat, tools], every: 4, tasks: 10, max_tokens: 96, seed: 7}"]
    short = ["--set", "stages.cold_start.steps=24", "--set", "stages.rl.steps=9"]
    rates = ["--given", "sampled_tokens_per_s=1000", "--given", "trained_tokens_per_s=1000"]
    plain, more = (CliRunner().invoke(main, ["plan", "magistral-small", "--scale", "tiny", *short, *rates, *extra]).output
                   for extra in ([], asked))
    times = 1 + 2 + (5 + 2)                     # the start, two stages, after steps 4 to 20 of one, 4 and 8 of the other
    line = f"suites asked along the run: {times * 20:,} attempts at most; {times * 20 * 96:,} sampled tokens at most"
    assert line in more and "suites" not in plain
    last = [[one for one in text.splitlines() if "in all" in one] for text in (plain, more)]
    assert len(last[0]) == len(last[1]) == 2 and last[0] != last[1]


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


NUMBERS = {"prompt_tokens": 100, "answer_tokens": 100, "pass_s": 0.01, "kv_bytes": 1e9, "position_bytes": 1e3,
           "update_token_s": 1e-4, "weight_bytes": 1e6, "broadcast_bytes_s": 1e9}
LOOP = ["plan", "magistral-small", "--scale", "tiny", "--generators", "2"]


def given(**changes):
    return [word for name, value in (NUMBERS | changes).items() for word in ("--given", f"{name}={value}")]


def test_a_planned_loop_tells_its_pace_ages_and_the_best_split():
    printed = CliRunner().invoke(main, [*LOOP, *given()])
    assert printed.exit_code == 0, printed.output
    for told in ("stages.rl on 2 generators and 1 trainers", "trained attempts a second", "in versions: 0: 100%", "memory allows",
                 "1 generators, 2 trainers"):
        assert told in printed.output


def test_a_loop_that_samples_while_it_trains_has_older_attempts_and_a_higher_pace():
    how = ('stages.rl.asynchrony={throttle: {kind: AReaLCode, eta: 2}, concurrency: 10000, on_update: keep, late: wait, '
           'queue: 100, stall_s: 100}')
    printed = CliRunner().invoke(main, [*LOOP, *given(update_s=1.0), "--set", "stages.rl.max_policy_age=2", "--set", how])
    assert printed.exit_code == 0, printed.output
    assert "0: 100%" not in printed.output


def test_a_plan_of_a_loop_refuses_what_it_would_have_to_guess():
    missing = CliRunner().invoke(main, LOOP)
    assert missing.exit_code == 2 and "pass_s: seconds of a decoding pass" in missing.output
    for wrong in ("pass_s", "pass_s=fast", "pace=1"):
        assert CliRunner().invoke(main, [*LOOP, *given(), "--given", wrong]).exit_code == 2
