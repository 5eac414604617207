"""Families of form: bullets, highlights, sections, titles, placeholders, beginnings and ends, case, punctuation, language."""

from __future__ import annotations

import re

from rollbook.rewards.verifiers.instructions.arguments import Arguments
from rollbook.rewards.verifiers.language import likely, prose
from rollbook.rewards.verifiers.schema import NoDocument, parsed

BULLET = re.compile(r"^[ \t]*(?:\*(?!\*)|-(?!-))[ \t]*\S", re.MULTILINE)
BOLD = re.compile(r"\*\*([^*\n]+)\*\*")
ITALIC = re.compile(r"\*([^*\n]+)\*")
PLACEHOLDER = re.compile(r"\[[^\[\]]*\]")
TITLE = re.compile(r"<<([^\n<>]+)>>")
CONSTRAINED = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
FENCE = re.compile(r"\A```(?:json)?\s*\n?(.*?)\n?```\Z", re.DOTALL | re.IGNORECASE)
RESPONSES = "******"
QUOTES = '"“”'


def bullets(response: str, arguments: Arguments) -> bool:
    """Exactly as many lines that begin with an asterisk or a hyphen."""
    return len(BULLET.findall(response)) == arguments.count("num_bullets")


def constrained(response: str, arguments: Arguments) -> bool:
    """One of the three permitted answers stands in the response."""
    return any(answer in response for answer in CONSTRAINED)


def highlights(response: str, arguments: Arguments) -> bool:
    """At least as many passages between asterisks, single or double."""
    bold = [match for match in BOLD.findall(response) if match.strip()]
    italic = [match for match in ITALIC.findall(BOLD.sub(" ", response)) if match.strip()]
    return len(bold) + len(italic) >= arguments.count("num_highlights")


def sections(response: str, arguments: Arguments) -> bool:
    """At least as many parts that begin with the splitter and a number: `Section 1`."""
    splitter = re.escape(arguments.text("section_spliter").strip())
    return len(re.findall(rf"(?<!\w){splitter}\s?\d+", response)) >= arguments.count("num_sections")


def json_format(response: str, arguments: Arguments) -> bool:
    """The whole response is one JSON document, alone or in one fenced block."""
    text = response.strip()
    match = FENCE.fullmatch(text)
    try:
        parsed(match[1].strip() if match else text)
    except NoDocument:
        return False
    return True


def title(response: str, arguments: Arguments) -> bool:
    return any(found.strip() for found in TITLE.findall(response))


def placeholders(response: str, arguments: Arguments) -> bool:
    return len(PLACEHOLDER.findall(response)) >= arguments.count("num_placeholders")


def postscript(response: str, arguments: Arguments) -> bool:
    """A line begins with the marker, with or without spaces after its points, in any case."""
    letters = [re.escape(letter) for letter in re.findall(r"[^\W_]", arguments.text("postscript_marker"))]
    if not letters:
        arguments.bad("postscript_marker has letters")
    return re.search(r"^\s*" + r"\.?\s?".join(letters) + r"(?!\w)\.?.*$", response, re.IGNORECASE | re.MULTILINE) is not None


def two_responses(response: str, arguments: Arguments) -> bool:
    """Two responses that differ, between them six asterisks."""
    parts = response.split(RESPONSES)
    inner = parts[1:-1] if len(parts) > 2 else []
    if any(not part.strip() for part in inner):
        return False
    found = [part.strip() for part in parts if part.strip()]
    return len(found) == 2 and found[0] != found[1]


def repeat_prompt(response: str, arguments: Arguments) -> bool:
    """The response begins with the prompt, in any case."""
    return response.strip().casefold().startswith(arguments.text("prompt_to_repeat").strip().casefold())


def end_phrase(response: str, arguments: Arguments) -> bool:
    """The response ends with the phrase and nothing after it, in any case; quotation marks around everything do not count."""
    phrase = arguments.text("end_phrase").strip().casefold()
    return response.strip().strip(QUOTES).strip().casefold().endswith(phrase)


def quotation(response: str, arguments: Arguments) -> bool:
    text = response.strip()
    return len(text) > 2 and text[0] in QUOTES and text[-1] in QUOTES


def uppercase(response: str, arguments: Arguments) -> bool:
    """Capital letters only, and English."""
    return response.isupper() and _language(response) == "en"


def lowercase(response: str, arguments: Arguments) -> bool:
    """Small letters only, and English."""
    return response.islower() and _language(response) == "en"


def no_comma(response: str, arguments: Arguments) -> bool:
    return not set(",，،、") & set(response)


def response_language(response: str, arguments: Arguments) -> bool:
    """The response is in the language of this ISO code."""
    return _language(response) == arguments.text("language").split("-")[0].lower()


def _language(response: str) -> str:
    return likely(prose(response) or response)[0]
