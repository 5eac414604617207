"""How the report writes strings and numbers: nothing unseen, nothing endless, absent never as 0."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime

ABSENT = "not recorded"
LONGEST = 4000          # characters of any one string in the page
MARKS = 3               # combining marks kept on one character
KEPT = "\n\t"
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def visible(text: str) -> str:
    """The text with every character that would act instead of show (controls, direction, surrogates) written out."""
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    marks = 0
    for char in text:
        kind = unicodedata.category(char)
        marks = marks + 1 if kind in ("Mn", "Me") else 0
        if marks <= MARKS:
            shown.append(_shown(char, kind))
    return "".join(shown)


def _shown(char: str, kind: str) -> str:
    if char in KEPT:
        return char
    return f"⟨U+{ord(char):04X}⟩" if kind[0] == "C" or kind in ("Zl", "Zp") else char


def clip(text: str, longest: int = LONGEST) -> str:
    """The text, or its beginning and how many characters it has."""
    return text if len(text) <= longest else f"{text[:longest]} … [{longest:,} of {len(text):,} characters]"


def number(value: float | int | bool | str | None, digits: int = 4) -> str:
    """A value for a table cell; None is the word for absent."""
    if value is None:
        return ABSENT
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}".replace("-", "−") if abs(value) >= 10_000 else str(value).replace("-", "−")
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 10_000:
        return f"{value:,.0f}".replace("-", "−")
    return f"{value:.{digits}g}".replace("-", "−")


def percent(share: float | None, digits: int = 1) -> str:
    return ABSENT if share is None else f"{100 * share:.{digits}f}%".replace("-", "−")


def points(share: float) -> str:
    """A difference of shares in percentage points, with its sign."""
    return f"{100 * share:+.1f}".replace("-", "−")


def p_value(value: float | None) -> str:
    if value is None:
        return "none (no task changed, or outcomes are not 0 or 1)"
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def size(count: float | int | str | None) -> str:
    """Bytes in the unit that keeps it short."""
    if not isinstance(count, (int, float)):
        return ABSENT
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return ABSENT
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def moment(seconds: float | None) -> str:
    if seconds is None:
        return ABSENT
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return f"an impossible time ({number(seconds)})"


def short(identity: str | None) -> str:
    """The first characters of a hash or of the hash in an id."""
    if identity is None:
        return ABSENT
    kind, colon, value = identity.rpartition(":")
    return f"{kind}{colon}{value[:12]}"


def setting(value: object) -> str:
    """A recipe value as YAML would show it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {setting(item)}" for key, item in value.items()) or "{}"
    return str(value) or '""'


def power(exponent: int) -> str:
    return f"10{str(exponent).translate(SUPERSCRIPT)}"
