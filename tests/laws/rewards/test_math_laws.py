"""Laws of the comparison of answers: what is rewritten by a true rule stays equal, what is changed does not, nothing crashes."""

import math
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from rollbook.rewards.math import Undecided, UnparsableReference, equivalent
from rollbook.rewards.notation import clean
from rollbook.rewards.verifiers.mathematics import exact as exact_module
from rollbook.rewards.verifiers.mathematics.exact import TooLarge, exact
from rollbook.rewards.verifiers.mathematics.grammar import read
from rollbook.rewards.verifiers.mathematics.huge import different, size
from rollbook.rewards.verifiers.mathematics.nodes import Malformed, Node, Unsupported, number
from rollbook.rewards.verifiers.mathematics.units import parse_unit

SCALES = [("km", "m", 1000), ("m", "cm", 100), ("h", "min", 60), ("kg", "g", 1000), ("L", "mL", 1000)]
NAMES = st.sampled_from("abxyz")
INTEGERS = st.integers(1, 30)
FRACTIONS = st.fractions(min_value=-40, max_value=40, max_denominator=30)
PIECES = st.sampled_from([*"0123456789xyzei+-*/^_(){}[]|,;:=<>!%& ", "\\frac", "\\sqrt", "\\{", "\\}", "\\text{", "\\pm",
                          "\\infty", "\\int",
                          "\\sum_{k=1}^{", "\\begin{pmatrix}", "\\end{pmatrix}", "\\\\", "\\cup", "\\in", "\\mathbb{R}", "\\le",
                          "\\ln",
                          "\\sin", "\\circ", "...", "and", "cm", "10,000", "0.5", "π", "²", "½"])


@st.composite
def expressions(draw, depth=3):
    """A LaTeX expression, and the same with summands and factors in another order."""
    kind = draw(st.sampled_from(["number", "name"]
                                if depth == 0 else ["number", "name", "sum", "product", "quotient", "power", "sine"]))
    if kind == "number":
        return (text := str(draw(INTEGERS))), text
    if kind == "name":
        return (text := draw(NAMES)), text
    (one, one_other), (two, two_other) = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    match kind:
        case "sum":
            return f"({one}+{two})", f"\\left({two_other} + {one_other}\\right)"
        case "product":
            return f"{one}\\cdot {two}", f"({two_other})({one_other})"
        case "quotient":
            return f"\\frac{{{one}}}{{{two}}}", f"({one_other})/({two_other})"
        case "power":
            return f"({one})^{{2}}", f"({one_other})\\cdot({one_other})"
        case _:
            return f"\\sin({one})", f"sin({one_other})"


@given(pair=expressions())
@settings(max_examples=60, deadline=None)
def test_another_order_of_summands_and_factors_changes_nothing(pair):
    one, other = pair
    try:
        assert equivalent(other, one) is True
    except Undecided:
        assume(False)


@given(pair=expressions(), change=INTEGERS)
@settings(max_examples=60, deadline=None)
def test_an_added_constant_changes_the_answer(pair, change):
    one, other = pair
    try:
        assert equivalent(f"({other})+{change}", one) is False
    except Undecided:
        assume(False)


@given(value=FRACTIONS, other=FRACTIONS)
def test_fractions_in_every_form_are_equal_exactly_when_they_are(value, other):
    forms = [f"{value.numerator}/{value.denominator}", rf"\frac{{{value.numerator}}}{{{value.denominator}}}",
             rf"\dfrac{{{2 * value.numerator}}}{{{2 * value.denominator}}}", rf"{value.numerator}\div {value.denominator}",
             rf"\frac{{{100 * value.numerator}}}{{{value.denominator}}}\%"]
    whole, rest = divmod(abs(value.numerator), value.denominator)
    if whole and rest:
        forms.append(rf"{'-' * (value < 0)}{whole}\frac{{{rest}}}{{{value.denominator}}}")
    reference = rf"\frac{{{other.numerator}}}{{{other.denominator}}}"
    assert {equivalent(form, reference) for form in forms} == {value == other}


@given(numbers=st.lists(st.integers(1000, 99_999), min_size=2, max_size=4, unique=True),
       shuffled=st.randoms(use_true_random=False))
def test_thousands_in_a_list_are_grouped_and_every_item_counts(numbers, shuffled):
    reference = ", ".join(f"{number:,}" for number in numbers)
    plain = list(numbers)
    shuffled.shuffle(plain)
    assert equivalent(", ".join(map(str, plain)), reference) is True
    assert equivalent(", ".join(map(str, plain[1:])), reference) is False
    assert equivalent(", ".join(map(str, [*plain, 7])), reference) is False
    assert equivalent(", ".join(map(str, [plain[0] + 1, *plain[1:]])), reference) is False


