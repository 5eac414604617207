"""Rows of conversations as demonstrations and rankings: their tokens with their owners, and what was left out and why."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rollbook.models.tokenizer import ChatTokenizer
from rollbook.records import Candidate, Demonstration, Message, Ranking, Segment, Span, TaskId, ToolCall
from rollbook.records.recipe import Conversations
from rollbook.records.tasks import Owner
from rollbook.rollouts.conversations import Row, Turn, Unreadable, read_rows, uncallable
from rollbook.rollouts.dialects import Made, Malformed, dialect
from rollbook.rollouts.rendering import Renderer

TOO_LONG, CUT, SAME = "longer than max_tokens", "cut to max_tokens", "chosen and rejected are the same"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a file gives, and whether rows have `tools`: `left` names rows by what happened to them, `wrong` says of rows why they
    are none."""

    rows: int
    tools: bool
    demonstrations: tuple[Demonstration, ...]
    rankings: tuple[Ranking, ...]
    left: dict[str, tuple[str, ...]]
    wrong: dict[str, str]


@dataclass(slots=True)
class _Walked:
    """A conversation on its way: its segments and messages, and (segments, tokens, messages) behind every turn of the policy."""

    segments: list[Segment]
    messages: list[Message]
    ends: list[tuple[int, int, int]]


def given(data: bytes, suffix: str, stage: Conversations, tokenizer: ChatTokenizer, sha256: str) -> Given:
    """Everything that a stage makes of its file. Unreadable where the file is no list of rows."""
    rows, wrong = read_rows(data, suffix, pairs=stage.form == "pairs")
    unread = len(wrong)
    maker = _Maker(stage, tokenizer, sha256)
    for row in rows:
        try:
            maker.add(row)
        except Unreadable as error:
            wrong[row.name] = str(error)
    return Given(rows=len(rows) + unread, tools=any(row.tools for row in rows), demonstrations=tuple(maker.demonstrations),
                 rankings=maker.ranked(), left={why: tuple(names) for why, names in maker.left.items()}, wrong=wrong)


