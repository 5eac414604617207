"""Families that count: words, sentences, paragraphs, keywords, letters, capitals."""

from __future__ import annotations

import re

from rollbook.rewards.verifiers.instructions.arguments import Arguments

WORD = re.compile(r"[^\W_]+(?:['’.\-][^\W_]+)*")
ABBREVIATION = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|[A-HJ-Z]|vs|cf|e\.g|i\.e|No(?=\.\s?\d))\.")
DECIMAL = re.compile(r"(?<=\d)\.(?=\d)")
SENTENCE = re.compile(r"[^.!?。!?]*[^\s.!?。!?][^.!?。!?]*(?:[.!?。!?]+[\"'”’)\]]*|\Z)")
DIVIDER = re.compile(r"\s?\*\*\*\s?")


def words(text: str) -> list[str]:
    """The words of a text: runs of letters and digits, with the hyphens, points and apostrophes inside them."""
    return WORD.findall(text)


def sentences(text: str) -> list[str]:
    """The sentences of a text; points in abbreviations and decimals end none, a line break between paragraphs ends one."""
    hidden = DECIMAL.sub("\0", ABBREVIATION.sub(lambda match: match[0].replace(".", "\0"), text))
    return [sentence for part in re.split(r"\n\s*\n", hidden) for sentence in SENTENCE.findall(part) if WORD.search(sentence)]


def number_words(response: str, arguments: Arguments) -> bool:
    return arguments.compared(len(words(response)), "num_words", "relation")


def number_sentences(response: str, arguments: Arguments) -> bool:
    return arguments.compared(len(sentences(response)), "num_sentences", "relation")


def number_paragraphs(response: str, arguments: Arguments) -> bool:
    """Paragraphs between dividers of three asterisks; an empty one in the middle is a fault, at the ends it does not count."""
    parts = DIVIDER.split(response)
    inner = parts[1:-1]
    if any(not part.strip() for part in inner):
        return False
    return len([part for part in parts if part.strip()]) == arguments.count("num_paragraphs")


def nth_paragraph_first_word(response: str, arguments: Arguments) -> bool:
    """Paragraphs between empty lines: as many as asked for, the nth of them beginning with the word."""
    parts = [part.strip() for part in re.split(r"\n\s*\n", response) if part.strip()]
    number = arguments.count("nth_paragraph")
    if len(parts) != arguments.count("num_paragraphs") or not 1 <= number <= len(parts):
        return False
    first = words(parts[number - 1])
    return bool(first) and first[0].casefold() == arguments.text("first_word").casefold()


def _occurrences(response: str, keyword: str) -> int:
    """How often a keyword stands in a text as a whole word or phrase, in any case."""
    return len(re.findall(rf"(?<!\w){re.escape(keyword)}(?!\w)", response, re.IGNORECASE))


def keywords_exist(response: str, arguments: Arguments) -> bool:
    return all(_occurrences(response, keyword) for keyword in arguments.texts("keywords"))


def keyword_frequency(response: str, arguments: Arguments) -> bool:
    return arguments.compared(_occurrences(response, arguments.text("keyword")), "frequency", "relation")


def forbidden_words(response: str, arguments: Arguments) -> bool:
    return not any(_occurrences(response, word) for word in arguments.texts("forbidden_words"))


def letter_frequency(response: str, arguments: Arguments) -> bool:
    letter = arguments.text("letter")
    if len(letter) != 1:
        arguments.bad("letter is one character")
    return arguments.compared(response.casefold().count(letter.casefold()), "let_frequency", "let_relation")


def capital_word_frequency(response: str, arguments: Arguments) -> bool:
    """Words in which every letter is a capital."""
    return arguments.compared(sum(word.isupper() for word in words(response)), "capital_frequency", "capital_relation")
