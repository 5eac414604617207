"""Answers worked by hand: what equals what, by mathematics."""

import pytest

from rollbook.rewards.math import UnparsableReference, equivalent

EQUAL = [
    ("60+1", "61"), (r"\frac{3}{8}", "0.375"), (r"0.3\overline{18}", r"\frac{7}{22}"), (r"0.\overline{9}", "1"),
    ("25\\%", r"\frac14"),
    (r"30\text{ percent}", r"30\%"), ("3+x", "x+3"), ("(x-2)(x+5)", "x^2+3x-10"), (r"\frac{\sqrt5}{5}", r"\frac{1}{\sqrt5}"),
    (r"\ln 2+\ln 5", r"\ln 10"), (r"2\sin t\cos t", r"\sin 2t"), (r"\frac{1-i}{1+i}", "-i"), (r"\pi(a+b)", r"a\pi+b\pi"),
    (r"\text{(C)}", "C"), (r"\text{(B) } 12", "B"), (r"\textbf{Yes}", r"\text{yes}"), ("Monday", r"\mathrm{Monday}"),
    ("x=7", "7"),
    ("7", "x=7"),
    (r"x=\pm 3", r"x=\pm\sqrt9"), ("5, -2", "-2, 5"), (r"3 \text{ and } 11", "11, 3"), ("y=1, x=4", "x=4, y=1"),
    (r"\{4,1\}", r"\{1,4\}"), ("(2,7]", "(2,7]"), ("x>5", r"(5,\infty)"), ("-2<x<6", "(-2,6)"),
    (r"\frac{\pi}{3}+m\pi,\ m\in\mathbb{Z}", r"\frac{\pi}{3}+k\pi,\ k\in\mathbb{Z}"), ("g(u)=u^2-1", "g(x)=x^2-1"),
    (r"\begin{pmatrix}4\\1\end{pmatrix}", r"\begin{pmatrix}2^2\\1\end{pmatrix}"), ("4:45\\text{ PM}", "16:45"),
    ("1{,}000{,}000", "10^6"),
    (r"45^\circ", "45°"), (r"\{x : x>4\}", r"\{x \mid x>4\}"), ("6!", "720"), (r"10^{10^{12}}", r"10^{10^{12}}"),
    ("θ+1", r"\theta+1"), ("30", r"30\%"), (r"30\%", "30"), (r"150\%", "150"), ("1.5", r"1.5\%"), (r"45\text{ percent}", "45"),
]
DIFFERENT = [
    ("62", "61"), ("0.333333", r"\frac13"), ("3.14159265", r"\pi"), (r"\frac{1}{7^{150}}", r"\frac{1}{7^{149}}"),
    (r"4\times10^{17}", "400000000000000001"), ("52_7", "52_8"), ("x-3", "x+3"), (r"\pi(s^2-S^2)", r"\pi(S^2-s^2)"),
    ("3u+1", "3x+1"),
    (r"\text{no}", r"\text{yes}"), ("0", r"\text{No solution}"), (r"\text{(C) } 12", "B"), ("A, C", "A"), ("3", "3, 5"),
    ("3, 5", "3"),
    ("3, 5, 6", "3, 5"), ("3, 3", "3, 5"), ("1, 3, 9, \\ldots", "1, 3, 5, \\ldots"), ("35", "3,5"), ("x=1, y=4", "x=4, y=1"),
    ("[2,7]", "(2,7]"), ("(7,2)", "(2,7)"), (r"\{1\}", r"\{1,4\}"), ("4", r"n=4k,\ k\in\mathbb{Z}"), ("h(u)=u^2", "g(x)=x^2"),
    (r"\begin{pmatrix}4&1\end{pmatrix}", r"\begin{pmatrix}4\\1\end{pmatrix}"), ("4:45\\text{ AM}", "16:45"),
    (r"\{0\}", r"\emptyset"),
    ("4\\%", "0.4"), ("0.5", r"0.5\%"), ("1", r"1\%"), ("3000", r"30\%"), (r"-30\%", "30"), (r"30\%", r"3000\%"),
     (r"10^{100}", r"\infty"), (r"\log_2 7", r"\ln 7"), ("__import__('os').getpid()", "1"),
    ("1" * 5000, "1"), ("", "1"), ("2^{" * 40 + "2" + "}" * 40, "1"),
]


@pytest.mark.parametrize(("answer", "reference"), EQUAL)
def test_equal_answers_are_accepted(answer, reference):
    assert equivalent(answer, reference) is True


@pytest.mark.parametrize(("answer", "reference"), DIFFERENT)
def test_different_answers_are_refused(answer, reference):
    assert equivalent(answer, reference) is False


@pytest.mark.parametrize("reference", [r"\frac{\begin{", "{{{{", "9" * 5000])
def test_a_reference_that_cannot_decide_says_so(reference):
    with pytest.raises(UnparsableReference):
        equivalent("3", reference)
