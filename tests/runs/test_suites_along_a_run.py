"""Suites of abilities asked while a run trains: on its record, audited, and nothing of the run depends on them."""

import dataclasses
import shutil

import pytest
from small_runs import Quiet, small_recipe
from small_stages import SFT, outcome, pipeline, run, run_in_pieces

from rollbook.audit.passage import audit_run
from rollbook.ledger import Ledger
from rollbook.orchestration.abilities import Suites, measure
from rollbook.orchestration.reuse import Reuse
from rollbook.orchestration.run import run_recipe
from rollbook.records import AbilityReport, PolicyVersion, RecipeError, SftReport, StageEnd
from rollbook.records import recipe as r
from rollbook.report.kept import kept

ASKED = r.SuiteSettings(abilities=("chat",), every=2, tasks=4, max_tokens=8, seed=7)
STAGES = {"sft": dataclasses.replace(SFT, steps=5, batch=4)}


def recipe(asked=ASKED, **more):
    made = pipeline("model.context=256", **STAGES, **more)
    return dataclasses.replace(made, settings=dataclasses.replace(made.settings, suites=asked))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    rl = dataclasses.replace(small_recipe().settings.stages["rl"], policy="sft", tasks="train", steps=3, probe=0, probe_every=0,
                             filter="none", max_waves=1, groups=4, checkpoint_every=1,
                             optimizer=dataclasses.replace(SFT.optimizer, weight_decay=0.1))     # it moves whatever it earns
    return run(recipe(rl=rl), tmp_path_factory.mktemp("along") / "run")


def reports(folder):
    with Ledger.open(folder, write=False) as ledger:
        return list(ledger.records(AbilityReport)), {one.id: one for one in ledger.records(PolicyVersion)}


def test_a_suite_is_asked_before_the_first_stage_every_so_many_steps_and_after_every_stage(whole):
    made, versions = reports(whole)
    assert [(one.stage, one.step) for one in made] == [
        ("start", None), ("sft", 2), ("sft", 4), ("sft", None), ("rl", 2), ("rl", None)]
    published = [one.weights for one in versions.values()]
    assert [one.weights in published for one in made] == [True, False, False, True, True, True]
    assert len({one.weights for one in made}) == 6 and all(one.value.count == 4 for one in made)


def test_the_audit_passes_and_the_changes_stand_beside_the_run_as_the_command_would_leave_them(whole, tmp_path):
    assert not [row for row in audit_run(whole).rows if row.result == "fail"]
    with Ledger.open(whole, write=False) as ledger:
        told = kept(whole, ledger.genesis)
    assert [(one.before, one.after) for one in told.changes] == [("start", "sft"), ("sft", "rl"), ("start", "rl")]
    again = measure(whole, Suites(abilities=("chat",), tasks=4, max_tokens=8, seed=7), Quiet(), dtype="float32")
    assert again == told                                    # nothing was asked again: its folders were complete
    for folder in sorted((whole / "abilities").glob("*/*")):
        assert not [row for row in audit_run(folder).rows if row.result == "fail"]


def test_what_was_left_out_changed_or_added_fails_the_audit(whole, tmp_path):
    folder = next((whole / "abilities").glob("*/rl@000002"))
    moved = shutil.move(folder, tmp_path / "kept")
    shutil.copytree(next((whole / "abilities").glob("*/rl")), folder)
    try:
        wrong = [row for row in audit_run(whole).rows if row.result == "fail"]
        assert [row.name for row in wrong] == ["evaluation"] and "another result" in str(wrong[0])
    finally:
        shutil.rmtree(folder)
    assert not [row for row in audit_run(whole).rows if row.result == "fail"]       # absent is said, and no failure
    shutil.move(moved, folder)


@pytest.mark.soak
def test_nothing_of_a_run_depends_on_what_it_asks_and_one_in_pieces_is_one_in_one(tmp_path, monkeypatch):
    plain, asked = run(recipe(None), tmp_path / "plain"), run(recipe(), tmp_path / "asked")
    assert outcome(plain)[1] == outcome(asked)[1]
    pieces = run_in_pieces(recipe(), tmp_path / "pieces", "sft", 3, monkeypatch)
    assert outcome(pieces) == outcome(asked) and reports(pieces)[0] == reports(asked)[0]


def test_a_suite_that_does_not_fit_is_refused_before_anything_is_written(tmp_path):
    for asked, words in ((dataclasses.replace(ASKED, max_tokens=250), "do not fit this policy's context"),
                         (dataclasses.replace(ASKED, tasks=100_000), "cannot be asked")):
        with pytest.raises(RecipeError, match=words):
            run_recipe(recipe(asked), tmp_path / "run", Quiet())
    assert not list(tmp_path.iterdir())


def test_nothing_is_taken_over_into_a_run_that_asks_along(whole, tmp_path):
    with pytest.raises(RecipeError, match="asks suites along"):
        run_recipe(recipe(), tmp_path / "run", Quiet(), reuse=Reuse(folder=whole))


def test_a_report_that_is_missing_or_of_other_weights_is_found(whole):
    from rollbook.audit.along import Along
    from rollbook.audit.index import RunIndex

    with Ledger.open(whole, write=False) as ledger:
        index = RunIndex(ledger)
        index.recipe = next(ledger.records(r.ResolvedRecipe))
        first, second = list(ledger.records(AbilityReport))[:2]
        along = Along()
        along.step(next(ledger.records(SftReport)))
        assert any("published last" in one for one in along.report(index, first))
        assert any("after step 1" in one for one in along.report(index, second))
        assert any("second time" in one for one in along.report(index, second))
        end = next(ledger.records(StageEnd))
        assert [one.split(":")[0] for one in along.ended(index, end)] == ["sft step 4", "sft"]