@given(low=st.integers(-20, 20), width=st.integers(1, 20), left=st.booleans(), right=st.booleans(),
       other=st.tuples(st.booleans(), st.booleans()))
def test_an_interval_is_its_inequality_with_the_same_ends(low, width, left, right, other):
    interval = f"{'[' if left else '('}{low},{low + width}{']' if right else ')'}"
    first, second = ("\\le" if included else "<" for included in other)
    inequality = f"{low} {first} x {second} {low + width}"
    assert equivalent(inequality, interval) is ((left, right) == other)


@given(base=st.integers(2, 9), tower=st.lists(st.integers(2, 9), min_size=4, max_size=6), change=st.integers(1, 5))
@example(base=7, tower=[7, 7, 7, 7], change=1)
def test_towers_of_powers_are_compared_without_being_computed(base, tower, change):
    def written(levels):
        return f"{base}^{{" + "^{".join(map(str, levels)) + "}" * len(levels)

    assert equivalent(written(tower), written(tower).replace("^", " ^ ")) is True
    assert equivalent(written(tower), "61") is False
    higher = [*tower[:-1], tower[-1] + change]
    assert different(read(clean(written(higher))), read(clean(written(tower))))


@given(value=st.integers(1, 500), scale=st.sampled_from(SCALES))
def test_units_are_converted_and_may_be_left_out(value, scale):
    large, small, factor = scale
    reference = rf"{value}\text{{ {large}}}"
    assert equivalent(rf"{value * factor}\ \mathrm{{{small}}}", reference) is True
    assert equivalent(str(value), reference) is True
    assert equivalent(rf"{value}\text{{ {small}}}", reference) is False
    assert equivalent(rf"{value}\text{{ {large}}}^2", reference) is False


@given(parts=st.lists(PIECES, max_size=14), reference=st.lists(PIECES, min_size=1, max_size=10))
@settings(max_examples=300, deadline=None)
def test_no_text_makes_the_comparison_crash(parts, reference):
    answer, wanted = "".join(parts), "".join(reference)
    try:
        assert equivalent(answer, wanted) in (True, False)
    except (UnparsableReference, Undecided):
        pass


