"""A run whose tasks are a curated set: the set goes into the run, its folder may go, and the audit reads the tasks again."""

from __future__ import annotations

import json
import shutil

import pytest
from small_runs import Quiet

from rollbook.audit.export import export_run
from rollbook.audit.passage import audit_run
from rollbook.ledger import Ledger
from rollbook.ledger.bundle import CURATED, opened
from rollbook.orchestration.run import _tasks, resume_run, run_recipe
from rollbook.orchestration.sourcing import kept_set
from rollbook.recipes import load, resolve
from rollbook.records import CuratedSet, RecipeError, ResolvedRecipe, Task, content_id
from rollbook.tasks import TaskError
from rollbook.tasks.curated import read_curated
from rollbook.tasks.curation import Helpers, curate, load_pipeline

FILE = "schema: rollbook.curation/1\nname: sums\ninput: [raw.jsonl]\nstages:\n  - {kind: ExactDuplicates}\n" \
       "  - {kind: Split, heldout: 12, seed: 1}\n"
SMALL = ("tasks.families=null", "tasks.train=24", "tasks.heldout=8", "tasks.max_tokens=16", "model.layers=1", "model.hidden=32",
         "model.heads=2", "model.kv_heads=1", "model.intermediate=48", "reward.numbers={length_max: 16, length_cache: 4}",
         "stages.cold_start.steps=2", "stages.cold_start.batch=4", "stages.cold_start.optimizer.warmup_steps=1",
         "stages.rl.steps=1", "stages.rl.prompts=2", "stages.rl.per_task=2", "stages.rl.groups=1", "stages.rl.max_waves=1",
         "stages.rl.minibatches=1",
         "stages.rl.optimizer.warmup_steps=0", "run.threads=1")


def recipe(folder, *more):
    given = {one.partition("=")[0]: one for one in (*SMALL, f"tasks.curated={folder}", *more)}
    return resolve(load("dapo"), "tiny", tuple(given.values()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("curated")
    rows = [{"problem": f"{n} + {n * 7 % 31} =", "reference": str(n + n * 7 % 31),
             "lineage": {"generator": "mine"}, "weight": 1 + n % 3, "traces": [{"text": f"\\boxed{{{n + n * 7 % 31}}}"}]}
            for n in range(48)]
    (made / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (made / "c.yaml").write_text(FILE)
    curate(load_pipeline(made / "c.yaml"), Helpers(folder=made), made / "set", lambda _: None)
    return made


def test_the_set_goes_into_the_run_which_goes_on_without_its_folder_and_audits_clean(folder, tmp_path):
    gone = tmp_path / "gone"
    shutil.copytree(folder / "set", gone)
    out = tmp_path / "run"
    mixed = ("stages.cold_start.traces=null", "stages.cold_start.general_share=0.0", "stages.cold_start.data={curated: 1.0}",
             "stages.cold_start.steps=8")
    run_recipe(recipe(gone, *mixed), out, Quiet(), until="cold_start")
    shutil.rmtree(gone)
    assert resume_run(out, Quiet()) == 0
    with Ledger.open(out, write=False) as ledger:
        stored = kept_set(ledger)
        [named] = ledger.records(ResolvedRecipe)
        assert stored.made == next(iter(ledger.records(CuratedSet))) and len(stored.stages) == 2
        assert named.settings.tasks.curated_hash == stored.made.tasks
        assert named.provenance["tasks.curated_hash"].origin == "user"
        shown = {task.prompt[-1].content for task in ledger.records(Task)}
        assert shown <= {json.loads(line)["problem"] for line in stored.data.splitlines()} and len(shown) == 32
    report = audit_run(out)
    assert not [row for row in report.rows if row.result == "fail"], report
    assert any("48 raw tasks drawn again" in row.evidence for row in report.rows)
    assert any("24 traces of the curated set made again" in row.evidence for row in report.rows)
    _exported_set_is_the_one_that_was_trained_on(out, tmp_path / "bundle", stored)


def _exported_set_is_the_one_that_was_trained_on(run, bundle, stored):
    """A bundle holds the set as a folder that a run, and a reproduction, can read."""
    export_run(run, bundle)
    with opened(bundle) as given:
        again = read_curated(given.root / CURATED, given.recipe.settings.tasks.curated_hash)
        assert (again.made, again.data) == (stored.made, stored.data)
        assert [content_id(one) for one in again.stages] == [content_id(one) for one in stored.stages]
        assert _tasks(given.recipe.settings, again)[1] == _tasks(given.recipe.settings, stored)[1]


def test_a_curriculum_over_rows_with_weights_is_refused_before_anything_is_made(folder, tmp_path):
    how = "{low: 0.1, high: 0.9, renew: 20, explore: 0.3, easy: 0.0, hard: 0.1, report: 5}"
    with pytest.raises(RecipeError, match=r"stages\.rl\.curriculum cannot go with rows that have a weight"):
        run_recipe(recipe(folder / "set", f"stages.rl.curriculum={how}"), tmp_path / "run", Quiet())
    assert not (tmp_path / "run").exists()


def test_a_stage_that_would_learn_from_traces_that_are_all_left_out_is_refused_before_anything_is_made(folder, tmp_path):
    with pytest.raises(RecipeError, match="none can be imitated, got 24 longer than the task's budget"):
        run_recipe(recipe(folder / "set", "stages.cold_start.data={curated: 1.0}", "tasks.max_tokens=3",
                          "reward.numbers={length_max: 3, length_cache: 1}"), tmp_path / "run", Quiet())
    assert not (tmp_path / "run").exists()


def test_another_set_than_the_named_one_is_refused_before_anything_is_made(folder, tmp_path):
    with pytest.raises(TaskError, match="holds another set than the recipe names"):
        run_recipe(recipe(folder / "set", f"tasks.curated_hash={'0' * 64}"), tmp_path / "run", Quiet())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("settings", "said"), [
    (("tasks.curated=x",), "stands in place of tasks.families"),
    (("tasks.families=null",), "must name at least one family"),
    (("tasks.curated_hash=00",), "that tasks.curated does not name"),
])
def test_a_recipe_has_one_source_of_tasks(settings, said):
    with pytest.raises(RecipeError) as caught:
        resolve(load("dapo"), "tiny", settings)
    assert said in str(caught.value)
