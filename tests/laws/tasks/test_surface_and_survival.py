"""What a prompt may show of its answer, and what of a raw task must survive in it."""

import base64
import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.records import Budget, Message, RawTask, Task, content_id
from rollbook.tasks.expressions import parse
from rollbook.tasks.surface import derived, in_words
from rollbook.tasks.survival import TEMPLATE_TASKS, Templates, changes
from rollbook.tasks.units import expression_of, procedural, split_unit

RAW = "Calculate 23 + 38."


def raw_task(content, *, source="reasoning-gym 1 chain_sum", **lineage):
    return RawTask(source=source, licence="l", acquired_at="2026-11-29", content=content, language="en", domain="d", sensitive=(),
                   lineage=lineage)


def changed(shown, content, template=()):
    raw = raw_task(content)
    task = Task(raw=content_id(raw), family="f", prompt=(Message(role="user", content=shown, origin="raw"),), reference="61",
                canonical="c", predicate="p", initial_state="prompt", tools=(), budget=Budget(max_tokens=1), termination=("x",))
    return [change.kind for change in changes(task, raw, template)]


@pytest.mark.parametrize(("hint", "form"), [
    ("61", "as it is"), ("61.0", "as it is"), ("0061", "as it is"), ("6.1e1", "as it is"), ("sixty-one", "in words"),
    ("SIXTY ONE", "in words"), ("sixtyone", "in words"), ("six one", "digit by digit in words"), ("6 1", "taken apart"),
    ("6-1", "taken apart"), ("0x3D", "in hex"), ("3d", "in hex"), ("0o75", "in octal"), ("0b111101", "in binary"),
    ("111101", "in binary"), ("16", "backwards"), (base64.b64encode(b"61").decode(), "base64"), ("NjE", "base64"),
    ("3631", "as hex bytes"), ("\uff16\uff11", "as it is"), ("6\u200b1", "as it is"),
])
def test_every_form_of_a_number_is_found_beside_the_question(hint, form):
    assert form in derived("61", f"23 + 38 = {hint}", RAW)
    assert derived("61", "23 + 38 =", RAW) == ()


@pytest.mark.parametrize("hint", ["610", "161", "x61y", "3dx", "six", "sixty", "62", "njex"])
def test_what_only_resembles_a_number_is_not_found(hint):
    assert derived("61", f"23 + 38 = {hint}", RAW) == ()


def test_grouped_numbers_and_signs_are_the_number():
    assert derived("1234", "1,234", "") and derived("-7", "7", "") and derived("-7", "seven", "") == ("digit by digit in words",
                                                                                                   "in words")


def test_what_the_raw_task_shows_anyway_is_no_leak():
    assert derived("5", "5 - 0 =", "Calculate 5 - 0.") == ()
    assert derived("5", "5 - 0 = 5", "Calculate 5 - 0.") != ()


@pytest.mark.parametrize("hint", ["green", "GREEN", "neerg", "g r e e n", codecs.encode("green", "rot13"), b"green".hex(),
                                  base64.b64encode(b"green").decode()])
def test_every_form_of_a_word_is_found(hint):
    assert derived("green", f"the colour of grass ({hint})", "the colour of grass")


@given(number=st.integers(0, 10**9 - 1))
def test_a_number_in_words_is_found_as_that_number_and_reads_back(number):
    value = 0
    part = 0
    scale = {"hundred": 100, "thousand": 1000, "million": 10**6}
    small = {word: size for size in (*range(20), *range(20, 100, 10)) for word in in_words(size) if len(in_words(size)) == 1}
    for word in in_words(number):
        if word == "hundred":
            part *= 100
        elif word in scale:
            value, part = value + part * scale[word], 0
        else:
            part += small[word]
    assert value + part == number
    assert "in words" in derived(str(number), " ".join(in_words(number)), "")


def test_a_shortened_question_that_keeps_everything_has_not_changed():
    assert changed("23 + 38 =", RAW) == []
    assert changed("( ( -9 - 6 ) - -( -3 * 4 ) ) * 2 / 2 =", "Calculate ( ( -9 - 6 ) - -( -3 * 4 ) ) * 2 / 2.") == []


@pytest.mark.parametrize(("shown", "content", "kind"), [
    ("23 + 39 =", RAW, "numbers added"), ("23 + =", RAW, "numbers lost"), ("38 + 23 =", RAW, "expression changed"),
    ("23 - 38 =", RAW, "expression changed"), ("2 * 3 + 4", "What is 2 * (3 + 4)?", "expression changed"),
    ("run it", "run ```x = 1```", "code lost"), ("call f", "call `f` twice", "code lost"),
    ("How many pairs?", "How many distinct pairs?", "constraint lost"),
    ("sum of primes", "sum of at most 3 primes", "constraint lost"),
    ("Easy: 23 + 38 =", RAW, "words added"), ("23 + 38 = ", RAW, "characters added"), ("23 +  38 =", RAW, "characters added"),
    ("23 + 38 =\u200b", RAW, "characters added"), ("23 +\t38 =", RAW, "characters added"),
    ("23 + 38 ====", RAW, "characters added"),
    ("23 + 38 = ~", RAW, "characters added"),
])
def test_every_change_of_a_question_is_found(shown, content, kind):
    assert kind in changed(shown, content)


def test_a_constraint_of_every_raw_task_of_a_source_is_its_template_and_one_of_some_is_not():
    templates = Templates()
    for index in range(TEMPLATE_TASKS):
        assert templates.shared("reasoning-gym 1 chain_sum") == frozenset()
        templates.add(raw_task(f"{index} + 1. Give only the result" + (" rounded" if index else "") + "."))
    assert templates.shared("reasoning-gym 1 chain_sum") == {"only"}
    assert changed("23 + 38 =", "23 + 38. Give only the result.", {"only"}) == []
    assert changed("23 + 38 =", "23 + 38. Give only the result rounded.", {"only"}) == ["constraint lost"]


@given(terms=st.lists(st.integers(0, 99), min_size=2, max_size=5), signs=st.lists(st.sampled_from("+-"), min_size=4, max_size=4))
def test_the_unit_of_a_raw_sum_is_that_of_its_expression(terms, signs):
    text = str(terms[0]) + "".join(f" {sign} {term}" for sign, term in zip(signs, terms[1:], strict=False))
    for content in (f"Calculate {text}.", f"State the final answer to the following arithmetic problem: {text} ="):
        raw = raw_task(content, generator="chain_sum", seed="1", index="2")
        assert expression_of(content).text == text
        assert split_unit(raw) == parse(text).canonical and procedural(raw)


def test_a_text_of_several_numbers_in_prose_has_no_unit_of_its_own():
    assert expression_of("Tom has 3 apples and buys 4.") is None
    assert split_unit(raw_task("Tom has 3 apples and buys 4.", generator="chain_sum")) is None
    assert split_unit(raw_task("3 + 4")) is None
    assert split_unit(raw_task("fix it", repository="a/b")) == "repository:a/b"
