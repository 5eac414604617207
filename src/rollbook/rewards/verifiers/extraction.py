r"""The part of a response that answers: the last box, the last fenced block, what stands in a tag, or everything."""

from __future__ import annotations

import re

from rollbook.rewards.boxes import last_box
from rollbook.rewards.errors import RewardError

FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([A-Za-z0-9_+-]*)[^\n]*\n(.*?)^[ \t]*\1[ \t]*$", re.DOTALL | re.MULTILINE)
THINKING = re.compile(r"^\s*<think>.*?</think>", re.DOTALL)


def answer_in(response: str, how: str) -> str | None:
    r"""The answer by one of `whole`, `boxed`, `boxed_or_whole`, `last_line`, `fenced`, `fenced:<language>`, `tag:<name>`.

    None where the response has no such part. What stands in a leading <think> block never answers.

    Example: answer_in("so \\boxed{7}", "boxed") == "7"; answer_in("<answer>x</answer>", "tag:answer") == "x"
    """
    visible = THINKING.sub("", response, count=1)
    kind, _, name = how.partition(":")
    match kind:
        case "whole":
            return visible.strip()
        case "boxed":
            return last_box(visible).answer
        case "boxed_or_whole":
            box = last_box(visible)
            return box.answer if box.state != "none" else visible.strip()
        case "last_line":
            lines = [line for line in visible.splitlines() if line.strip()]
            return lines[-1].strip() if lines else None
        case "fenced":
            blocks = [match[3] for match in FENCE.finditer(visible) if not name or match[2].lower() in (name.lower(), "")]
            return blocks[-1].strip("\n") if blocks else None
        case "tag":
            found = visible.rpartition(f"<{name}>")[2].partition(f"</{name}>") if f"<{name}>" in visible else ("", "", "")
            return found[0].strip() if found[1] else None
        case _:
            raise RewardError("no such way to find an answer", got=repr(how),
                              fix="one of whole, boxed, boxed_or_whole, last_line, fenced, fenced:<language>, tag:<name>")
