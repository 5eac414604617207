"""Fenced code: a block whose info string is the name of a tool, and whose body is the one text that the tool takes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rollbook.records import Action, ToolSchema
from rollbook.records import Dialect as DialectName
from rollbook.rollouts.dialects.reading import Made, Malformed, Spoken, outside, reasoning_end

FENCE = re.compile(r"^[ ]{0,3}(`{3,})([^`\n]*)$", re.MULTILINE)


class Fenced:
    """Blocks of other languages are text. A block closes with a line of at least as many backticks as opened it."""

    name: DialectName = "fenced"
    stops: tuple[str, ...] = ()
    wrapped = "```output"

    def parse(self, text: str, tools: Sequence[ToolSchema]) -> Spoken:
        begin = reasoning_end(text)
        names = {tool.name for tool in tools}
        calls: list[Made | Malformed] = []
        at = begin
        while (opening := FENCE.search(text, at)) is not None:
            fence, name = opening[1], opening[2].strip()
            close = _close(text, opening.end(), fence)
            at = len(text) if close is None else close.end()
            if name not in names:
                continue
            if close is None:
                calls.append(Malformed(why=f"the block of {name} is not closed", start=opening.start(), end=len(text)))
            else:
                body = text[opening.end() + 1:max(opening.end() + 1, close.start() - 1)]
                calls.append(Made(name=name, arguments=body, start=opening.start(), end=close.end()))
        return Spoken(text=outside(text, begin, calls), calls=tuple(calls), reasoning_end=begin)

    def write(self, action: Action, tools: Sequence[ToolSchema]) -> str:
        blocks = []
        for call in action.calls:
            body = str(next(iter(call.arguments.values()), ""))
            longest = max((len(run) for run in re.findall(r"`+", body)), default=0)
            fence = "`" * max(3, longest + 1)
            blocks.append(f"{fence}{call.name}\n{body}\n{fence}")
        return "\n".join([*([action.text] if action.text else []), *blocks])

    def announce(self, tools: Sequence[ToolSchema]) -> str:
        listed = "\n".join(f"{tool.name}: {tool.description}" for tool in tools)
        return f"You have these tools. Use one by writing a fenced block with its name:\n```<name>\n<input>\n```\n{listed}"

    def wrap(self, content: str) -> tuple[str, str]:
        longest = max((len(run) for run in re.findall(r"`+", content)), default=0)
        fence = "`" * max(3, longest + 1)
        return f"{fence}output\n", f"\n{fence}"


def _close(text: str, at: int, fence: str) -> re.Match[str] | None:
    for found in FENCE.finditer(text, at):
        if len(found[1]) >= len(fence) and not found[2].strip():
            return found
    return None
