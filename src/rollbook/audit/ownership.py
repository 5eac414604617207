"""Who wrote each token of a conversation, found again from the roles of its messages."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from rollbook.models.tokenizer import ChatTokenizer
from rollbook.records import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """Token ranges [start, end) of the policy's turns, each with its end of turn, in order.

    `before` gives for each of them, and for what follows the last, the roles of the messages in front of it. `reencoded` says
    whether the other tokens are what the tokenizer makes of the rendered text, and not another spelling of it.

    Example: Owned(spans=((9, 14),), before=("user", ""), reencoded=True)
    """

    spans: tuple[tuple[int, int], ...]
    before: tuple[str, ...]
    reencoded: bool

    def role_at(self, token: int) -> str:
        """The roles of the messages that a token outside the policy's turns was rendered from."""
        place = next((i for i, (start, _) in enumerate(self.spans) if token < start), len(self.spans))
        return self.before[place] or "template"


class NotRendered(Exception):
    """The tokens are not a rendering of the messages; the text says where."""


def owned(messages: Sequence[Message], token_ids: Sequence[int], tokenizer: ChatTokenizer) -> Owned:
    """Walks the turns: what the template writes belongs to nobody who is trained, an assistant's turn up to its end of turn does.

    Raises NotRendered where the tokens do not spell the rendered turns. Limit: templates that rewrite earlier turns.
    """
    at, shown, exact = 0, "", True
    spans, before = [], []
    last = 0
    for place, message in enumerate(messages):
        if message.role != "assistant":
            continue
        head = tokenizer.render(messages[:place], generation_prompt=True)
        if not head.startswith(shown):
            raise NotRendered(f"the template writes message {place} in another way once later ones follow")
        count, same = _covering(tokenizer, token_ids, at, head[len(shown):], place)
        start = at + count
        end = _turn_end(token_ids, start, tokenizer.stop_ids)
        if tokenizer.decode(token_ids[start:end]) != message.content:
            raise NotRendered(f"tokens {start} to {end} do not spell message {place} (assistant)")
        spans.append((start, end))
        before.append(_roles(messages[last:place]))
        at, last, exact = end, place + 1, exact and same
        shown = head + message.content
        if end > start and token_ids[end - 1] in tokenizer.stop_ids:
            shown += tokenizer.token_text(token_ids[end - 1])
    if not spans:
        raise NotRendered("no message is the assistant's: there is nothing to imitate")
    _tail(messages, tokenizer, token_ids[at:], shown)
    return Owned(spans=tuple(spans), before=(*before, _roles(messages[last:])), reencoded=exact)


def as_text(messages: Sequence[Message], token_ids: Sequence[int], tokenizer: ChatTokenizer) -> Owned:
    """A document between two end tokens, without a template: all but the first token is the policy's to learn."""
    body, stops = tuple(token_ids[1:-1]), tokenizer.stop_ids
    if len(token_ids) < 3 or token_ids[0] not in stops or token_ids[-1] not in stops:
        raise NotRendered("a document stands between two end tokens")
    if len(messages) != 1 or tokenizer.decode(body) != messages[0].content:
        raise NotRendered(f"tokens 1 to {len(token_ids) - 1} do not spell the document")
    return Owned(spans=((1, len(token_ids)),), before=("template", ""), reencoded=body == tokenizer.encode(messages[0].content))


def _covering(tokenizer: ChatTokenizer, ids: Sequence[int], at: int, text: str, place: int) -> tuple[int, bool]:
    """How many tokens from `at` on spell this text, and whether they are its encoding."""
    wanted = tokenizer.encode(text)
    if tuple(ids[at:at + len(wanted)]) == wanted:
        return len(wanted), True
    low, high = 0, len(ids) - at
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(tokenizer.decode(ids[at:at + middle])) >= len(text) else (middle + 1, high)
    if tokenizer.decode(ids[at:at + low]) != text:
        raise NotRendered(f"the tokens from {at} on are not what the template writes in front of message {place}")
    return low, False


def _tail(messages: Sequence[Message], tokenizer: ChatTokenizer, rest: Sequence[int], shown: str) -> None:
    """What follows the last turn of the policy must be the beginning of what the template writes there."""
    whole = tokenizer.render(messages, generation_prompt=False)
    if rest and not (whole.startswith(shown) and whole[len(shown):].startswith(tokenizer.decode(rest))):
        raise NotRendered(f"{len(rest)} tokens after the policy's last turn are in no message")


def _turn_end(ids: Sequence[int], start: int, stops: Set[int | None]) -> int:
    return next((index + 1 for index in range(start, len(ids)) if ids[index] in stops), len(ids))


def _roles(messages: Sequence[Message]) -> str:
    return ", ".join(dict.fromkeys(message.role for message in messages))
