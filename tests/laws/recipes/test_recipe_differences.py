"""Two recipes differ where a value or the label of a value differs, and nowhere else."""

from __future__ import annotations

from small_recipe import TEXT, changed, read

from rollbook.recipes.compare import differences


def test_a_recipe_does_not_differ_from_itself() -> None:
    assert differences(read(TEXT), read(TEXT), "full") == ()


def test_a_changed_value_a_changed_label_and_a_value_of_one_only_are_differences() -> None:
    other = changed("low: 0.2", "low: {value: 0.2, label: I, reason: usual}")
    (label,) = differences(read(TEXT), other, "full")
    assert (label.path, label.first and label.first.label, label.second and label.second.label) == \
        ("stages.rl.objective.low", None, "I")
    (value,) = differences(read(TEXT), changed("heldout: 512", "heldout: 256"), "full")
    assert (value.path, value.first and value.first.value, value.second and value.second.value) == ("tasks.heldout", 512, 256)
    more = changed("scales:\n", "facts: {clip: {value: 0.3, label: D, claim: test.big.high}}\nscales:\n")
    (only,) = differences(read(TEXT), more, "full")
    assert (only.path, only.first) == ("facts.clip", None)


def test_a_reason_or_a_line_is_no_difference_and_one_is_not_true() -> None:
    assert differences(read(TEXT), changed("reason: the usual group", "reason: another"), "full") == ()
    assert [item.path for item in differences(read(TEXT), changed("verify_workers: 1", "verify_workers: true"), "full")] == \
        ["reward.verify_workers"]


def test_recipes_are_compared_at_the_scale_that_is_asked_for() -> None:
    other = changed("    tasks.train: 100\n", "    tasks.train: 200\n")
    assert differences(read(TEXT), other, "full") == ()
    assert [item.path for item in differences(read(TEXT), other, "lab")] == ["tasks.train"]
