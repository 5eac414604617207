"""What is unknown is listed with its meaning and usual range; what is not built says so and still cites its claims."""

from __future__ import annotations

import pytest
from small_recipe import REGISTRY, TEXT, changed, names, read, resolved

from rollbook.evidence.registry import builtin
from rollbook.recipes import assumed, entries, resolve, unknowns
from rollbook.recipes.document import read as read_document
from rollbook.recipes.state import missing, state, template
from rollbook.recipes.usual import known, usual
from rollbook.records import RecipeError

HEAD = f"schema: {assumed.SCHEMA}\n"
UNBUILT = """\
schema: rollbook.recipe/1
name: robot
title: A robot
subject: Nothing (2026)
source: this test
row: Q12
unbuilt: no simulator is here
pipeline:
  decoder: {value: the decoder is trained first, label: D, claim: test.big.objective}
facts:
  train: {value: 9000, label: D, claim: test.big.train}
"""
OPTIMIZER = TEXT[TEXT.index("      optimizer: {learning"):TEXT.index("      max_batch_tokens")]
UNDISCLOSED = TEXT.replace("      kind: PolicyGradient\n", "      kind: {label: U}\n").replace(
    "      policy: start\n", "      policy: {label: U}\n").replace(
    TEXT[TEXT.index("      objective: {kind"):TEXT.index("      steps:")], "      objective: {label: U, claim: test.big.low}\n")


def unbuilt(old: str = "", new: str = "") -> object:
    assert old in UNBUILT
    return read_document(UNBUILT.replace(old, new) if old else UNBUILT, "robot.yaml", REGISTRY)


@pytest.mark.parametrize("name", sorted(known()))
def test_a_usual_range_prints_the_values_of_the_claims_it_is_drawn_from(name: str) -> None:
    entry = known()[name]
    for claim in map(builtin().claim, entry.claims):
        assert claim.label in ("D", "C", "R"), claim.id
        if isinstance(claim.value, int | float) and not isinstance(claim.value, bool):
            written = f"{claim.value:g}" if abs(claim.value) < 1 else f"{claim.value:.12g}"
            assert written in entry.typical, f"{claim.id} = {claim.value} is not in {entry.typical!r}"


def test_an_unknown_setting_has_the_meaning_and_range_of_its_field_unless_it_has_its_own() -> None:
    entry = dict(entries(changed("high: {value: 0.3, label: D, claim: test.big.high}", "high: {label: U}").settings))
    assert entry["stages.rl.objective.high"].note == "upper clip width"
    assert "0.28 (DAPO)" in str(entry["stages.rl.objective.high"].typical)
    assert entry["stages.rl.steps"].note == "steps of the stage"
    assert usual("stages.rl.optimizer.eps") is not usual("stages.rl.objective.credit.eps")


def test_a_field_of_which_nothing_is_usual_needs_its_own_words() -> None:
    with pytest.raises(RecipeError) as caught:
        changed("{min_terms: 2, max_terms: 2}", "{min_terms: {label: U}}")
    assert names(caught.value, ["small.yaml:11", "has label U but no note", "has label U but no typical"])


def test_several_unknown_fields_are_listed_without_repeating_their_meaning() -> None:
    document = changed(OPTIMIZER, "      optimizer: {label: U, claim: test.big.low, each: [learning_rate, beta1, beta2]}\n")
    held = dict(unknowns(document, "lab"))
    assert list(held) == [f"stages.rl.optimizer.{name}" for name in ("learning_rate", "beta1", "beta2")]
    assert all(entry.claim == "test.big.low" for entry in held.values())


@pytest.mark.parametrize("each", ["[]", "learning_rate", "[beta1, beta1]", "[1]"])
def test_a_list_of_unknown_fields_that_is_none_is_refused(each: str) -> None:
    with pytest.raises(RecipeError) as caught:
        changed(OPTIMIZER, f"      optimizer: {{label: U, each: {each}}}\n")
    assert names(caught.value, ["optimizer.each must be a list of different names"])


def test_a_release_that_discloses_nothing_is_refused_at_every_scale_and_every_field_is_listed() -> None:
    for scale in ("full", "lab", "tiny"):
        with pytest.raises(RecipeError) as caught:
            resolved(scale=scale, document=read(UNDISCLOSED))
        assert names(caught.value, ["stages.rl.kind", "stages.rl.policy", "stages.rl.objective",
                                    "(typical, I: Grpo (DeepSeekMath)", "inferred from other systems", "--assume FILE"])
        assert "use --scale" not in str(caught.value)


def test_an_unknown_pipeline_may_be_filled_in_or_replaced_by_stages_of_the_users_own() -> None:
    text = HEAD + """stages.rl: {kind: PolicyGradient, policy: start, objective: {kind: Rloo}}\n"""
    recipe = resolved(document=read(UNDISCLOSED), assumed=assumed.read(text, "mine.yaml"))
    assert recipe.provenance["stages.rl.objective.kind"].origin == "user"
    assert recipe.provenance["stages.rl.objective.kind"].label == "I"
    text = HEAD + """stages.rl: {kind: Evaluate, policy: start, trials: 1, seed: 2}\n"""
    recipe = resolved(document=read(UNDISCLOSED), assumed=assumed.read(text, "mine.yaml"))
    assert type(recipe.settings.stages["rl"]).__name__ == "Evaluate"
    own = ("stages.more: {kind: Evaluate, policy: start, trials: 1, seed: 2, sampling: "
           "{temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0}}\n")
    recipe = resolved(document=read(UNDISCLOSED), assumed=assumed.read(text + own, "mine.yaml"))
    assert recipe.provenance["stages.more.trials"].origin == "user"


