"""What the policy was really shown: a task's messages through the run's own template, to ids and back."""

from __future__ import annotations

from collections.abc import Sequence

from rollbook.models.tokenizer import ChatTokenizer
from rollbook.records import Message, Task, TokenizerFile

MARK = "\ue000{}\ue001"      # private-use characters: no template changes them, no message holds them


class Renderer:
    """Renders with the run's tokenizer and reads back what it rendered; frames are kept per sequence of roles."""

    def __init__(self, tokenizer: ChatTokenizer):
        self.tokenizer = tokenizer
        self.frames: dict[tuple[str, ...], tuple[str, ...] | None] = {}

    def ids(self, task: Task) -> tuple[int, ...]:
        return self.tokenizer.prompt(task.prompt)

    def lost(self, messages: Sequence[Message], ids: Sequence[int]) -> str | None:
        """What the ids do not give back of the messages; None when every message reads the same."""
        frame = self._frame(messages)
        if frame is None:
            return "the template does not show every message"
        read = parsed(self.tokenizer.decode(ids), frame)
        if read is None:
            return "the prompt does not have the template's frame"
        pairs = zip(messages, read, strict=True)
        wrong = next(((m.content, got) for m, got in pairs if m.content.strip() != got.strip()), None)
        return None if wrong is None else f"{wrong[0][:60]!r} reads back as {wrong[1][:60]!r}"

    def _frame(self, messages: Sequence[Message]) -> tuple[str, ...] | None:
        """The template's text before, between and after the contents; None where a content vanishes or the last is repeated."""
        roles = tuple(message.role for message in messages)
        if roles not in self.frames:
            marks = [MARK.format(index) for index in range(len(messages))]
            text = self.tokenizer.render([Message(role=m.role, content=mark) for m, mark in zip(messages, marks, strict=True)],
                                         generation_prompt=True)
            parts: list[str] = []
            for mark in marks:
                before, found, text = text.partition(mark)
                parts += [before] if found else []
            self.frames[roles] = (*parts, text) if len(parts) == len(marks) and marks[-1] not in text else None
        return self.frames[roles]


def contained(messages: Sequence[Message], text: str) -> bool:
    """Whether the contents of the messages stand in the text, in order: what an environment adds may stand around them."""
    at = 0
    for message in messages:
        found = text.find(message.content, at)
        if found < 0:
            return False
        at = found + len(message.content)
    return True


def parsed(text: str, frame: Sequence[str]) -> tuple[str, ...] | None:
    """The contents of a rendered conversation, each ending where the frame's next piece first appears; None without the frame.

    Example: parsed("<u>2+2=</u><a>", ("<u>", "</u><a>")) == ("2+2=",)
    """
    if not text.startswith(frame[0]):
        return None
    place, contents = len(frame[0]), []
    for piece in frame[1:]:
        end = text.find(piece, place)
        if end < 0:
            return None
        contents.append(text[place:end])
        place = end + len(piece)
    return tuple(contents) if place == len(text) else (*contents[:-1], contents[-1] + text[place:])


def tokenizer_faults(record: TokenizerFile, tokenizer: ChatTokenizer) -> list[str]:
    """Where the stored tokenizer is not the one that the record names."""
    return [f"the stored {name} has the digest {own[:12]}, the record says {said[:12]}" for name, own, said in
            (("tokenizer", tokenizer.digest, record.tokenizer), ("template", tokenizer.template_digest, record.template))
            if own != said]
