"""The forms in which a text can give away a secret: as a number, in words, in another base, backwards, encoded, taken apart."""

from __future__ import annotations

import base64
import codecs
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction

NUMERIC = re.compile(r"(?<![\w.])\d[\d,_']*(?:\.\d+)?(?:[eE][+-]?\d{1,3})?(?!\w)")
TOKEN = re.compile(r"[^\W_]+")
PLAIN = re.compile(r"[+-]?\d+(?:\.\d+)?")
ONES = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
        "eighteen nineteen").split()
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()
LARGEST = 10**9     # numbers are written in words below this


def derived(secret: str, text: str, shown: str) -> tuple[str, ...]:
    """The forms of the secret that a text has beyond what is shown anyway, by name; letters, digits and their order count.

    Limit: the forms listed here; a private code between formatter and policy is found only as words that nobody asked for.
    Example: derived("61", "23 + 38 = (sixty-one)", "Calculate 23 + 38.") == ("in words",)
    """
    tokens, known = words_of(text), words_of(shown)
    added = Counter(tokens) - Counter(known)
    if not secret.strip() or not added:
        return ()
    found = ["as it is"] if _as_number(secret, text, shown) or _holds(tokens, added, words_of(secret)) else []
    found += [name for name, form in forms(secret) if name not in found and _holds(tokens, added, form)]
    return tuple(dict.fromkeys(found))


def shows(secret: str, text: str) -> bool:
    """Whether a text has the secret as it is.

    Example: shows("5", "Calculate 5 - 0.") is True
    """
    words = words_of(secret)
    return _as_number(secret, text, "") or _holds(words_of(text), Counter(words), words)


def words_of(text: str) -> list[str]:
    """Letters-and-digits tokens in order, compatibility forms unified and invisible characters removed."""
    return TOKEN.findall(plain(text))


def plain(text: str) -> str:
    """The text as it reads: NFKC, without characters that are not shown."""
    if text.isascii():
        return text
    return "".join(character for character in unicodedata.normalize("NFKC", text) if unicodedata.category(character) != "Cf")


def forms(secret: str) -> Iterator[tuple[str, Sequence[str]]]:
    """The name and the tokens of every form but the plain one.

    Example: ("in words", ["sixty", "one"]) for "61"
    """
    bare = secret.strip().lstrip("+-")
    for name, one in (("base64", secret.strip()), ("base64", bare)):
        yield name, words_of(base64.b64encode(one.encode()).decode())
    yield "as hex bytes", [bare.encode().hex()]
    if len(bare) > 1 and bare != bare[::-1]:
        yield "backwards", words_of(bare[::-1])
    if len(bare) > 1:
        yield "taken apart", [character for character in bare if character.isalnum()]
    if not PLAIN.fullmatch(bare):
        yield "rot13", words_of(codecs.encode(bare, "rot13"))
        return
    yield "digit by digit in words", [ONES[int(digit)] for digit in bare if digit.isdigit()]
    if "." not in bare and int(bare) < LARGEST:
        number = int(bare)
        spoken = in_words(number)
        yield "in words", spoken
        yield "in words", ["".join(spoken)]
        yield from ((name, [format(number, kind)]) for name, kind in
                    (("in hex", "#x"), ("in hex", "x"), ("in octal", "#o"), ("in binary", "#b")))
        if number > 7:
            yield "in binary", [format(number, "b")]


def in_words(number: int) -> list[str]:
    """A number below a thousand million in English words.

    Example: in_words(61) == ["sixty", "one"]
    """
    if number < 20:
        return [ONES[number]]
    if number < 100:
        return [TENS[number // 10], *([ONES[number % 10]] if number % 10 else [])]
    for size, name in ((10**6, "million"), (1000, "thousand"), (100, "hundred")):
        if number >= size:
            rest = in_words(number % size) if number % size else []
            return [*in_words(number // size), name, *rest]
    raise AssertionError(number)


def _as_number(secret: str, text: str, shown: str) -> bool:
    """Whether the text has the secret's value as a number more often than what is shown: 61, 61.0, 0061, 6.1e1."""
    if not PLAIN.fullmatch(secret.strip()):
        return False
    value = abs(Fraction(secret.strip()))
    return _times(value, text) > _times(value, shown)


def _times(value: Fraction, text: str) -> int:
    return sum(Fraction(re.sub("[,_']", "", token)) == value for token in NUMERIC.findall(plain(text)))


def _holds(tokens: Sequence[str], added: Counter[str], form: Sequence[str]) -> bool:
    """Whether the tokens contain the form, with at least one token that was not shown anyway; case counts only in encodings."""
    if not form:
        return False
    size = len(form)
    exact = any(character.isupper() for part in form for character in part)
    spoken = list(tokens) if exact else [token.casefold() for token in tokens]
    wanted = list(form) if exact else [part.casefold() for part in form]
    places = (i for i in range(len(spoken) - size + 1) if spoken[i:i + size] == wanted)
    return any(any(added[token] for token in tokens[i:i + size]) for i in places)
