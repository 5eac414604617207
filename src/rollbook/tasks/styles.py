"""Ways to reason through a small arithmetic problem, each a program whose every printed equation is true.

A style is a function from signed terms (or factors) to lines, None where it has nothing to show for that problem.
Legend: `acc` the value so far, `step` the signed number added to it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

Lines = list[str] | None
Style = Callable[[Sequence[int], random.Random], Lines]


def chain(numbers: Sequence[int]) -> str:
    """Signed numbers as a sum.

    Example: chain([23, -8]) == "23-8"
    """
    head, *rest = numbers
    return str(head) + "".join(f"{'-' if number < 0 else '+'}{abs(number)}" for number in rest)


def equation(numbers: Sequence[int]) -> str:
    """Example: equation([23, -8]) == "23-8=15"."""
    return f"{chain(numbers)}={sum(numbers)}"


def product(numbers: Sequence[int]) -> str:
    """Example: product([4, 7]) == "4*7=28"."""
    return "*".join(map(str, numbers)) + f"={math.prod(numbers)}"


def parts(number: int) -> tuple[int, int]:
    """The tens and the ones of a number, both with its sign.

    Example: parts(-38) == (-30, -8)
    """
    sign = -1 if number < 0 else 1
    return sign * (abs(number) // 10 * 10), sign * (abs(number) % 10)


def sum_direct(terms: Sequence[int], rng: random.Random) -> Lines:
    return [equation(terms)]


def sum_steps(terms: Sequence[int], rng: random.Random) -> Lines:
    """23+30=53, 53+8=61: one place of one term at a time."""
    acc, lines = terms[0], []
    for term in terms[1:]:
        for step in parts(term):
            if step:
                lines.append(equation([acc, step]))
                acc += step
    return lines if len(lines) > 1 else None


def sum_tens_ones(terms: Sequence[int], rng: random.Random) -> Lines:
    """20+30=50, 3+8=11, 50+11=61: places apart, then together."""
    tens, ones = [parts(term)[0] for term in terms], [parts(term)[1] for term in terms]
    if not (any(tens[1:]) and any(ones[1:])):
        return None
    lines = [equation(tens), equation(ones)]
    return [*(lines if rng.random() < 0.5 else lines[::-1]), equation([sum(tens), sum(ones)])]


def sum_columns(terms: Sequence[int], rng: random.Random) -> Lines:
    """3+8=11 carry 1, 2+3+1=6: written addition or subtraction of two terms, ones first."""
    if len(terms) != 2 or max(abs(terms[0]), abs(terms[1])) < 10:
        return None
    return _column(terms[0], terms[1])


def _column(acc: int, step: int) -> list[str]:
    low, high = sorted((abs(acc), abs(step)))
    if (acc < 0) == (step < 0) or not acc or not step:
        lines, sign = _column_sum(abs(acc), abs(step)), "-" if acc < 0 or step < 0 else ""
    else:
        lines, sign = _column_difference(high, low), "-" if acc + step < 0 else ""
    return [*lines, equation([acc, step])] if sign else lines


def _column_sum(first: int, second: int) -> list[str]:
    lines: list[str] = []
    carry = 0
    while first or second or not lines:
        digits = [first % 10, second % 10, *([1] if carry else [])]
        first, second = first // 10, second // 10
        carry = int(sum(digits) > 9)
        lines.append(equation(digits) + (" carry 1" if carry and (first or second) else ""))
    return lines


def _column_difference(high: int, low: int) -> list[str]:
    lines: list[str] = []
    borrow = 0
    while high or not lines:
        digits = [high % 10, -(low % 10), *([-1] if borrow else [])]
        high, low = high // 10, low // 10
        borrow = int(sum(digits) < 0)
        lines.append(equation([digits[0] + 10 * borrow, *digits[1:]]) + (" borrow 1" if borrow else ""))
    return lines


def sum_check(terms: Sequence[int], rng: random.Random) -> Lines:
    """23+38=61, 61-38=23: the result, then back to the first term."""
    back = [sum(terms), *(-term for term in reversed(terms[1:]))]
    return [equation(terms), equation(back)]


def sum_round(terms: Sequence[int], rng: random.Random) -> Lines:
    """23+40=63, 63-2=61: over the next ten, then back."""
    acc, lines, rounded = terms[0], [], False
    for term in terms[1:]:
        ones = parts(term)[1]
        away = (10 - abs(ones)) * (1 if term > 0 else -1)
        if ones and abs(term) > 10:
            lines += [equation([acc, term + away]), equation([acc + term + away, -away])]
            rounded = True
        else:
            lines.append(equation([acc, term]))
        acc += term
    return lines if rounded else None


def product_direct(factors: Sequence[int], rng: random.Random) -> Lines:
    return [product(factors)]


def product_steps(factors: Sequence[int], rng: random.Random) -> Lines:
    """4*7: 7+7=14, 14+7=21, 21+7=28, for two factors of which one is 3 to 5."""
    low, high = sorted(factors) if len(factors) == 2 else (0, 0)
    if not 3 <= low <= 5:
        return None
    return [equation([high * count, high]) for count in range(1, low)]


def product_tens_ones(factors: Sequence[int], rng: random.Random) -> Lines:
    """17*8: 10*8=80, 7*8=56, 80+56=136, factor by factor."""
    acc, lines = factors[0], []
    for factor in factors[1:]:
        left, right = max(acc, factor), min(acc, factor)
        tens, ones = parts(left)
        if not (tens and ones) or right < 0:
            return None
        lines += [product([tens, right]), product([ones, right]), equation([tens * right, ones * right])]
        acc *= factor
    return lines


def product_check(factors: Sequence[int], rng: random.Random) -> Lines:
    """7*8=56, 56/8=7: the result, then back to the first factor."""
    if 0 in factors or min(factors) < 0:
        return None
    whole = math.prod(factors)
    return [product(factors), "/".join(map(str, [whole, *reversed(factors[1:])])) + f"={factors[0]}"]


def product_round(factors: Sequence[int], rng: random.Random) -> Lines:
    """8*19: 8*20=160, 160-8=152, for two factors of which one ends in 7, 8 or 9."""
    if len(factors) != 2 or min(factors) < 2:
        return None
    high, low = max(factors), min(factors)
    short = -high % 10
    if high < 10 or short not in (1, 2, 3):
        return None
    gap = [product([low, short])] if short > 1 else []
    return [product([low, high + short]), *gap, equation([low * (high + short), -low * short])]


SUM_STYLES: dict[str, Style] = {"direct": sum_direct, "steps": sum_steps, "tens_ones": sum_tens_ones,
                                "columns": sum_columns, "check": sum_check, "round": sum_round}
PRODUCT_STYLES: dict[str, Style] = {"direct": product_direct, "steps": product_steps, "tens_ones": product_tens_ones,
                                    "check": product_check, "round": product_round}