class _Maker:
    def __init__(self, stage: Conversations, tokenizer: ChatTokenizer, sha256: str):
        self.stage, self.tokenizer, self.source = stage, tokenizer, f"file:{sha256[:16]}"
        self.renderer = Renderer(tokenizer, dialect(stage.dialect), announces=True)
        self.stop = min(one for one in tokenizer.stop_ids if one is not None)
        self.left: dict[str, list[str]] = {}
        self.demonstrations: list[Demonstration] = []
        self.pairs: list[tuple[Row, tuple[int, ...], tuple[tuple[int, ...], ...]]] = []

    def add(self, row: Row) -> None:
        if why := uncallable(row):
            raise Unreadable(why)
        walked = self._walked(row)
        if row.answers:
            self._pair(row, tuple(token for one in walked.segments for token in one.token_ids))
        else:
            self._demonstration(row, walked)

    def _demonstration(self, row: Row, walked: _Walked) -> None:
        if not walked.ends:
            raise Unreadable("no turn is the assistant's: there is nothing to imitate")
        fitting = [end for end in walked.ends if end[1] <= self.stage.max_tokens]
        if len(fitting) < len(walked.ends) and (self.stage.too_long != "cut" or not fitting):
            self.left.setdefault(TOO_LONG, []).append(row.name)
            return
        if len(fitting) < len(walked.ends):
            self.left.setdefault(CUT, []).append(row.name)
        segments, _, messages = fitting[-1]
        kept = walked.segments[:segments]
        made = Demonstration(
            task=f"given:{row.name}", messages=tuple(walked.messages[:messages]),
            token_ids=tuple(token for one in kept for token in one.token_ids),
            owners=tuple(Span(owner=_owner(one), length=len(one.token_ids)) for one in kept), tokenizer=self.tokenizer.digest,
            template=self.tokenizer.template_digest, author=self.source, validation="none")
        if not self.tokenizer.render(made.messages, generation_prompt=False).startswith(self.tokenizer.whole(made.token_ids)):
            raise Unreadable("the chat template writes this conversation in another way once its later turns are known")
        self.demonstrations.append(made)

    def _pair(self, row: Row, prompt: tuple[int, ...]) -> None:
        answers = tuple((*self._encoded(self._written(turn, row)), self.stop) for turn in row.answers)
        room = self.stage.max_tokens - len(prompt)
        if max(map(len, answers)) > room:
            if self.stage.too_long != "cut" or room < 1:
                self.left.setdefault(TOO_LONG, []).append(row.name)
                return
            self.left.setdefault(CUT, []).append(row.name)
            answers = tuple(one[:room] for one in answers)
        if answers[0] == answers[1]:
            self.left.setdefault(SAME, []).append(row.name)
            return
        self.pairs.append((row, prompt, answers))

    def ranked(self) -> tuple[Ranking, ...]:
        """The pairs in their order, the last share of them kept apart."""
        kept = len(self.pairs) - math.ceil(len(self.pairs) * self.stage.apart)
        return tuple(Ranking(
            task=TaskId(f"given:{row.name}"), prompt_ids=prompt, labeler=self.source, tokenizer=self.tokenizer.digest,
            template=self.tokenizer.template_digest, heldout=place >= kept, candidates=tuple(
                Candidate(trace=f"given:{row.name}/{which}", token_ids=ids, score=score, truth=None, correct=None)
                for which, score, ids in zip(("chosen", "rejected"), (1.0, 0.0), answers, strict=True)))
            for place, (row, prompt, answers) in enumerate(self.pairs))

    def _walked(self, row: Row) -> _Walked:
        """The conversation up to its end, or for an answer to follow up to the opening of the policy's turn."""
        first = next((at for at, turn in enumerate(row.turns) if turn.role == "assistant"), len(row.turns))
        for turn in row.turns:
            self._encoded(turn.text)
        asked = tuple(Message(role=turn.role, content=turn.text, origin="raw") for turn in row.turns[:first])
        opening = self.renderer.announced(asked, row.tools)
        walked = _Walked([Segment(owner="user", token_ids=self.tokenizer.prompt(opening))], list(opening), [])
        rest: Sequence[Turn] = row.turns[first:]
        while rest:
            text = self._written(rest[0], row)
            walked.segments.append(Segment(owner="history", token_ids=(*self._encoded(text), self.stop)))
            walked.messages.append(Message(role="assistant", content=text, origin="raw"))
            walked.ends.append((len(walked.segments), sum(len(one.token_ids) for one in walked.segments), len(walked.messages)))
            upto = next((at for at, turn in enumerate(rest[1:], 1) if turn.role == "assistant"), len(rest))
            replies = [turn.reply for turn in rest[1:upto]]
            if upto < len(rest) or (row.answers and replies):
                walked.segments += self.renderer.follow(replies, last=self.stop)
                walked.messages += [self.renderer.message(reply) for reply in replies]
            rest = rest[upto:]
        return walked

    def _written(self, turn: Turn, row: Row) -> str:
        text = self.renderer.dialect.write(turn.action, row.tools)
        read = self.renderer.dialect.parse(text, row.tools).calls if turn.calls else ()
        if len(read) != len(turn.calls) or not all(map(_is, read, turn.calls)):
            raise Unreadable(f"{self.stage.dialect} cannot write its calls so that they are read back: {text!r}"[:160])
        return text

    def _encoded(self, text: str) -> tuple[int, ...]:
        ids = self.tokenizer.encode(text)
        if ids != self.tokenizer.encode_plain(text):
            raise Unreadable(f"a message spells a special token of the model: {text!r}"[:160])
        return ids


def _is(read: Made | Malformed, call: ToolCall) -> bool:
    """Whether a call that was read is the one that was written, with the types of its values."""
    if isinstance(read, Malformed) or read.name != call.name:
        return False
    if isinstance(read.arguments, str):
        return list(call.arguments.values()) == [read.arguments]
    return json.dumps(dict(read.arguments), sort_keys=True) == json.dumps(dict(call.arguments), sort_keys=True)


def _owner(segment: Segment) -> Owner:
    return "policy" if segment.owner == "history" else segment.owner
