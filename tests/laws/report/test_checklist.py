"""The checklist answers ten questions from a run's artifacts, and says of what it does not find that it is not shown."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from inspected_run import begin, whole_run

from rollbook.audit.export import export_run
from rollbook.audit.release_parts import release_parts
from rollbook.cli import main
from rollbook.evidence.registry import builtin
from rollbook.ledger import Ledger
from rollbook.records import Demonstration, LedgerError, SftReport
from rollbook.report.checklist import checklist
from rollbook.report.checklist_facts import Fact, stored

CONFIG = {"model_type": "llama", "hidden_size": 4, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
          "num_key_value_heads": 1, "head_dim": 2, "vocab_size": 10, "tie_word_embeddings": True}


def checkpoint(folder: Path, shapes: dict[str, list[int]]) -> None:
    folder.mkdir(parents=True)
    header = json.dumps({"__metadata__": {"format": "pt"}, **{name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
                                                              for name, shape in shapes.items()}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    (folder / "config.json").write_text(json.dumps(CONFIG))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    whole_run(folder, lone=2)
    for stage in ("cold_start", "rl"):
        checkpoint(folder / "checkpoints" / stage, {"embedding": [10, 4], "norm": [4]})
    yield folder


def facts(run: Path, question: int) -> dict[str, Fact]:
    parts = [(part.title, part.status) for part in release_parts(run)]
    return {fact.what: fact for fact in checklist(run, parts, builtin())[question - 1].facts}


def test_tokens_are_told_apart_by_repetition_and_by_who_trained_on_them(run: Path) -> None:
    found = facts(run, 2)
    assert found["supervised"].value == "8 tokens processed (policy tokens of demonstrations, repetitions counted)"
    assert found["of these"].value == "8 unique tokens (policy tokens of different demonstrations)"
    assert found["passes over each token"].value == "1"
    assert found["reinforcement learning"].value == "18 tokens processed (policy tokens in updates)"
    assert found["sequences in updates"].value is not None and found["sequences in updates"].where == "Batch"


def test_a_demonstration_shown_twice_is_processed_twice_and_unique_once_and_one_not_shown_is_neither(tmp_path: Path) -> None:
    writer = begin(tmp_path / "run")
    writer.cold_start()
    (first,) = writer.ledger.records(SftReport)
    writer.ledger.append(dataclasses.replace(first, step=2, demonstrations=first.demonstrations[:2], tokens=2))
    extra = [dataclasses.replace(one, author="somebody else") for one in writer.ledger.records(Demonstration)]
    writer.ledger.write_table("cold_start/more", extra)
    writer.ledger.close()
    found = facts(tmp_path / "run", 2)
    assert found["supervised"].value == "10 tokens processed (policy tokens of demonstrations, repetitions counted)"
    assert found["demonstrations"].value == "10 shown, 8 different"
    assert found["of these"].value == "8 unique tokens (policy tokens of different demonstrations)"
    assert found["passes over each token"].value == "1.25"


def test_parameters_are_counted_in_the_checkpoint_and_by_its_configuration(run: Path) -> None:
    found = facts(run, 3)
    assert found["in the checkpoint's tensors"].value == "44 in 2 tensors"
    assert found["total"].value != found["without embeddings"].value
    assert found["embedding and head"].value == "one table"
    assert stored(run / "checkpoints" / "rl") == (2, 44)


def test_a_task_count_says_whether_it_counts_tasks_samples_or_trajectories(run: Path) -> None:
    found = {what: fact.value for what, fact in facts(run, 4).items()}
    assert (found["raw tasks"], found["training tasks"], found["held-out tasks"]) == ("12", "8", "4")
    assert found["kept by select"] == "4 of 8 tasks"
    assert int(found["policy samples issued"] or 0) - int(found["trajectories"] or 0) == 2     # ended without a trajectory


def test_the_optimizer_is_told_from_the_batches_and_the_recipes_label(run: Path) -> None:
    found = facts(run, 5)
    assert found["objective"].value == "Magistral in 2 batches"
    assert found["term policy"].value == "1 x token_mean over actions"
    assert (found["stages.rl.objective.kind"].value, found["stages.rl.objective.kind"].where) == \
        ("disclosed", "mistral.magistral.objective")
    assert found["loss computed again from its equation"].value is None


def test_the_scale_the_evaluations_and_the_scaffold_are_facts_of_the_run(run: Path) -> None:
    scale, results, scaffold = facts(run, 6), facts(run, 7), facts(run, 8)
    assert (scale["scale"].value, scale["subject"].value) == ("tiny", "Magistral Small (2025-06)")
    assert scale["values set by the user"].value == "none"
    assert results["final_eval"].value == "50.0% (25.0% to 75.0%, wilson) of 4 outcomes, 0 unscored, same family as training"
    assert results["final_eval: protocol"].value == "1 attempt a task, mean of attempts, temperature 0.7, top-p 1, 64 tokens"
    assert (scaffold["scaffolds"].value, scaffold["tools"].value) == ("1: single_turn/1", "none")
    assert scaffold["authors of tokens"].value == "2: policy, user"


def test_what_is_unknown_counts_the_inferences_and_the_sources_unknowns(run: Path) -> None:
    found = facts(run, 10)
    assert found["how the run ended"].value == "completed"
    assert str(found["inferred for this scale"].value).partition(":")[0].isdigit()
    assert found["claims of unknowns of Magistral Small (2025-06)"].value == \
        str(sum(claim.label == "U" for claim in builtin().about("magistral-small")))


def test_the_parts_are_those_that_an_export_of_the_run_holds_and_nothing_is_written(run: Path, tmp_path: Path) -> None:
    before = sorted(path for path in run.rglob("*"))
    parts = release_parts(run)
    index = export_run(run, tmp_path / "bundle")
    assert [(part.number, part.title, part.status) for part in parts] == \
        [(part["number"], part["title"], part["status"]) for part in index["parts"]]
    assert [part.missing for part in parts] == [part["missing"] for part in index["parts"]]
    assert sorted(path for path in run.rglob("*")) == before


def test_a_run_that_has_only_begun_shows_nothing_that_it_has_not_done(tmp_path: Path) -> None:
    begin(tmp_path / "run").ledger.close()
    assert facts(tmp_path / "run", 2)["tokens trained on"].value is None
    assert facts(tmp_path / "run", 3)["parameters"] == Fact(what="parameters", value=None, where="no checkpoint on record")
    assert facts(tmp_path / "run", 7)["evaluations"].value is None
    assert facts(tmp_path / "run", 10)["how the run ended"].value is None


def test_a_checkpoint_that_is_gone_or_broken_is_not_shown(tmp_path: Path) -> None:
    whole_run(tmp_path / "run")
    assert "cannot be read" in facts(tmp_path / "run", 3)["parameters"].where
    checkpoint(tmp_path / "run" / "checkpoints" / "rl", {})
    (tmp_path / "run" / "checkpoints" / "rl" / "model.safetensors").write_bytes(b"\x01")
    assert "cannot be read" in facts(tmp_path / "run", 3)["parameters"].where


def test_a_run_without_a_recipe_has_no_release_to_score(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "run", {"name": "x"}).close()
    with pytest.raises(LedgerError, match="no recipe on record"):
        release_parts(tmp_path / "run")


def test_the_command_asks_ten_questions_and_sets_the_runs_parts_beside_its_subjects(run: Path) -> None:
    result = CliRunner().invoke(main, ["checklist", str(run)])
    assert result.exit_code == 0, result.output
    assert [f"\n{number:>2}  " in f"\n{result.output}" for number in range(1, 11)] == [True] * 10
    assert "Magistral Small (2025-06): 9 of 10 parts described" in result.output
    assert "not shown" in result.output
    document = json.loads(CliRunner().invoke(main, ["checklist", str(run), "--json"]).output)
    assert (len(document["answers"]), len(document["parts"]), document["subject"]) == (10, 10, "Magistral Small (2025-06)")
    assert CliRunner().invoke(main, ["checklist", "nowhere"]).exit_code == 2
