"""Units of measure, money and counting nouns: what follows a number in words. Factors are exact."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

MAX_WORDS = 4
PREFIXES = {"n": -9, "u": -6, "m": -3, "c": -2, "d": -1, "k": 3, "M": 6, "G": 9}
LONG_PREFIXES = {"nano": -9, "micro": -6, "milli": -3, "centi": -2, "deci": -1, "kilo": 3, "mega": 6, "giga": 9}
SCALED: Mapping[str, tuple[str, Fraction | int, str]] = {"m": ("length", 1, "meter metre"),
                                                         "g": ("mass", Fraction(1, 1000), "gram gramme"),
                                                         "L": ("volume", 1, "liter litre"),
          "l": ("volume", 1, ""), "W": ("power", 1, "watt"), "J": ("energy", 1, "joule"), "N": ("force", 1, "newton"),
          "V": ("voltage", 1, "volt"), "A": ("current", 1, "ampere amp"), "Pa": ("pressure", 1, "pascal"),
          "Hz": ("frequency", 1, "hertz"), "s": ("time", 1, "second"), "mol": ("amount", 1, "mole"), "B": ("data", 8, "byte"),
          "bit": ("data", 1, ""), "eV": ("electronvolt", 1, "electronvolt"), "C": ("charge", 1, "coulomb"),
          "ohm": ("resistance", 1, "")}
PLAIN = {
    "length": {"in": "0.0254", "inch": "0.0254", "ft": "0.3048", "foot": "0.3048", "feet": "0.3048", "yd": "0.9144",
               "yard": "0.9144", "mi": "1609.344", "mile": "1609.344", "light-year": "9460730472580800"},
    "mass": {"lb": "0.45359237", "pound": "0.45359237", "oz": "0.028349523125", "ounce": "0.028349523125", "ton": "907.18474",
             "tonne": "1000"},
    "time": {"sec": "1", "min": "60", "minute": "60", "h": "3600", "hr": "3600", "hour": "3600", "day": "86400",
             "week": "604800", "fortnight": "1209600"},
    "months": {"month": "1", "year": "12", "yr": "12", "decade": "120", "century": "1200"},
    "volume": {"gal": "3.785411784", "gallon": "3.785411784", "qt": "0.946352946", "quart": "0.946352946", "cc": "0.001",
               "pint": "0.473176473", "cup": "0.2365882365"},
    "dollar": {"dollar": "1", "usd": "1", "\\$": "1", "buck": "1", "cent": "0.01", "¢": "0.01"},
    "euro": {"euro": "1", "eur": "1", "€": "1"}, "pound_sterling": {"£": "1", "gbp": "1"}, "yen": {"yen": "1", "¥": "1"},
    "rupee": {"rupee": "1", "₹": "1", "rs": "1"},
    "celsius": {"°C": "1", "celsius": "1"}, "fahrenheit": {"°F": "1", "fahrenheit": "1"}, "kelvin": {"K": "1", "kelvin": "1"},
    "": {"dozen": "12", "hundred": "100", "thousand": "1000", "million": "1000000", "billion": "1000000000", "unit": "1",
         "rad": "1", "radian": "1", "time": "1"},
}
SPEEDS = {"mph": ("mile", "hour"), "kph": ("km", "hour"), "kmh": ("km", "hour"), "kmph": ("km", "hour"),
          "fps": ("foot", "second"),
          "mps": ("m", "s"), "rpm": ("revolution", "minute")}
PLURALS = {"feet": "foot", "inches": "inch", "centuries": "century", "people": "person", "men": "man", "women": "woman",
           "children": "child", "mice": "mouse", "dice": "die", "vertices": "vertex", "halves": "half", "lbs": "lb", "hrs": "hr",
           "mins": "min", "secs": "sec", "yrs": "yr", "ways": "way", "hertz": "hertz", "celsius": "celsius", "series": "series"}
FILLERS = frozenset({"a", "an", "the", "of", "in", "total"})
REFUSED = frozenset({"not", "no", "never", "if", "else", "is", "isn", "wrong", "then", "than", "or", "and", "except", "false",
                     "true",
                     "maybe", "possibly", "but", "plus", "minus", "mod", "for", "to", "unless", "either", "none", "remainder",
                     "more", "less", "at", "least", "most", "about", "approximately", "import", "print", "solution", "solutions",
                     "half", "halves", "third", "thirds", "degree", "over",
                     "from", "with", "without", "ago", "where", "when", "because", "incorrect", "correct", "answer"})
ATOM = re.compile(r"(?P<word>\\?[A-Za-z$€£¥₹¢°µ]+(?:-[A-Za-z]+)*)|(?P<power>\^\s*\{?\s*(-?\d)\s*\}?)|(?P<over>/)"
                  r"|(?P<dot>\\cdot|\\times|[·*.,()-])|\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit as exponents of dimensions, a factor to their base units, and the words that are no unit known here.

    Example: parse_unit("km/h") == Unit(dimensions=(("length", 1), ("time", -1)), factor=Fraction(5, 18), nouns=())
    """

    dimensions: tuple[tuple[str, int], ...]
    factor: Fraction
    nouns: tuple[str, ...]

    @property
    def bare(self) -> bool:
        """Whether it measures nothing: `square units`, `dozen`."""
        return not self.dimensions and not self.nouns

    def comparable(self, other: Unit) -> bool:
        return self.dimensions == other.dimensions and self.nouns == other.nouns


