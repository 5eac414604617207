"""A claim is about the releases in its scope and about no other, however alike two releases are."""

from __future__ import annotations

import pytest
from small_claims import TEXT, folder

from rollbook.evidence.claims import covers
from rollbook.evidence.errors import EvidenceError
from rollbook.evidence.registry import Registry, builtin, read_folder
from rollbook.recipes import document
from rollbook.recipes.stated import written
from rollbook.recipes.values import Entry, entries


@pytest.fixture
def small(tmp_path) -> Registry:
    return read_folder(folder(tmp_path, test=TEXT))


@pytest.mark.parametrize(("claim", "release", "owner", "because"), [
    ("qwen.gspo.epsilon_high", "Qwen3 (2025-04)", "GSPO experiments (2025-07)", "latest Qwen3 models"),
    ("qwen.sapo.tau_negative", "Qwen3.5 (2026-02)", "SAPO experiments (2025-11)", "Qwen3-VL"),
    ("sao.sao.epsilon_high_math", "GLM-5.2 (2026-06-16)", "SAO experiments (2026-07)", "must not be carried over"),
    ("sao.sao.actor_learning_rate", "GLM-5.2 (2026-06-16)", "SAO experiments (2026-07)", "must not be carried over"),
    ("mistral.magistral.objective", "Mistral Small 4 (2026-03)", "Magistral report (2025-06)", "not documented"),
    ("mistral.magistral-small.epsilon_high", "Mistral Small 4 (2026-03)", "Magistral Small (2025-06)", "not documented"),
    ("mistral.magistral.objective", "Mistral Medium 3.5 (2026-04)", "Magistral report (2025-06)", "not documented"),
    ("mistral.devstral.first_stage", "Devstral 2 (2025-12)", "Devstral (2025-05)", "does not carry over"),
    ("meta.llama-3.uses_ppo", "Llama 3.1 (2024-07)", "Llama 3 (2024-04)", "PPO only explored"),
    ("meta.llama-3.1.dpo_beta", "Llama 3 (2024-04)", "Llama 3.1 (2024-07)", "Llama 3.1's"),
    ("meta.llama-4-behemoth.curriculum", "Llama 4 Scout (2025-04)", "Llama 4 Behemoth (2025-04)", "applied to Scout"),
    ("mistral.magistral-medium.epsilon_high", "Magistral Small (2025-06)", "Magistral Medium (2025-06)", "Small has settings"),
])
def test_a_claim_used_for_another_release_names_the_release_it_belongs_to(claim: str, release: str, owner: str,
                                                                          because: str) -> None:
    label = builtin().claim(claim).label
    with pytest.raises(EvidenceError) as caught:
        builtin().cite(claim, release=release, label=label)
    assert all(word in str(caught.value) for word in (f"claim {claim} belongs to {owner}", f"got {release}", because))


def test_a_claim_is_cited_for_its_own_release_by_id_or_by_name_and_date(small: Registry) -> None:
    assert small.cite("test.old.high", release="old", label="D", value=0.3).says == "The upper clip is three tenths."
    assert small.cite("test.old.high", release="Old (2025-04)", label="D", value=0.3).value == 0.3
    assert covers(small.claim("test.old.high"), small.release("old"))
    assert not covers(small.claim("test.old.high"), small.release("new"))


def test_the_reason_of_a_boundary_is_given_where_there_is_one(small: Registry) -> None:
    with pytest.raises(EvidenceError, match="why: New came a year later"):
        small.cite("test.old.high", release="new", label="D", value=0.3)


@pytest.mark.parametrize(("claim", "label", "value", "wanted"), [
    ("test.old.high", "C", 0.3, ["is cited as C but is D", "use label D"]),
    ("test.old.low", "D", 0.2, ["is cited as D but is U", "got unknown"]),
    ("test.old.ratio", "D", "sampler", ["is cited as D but is I", "use I with a reason"]),
    ("test.old.low", "U", None, ["is cited as U but is U"]),
    ("test.old.high", "D", 0.28, ["has another value", "0.28 against exact 0.3", "is three tenths. (test.yaml:20)"]),
    ("test.old.hihg", "D", 0.3, ["unknown claim", "nearest ids: test.old.high"]),
])
def test_a_value_is_no_better_known_than_what_it_cites(small: Registry, claim: str, label: str, value: object,
                                                       wanted: list[str]) -> None:
    with pytest.raises(EvidenceError) as caught:
        small.cite(claim, release="old", label=label, value=value)
    assert all(word in str(caught.value) for word in wanted), caught.value


@pytest.mark.parametrize(("bound", "value", "allowed", "refused"), [
    ("at_most", "2", [0.5, 2], [2.5]),
    ("at_least", "2", [2, 9], [1]),
    ("range", "[2, 5]", [2, 3, 5], [1, 6]),
    ("about", "2", [2], [1.99]),
])
def test_a_bounded_claim_admits_the_values_within_its_bound(tmp_path, bound: str, value: str, allowed: list[float],
                                                           refused: list[float]) -> None:
    text = TEXT.replace("value: 0.3, unit: number", f"value: {value}, bound: {bound}, unit: number")
    registry = read_folder(folder(tmp_path, test=text))
    for number in allowed:
        registry.cite("test.old.high", release="old", label="D", value=number)
    for number in refused:
        with pytest.raises(EvidenceError, match="has another value"):
            registry.cite("test.old.high", release="old", label="D", value=number)


def test_an_unknown_release_is_refused_with_the_nearest_names(small: Registry) -> None:
    with pytest.raises(EvidenceError, match=r"unknown release, got 'Old \(2025-05\)'"):
        small.cite("test.old.high", release="Old (2025-05)", label="D", value=0.3)


@pytest.mark.parametrize("name", document.builtin_names())
def test_every_claim_that_a_built_in_recipe_cites_exists_covers_its_release_and_has_its_value(name: str) -> None:
    recipe = document.load(name)
    trees = [recipe.settings, recipe.facts, *(overlay.changes for overlay in recipe.scales.values())]
    cited: list[Entry] = [entry for branches in trees for _, entry in entries(branches) if entry.label in ("D", "C", "R")]
    for entry in (*cited, *(entry for entry in recipe.pipeline.values() if not entry.unknown and entry.label != "I")):
        claim = builtin().cite(str(entry.claim), release=recipe.subject, label=str(entry.label))
        repeated = entry.value in (claim.says, written(claim))     # a fact may be its claim, bound and all
        builtin().cite(str(entry.claim), release=recipe.subject, label=str(entry.label),
                       **{} if repeated else {"value": entry.value})
