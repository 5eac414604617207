"""Conversations of a file as stages of a pipeline: counted before the start, learnt from, audited, replayed."""

import dataclasses
import json

import pytest
from faulty import reread
from small_runs import Quiet
from small_stages import ADAM, SFT, pipeline, run

from rollbook.audit.detectors.cold_start import ColdStartDetector
from rollbook.audit.export import export_run
from rollbook.audit.passage import audit_run
from rollbook.audit.replay import replay_run
from rollbook.ledger import Ledger
from rollbook.ledger.bundle import COLLECTED
from rollbook.orchestration.giving import file_of
from rollbook.orchestration.run import run_recipe
from rollbook.recipes import validate
from rollbook.recipes.plan import plan
from rollbook.records import Collected, Demonstration, ModuleUpdate, RecipeError, SftReport, problems
from rollbook.records import recipe as r

TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}}
CHATS = [{"id": f"c{n}", "tools": [TOOL], "messages": [
    {"role": "user", "content": f"{n}+1?"},
    {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {"a": n, "b": 1}}}]},
    {"role": "tool", "content": str(n + 1)}, {"role": "assistant", "content": f"{n + 1}"}]} for n in range(3)]
LONG = {"id": "long", "prompt": "x" * 700, "completion": "y"}
PAIRS = [{"prompt": f"{n}+1?", "chosen": str(n + 1), "rejected": str(n)} for n in range(5)]


def stages(folder, too_long="drop", **rest):
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, [*CHATS, LONG])))
    (folder / "pairs.json").write_text(json.dumps(PAIRS))
    chats = r.Conversations(policy="start", path=str(folder / "chats.jsonl"), form="demonstrations", dialect="hermes",
                            max_tokens=640, too_long=too_long)
    return {"chats": chats, "pairs": dataclasses.replace(chats, path=str(folder / "pairs.json"), form="pairs", apart=0.2),
            "sft": dataclasses.replace(SFT, traces={}, data={"chats": 1.0}, steps=2, batch=2),
            "dpo": r.Preference(policy="sft", data={"pairs": 1.0}, loss=r.Dpo(beta=0.1), by="score", steps=2, batch=2,
                                optimizer=ADAM, max_batch_tokens=4096), **rest}


class Telling(Quiet):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("given")
    return run(pipeline("model.context=768", **stages(folder)), folder / "run")


def test_the_run_keeps_the_file_and_what_became_of_its_rows(whole):
    with Ledger.open(whole, write=False) as ledger:
        chats, pairs = ledger.records(Collected)
        assert (chats.rows, chats.kept, dict(chats.left)) == (4, 3, {"longer than max_tokens": ("long",)})
        assert (pairs.rows, pairs.kept) == (5, 5) and ledger.get(pairs.sha256) == json.dumps(PAIRS).encode()
        assert len(list(ledger.records(SftReport))) == 2 and len(list(ledger.records(ModuleUpdate))) == 2


def test_a_bundle_holds_the_files_from_which_the_run_can_be_made_again(whole, tmp_path):
    bundle = tmp_path / "bundle"
    export_run(whole, bundle)
    held = {path.name: path.read_bytes() for path in (bundle / COLLECTED).iterdir()}
    with Ledger.open(whole, write=False) as ledger:
        stage = next(ledger.records(r.ResolvedRecipe)).settings.stages["pairs"]
        assert sorted(held) == sorted(one.sha256 for one in ledger.records(Collected))
    gone = dataclasses.replace(stage, path="nowhere.json")
    assert file_of(gone, bundle / COLLECTED) == held[stage.sha256] == json.dumps(PAIRS).encode()
    with pytest.raises(RecipeError, match="cannot be read"):
        file_of(gone, None)


def test_it_passes_the_audit_and_is_computed_again_bit_for_bit(whole):
    assert not [(row.name, row.evidence) for row in audit_run(whole).rows if row.result == "fail"]
    assert replay_run(whole).same_bits


