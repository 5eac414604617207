"""The matrix counts claims where they belong, and says of a release no more than they do."""

from __future__ import annotations

from collections import Counter

import pytest

from rollbook.evidence.matrix import ASPECTS, Cell, about, aspect, matrix, says, timeline
from rollbook.evidence.registry import builtin
from rollbook.evidence.release_score import PARTS, score


@pytest.mark.parametrize(("claim", "wanted"), [
    ("mistral.magistral-small.license", "weights"),
    ("qwen.qwen3-8b.layers", "architecture"),
    ("mistral.magistral.math_problems", "data"),
    ("mistral.magistral-small.general_share", "data"),
    ("mistral.magistral-small.trace_count", "data"),
    ("qwen.qwen3.pretraining_tokens", "data"),
    ("mistral.magistral.objective", "equations"),
    ("anthropic.hh.policy_optimizer", "equations"),
    ("mistral.devstral.algorithm", "equations"),
    ("mistral.magistral-small.epsilon_high", "hyper_parameters"),
    ("mistral.magistral-small.learning_rate", "hyper_parameters"),
    ("mistral.magistral-small.non_penalised_tokens", "hyper_parameters"),
    ("bytedance.dapo.prompts_per_batch", "hyper_parameters"),
    ("mistral.devstral.environment", "environments"),
    ("meta.llama-2.gpu_hours", "hardware"),
    ("mistral.devstral.hardware", "hardware"),
    ("meta.llama-2.training_code", "reproduction"),
    ("deepseek.lineage.reproducible", "reproduction"),
    ("mistral.magistral-medium.aime24_pass1", None),
    ("mistral.magistral-training.kv_cache_recomputed", None),
])
def test_a_claim_belongs_to_one_aspect(claim: str, wanted: str | None) -> None:
    assert aspect(builtin().claim(claim)) == wanted


def test_a_word_is_found_whole_in_the_plural_or_as_a_marked_beginning() -> None:
    assert says("sft_examples", ("example",)) and says("trajectory_filter", ("trajector*",))
    assert says("responses_per_prompt", ("per_prompt",))
    assert not says("kv_cache_recomputed", ("compute", "cap")) and not says("shared_tokenizer", ("share",))


def test_every_claim_of_a_release_is_in_its_row_once() -> None:
    claims = about(builtin())
    for row in matrix(builtin()):
        counted = Counter(claim.id for cell in row.cells.values() for claim in cell.claims)
        counted.update(claim.id for claim in row.others)
        assert counted == Counter(claim.id for claim in claims[row.release.id])


def test_a_row_counts_what_may_be_used_for_the_release_wherever_it_was_said() -> None:
    (small,) = matrix(builtin(), ["Magistral Small (2025-06)"])
    names = {claim.id for cell in small.cells.values() for claim in cell.claims}
    assert {"mistral.magistral.objective", "mistral.magistral-small.epsilon_high"} <= names
    assert not any(name.startswith("mistral.magistral-medium.") for name in names)


@pytest.mark.parametrize(("labels", "state"), [("", "silent"), ("U", "unknown"), ("I", "inferred"), ("IU", "inferred"),
                                               ("D", "known"), ("CI", "known"), ("DU", "partial"), ("R", "known")])
def test_a_cell_is_no_better_known_than_its_claims(labels: str, state: str) -> None:
    made = {claim.label: claim for claim in map(builtin().claim, builtin().ids)}
    held = [made[label] if label in made else Fake(label) for label in labels]  # type: ignore[index]
    assert Cell(claims=tuple(held)).state == state  # type: ignore[arg-type]


class Fake:
    """Has a label and nothing else: there is no reproduced claim yet."""

    def __init__(self, label: str):
        self.label = label


@pytest.mark.parametrize(("release", "known", "unknown", "silent"), [  # the case study's table of openness, section 9
    ("mistral-7b", ["weights", "architecture"], ["data", "hardware"], ["environments"]),
    ("magistral-small", ["weights", "architecture", "data", "equations", "hyper_parameters"], [], ["environments"]),
    ("devstral", ["architecture", "environments"], ["hyper_parameters", "hardware"], ["weights"]),
    ("mistral-small-4", ["weights", "architecture"], ["equations"], ["data", "hardware"]),
    ("llama-2", ["architecture", "hyper_parameters", "hardware"], [], ["environments"]),
    ("muse-spark", ["weights"], ["architecture", "hyper_parameters", "hardware"], []),
    ("glm-5.2", ["architecture"], ["hardware"], []),
    ("kimi-k3", ["architecture"], ["equations", "hardware"], []),
])
def test_the_matrix_says_what_the_case_study_says(release: str, known: list[str], unknown: list[str], silent: list[str]) -> None:
    (row,) = matrix(builtin(), [release])
    states = {name: row.cells[name].state for name in ASPECTS}
    assert all(states[name] in ("known", "partial") for name in known), states        # type: ignore[index]
    assert all(states[name] == "unknown" for name in unknown), states                 # type: ignore[index]
    assert all(states[name] == "silent" for name in silent), states                   # type: ignore[index]


def test_releases_stand_on_the_time_line_in_order_and_a_recalled_date_is_marked() -> None:
    events = timeline(builtin())
    assert [event.release.date for event in events] == sorted(event.release.date for event in events)
    by_name = {event.release.id: event for event in events}
    assert len(by_name) == len(builtin().releases)
    assert by_name["magistral"].sourced and not by_name["deepseek-v3"].sourced and not by_name["llama-3.2"].sourced
    assert by_name["magistral-small"].trained_by == ("modified GRPO",)
    assert by_name["mistral-small-3"].trained_by == ("no RL",)
    assert by_name["kimi-k3"].trained_by == ()


def test_what_is_said_of_a_line_of_releases_is_not_said_of_its_newest() -> None:
    lineage = {claim.release for claim in map(builtin().claim, builtin().ids) if ".lineage." in claim.id}
    assert lineage == {"deepseek-lineage", "glm-lineage", "kimi-lineage"}
    assert not [claim.id for release in ("deepseek-v4", "glm-5.2", "kimi-k3") for claim in about(builtin())[release]
                if ".lineage." in claim.id]


def test_the_weights_of_a_model_are_not_those_of_a_mixture() -> None:
    assert score(builtin(), "kimi-k3").parts[4].status == "not spoken of"
    assert score(builtin(), "qwen3.7-max").parts[4].status == "withheld"


def test_no_release_is_scored_complete_by_what_is_said_about_it() -> None:
    assert [part.number for part in PARTS] == list(range(1, 11))
    for release in builtin().releases:
        assert any(part.status != "described" for part in score(builtin(), release).parts), release


def test_a_part_of_which_only_the_unknown_is_said_is_withheld_and_silence_is_not() -> None:
    parts = {part.number: part.status for part in score(builtin(), "glm-5.2").parts}
    assert (parts[7], parts[9], parts[10]) == ("in part", "withheld", "not spoken of")
    assert score(builtin(), "kimi-k3").described < score(builtin(), "magistral-small").described
    assert str(score(builtin(), "mistral-small-4")) == "1 of 10 parts described, 1 of them with nothing said to be unknown"
