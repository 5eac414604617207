"""A small project with tests of its own, so that repository tasks can be tried without a repository."""

from __future__ import annotations

FILES: dict[str, str] = {
    "README.md": "# ledgerlet\n\nSmall helpers: text tables, date spans, a bounded cache, parsing of amounts.\n",
    "ledgerlet/__init__.py": '"""Small helpers."""\n',
    "ledgerlet/amounts.py": '''"""Amounts of money in cents."""


def parse(text):
    """Cents of a text such as "12.30", "-4" or "1,204.05"; ValueError for anything else."""
    cleaned = text.strip().replace(",", "")
    sign = -1 if cleaned.startswith("-") else 1
    whole, dot, part = cleaned.lstrip("+-").partition(".")
    if not whole.isdigit() or (dot and not part.isdigit()) or len(part) > 2:
        raise ValueError(f"no amount: {text!r}")
    return sign * (int(whole) * 100 + int(part.ljust(2, "0") or 0))


def split(cents, parts):
    """The amount in so many parts that differ by at most one cent, the larger first."""
    if parts < 1:
        raise ValueError("at least one part")
    each, left = divmod(cents, parts)
    return [each + 1] * left + [each] * (parts - left)


def shown(cents):
    """An amount as text, with commas between thousands."""
    sign = "-" if cents < 0 else ""
    whole, part = divmod(abs(cents), 100)
    return f"{sign}{whole:,}.{part:02d}"
''',
    "ledgerlet/cache.py": '''"""A cache that forgets what was used longest ago."""


class Cache:
    """At most `size` values; using one keeps it."""

    def __init__(self, size):
        if size < 1:
            raise ValueError("a cache holds at least one value")
        self.size = size
        self._held = {}

    def get(self, key, default=None):
        if key not in self._held:
            return default
        value = self._held.pop(key)
        self._held[key] = value
        return value

    def put(self, key, value):
        self._held.pop(key, None)
        self._held[key] = value
        while len(self._held) > self.size:
            self._held.pop(next(iter(self._held)))

    def __len__(self):
        return len(self._held)
''',
    "ledgerlet/spans.py": '''"""Half-open spans of whole numbers."""


def overlap(a, b):
    """How much two spans (start, end) share."""
    return max(0, min(a[1], b[1]) - max(a[0], b[0]))


def merged(spans):
    """The same numbers in as few spans as possible, in order."""
    found = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def gaps(spans, start, end):
    """What of start..end no span covers."""
    found, place = [], start
    for first, last in merged(spans):
        if first > place:
            found.append((place, min(first, end)))
        place = max(place, last)
    if place < end:
        found.append((place, end))
    return [gap for gap in found if gap[0] < gap[1]]
''',
    "ledgerlet/tables.py": '''"""Tables as text."""


def table(rows, align=""):
    """Rows of texts in columns; align has l or r for each column."""
    if not rows:
        return ""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = []
        for place, cell in enumerate(row):
            right = place < len(align) and align[place] == "r"
            cells.append(cell.rjust(widths[place]) if right else cell.ljust(widths[place]))
        lines.append("  ".join(cells).rstrip())
    return "\\n".join(lines)


def wrapped(text, width):
    """The words of a text in lines of at most this width; a longer word has its own line."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return lines + [line] if line else lines
''',
    "tests/test_amounts.py": '''import pytest
from ledgerlet.amounts import parse, shown, split


@pytest.mark.parametrize(("text", "cents"), [("12.30", 1230), ("-4", -400), ("1,204.05", 120405), ("0.5", 50), ("+7.00", 700)])
def test_amounts_are_parsed(text, cents):
    assert parse(text) == cents


@pytest.mark.parametrize("text", ["", "x", "1.234", "1.2.3", "--1x", "."])
def test_what_is_no_amount_is_refused(text):
    with pytest.raises(ValueError):
        parse(text)


def test_parts_add_up_and_differ_by_a_cent_at_most():
    assert split(100, 3) == [34, 33, 33]
    assert split(99, 3) == [33, 33, 33]
    assert split(7, 1) == [7]
    with pytest.raises(ValueError):
        split(5, 0)


def test_amounts_are_shown():
    assert shown(120405) == "1,204.05"
    assert shown(-5) == "-0.05"
    assert shown(0) == "0.00"
''',
    "tests/test_cache.py": '''import pytest
from ledgerlet.cache import Cache


def test_the_longest_unused_is_forgotten():
    cache = Cache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert cache.get("b") is None
    assert cache.get("a") == 1
    assert len(cache) == 2


def test_putting_again_replaces():
    cache = Cache(1)
    cache.put("a", 1)
    cache.put("a", 2)
    assert cache.get("a") == 2
    assert cache.get("x", 9) == 9


def test_a_cache_of_nothing_is_refused():
    with pytest.raises(ValueError):
        Cache(0)
    assert len(Cache(1)) == 0
''',
    "tests/test_spans.py": '''from ledgerlet.spans import gaps, merged, overlap


def test_overlap():
    assert overlap((0, 5), (3, 9)) == 2
    assert overlap((0, 3), (3, 9)) == 0
    assert overlap((0, 1), (5, 9)) == 0


def test_merged():
    assert merged([(5, 7), (0, 2), (2, 3), (9, 9)]) == [(0, 3), (5, 7)]
    assert merged([(0, 9), (1, 2)]) == [(0, 9)]
    assert merged([]) == []


def test_gaps():
    assert gaps([(2, 3), (5, 6)], 0, 8) == [(0, 2), (3, 5), (6, 8)]
    assert gaps([], 1, 2) == [(1, 2)]
    assert gaps([(0, 9)], 1, 2) == []
    assert gaps([(7, 9)], 0, 5) == [(0, 5)]
''',
    "tests/test_tables.py": '''from ledgerlet.tables import table, wrapped


def test_columns_are_aligned():
    assert table([["a", "10"], ["bcd", "2"]], "lr") == "a    10\\nbcd   2"
    assert table([["a", "b"], ["cd", "e"]]) == "a   b\\ncd  e"
    assert table([]) == ""


def test_words_are_wrapped():
    assert wrapped("one two three", 7) == ["one two", "three"]
    assert wrapped("overlong ab", 3) == ["overlong", "ab"]
    assert wrapped("ab cd", 5) == ["ab cd"]
    assert wrapped("", 5) == []
''',
}
