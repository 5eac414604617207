"""Stages that an earlier run made of the same inputs stand in a new run as if it had made them."""

import dataclasses
import shutil

import pytest
from click.testing import CliRunner
from small_runs import Quiet
from small_stages import ADAM, SAMPLED, SFT, outcome, pipeline, run

from rollbook.audit.passage import audit_run
from rollbook.audit.replay import replay_run
from rollbook.cli import main
from rollbook.ledger import Ledger
from rollbook.ledger.objects import object_names
from rollbook.orchestration.reuse import Reuse, stage_keys
from rollbook.orchestration.run import resume_run, run_recipe
from rollbook.records import LedgerError, RecipeError
from rollbook.records import recipe as r

KEPT = r.RejectionSampling(policy="sft", tasks="train", prompts=8, samples=2, keep="all", per_task=2, sampling=SAMPLED)
AGAIN = dataclasses.replace(SFT, policy="sft", traces={}, data={"kept": 1.0}, steps=2, batch=4,
                            optimizer=dataclasses.replace(ADAM, learning_rate=1e-3))
STAGES = {"sft": dataclasses.replace(SFT, steps=10), "kept": KEPT, "last": AGAIN}
OTHER = {**STAGES, "last": dataclasses.replace(AGAIN, optimizer=dataclasses.replace(ADAM, learning_rate=2e-3))}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return run(pipeline(**STAGES), tmp_path_factory.mktemp("first") / "run")


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    return run(pipeline(**OTHER), tmp_path_factory.mktemp("second") / "run")


def reusing(recipe, out, reuse):
    progress = Quiet()
    assert run_recipe(recipe, out, progress, reuse=reuse) == 0
    return [name for name, step in progress.steps if step == 0]


def test_a_run_with_stages_taken_over_holds_what_it_would_hold_had_it_made_them(first, second, tmp_path):
    made = reusing(pipeline(**OTHER), tmp_path / "run", Reuse(folder=first))
    assert made == ["last"] and outcome(tmp_path / "run") == outcome(second)
    with Ledger.open(tmp_path / "run", write=False) as ledger:
        assert ledger.verify().fault is None and ledger.manifest["taken_over"]["stages"] == ["sft", "kept"]
    assert not [row for row in audit_run(tmp_path / "run").rows if row.result == "fail"]
    report = replay_run(tmp_path / "run")
    assert report.same_bits and [one.stage for one in report.stages] == ["sft", "last"]


def test_from_makes_a_stage_again_that_could_have_been_taken_over(first, tmp_path):
    assert reusing(pipeline(**STAGES), tmp_path / "run", Reuse(folder=first, again="kept")) == ["kept", "last"]
    assert outcome(tmp_path / "run") == outcome(first)


def test_nothing_is_taken_over_from_a_stage_on_whose_inputs_differ(first, tmp_path):
    recipe = pipeline("run.seed=7", **STAGES)
    keys, own = stage_keys(pipeline(**STAGES)), stage_keys(recipe)
    assert not {*keys.values()} & {*own.values()} and len({*keys.values()}) == 3
    assert stage_keys(pipeline(**OTHER))["kept"] == keys["kept"] and stage_keys(pipeline(**OTHER))["last"] != keys["last"]
    with pytest.raises(LedgerError, match="cannot start from last"):
        run_recipe(recipe, tmp_path / "run", Quiet(), reuse=Reuse(folder=first, again="last"))
    with pytest.raises(RecipeError, match="no stage to start from"):
        run_recipe(recipe, tmp_path / "run", Quiet(), reuse=Reuse(folder=first, again="nothing"))
    assert not (tmp_path / "run").exists()


def test_a_run_of_another_program_or_a_damaged_one_is_not_taken_over(first, tmp_path, monkeypatch):
    from rollbook.orchestration import run as producer

    inner = producer._manifest
    with monkeypatch.context() as m:
        m.setattr(producer, "_manifest", lambda *a: {**inner(*a), "code": {**inner(*a)["code"], "source": "other"}})
        with pytest.raises(LedgerError, match=r"nothing can be taken over[\s\S]*code.source"):
            run_recipe(pipeline(**STAGES), tmp_path / "other", Quiet(), reuse=Reuse(folder=first))
    shutil.copytree(first, tmp_path / "damaged")
    for name in list(object_names(tmp_path / "damaged"))[:40]:
        (tmp_path / "damaged" / "objects" / name[:2] / name[2:]).write_bytes(b"not what it was")
    with pytest.raises(LedgerError, match="damaged"):
        run_recipe(pipeline(**STAGES), tmp_path / "new", Quiet(), reuse=Reuse(folder=tmp_path / "damaged"))


def test_a_run_killed_while_it_takes_over_goes_on_and_ends_the_same(first, second, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    count = {"left": 25}
    real = Ledger.append

    def append(self, record, *, observed=None):
        if self.root.name == "killed":
            count["left"] -= 1
            if count["left"] == 0:
                raise Killed
        return real(self, record, observed=observed)
    with monkeypatch.context() as m:
        m.setattr(Ledger, "append", append)
        with pytest.raises(Killed):
            run_recipe(pipeline(**OTHER), tmp_path / "killed", Quiet(), reuse=Reuse(folder=first))
    assert resume_run(tmp_path / "killed", Quiet()) == 0
    assert outcome(tmp_path / "killed") == outcome(second)


def test_from_without_a_run_to_take_from_is_refused(tmp_path):
    done = CliRunner().invoke(main, ["run", "dapo", "--scale", "tiny", "--from", "rl", "--out", str(tmp_path / "run")])
    assert done.exit_code == 2 and "--from needs --reuse" in done.output + (done.stderr or "")
