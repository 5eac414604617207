"""What the command line shows: recipe cards, grouped tables, progress lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from rollbook import cli_progress
from rollbook.cli import main
from rollbook.cli_card import pipeline
from rollbook.cli_output import grouped, text
from rollbook.recipes import Entry, builtin_names, load, unknowns
from rollbook.recipes.document import BUILTIN


def shown(*words: str) -> str:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def test_recipes_lists_the_built_in_ones() -> None:
    assert "magistral-small" in shown("recipes")


def test_a_card_shows_each_value_with_label_and_source_and_what_is_unknown() -> None:
    card = shown("recipes", "show", "magistral-small")
    assert "    D high: 0.3\n        mistral.magistral-small.epsilon_high (case-study 6.9)\n" in card
    assert "    D kind: Magistral\n        mistral.magistral.objective" in card
    assert "  U stages.rl.per_task\n      responses per prompt, the group size G; typical 8 to 16\n" in card
    assert "  D batch_sequences: 2048 sequences per batch\n" in card
    assert f"{len(unknowns(load('magistral-small'), 'full'))} of" in card.splitlines()[-2]


@pytest.mark.parametrize("scale", ["full", "tiny"])
def test_every_card_is_at_most_eighty_columns_wide(scale: str) -> None:
    names = [name for name in builtin_names() if scale in ("full", *load(name).scales)]
    long = [line for name in names for line in shown("recipes", "show", name, "--scale", scale).splitlines() if len(line) > 80]
    assert not long


def test_a_card_draws_the_pipeline_below_the_policies_it_starts_from() -> None:
    lines = shown("recipes", "show", "magistral-small", "--scale", "tiny").split("Pipeline:\n")[1].split("\n\n")[0].splitlines()
    assert lines == ["  start: the initial model", "  ├─ cold_start: Sft",
                     "  │  ├─ rl: PolicyGradient by Magistral, on the tasks of select",
                     "  │  │  └─ final_eval: Evaluate, compared with cold_eval",
                     "  │  ├─ cold_eval: Evaluate, compared with start_eval", "  │  └─ select: PassRate",
                     "  └─ start_eval: Evaluate"]


def test_a_card_shows_what_the_sources_say_to_be_unknown_of_the_release() -> None:
    assert "Unknown of Magistral Small (2025-06):" in shown("recipes", "show", "magistral-small")
    assert "mistral.magistral-small.learning_rate" in shown("recipes", "show", "magistral-small")


def test_a_card_at_a_smaller_scale_shows_what_was_scaled() -> None:
    output = shown("recipes", "show", "magistral-small", "--scale", "lab")
    assert "scaled from 2048 sequences" in output
    assert "Every value is given at this scale." in output


def test_check_prints_one_line_for_each_scale() -> None:
    lines = shown("recipes", "check", "magistral-small").splitlines()
    assert [line.split(":")[0] for line in lines] == [f"magistral-small {scale}" for scale in ("lab", "tiny", "full")]


def test_check_takes_several_recipes_and_all_are_checked_before_one_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text((BUILTIN / "magistral-small.yaml").read_text().replace("high: {value: 0.3,", "high: {value: 0.28,"))
    result = CliRunner().invoke(main, ["recipes", "check", str(broken), "magistral-small"])
    assert result.exit_code == 2
    assert "magistral-small tiny: ok" in result.output
    assert "claim mistral.magistral-small.epsilon_high has another value, got 0.28 against exact 0.3" in result.stderr
    assert "magistral-small lab: ok" in shown("recipes", "check", "--all")
    assert "nothing to check" in CliRunner().invoke(main, ["recipes", "check"]).stderr


def test_a_policy_that_is_not_disclosed_has_a_place_in_the_pipeline() -> None:
    unknown = Entry(value=None, label="U")
    stage = {"kind": Entry(value="PolicyGradient"), "policy": unknown, "objective": unknown}
    assert list(pipeline({"rl": stage})) == ["a policy that is not disclosed",
                                             "└─ rl: PolicyGradient by an objective that is not disclosed"]


def test_values_of_one_parent_and_one_reason_share_a_row() -> None:
    rows = [("a.b", "1", "why"), ("a.c", "2", "why"), ("a.d", "3", "other"), ("e.b", "4", "why")]
    assert grouped(rows) == [("a: b 1, c 2", "why"), ("a: d 3", "other"), ("e: b 4", "why")]


@pytest.mark.parametrize(("value", "word"), [(None, "null"), (True, "true"), (1e-5, "1e-05"), (1.0, "1"), ("", '""'), (3, "3")])
def test_a_value_is_shown_as_yaml_would(value: object, word: str) -> None:
    assert text(value) == word


def test_a_metric_that_was_not_observed_is_not_shown_as_zero() -> None:
    assert cli_progress.numbers({"reward/total_mean": 0.41}) == "reward 0.410"
    assert cli_progress.numbers({}) == ""


def test_lines_show_each_stage_and_its_last_step_however_fast_it_went(capsys: pytest.CaptureFixture[str]) -> None:
    with cli_progress.live_progress() as progress:
        progress.stage("rl", 2, 3, steps=50)
        for step in range(1, 51):
            progress.step(step, {"reward/total_mean": step / 100})
        progress.note("kept")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[2/3] rl: 50 steps"
    assert lines[-2].startswith("[2/3] rl 50/50  reward 0.500  left 0 s")
    assert lines[-1] == "kept"
    assert len(lines) < 20


def test_the_live_display_keeps_the_last_observed_accuracy() -> None:
    class Display:
        shown: list[str] = []

        def add_task(self, name: str, **fields: object) -> int:
            return 1

        def update(self, bar: int, *, completed: int, numbers: str) -> None:
            self.shown.append(numbers)

    live = cli_progress.Live(Display())
    live.stage("rl", 1, 1, steps=2)
    live.step(1, {"eval/heldout_accuracy": 0.5})
    live.step(2, {"reward/total_mean": 0.25})
    assert Display.shown[-1] == "reward 0.250  held-out 50.0%"
