"""What follows a turn of the policy, as owned token ids: the template writes the frame, contents are encoded by themselves.

Nothing that was sampled is ever encoded again, and a content can open or end no turn: the names of special tokens in it are text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rollbook.models.tokenizer import ChatTokenizer
from rollbook.records import Message, ModelError, Reply, ReplyOwner, Segment, Task, ToolSchema
from rollbook.records.tasks import Owner, Role
from rollbook.rollouts.dialects import Dialect

ASKED, SAID = "\ue000asked\ue001", "\ue000said\ue001"       # private-use characters: no template changes them
MARK = "\ue000{}\ue001"
ROLES: dict[ReplyOwner, Role] = {"tool": "tool", "subagent": "tool", "environment": "user", "user": "user",
                                 "user_simulator": "user", "system": "system"}


class Renderer:
    """One template and one dialect. `announces`: whether tools are described in the system message."""

    def __init__(self, tokenizer: ChatTokenizer, dialect: Dialect, *, announces: bool):
        self.tokenizer, self.dialect, self.announces = tokenizer, dialect, announces
        named = (tokenizer.token_id(name) for name in dialect.stops)
        own = frozenset(one for one in tokenizer.stop_ids if one is not None)
        self.stop_ids: frozenset[int] = own | {token for token in named if token is not None}
        self._frames: dict[tuple[Role, tuple[Role, ...]], tuple[str, ...]] = {}
        self._tool = self._tool_role()

    @property
    def tool_role(self) -> Role:
        """The role that tool replies have in this template: `tool` where it knows one."""
        return self._tool[0]

    def messages(self, task: Task, tools: Sequence[ToolSchema]) -> tuple[Message, ...]:
        """The task's messages, with the tools in the system message where they are announced."""
        return self.announced(task.prompt, tools)

    def announced(self, messages: tuple[Message, ...], tools: Sequence[ToolSchema]) -> tuple[Message, ...]:
        """The messages with the tools in the system message."""
        if not tools or not self.announces:
            return messages
        told = self.dialect.announce(tools)
        if messages and messages[0].role == "system":
            return (replace(messages[0], content=f"{messages[0].content}\n\n{told}"), *messages[1:])
        return (Message(role="system", content=told, origin="recipe"), *messages)

    def opening(self, task: Task, tools: Sequence[ToolSchema], replies: Sequence[Reply] = ()) -> tuple[Segment, ...]:
        """The prompt, replies that follow it before the policy has spoken, and the opening of its turn."""
        messages = self.messages(task, tools)
        if not replies:
            return (Segment(owner="user", token_ids=self.tokenizer.prompt(messages)),)
        asked = self.tokenizer.encode(self.tokenizer.render(messages, generation_prompt=False))
        return (Segment(owner="user", token_ids=asked), *self._framed(replies, behind="user", last=None))

    def follow(self, replies: Sequence[Reply], *, last: int) -> tuple[Segment, ...]:
        """Replies and the opening of the next turn, behind a turn of the policy whose last token is `last`."""
        return self._framed(replies, behind="assistant", last=last)

    def _framed(self, replies: Sequence[Reply], *, behind: Role, last: int | None) -> tuple[Segment, ...]:
        contents = [self._content(reply) for reply in replies]
        frame = self._frame(behind, tuple(role for role, _, _ in contents))
        pieces: list[tuple[Owner, str]] = [("template", frame[0] if last is None else self._after_turn(frame[0], last))]
        for (_, owner, (before, content, after)), piece in zip(contents, frame[1:], strict=True):
            pieces += [("template", before), (owner, content), ("template", after), ("template", piece)]
        return self._encoded(pieces)

    def message(self, reply: Reply) -> Message:
        """A reply as the chat message that the template shows."""
        role, _, parts = self._content(reply)
        return Message(role=role, content="".join(parts), origin="tool" if reply.owner == "tool" else "environment")

    def _content(self, reply: Reply) -> tuple[Role, Owner, tuple[str, str, str]]:
        role = ROLES[reply.owner]
        if role != "tool":
            return role, reply.owner, ("", reply.content, "")
        role, wraps = self._tool
        before, after = ("", "") if wraps else self.dialect.wrap(reply.content)
        return role, reply.owner, (before, reply.content, after)

    def _encoded(self, pieces: Sequence[tuple[Owner, str]]) -> tuple[Segment, ...]:
        """Neighbouring template pieces are encoded together; a content alone, its special names as text."""
        segments: list[Segment] = []
        frame = ""
        for owner, text in (*pieces, ("end", "")):
            if owner == "template":
                frame += text
                continue
            if frame and (ids := self.tokenizer.encode(frame)):
                segments.append(Segment(owner="template", token_ids=ids))
            frame = ""
            if text and (ids := self.tokenizer.encode_plain(text)):
                segments.append(Segment(owner=owner, token_ids=ids))        # type: ignore[arg-type]
        return tuple(segments)

    def _after_turn(self, text: str, last: int) -> str:
        """The frame behind the policy's turn without the end-of-turn token that the policy itself sampled."""
        if last not in self.stop_ids:
            return text
        ends = (self.tokenizer.token_text(last), *map(self.tokenizer.token_text, self.tokenizer.stop_ids))
        return text[len(next((end for end in ends if text.startswith(end)), "")):]

    def _frame(self, behind: Role, roles: tuple[Role, ...]) -> tuple[str, ...]:
        """The template's text between a message of this role, the contents of these roles, and the next turn of the policy."""
        if (behind, roles) not in self._frames:
            self._frames[behind, roles] = self._render(behind, roles)
        return self._frames[behind, roles]

    def _render(self, behind: Role, roles: tuple[Role, ...]) -> tuple[str, ...]:
        marks = [MARK.format(place) for place in range(len(roles))]
        before = [Message(role="user", content=ASKED)] if behind == "assistant" else []
        before.append(Message(role=behind, content=SAID))
        shown = [*before, *(Message(role=role, content=mark) for role, mark in zip(roles, marks, strict=True))]
        text = self.tokenizer.render(shown, generation_prompt=True).partition(SAID)[2]
        if behind == "user":                    # the prompt was rendered with the end of its last message
            text = text.removeprefix(self.tokenizer.render(before, generation_prompt=False).partition(SAID)[2])
        parts: list[str] = []
        for mark in marks:
            piece, found, text = text.partition(mark)
            if not found:
                raise ModelError("the chat template does not show every message behind a turn of the policy",
                                 got=", ".join((behind, *roles)), why="what the policy is told would be missing from its context",
                                 fix="use a template that shows messages of these roles")
            parts.append(piece)
        return (*parts, text)

    def _tool_role(self) -> tuple[Role, bool]:
        """The role for tool replies, and whether the template itself marks them as such."""
        try:
            frame = self._render("assistant", ("tool",))
        except ModelError:
            return "user", False
        return "tool", self.dialect.wrapped in "".join(frame)