def _table() -> Mapping[str, tuple[str, Fraction]]:
    known: dict[str, tuple[str, Fraction]] = {}
    for short, (dimension, base, names) in SCALED.items():
        known[short] = (dimension, Fraction(base))
        for prefix, exponent in PREFIXES.items():
            known[prefix + short] = (dimension, Fraction(base) * Fraction(10) ** exponent)
        for name in names.split():
            known[name] = (dimension, Fraction(base))
            for prefix, exponent in LONG_PREFIXES.items():
                known[prefix + name] = (dimension, Fraction(base) * Fraction(10) ** exponent)
    for dimension, entries in PLAIN.items():
        known |= {name: (dimension, Fraction(factor)) for name, factor in entries.items()}
    known |= {prefix + "ohm": ("resistance", Fraction(10) ** exponent) for prefix, exponent in LONG_PREFIXES.items()}
    known["kB"], known["cm"], known["min"] = ("data", Fraction(8000)), ("length", Fraction(1, 100)), ("time", Fraction(60))
    return known


UNITS = _table()


def lookup(word: str) -> tuple[str, Fraction] | None:
    """Dimension and factor of a unit's name, singular or plural; long names in any case."""
    word = word.replace("µ", "u").replace("\\", "") if word != "\\$" else word
    for name in (word, PLURALS.get(word.lower(), ""), word.lower() if len(word) > 3 else "",
                 word.lower().removesuffix("s") if len(word) > 3 else ""):
        if name and name in UNITS:
            return UNITS[name]
    return UNITS.get(word.lower()) if word.lower() in ("usd", "eur", "gbp", "rs", "ml", "dl", "ft", "lb", "oz") else None


def is_unit_word(word: str) -> bool:
    """Whether a run of two letters or more names a unit: what follows a number without being set as text."""
    return lookup(word) is not None or word.lower() in SPEEDS


def parse_unit(text: str) -> Unit | None:
    r"""The unit that a text names, or None where it is no unit and no noun.

    Example: parse_unit("square centimeters") == parse_unit("cm^2"); parse_unit("is wrong") is None
    """
    reading, position = _Reading(), 0
    while position < len(text):
        match = ATOM.match(text, position)
        if match is None or not reading.take(match):
            return None
        position = match.end()
    return reading.unit() if len(reading.nouns) <= MAX_WORDS else None


class _Reading:
    """A unit being read: what was named so far, and how the next name counts (after `per`, after `square`)."""

    def __init__(self) -> None:
        self.dimensions: dict[str, int] = {}
        self.nouns: list[str] = []
        self.factor = Fraction(1)
        self.sign = self.power = 1
        self.last: tuple[str, Fraction] | None = None

    def take(self, match: re.Match[str]) -> bool:
        """Takes one atom; False where the text is no unit."""
        word = (match["word"] or "").lower()
        if match["over"] or word == "per":
            self.sign, self.last = -1, None
        elif match["power"] or word in ("squared", "cubed"):
            if self.last is None:
                return False
            power = int(match[3]) if match["power"] else {"squared": 2, "cubed": 3}[word]
            self._count(self.last, self.sign * (power - 1))
        elif word in ("square", "sq", "cubic", "cu"):
            self.power = 2 if word.startswith("sq") else 3
        elif word in SPEEDS:
            above, below = (UNITS.get(name, ("", Fraction(1))) for name in SPEEDS[word])
            self._count(above, 1)
            self._count(below, -1)
        elif word:
            return self._name(match["word"])
        return True

    def _name(self, word: str) -> bool:
        found = lookup(word)
        if found is not None:
            self._count(found, self.sign * self.power)
        elif word.lower() in REFUSED:
            return False
        elif word.lower() not in FILLERS:
            self.nouns.append(("per " if self.sign < 0 else "") + _stem(word))
        self.last, self.power = found, 1
        return True

    def _count(self, known: tuple[str, Fraction], exponent: int) -> None:
        self.dimensions[known[0]] = self.dimensions.get(known[0], 0) + exponent
        self.factor *= known[1] ** exponent

    def unit(self) -> Unit:
        """Litres are cubed decimetres; a dimensionless unit has no dimension."""
        plain, factor = dict(self.dimensions), self.factor
        if volume := plain.pop("volume", 0):
            plain["length"] = plain.get("length", 0) + 3 * volume
            factor *= Fraction(1, 1000) ** volume
        plain.pop("", None)
        return Unit(dimensions=tuple(sorted((name, power) for name, power in plain.items() if power)), factor=factor,
                    nouns=tuple(sorted(self.nouns)))


def _stem(word: str) -> str:
    """The singular of a counting noun, roughly."""
    word = word.lower()
    if word in PLURALS:
        return PLURALS[word]
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "sses", "xes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 3 else word