def test_a_known_value_of_an_undisclosed_pipeline_is_not_assumed() -> None:
    with pytest.raises(RecipeError) as caught:
        resolved(document=read(UNDISCLOSED), assumed=assumed.read(HEAD + "stages.rl.prompts: 3\n", "mine.yaml"))
    assert names(caught.value, ["stages.rl.prompts is not unknown", "got 16"])


def test_a_template_lists_every_open_value_and_is_refused_until_something_is_filled_in() -> None:
    text = template(read(UNDISCLOSED), "lab")
    paths = [path for path, _ in unknowns(read(UNDISCLOSED), "lab")]
    assert [line[2:-1] for line in text.splitlines() if line.endswith(":")] == paths
    with pytest.raises(RecipeError):
        assumed.read(text, "mine.yaml")
    filled = text.replace("# stages.rl.kind:", "stages.rl.kind: PolicyGradient").replace(
        "# stages.rl.policy:", "stages.rl.policy: start").replace("# stages.rl.objective:", "stages.rl.objective: {kind: Rloo}")
    assert resolved(document=read(UNDISCLOSED), assumed=assumed.read(filled, "mine.yaml")).settings.stages["rl"]


def test_a_recipe_that_is_not_built_keeps_its_labels_and_refuses_to_run() -> None:
    document = unbuilt()
    assert state(document) == "not built" and missing(document) == {} and document.row == "Q12"
    with pytest.raises(RecipeError) as caught:
        resolve(document, "lab")
    assert names(caught.value, ["recipe robot cannot be run", "no simulator is here", "rollbook recipes show robot"])


@pytest.mark.parametrize(("old", "new", "words"), [
    ("claim: test.big.train", "claim: test.other.high", ["facts.train", "belongs to Other"]),
    ("claim: test.big.objective", "claim: test.other.high", ["pipeline.decoder", "belongs to Other"]),
    ("{value: the decoder is trained first, label: D, claim: test.big.objective}", "3",
     ["pipeline.decoder must be one labelled value"]),
    ("facts:", "settings: {}\nfacts:", ["a recipe that is not built has settings"]),
    (UNBUILT[UNBUILT.index("pipeline:"):UNBUILT.index("facts:")], "", ["missing key pipeline"]),
    ("{value: the decoder is trained first, label: D, claim: test.big.objective}", "test.big.objectiv",
     ["robot.yaml:9: unknown claim", "nearest ids: test.big.objective"]),
    ("unbuilt: no simulator is here", "unbuilt: [a]", ["unbuilt must be a text"]),
])
def test_an_unbuilt_recipe_that_breaks_its_meaning_is_refused(old: str, new: str, words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        unbuilt(old, new)
    assert names(caught.value, words)


LIST = """facts:
- test.big.share
- test.big.at_most
- test.big.listed
- test.big.guess
- test.big.kl
"""


def test_facts_and_steps_may_be_the_claims_themselves_and_keep_value_and_label() -> None:
    text = UNBUILT[:UNBUILT.index("pipeline:")] + "pipeline:\n  rl: test.big.objective\n  clip: test.big.low\n" + LIST
    document = read_document(text, "robot.yaml", REGISTRY)
    held = {name: (entry.value, entry.label, entry.claim, entry.line) for name, entry in document.facts.items()}
    assert held == {"share": (0.3, "D", "test.big.share", 12), "at_most": (2, "D", "test.big.at_most", 13),
                    "listed": ([64, 128], "D", "test.big.listed", 14), "guess": (8, "I", "test.big.guess", 15),
                    "kl": (False, "D", "test.big.kl", 16)}
    assert document.facts["guess"].reason == "it is usual"
    assert [(name, entry.label) for name, entry in document.pipeline.items()] == [("rl", "D"), ("clip", "U")]
    assert document.pipeline["clip"].note == "The lower clip is not given."


@pytest.mark.parametrize(("line", "words"), [
    ("test.big.low", ["robot.yaml", "claim test.big.low is no fact", "label U"]),
    ("test.other.high", ["belongs to Other (2025)"]),
    ("test.big.nothing", ["unknown claim", "nearest ids"]),
    ("test.big.share", ["claim test.big.share is listed twice"]),
    ("3", ["facts must be ids of claims, got 3"]),
])
def test_a_fact_that_its_claim_does_not_carry_is_refused(line: str, words: list[str]) -> None:
    text = UNBUILT[:UNBUILT.index("facts:")] + LIST + f"- {line}\n"
    with pytest.raises(RecipeError) as caught:
        read_document(text, "robot.yaml", REGISTRY)
    assert names(caught.value, words)


def test_the_state_counts_what_each_scale_needs() -> None:
    assert state(read(TEXT)) == "runs at tiny, lab; needs values: full 1"
    assert state(read(UNDISCLOSED)) == "needs values: tiny 3, lab 3, full 4"