@pytest.mark.parametrize(("change", "words"), [
    (lambda one: None if isinstance(one, Demonstration) and one.task == "given:c1" else one, "they differ from row 2 on"),
    (lambda one: dataclasses.replace(one, kept=one.kept + 1) if isinstance(one, Collected) else one, "reports 4 of 4 rows"),
    (lambda one: dataclasses.replace(one, left={}) if isinstance(one, Collected) else one, "and leaves out {}"),
    (lambda one: None if isinstance(one, Collected) and one.stage == "pairs" else one, "the file of pairs is not on record")])
def test_rows_that_vanish_or_are_counted_otherwise_are_caught(whole, change, words):
    failed = []

    class Watched(ColdStartDetector):
        def fail(self, record, evidence, remedy):
            failed.append(evidence)
            super().fail(record, evidence, remedy)
    assert reread(whole, Watched(), record=lambda _, one: change(one)).result == "fail"
    assert any(words in one for one in failed), failed


def test_counts_and_names_are_told_before_the_start_and_everything_wrong_is_refused_at_once(tmp_path):
    broken = stages(tmp_path, too_long="refuse", more=r.Conversations(
        policy="start", path=str(tmp_path / "nowhere.json"), form="pairs", dialect="hermes", max_tokens=9, too_long="drop"))
    (tmp_path / "pairs.json").write_text(json.dumps([{"prompt": "x", "chosen": "y"}]))
    told = Telling()
    with pytest.raises(RecipeError) as refused:
        run_recipe(pipeline("model.context=768", **broken), tmp_path / "run", told)
    for words in ("1 of 4 conversations are longer than max_tokens = 640, got long", "row 0: it has no rejected",
                  "nowhere.json: No such file", "has 3 problems"):
        assert words in str(refused.value)
    assert "chats: 3 of 4 conversations are learnt from" in told.notes and "chats: 1 longer than max_tokens: long" in told.notes
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("loss", "by", "refused"), [
    ("ranked", "score", 0), ("listwise", "score", 1), ("soft_label", "correct", 2)])
def test_what_a_file_of_pairs_does_not_say_is_not_made_up(tmp_path, loss, by, refused):
    made = stages(tmp_path)
    model = r.RewardModel(policy="sft", data={"pairs": 1.0}, loss=loss, head_layers=1, steps=2, batch=2, max_batch_tokens=4096,
                          optimizer=ADAM)
    found = problems.Problems()
    every = made | {"rm": model, "dpo": dataclasses.replace(made["dpo"], by=by)}
    validate.check(pipeline("model.context=768", **every).settings, found)
    assert sum(error.what.endswith("asks more than stages.pairs knows") for error in found.found) == refused


def test_a_plan_bounds_what_is_learnt_by_the_length_of_conversations(tmp_path):
    made = {one.name: one for one in plan(pipeline("model.context=768", **stages(tmp_path)))}
    assert made["sft"].trained_tokens == 2 * 2 * 640 and made["dpo"].trained_tokens == 2 * 2 * 2 * 640
    assert (made["chats"].attempts, made["chats"].updates) == (0, 0)


def test_a_file_that_changed_after_it_was_pinned_is_refused(tmp_path):
    made = stages(tmp_path)
    pinned = dict(made, chats=dataclasses.replace(made["chats"], sha256="00" * 32))
    with pytest.raises(RecipeError, match="is not the one that the recipe names"):
        run_recipe(pipeline("model.context=768", **pinned), tmp_path / "run", Quiet())


def test_forms_and_lengths_that_do_not_go_together_are_all_named(tmp_path):
    made = stages(tmp_path)
    crossed = dict(made, sft=dataclasses.replace(made["sft"], data={"pairs": 1.0}, max_batch_tokens=600),
                   dpo=dataclasses.replace(made["dpo"], data={"chats": 1.0}),
                   chats=dataclasses.replace(made["chats"], apart=0.5, max_tokens=4000))
    found = problems.Problems()
    validate.check(pipeline("model.context=768", **crossed).settings, found)
    told = "\n".join(error.what for error in found.found)
    for words in ("stages.sft.data.pairs names conversations of another form", "stages.dpo.data.chats names conversations",
                  "stages.chats.apart is for", "stages.chats.max_tokens must be at most model.context",
                  "stages.sft.max_batch_tokens is too small for a conversation of stages.pairs"):
        assert words in told, told
