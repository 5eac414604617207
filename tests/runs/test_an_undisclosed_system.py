"""A system that discloses nothing runs with what the user supplies, and every artifact says whose inference that is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rollbook.cli import main
from rollbook.ledger import Ledger
from rollbook.records import ResolvedRecipe

MINE = """\
schema: rollbook.assumptions/1
reward: {composition: magistral, format_reward: 0.1, correct_reward: 0.9, length_penalty: 0.1, length_max: 32, length_cache: 8,
  language_reward: null, verify_seconds: 5, verify_workers: 1}
stages.cold:
  kind: Sft
  policy: start
  traces: {columns: 1.0, direct: 0.02}
  steps: 20
  batch: 8
  general_share: 0
  optimizer: &adam {learning_rate: 5e-3, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0, warmup_steps: 0, schedule: constant,
    max_grad_norm: 1}
  max_batch_tokens: 16384
stages.rl:
  kind: PolicyGradient
  policy: cold
  tasks: train
  objective: {kind: Grpo, low: 0.2, high: 0.2, credit: {kind: GroupNormalized, eps: 1e-6, ddof: 0}}
  steps: 1
  prompts: 4
  per_task: 4
  groups: 2
  max_waves: 1
  minibatches: 1
  max_policy_age: 0
  sampling: {temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0}
  optimizer: *adam
"""
SMALL = ("model.layers=2", "model.hidden=64", "model.intermediate=96", "tasks.train=64", "tasks.heldout=8", "tasks.max_tokens=32",
         "run.threads=1")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("undisclosed")
    (folder / "mine.yaml").write_text(MINE, encoding="utf-8")
    sets = [word for one in SMALL for word in ("--set", one)]
    result = CliRunner().invoke(main, ["run", "grok-4.x", "--scale", "tiny", "--assume", str(folder / "mine.yaml"), *sets,
                                       "--out", str(folder / "run")])
    assert result.exit_code == 0, result.output
    return folder / "run", result


def test_the_record_of_the_recipe_labels_every_supplied_value_as_the_users_inference(made: tuple[Path, Result]) -> None:
    with Ledger.open(made[0], write=False) as ledger:
        recipe = next(iter(ledger.records(ResolvedRecipe)))
    own = {path: about for path, about in recipe.provenance.items() if path.startswith(("stages.", "reward.")) and about.reason}
    assert {"stages.rl.steps", "stages.rl.objective.kind", "stages.cold.optimizer.learning_rate"} <= set(own)
    assert {(about.origin, about.label) for about in own.values() if about.origin == "user"} == {("user", "I")}
    assert not [path for path, about in recipe.provenance.items() if path.startswith("stages.") and about.label in tuple("DCR")]


def test_the_start_and_the_report_say_what_was_assumed(made: tuple[Path, Result]) -> None:
    assert "assumed by the user" in made[1].output and "stages.rl.objective: kind Grpo" in made[1].output
    page = (made[0] / "report.html").read_text(encoding="utf-8")
    mark = "values assumed by the user (label I, not the source"
    assert mark in page.split("<main>")[0]
    figures = [part.split("</figure>")[0] for part in page.split("<figure>")[1:]]
    assert len(figures) > 3 and all(mark in figure for figure in figures), "a picture without the mark"


def test_the_lineage_as_tree_and_as_picture_says_what_was_assumed(made: tuple[Path, Result], tmp_path: Path) -> None:
    listed = CliRunner().invoke(main, ["lineage", str(made[0]), "--svg", str(tmp_path / "lineage.svg")])
    assert "values assumed by the user (label I" in listed.output + (tmp_path / "lineage.svg").read_text(encoding="utf-8")
    assert "values assumed by the user (label I" in (tmp_path / "lineage.svg").read_text(encoding="utf-8")


def test_the_checklist_says_that_the_settings_are_the_users(made: tuple[Path, Result]) -> None:
    listed = CliRunner().invoke(main, ["checklist", str(made[0])])
    assert listed.exit_code in (0, 1) and "assumed by the user" in listed.output


def test_the_bundle_of_the_run_keeps_whose_values_they_are(made: tuple[Path, Result], tmp_path: Path) -> None:
    CliRunner().invoke(main, ["export", str(made[0]), str(tmp_path / "bundle")])
    held = [file for file in (tmp_path / "bundle").rglob("*.json") if "assumed by the user" in file.read_text(encoding="utf-8")]
    assert held and json.loads(held[0].read_text(encoding="utf-8"))