@given(text=st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_reading_ends_in_a_tree_or_a_typed_refusal(text):
    try:
        node = read(clean(text))
    except (Malformed, Unsupported):
        return
    assert list(node.walk())


@pytest.mark.parametrize("text", ["x" * 1400, "1+" * 700 + "1", "1/" * 700 + "1", "(" * 30 + "1" + ")" * 30,
                                  "2^{" * 30 + "2" + "}" * 30,
                                  "\\sqrt{" * 30 + "2" + "}" * 30, "-" * 1000 + "1", "\\frac1" * 600 + "2", "|" * 900, "!" * 900,
                                  "1" + "!" * 900])
def test_long_and_deep_answers_have_an_outcome(text):
    try:
        assert equivalent(text, "61") is False
    except Undecided:
        pass


@pytest.mark.parametrize(("text", "value"), [("2^{10}", 1024), (r"\frac{3}{4}+\frac14", 1), ("5!", 120), (r"\binom{6}{2}", 15),
                                             ("2^{-2}", Fraction(1, 4)),
                                             (r"\sqrt{\frac{9}{16}}", Fraction(3, 4)), ("27^{2/3}", 9), (r"\sqrt[3]{-8}", -2),
                                             (r"\sqrt2", None),
                                             (r"\sum_{k=1}^{4} k^2", 30), (r"\prod_{k=1}^{4} k", 24), ("7^{100} \\bmod 5", 1),
                                             (r"10^{10^{10}} \bmod 7", 4), (r"\lfloor -2.5\rfloor", -3), ("|2-5|", 3),
                                             ("x", None)])
def test_exact_values_are_exact(text, value):
    assert exact(read(clean(text))) == value


@pytest.mark.parametrize("text", ["2^{10^{10}}", "10000!", r"\binom{10^9}{10^8}", "9^{9^{9}}", r"\sum_{k=1}^{10^9} k"])
def test_what_is_too_large_to_be_written_is_not_computed(text):
    with pytest.raises(TooLarge):
        exact(read(clean(text)))


@pytest.mark.parametrize("text", ["", "(", ")", "1 2", "1+", "*1", r"\frac{1}", r"\frac{}{2}", "x^", "x__2", "1,,2", "{1",
                                  r"\{1", "(1,", "|1", r"\sqrt",
                                  r"\begin{pmatrix}1&2\\3\end{pmatrix}", "1//2", r"1\text{ is wrong}", r"\text{not }1"])
def test_what_is_no_notation_is_malformed(text):
    with pytest.raises(Malformed):
        read(clean(text))


def test_units_are_read_by_their_dimension():
    assert parse_unit("cm^2") == parse_unit("square centimeters") == parse_unit("sq cm")
    assert parse_unit("km/h") == parse_unit("kilometers per hour") == parse_unit("kph")
    assert parse_unit("mL").dimensions == parse_unit("cm^3").dimensions and parse_unit("mL").factor == parse_unit("cm^3").factor
    assert parse_unit("m s^{-2}") == parse_unit("m/s^2")
    assert parse_unit("apples") == parse_unit("apple") != parse_unit("pears")
    assert parse_unit("is wrong") is None and parse_unit("not cm") is None and parse_unit("^2") is None


def test_a_logarithm_without_a_base_is_read_both_ways():
    assert equivalent(r"\log 100", "2") is True
    assert equivalent(r"\log 5", r"\ln 5") is True
    assert equivalent(r"\log 100", "3") is False


def test_a_comparison_that_is_too_close_to_call_is_undecided_and_not_wrong():
    with pytest.raises(Undecided):
        equivalent(r"\sin(10^{10^{10}})", "0")


def test_an_order_of_numbers_that_are_not_real_is_no_crash():
    assert equivalent(r"\overline{3} i 100 > \hat{i} \%", r"\overline{3} i 200 > \hat{i} \%") is False


@given(exponent=st.integers(10 ** 6, 10 ** 15), left=st.integers(2, 60), right=st.integers(2, 60), more=st.integers(1, 9))
@example(exponent=10 ** 10, left=2, right=5, more=1)
@example(exponent=2 ** 100, left=7, right=7, more=1)
def test_a_product_of_powers_too_large_to_be_written_is_the_power_of_the_product(exponent, left, right, more):
    product = rf"{left}^{{{exponent}}} \cdot {right}^{{{exponent}}}"
    assert equivalent(f"{left * right}^{{{exponent}}}", product) is True
    assert equivalent(rf"\frac{{{left * right}^{{{exponent}}}}}{{{right}^{{{exponent}}}}}", f"{left}^{{{exponent}}}") is True
    assert equivalent(f"{left * right}^{{{exponent + more}}}", product) is False
    assert equivalent(rf"{right}^{{{exponent}}} \cdot {left}^{{{exponent + more}}}", product) is False


@pytest.mark.parametrize(("text", "logarithm"), [
    (r"2^{10000000} + 3 \cdot 2^{10000000}", 10_000_002 * math.log(2)), (r"2^{10000001} - 2^{10000000}", 10 ** 7 * math.log(2)),
    (r"2^{10000000} \cdot 3^{9999999}", 10 ** 7 * math.log(6) - math.log(3)), ("(10^{7})!", math.lgamma(10 ** 7 + 1)),
    (r"\frac{6^{10000000}}{3^{9999999}}", 10 ** 7 * math.log(2) + math.log(3))])
def test_the_size_of_sums_products_and_factorials_is_right_to_nine_places(text, logarithm):
    found = size(read(clean(text)))
    assert found.level == 2 and abs(float(found.x) / math.log(logarithm) - 1) < 1e-9


@pytest.mark.parametrize(("answer", "reference", "equal"), [
    ("07:45", r"7\!:\!45 \text{ am}", True), ("19:45", r"7\!:\!45 \text{ am}", False),
    (r"\text{3~March~2024}", "March 3, 2024", True),
    (r"10\!:\!15\;\text{p.m.}", "22:15", True), (r"3\!:\!2", "3:2", True),
    (r"\text{4~March~2024}", "March 3, 2024", False)])
def test_space_set_by_latex_is_no_part_of_a_time_or_a_date(answer, reference, equal):
    assert equivalent(answer, reference) is equal


def test_remainders_of_towers_too_large_to_be_written_are_those_of_towers_that_fit(monkeypatch):
    def too_large(node, bound=exact_module.NOTHING):
        if node.kind == "power":
            raise exact_module.TooLarge
        return plain(node, bound)
    plain = exact_module.exact
    monkeypatch.setattr(exact_module, "exact", too_large)
    for a, b, c, modulus in product(range(5), range(4), range(4), range(1, 30)):
        tower = Node("power", (number(a), Node("power", (number(b), number(c)))))
        assert exact_module._power_modulo(tower, Fraction(modulus), {}) == pow(a, b**c, modulus), (a, b, c, modulus)
