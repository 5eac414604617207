"""Laws of the document: labels, scalars, keys, scale overlays and what they record."""

from __future__ import annotations

import pytest
from small_recipe import TEXT, changed, names, read, resolved

from rollbook.recipes.yamltext import parse
from rollbook.records import RecipeError
from rollbook.records.problems import RecipeProblems

HIGH = "{value: 0.3, label: D, claim: test.big.high}"


@pytest.mark.parametrize(("written", "words"), [
    ("{value: 0.3, label: D}", ["small.yaml:25: stages.rl.objective.high has label D but no claim", "why:", "fix: add `claim:`"]),
    ("{value: 0.3, label: C}", ["has label C but no claim"]),
    ("{value: 0.3, label: I}", ["has label I but no reason"]),
    ("{value: 0.3, label: U, note: x}", ["has label U and a value", "got 0.3"]),
    ("{label: I, each: [a]}", ["has label I and `each`"]),
    ("{label: D, claim: x}", ["has label D but not one of `value` and `values`"]),
    ("{value: 0.3, label: X, claim: x}", ["unknown label", "got 'X'", "D, C, R, I, U"]),
    ("{value: 0.3, claim: x}", ["unknown label", "got None"]),
    ("{value: 0.3, label: D, claim: x, claims: y}", ["unknown key stages.rl.objective.high.claims", "nearest names: claim"]),
])
def test_a_label_that_breaks_its_own_meaning_is_refused_with_file_and_line(written: str, words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        changed(HIGH, written)
    assert names(caught.value, words)


def test_all_problems_of_a_document_are_listed_at_once() -> None:
    text = TEXT.replace(HIGH, "{value: 0.3, label: D}").replace("reason: the usual group", "claim: test.big.guess")
    text = text.replace("title:", "titel:")
    with pytest.raises(RecipeProblems) as caught:
        read(text)
    assert len(caught.value.problems) == 4
    assert names(caught.value, ["unknown key titel", "missing key title", "objective.high", "per_task has label I but no reason"])


@pytest.mark.parametrize(("old", "new", "words"), [
    ("schema: rollbook.recipe/1", "schema: rollbook.recipe/2", ["schema must be rollbook.recipe/1", "rollbook.recipe/2"]),
    ("schema: rollbook.recipe/1\n", "", ["schema must be rollbook.recipe/1", "got None"]),
    ("    seed: 1\n", "    seed: 1\n    seed: 2\n", ["small.yaml:15: key settings.tasks.seed is written twice"]),
    ("name: small", "name: small/../x", ["name must be letters"]),
    ("  lab:\n", "  huge:\n", ["a scale must be lab or tiny", "huge"]),
    ("extends: lab", "extends: labb", ["scales.tiny.extends must name another scale"]),
    ("  run: {", "  run: &run {self: *run, ", ["an anchor that contains itself"]),
    ("  run: {", "  run: !thing {", ["small.yaml:7: a recipe has no tags", "!thing"]),
    ("seed: 1, device", "seed: !thing 1, device", ["small.yaml:7: not valid YAML"]),
    ("because: smaller still", "because: 3", ["scales.tiny.because must be a text"]),
    ("title: A small recipe", "title: [", ["small.yaml:", "not valid YAML"]),
    ("    stages.rl.steps: 4\n", "    stages.rl.steps: 4\n    stages: {rl: {steps: 5}}\n", ["stages.rl.steps is written twice"]),
])
def test_a_document_that_is_not_one_is_refused(old: str, new: str, words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        changed(old, new)
    assert names(caught.value, words)


@pytest.mark.parametrize(("old", "new", "words"), [
    ("    heldout: 512", "    heldouts: 512", ["unknown key tasks.heldouts", "nearest names: heldout"]),
    ("    heldout: 512\n", "", ["missing key tasks.heldout"]),
    ("    heldout: 512", "    heldout: many", ["small.yaml:13", "tasks.heldout must be an integer", "'many'"]),
    ("    heldout: 512", "    heldout: 1.5", ["tasks.heldout must be an integer", "1.5"]),
    ("      prompts: 16", "      promts: 16", ["unknown key stages.rl.promts", "nearest names: prompts"]),
    ("kind: PolicyGradient", "kind: PolicyGradients", ["stages.rl.kind must name one of", "PolicyGradients"]),
    ("  run: {", "  runs: {}\n  run: {", ["unknown key runs", "nearest names: run"]),
    ("value: Magistral, label: D, claim: test.big.objective", "value: Magstral, label: I, reason: a test",
     ["stages.rl.objective.kind is no objective", "nearest names: Magistral"]),
    ("low: 0.2", "low: -1", ["stages.rl.objective.low must be >= 0", "got -1"]),
    ("low: 0.2", "low: small", ["stages.rl.objective.low must be number", "got 'small'"]),
    ("low: 0.2,", "", ["missing key stages.rl.objective.low"]),
    ("ratio_to: behavior", "ratio_to: old", ["stages.rl.objective.ratio_to must be one of 'anchor', 'behavior'", "got 'old'"]),
    ("low: 0.2", "lowe: 0.2, low: 0.2", ["unknown key stages.rl.objective.lowe", "nearest names: low"]),
])
def test_decoding_refuses_unknown_missing_or_mistyped_keys_with_their_path(old: str, new: str, words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        resolved(document=changed(old, new))
    assert names(caught.value, words)


def test_misfits_of_several_sections_are_listed_together() -> None:
    document = read(TEXT.replace("heldout: 512", "heldout: x").replace("device: cpu", "device: 3"))
    with pytest.raises(RecipeProblems) as caught:
        resolved(document=document)
    assert names(caught.value, ["tasks.heldout", "run.device"])


def test_scalars_follow_yaml_1_2() -> None:
    parsed = parse("a: 1e-5\nb: no\nc: 012\nd: 1_000\ne: ~\nf: 0.5\ng: true\nh: 1:30\ni: -3", "x").value
    assert parsed == {"a": 1e-5, "b": "no", "c": "012", "d": 1000, "e": None, "f": 0.5, "g": True, "h": "1:30", "i": -3}
    assert isinstance(parsed["a"], float)


def test_a_group_gives_its_label_to_every_plain_value_below_it() -> None:
    document = changed("sampling: {temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.0}",
                       "sampling: {label: I, reason: why not, values: {temperature: 1.0, top_p: 1.0, top_k: 0, "
                       "min_p: {value: 0.0, label: D, claim: test.big.min_p}}}")
    about = resolved(document=document).provenance
    assert (about["stages.rl.sampling.top_p"].label, about["stages.rl.sampling.top_p"].reason) == ("I", "why not")
    assert (about["stages.rl.sampling.min_p"].label, about["stages.rl.sampling.min_p"].claim) == ("D", "test.big.min_p")


def test_dotted_and_nested_overlays_say_the_same() -> None:
    nested = changed("    stages.rl.steps: 4\n    tasks.train: 100\n", "    stages: {rl: {steps: 4}}\n    tasks: {train: 100}\n")
    assert resolved(document=nested) == resolved()


def test_an_integer_parameter_stays_an_integer() -> None:
    value = resolved().settings.tasks.families["sums"].parameters["max_terms"]
    assert isinstance(value, int)


def test_provenance_keeps_label_claim_and_layer_of_every_value() -> None:
    recipe = resolved()
    about = recipe.provenance
    assert (about["model.path"].origin, about["model.path"].label, about["model.path"].claim) == ("recipe", "D", "test.big.path")
    assert (about["stages.rl.per_task"].label, about["stages.rl.per_task"].reason) == ("I", "the usual group")
    assert (about["tasks.heldout"].origin, about["tasks.heldout"].label) == ("recipe", None)
    assert (about["stages.rl.steps"].origin, about["stages.rl.steps"].label) == ("overlay", "I")
    assert about["stages.rl.steps"].reason == "small enough for a test"


def test_a_disclosed_value_that_is_replaced_is_remembered_through_every_overlay() -> None:
    for scale, value in (("lab", 100), ("tiny", 50)):
        recipe = resolved(scale=scale)
        assert recipe.settings.tasks.train == value
        assert recipe.provenance["tasks.train"].scaled_from == 9000


def test_going_back_to_the_disclosed_value_is_not_scaled() -> None:
    about = resolved("tasks.train=9000").provenance["tasks.train"]
    assert (about.origin, about.scaled_from) == ("user", None)


def test_an_overlay_that_fills_an_undisclosed_value_must_say_why() -> None:
    with pytest.raises(RecipeError) as caught:
        resolved(document=changed("    because: small enough for a test\n", ""))
    assert names(caught.value, ["small.yaml:", "stages.rl.steps replaces a value labelled U without saying why"])


def test_an_overlay_that_repeats_a_disclosed_value_leaves_its_claim() -> None:
    document = changed("    tasks.train: 100\n", "    tasks.train: 9000.0\n")
    assert resolved(document=document).provenance["tasks.train"].claim == "test.big.train"


def test_null_removes_a_family_and_sets_a_value() -> None:
    families = "{sums: null, more: {generator: chain_sum, weight: 2, parameters: {}}}"
    document = changed("    tasks.train: 100\n", f"    tasks.train: 100\n    tasks.families: {families}\n")
    assert list(resolved(document=document).settings.tasks.families) == ["more"]
    assert resolved("reward.language_reward=0.1").settings.reward.language_reward == 0.1


def test_another_kind_replaces_the_whole_mapping() -> None:
    tiny = "{kind: Tiny, architecture: llama, layers: 1, hidden: 8, heads: 2, kv_heads: 1, intermediate: 8, context: 128, " \
           "window: null, experts: 0, experts_per_token: 0, seed: 1}"
    recipe = resolved(document=changed("    tasks.train: 100\n", f"    tasks.train: 100\n    model: {tiny}\n"))
    assert type(recipe.settings.model).__name__ == "Tiny"
    assert "model.path" not in recipe.provenance


def test_a_mapping_cannot_be_replaced_by_a_value_nor_a_value_by_a_mapping() -> None:
    for change, words in (("stages.rl.objective: 3", ["stages.rl.objective is a mapping"]),
                          ("run.seed.x: 3", ["run.seed is one value"])):
        with pytest.raises(RecipeError) as caught:
            resolved(document=changed("    tasks.train: 100\n", f"    {change}\n"))
        assert names(caught.value, words)
