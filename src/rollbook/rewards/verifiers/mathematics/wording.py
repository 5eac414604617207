"""Answers that are words, choices, dates, times of day or numerals with a base: read from the text, before any mathematics."""

from __future__ import annotations

import re
from collections.abc import Callable

from rollbook.rewards.notation import WORDING, is_wording, unwrap, words

MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
          "december")
MONTH = "|".join(f"{name}|{name[:3]}|{name[:4]}" if name == "september" else f"{name}|{name[:3]}" for name in MONTHS)
DAY_FIRST = re.compile(rf"(\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?({MONTH})\.?(?:\s*,?\s*(\d{{4}}))?")
MONTH_FIRST = re.compile(rf"({MONTH})\.?\s+(\d{{1,2}})(?:st|nd|rd|th)?(?:\s*,?\s*(\d{{4}}))?")
ISO = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})")
CLOCK = re.compile(r"(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?\s*([ap])\.?\s?m\.?", re.IGNORECASE)
NAMED_HOUR = re.compile(r"(?:12(?::00)?\s*)?(noon|midday|midnight)")
ARTICLE = re.compile(r"^(?:an?|the) (?=[^\W\d_]{3})")
OCLOCK = re.compile(r"([01]?\d|2[0-4])\s*o'?\s?clock", re.IGNORECASE)
PLAIN_CLOCK = re.compile(r"([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d))?")
BASED = re.compile(r"(?:\\(?:text|mathrm)\s*)?\{?\s*(-?[0-9A-Fa-f.]+)\s*\}?\s*_\s*\{?\s*(?:\\text\s*\{)?\s*"
                   r"(\d+|two|eight|ten|sixteen)\s*\}?\}?")
BASES = {"two": "2", "eight": "8", "ten": "10", "sixteen": "16"}
CHOICE_WORD = re.compile(r"^(?:the )?(?:correct )?(?:option|choice|answer)(?: is)?:?\s+(?=\(?[A-Z]\)?(?:\W|$))", re.IGNORECASE)
CHOICE = re.compile(r"\(?([A-Z])\)?[.):]?")
LED_CHOICE = re.compile(r"\(([A-Z])\)\s*(.+)|([A-Z])[.):]\s+(.+)", re.DOTALL)
LABEL = re.compile(r"[A-Z]{3,}")
NUMBER_WORDS = {name: str(value) for value, name in enumerate(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
    "nineteen twenty".split())}
SAME_WORDS = ({"no solution", "no solutions", "there is no solution", "there are no solutions", "has no solution", "none exist"},
              {"no real solution", "no real solutions", "there are no real solutions", "no real roots"},
              {"dne", "does not exist", "the limit does not exist"}, {"infinitely many", "infinitely many solutions"},
              {"all real numbers", "all reals", "every real number"}, {"undefined", "not defined"})
MATHEMATICS = {"no solution": r"\emptyset", "all real numbers": r"\mathbb{R}", "empty set": r"\emptyset",
               "no real solutions": r"\emptyset",
               "the empty set": r"\emptyset",
               "infinity": r"\infty", "positive infinity": r"\infty", "negative infinity": r"-\infty",
               "real numbers": r"\mathbb{R}"}
NO_ANSWER = frozenset({"", "?", "unknown", "none given", "not available", "n/a", "todo", "answer", "see solution"})
SPACING = (("\\,", " "), ("\\ ", " "), ("\\;", " "), ("\\:", " "), ("~", " "), ("\\!", ""), ("{,}", ","), ("{:}", ":"))
Rule = Callable[[str, str], bool | None]


def stated_in_words(answer: str, reference: str) -> bool | None:
    """The verdict where the two are words, a choice, a date, a time or a numeral with a base; None where mathematics decides."""
    shown, wanted = unwrap(answer), unwrap(reference)
    for rule in (_date, _clock, _based, _choice, _label, _words):
        decided = rule(shown, wanted)
        if decided is not None:
            return decided
    return None


def as_mathematics(text: str) -> str:
    """Words that name a mathematical object as that object, number words as numbers; any other text as it is."""
    said = words(text)
    if said is None:
        return text
    group = next((group for group in SAME_WORDS if said in group), {said})
    for name in group:
        if name in MATHEMATICS or name in NUMBER_WORDS:
            return MATHEMATICS.get(name) or NUMBER_WORDS[name]
    return text


def _shown(text: str) -> str:
    """The text with its words written out plainly."""
    text = WORDING.sub(r" \1 ", text)
    for mark, meaning in SPACING:
        text = text.replace(mark, meaning)
    return re.sub(r"\s+", " ", text).strip(" .")


def _calendar(text: str) -> tuple[int | None, int, int] | None:
    """Year (where given), month and day."""
    shown = _shown(text).lower()
    if match := ISO.fullmatch(shown):
        return int(match[1]), int(match[2]), int(match[3])
    if match := DAY_FIRST.fullmatch(shown):
        return int(match[3]) if match[3] else None, _month(match[2]), int(match[1])
    if match := MONTH_FIRST.fullmatch(shown):
        return int(match[3]) if match[3] else None, _month(match[1]), int(match[2])
    return None


def _month(name: str) -> int:
    return next(index for index, month in enumerate(MONTHS, 1) if month.startswith(name[:3]))


