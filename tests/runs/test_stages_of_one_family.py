"""Families of tasks with a mode of answering; stages that use one family; programs and other stages in one mixture; LoRA."""

import dataclasses

import pytest
from small_stages import ADAM, SAMPLED, SFT, outcome, pipeline, run, run_in_pieces

from rollbook.audit.passage import audit_run
from rollbook.audit.replay import replay_run
from rollbook.ledger import Ledger
from rollbook.recipes import validate
from rollbook.records import Demonstration, Dispatch, RecipeError, Task, problems
from rollbook.records import recipe as r
from rollbook.records.composition import ComposedReward, Part
from rollbook.records.modes import NO_THINK, THINK, control_of, without_control
from rollbook.rewards.composed.measures import thinking_mode

SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2, "max_operand": 60, "min_result": 0}
FAMILIES = {name: r.Family(generator="chain_sum", weight=1.0, parameters={**SUMS, "control": control})
            for name, control in (("thinking", THINK), ("plain", NO_THINK))}
MODES = ComposedReward(name="modes", gates=("format", "mode"), accuracy="correctness", verify_seconds=5.0, verify_workers=1,
                       parts={"format": Part(measure="magistral_format", passed=0.1), "correctness": Part(measure="math"),
                              "mode": Part(measure="thinking_mode", passed=0.1)})
LORA = r.Lora(rank=2, alpha=4.0, targets=("*_proj.weight",), seed=1)
STAGES = {
    "long": dataclasses.replace(SFT, tasks="family:thinking", steps=30),
    "samples": r.RejectionSampling(policy="long", tasks="family:thinking", prompts=6, samples=2, keep="all", per_task=2,
                                   sampling=SAMPLED),
    "fusion": dataclasses.replace(SFT, policy="long", tasks="family:plain", traces={"silent": 1.0}, data={"samples": 1.0},
                                  steps=4, batch=8),
    "rl": r.PolicyGradient(
        policy="fusion", tasks="family:plain", steps=2, prompts=4, per_task=2, groups=4, max_waves=1, minibatches=1,
        max_policy_age=0, sampling=SAMPLED, optimizer=dataclasses.replace(ADAM, lora=LORA), max_batch_tokens=256, probe=0,
        probe_every=0, checkpoint_every=1, filter="none",
        objective={"kind": "Grpo", "low": 0.2, "high": 0.2, "beta": 0.0,
                   "credit": {"kind": "GroupNormalized", "eps": 1e-6, "ddof": 0}})}


def recipe(**changes):
    made = pipeline(**{**STAGES, **changes})
    settings = dataclasses.replace(made.settings, reward=MODES, tasks=dataclasses.replace(made.settings.tasks, families=FAMILIES))
    return dataclasses.replace(made, settings=settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(recipe(), tmp_path_factory.mktemp("families") / "run")


def test_such_a_run_passes_its_audit_and_is_computed_again_bit_for_bit(whole):
    assert not [(row.name, row.record, row.evidence) for row in audit_run(whole).rows if row.result == "fail"]
    report = replay_run(whole)
    assert not report.mismatches and report.same_bits and [one.stage for one in report.stages] == ["long", "fusion", "rl"]


def test_a_stage_of_one_family_asks_and_shows_no_task_of_another(whole):
    with Ledger.open(whole, write=False) as ledger:
        family = {task.id: task.family for task in ledger.records(Task)}
        asked = {scope: {family[task] for one in ledger.records(Dispatch) if one.scope.partition("/")[0] == scope
                         for task in one.tasks} for scope in ("samples", "rl")}
        shown = [event.body["name"] for event in ledger.events("RecordTable")]
        long, fusion = ([one for event in ledger.events("RecordTable") if event.body["name"] == f"{name}/demonstrations"
                         for one in ledger.table_records(event)] for name in ("long", "fusion"))
    assert asked == {"samples": {"thinking"}, "rl": {"plain"}} and "samples/demonstrations" in shown
    assert {family[one.task] for one in long} == {"thinking"}
    assert {control_of(one.messages[-2].content) for one in long} == {THINK}
    assert len(fusion) == 16 and {family[one.task] for one in fusion} == {"plain"}          # half of 4 x 8: the rest is `samples`
    assert all("<think>\n\n</think>" in one.messages[-1].content for one in fusion)


def test_a_question_says_its_mode_and_a_response_keeps_to_it():
    assert without_control(f"{NO_THINK} 2 + 3 =") == "2 + 3 =" == without_control("2 + 3 =") and control_of("/thinking 2") is None
    empty, said = "<think>\n\n</think>\n\\boxed{5}", "<think>\n2+3=5\n</think>\n\\boxed{5}"
    assert [thinking_mode(text, f"{word} 2 + 3 =") for word in (THINK, NO_THINK) for text in (empty, said)] == [
        "no_thought", "", "", "thought_unasked"]
    assert thinking_mode("\\boxed{5}", "2 + 3 =") == "no_thinking_block" and thinking_mode(said, "2 + 3 =") == ""


@pytest.mark.soak
def test_a_run_stopped_inside_a_stage_of_low_rank_factors_ends_with_the_same_records(whole, tmp_path, monkeypatch):
    assert outcome(run_in_pieces(recipe(), tmp_path / "run", "rl", 1, monkeypatch)) == outcome(whole)


def test_the_audit_finds_a_mixture_in_another_order(whole):
    from rollbook.audit.detectors.cold_start import ColdStartDetector
    with Ledger.open(whole, write=False) as ledger:
        tables = {event.body["name"].partition("/")[0]: list(ledger.table_records(event))
                  for event in ledger.events("RecordTable") if event.body["name"].endswith("/demonstrations")}
    assert all(isinstance(one, Demonstration) for held in tables.values() for one in held)
    found = ColdStartDetector()
    found.shown = {name: [f"{name}:{place}" for place in range(len(held))] for name, held in tables.items()}
    index = type("Run", (), {"recipe": recipe()})()
    due = found._mixed(index, "fusion", STAGES["fusion"])
    assert len(due) == 32 and sum(one.startswith("fusion") for one in due) == 16 and due == found._mixed(index, "fusion",
                                                                                                     STAGES["fusion"])
    other = dataclasses.replace(index.recipe, settings=dataclasses.replace(
        index.recipe.settings, run=dataclasses.replace(index.recipe.settings.run, seed=9)))
    assert found._mixed(type("Run", (), {"recipe": other})(), "fusion", STAGES["fusion"]) != due


@pytest.mark.parametrize("changed", [{"long": dataclasses.replace(STAGES["long"], tasks="family:nothing")},
                                     {"rl": dataclasses.replace(STAGES["rl"], tasks="family:")}])
def test_a_family_that_does_not_exist_is_refused_before_anything_starts(changed):
    found = problems.Problems()
    validate.check(recipe(**changed).settings, found)
    with pytest.raises(RecipeError, match="names no family of tasks"):
        found.raise_any("this recipe")
