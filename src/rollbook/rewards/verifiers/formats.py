"""Rules on the form of a response: its thinking block, its tags, its box, its code fence, its length."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from rollbook.rewards.boxes import last_box
from rollbook.rewards.verifiers.base import BadReference, VerifierSpec, verdict
from rollbook.rewards.verifiers.extraction import FENCE

Rule = Callable[[str, Any], bool]


def _thinking(response: str, _: Any) -> bool:
    """One <think> block at the very start, closed once, with something after it."""
    return (response.startswith("<think>") and response.count("<think>") == response.count("</think>") == 1
            and bool(response.partition("</think>")[2].strip()))


def _tags(response: str, names: Any) -> bool:
    """Each of the named tags once, closed, in this order, with nothing but white space between them."""
    if not isinstance(names,
                      list) or not names or not all(isinstance(name, str) and re.fullmatch(r"\w+", name) for name in names):
        raise BadReference("tags are a list of names")
    blocks = r"\s*".join(rf"<{name}>(?:(?!</?(?:{'|'.join(names)})>).)*</{name}>" for name in names)
    return re.fullmatch(rf"\s*{blocks}\s*", response, re.DOTALL) is not None


def _boxed(response: str, _: Any) -> bool:
    return last_box(response.rpartition("</think>")[2]).state == "found"


def _one_box(response: str, _: Any) -> bool:
    return response.count("\\boxed") == 1 and _boxed(response, None)


def _fenced(response: str, language: Any) -> bool:
    """Exactly one fenced block, of this language where one is named."""
    blocks = list(FENCE.finditer(response))
    return len(blocks) == 1 and (not isinstance(language, str) or blocks[0][2].lower() == language.lower())


def _at_most(response: str, count: Any) -> bool:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise BadReference(f"a length is a count of characters, got {count!r}")
    return len(response) <= count


def _forbidden(response: str, parts: Any) -> bool:
    if not isinstance(parts, list) or not all(isinstance(part, str) and part for part in parts):
        raise BadReference("forbidden texts are a list of texts")
    return not any(part in response for part in parts)


def _not_repeating(response: str, limit: Any) -> bool:
    """No line of ten characters or more stands more often than this."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise BadReference(f"a limit of repetitions is 1 or more, got {limit!r}")
    lines = Counter(line.strip() for line in response.splitlines() if len(line.strip()) >= 10)
    return all(count <= limit for count in lines.values())


RULES: Mapping[str, Rule] = {"thinking": _thinking, "tags": _tags, "boxed": _boxed, "one_box": _one_box, "fenced": _fenced,
                             "max_characters": _at_most, "forbidden": _forbidden, "max_repeats": _not_repeating}


def formats(response: str, reference: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Whether every rule of the reference, {rule: argument}, holds; the score is the share that does."""
    if not isinstance(reference, Mapping) or not reference:
        raise BadReference("the reference is a mapping of rules to their arguments")
    unknown = sorted(set(reference) - set(RULES))
    if unknown:
        raise BadReference(f"no such rule: {', '.join(unknown)}; there are {', '.join(sorted(RULES))}")
    broken = [name for name, argument in reference.items() if not RULES[name](response, argument)]
    return verdict(not broken, f"broken: {', '.join(broken)}" if broken else "all hold", 1 - len(broken) / len(reference))


FORMATS = VerifierSpec(name="formats", version="1", work=f"{__name__}:formats",
                       sources=("boxes.py", "verifiers/extraction.py", "verifiers/formats.py"))