def _date(answer: str, reference: str) -> bool | None:
    wanted = _calendar(reference)
    found = _calendar(answer)
    if wanted is None:
        return False if found is not None and ISO.fullmatch(answer) else None
    return found == wanted


def _seconds(text: str) -> tuple[int, bool] | None:
    """Seconds after midnight, and whether am or pm was said."""
    shown = _shown(text)
    if match := NAMED_HOUR.fullmatch(shown.lower()):
        return (0 if match[1] == "midnight" else 43200), True
    if match := OCLOCK.fullmatch(shown):
        return int(match[1]) * 3600, False
    if match := CLOCK.fullmatch(shown):
        hour = int(match[1]) % 12 + (12 if match[4].lower() == "p" else 0)
        return hour * 3600 + int(match[2] or 0) * 60 + int(match[3] or 0), True
    match = PLAIN_CLOCK.fullmatch(shown)
    return (int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3] or 0), False) if match else None


def _clock(answer: str, reference: str) -> bool | None:
    """Times of day. Two numbers with a colon are a time where both sides could be one, otherwise they are left to ratios."""
    found, wanted = _seconds(answer), _seconds(reference)
    if found is None or wanted is None:
        return False if wanted is not None and wanted[1] else None
    return found[0] == wanted[0]


def _numeral(text: str) -> tuple[str, str] | None:
    match = BASED.fullmatch(text)
    if match is None or not match[1].lstrip("-"):
        return None
    sign = "-" if match[1].startswith("-") else ""
    return sign + (match[1].lstrip("-").lstrip("0").upper() or "0"), BASES.get(match[2], match[2])


def _based(answer: str, reference: str) -> bool | None:
    """Numerals with a base: same digits, same base; a value in another base is another answer."""
    wanted = _numeral(reference)
    if wanted is None and re.match(r"-?\d", answer) and _numeral(answer) is not None:
        return False
    if wanted is None or not re.match(r"(?:\\(?:text|mathrm)\s*\{)?-?[0-9A-F]", reference):
        return None
    if len(wanted[0].lstrip("-")) == 1 and wanted[0].isalpha():
        return None
    return _numeral(answer) == wanted


def _choice(answer: str, reference: str) -> bool | None:
    """One letter among choices, with or without brackets and with or without what it stands for."""
    answer = CHOICE_WORD.sub("", _shown(answer))
    wanted = CHOICE.fullmatch(_shown(reference))
    led = LED_CHOICE.fullmatch(_shown(reference))
    if wanted is None and led is None:
        return None
    letter = wanted[1] if wanted else (led[1] or led[3])  # type: ignore[index]
    found, led_found = CHOICE.fullmatch(_shown(answer)), LED_CHOICE.fullmatch(_shown(answer))
    if found:
        return found[1] == letter
    if led_found:
        return (led_found[1] or led_found[3]) == letter and not re.search(r"\band\b|\bor\b|,", _shown(answer)[:8])
    return None if wanted and "(" not in reference and not is_wording(reference) else False


def _label(answer: str, reference: str) -> bool | None:
    """Names made of capital letters, as of polygons: their order matters."""
    shown, wanted = (_shown(text).replace(" ", "") for text in (answer, reference))
    return shown == wanted if LABEL.fullmatch(shown) and LABEL.fullmatch(wanted) else None


def _listed(text: str) -> list[str] | None:
    r"""The words of a list of words: `\text{red, blue}`, `Alice and Bob`."""
    parts = [words(part) for part in re.split(r"\s*,\s*(?:and\s+)?|\s+and\s+|;", _shown(text))]
    if len(parts) < 2 or not all(part and (len(part) > 1 or is_wording(text)) for part in parts):
        return None
    return sorted(map(str, parts))


def _wordly(text: str) -> bool:
    """Whether letters are words rather than symbols: set as text, or three or more of them, all in one case or with a capital."""
    shown = _shown(text)
    parts = [part for part in re.split(r"[ '-]+", shown) if part]
    spelled = all(part.islower() or part.isupper() or part.istitle() for part in parts)
    return is_wording(text) or (spelled and (len(shown) > 2 or shown.lower() in ("no", "ok")))


def _words(answer: str, reference: str) -> bool | None:
    """Words equal words whatever their case; a reference set as words equals nothing else, except what the words mean."""
    wanted, found = words(reference), words(answer)
    several = _listed(reference), _listed(answer)
    if None not in several and is_wording(reference):
        return several[0] == several[1]
    if wanted is None:
        listed = _listed(reference)
        if listed is not None and "\\text" in reference:
            return _listed(answer) == listed
        return False if is_wording(reference) and re.search("[A-Za-z]{3}", reference[6:]) and found != wanted else None
    if found is not None and (ARTICLE.sub("", found) == ARTICLE.sub("", wanted)
                              or any({found, wanted} <= group for group in SAME_WORDS)):
        return True if is_wording(reference) or answer == reference or (_wordly(answer) and _wordly(reference)) else None
    if all(any(said in group for group in SAME_WORDS) for said in (found, wanted)):
        return False        # no solution at all is not no real solution
    if as_mathematics(reference) != reference or as_mathematics(answer) != answer:
        return None
    if len(wanted) == 1 and not is_wording(reference):
        return None
    spoken = is_wording(reference) or re.search(r"[A-Za-z]{4}|[A-Za-z]{2}\s|\s[A-Za-z]{2}", wanted) is not None
    return False if spoken else None
