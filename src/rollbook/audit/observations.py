"""What an environment said against what the policy was shown, and what the policy said against what the environment was told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollbook.models.tokenizer import ChatTokenizer
from rollbook.records import Misfit, ToolCall, ToolSchema, Trace, Turn
from rollbook.records.rollout import turns_of
from rollbook.rollouts.dialects import Made, Malformed, Spoken, dialect

CUT = ("length", "context_full", "cancelled", "failed")         # a turn that did not end is nowhere read for calls
SHOWN = ("tool", "environment", "user_simulator", "subagent", "system")


def unseen(trace: Trace, tokenizer: ChatTokenizer) -> str:
    """How the observations on record differ from the tokens that stand for them; empty when they do not.

    Limit: an attempt of several contexts is compared by `contexts.invented`, an outside agent's not at all: it shows observations
    in words of its own.
    """
    episode = trace.episode
    if episode is None or trace.parts or episode.agent:
        return ""
    told = [*episode.opening.replies, *(reply for turn in episode.turns for reply in turn.observation.replies)]
    shown = [segment for segment in trace.segments[1:] if segment.owner in SHOWN or segment.owner == "user"]
    wanted = [reply for reply in told if reply.content]
    if len(shown) > len(wanted):
        return f"the policy was shown {len(shown)} observations, the environment gave {len(wanted)}"
    for number, (segment, reply) in enumerate(zip(shown, wanted, strict=False), start=1):
        if segment.owner != reply.owner:
            return f"observation {number} is the {segment.owner}'s in the tokens and the {reply.owner}'s on record"
        if segment.token_ids != tokenizer.encode_plain(reply.content):
            return (f"observation {number} was shown as {tokenizer.decode(segment.token_ids)[:40]!r}, the environment said "
                    f"{reply.content[:40]!r}")
    left = wanted[len(shown):]
    last = episode.turns[-1].observation.replies if episode.turns else episode.opening.replies
    if len(left) > len([reply for reply in last if reply.content]):
        return f"{len(left)} observations on record were never shown"
    return ""


def misread(trace: Trace, tokenizer: ChatTokenizer) -> str:
    """How the actions on record differ from what the policy's tokens say; empty when they do not.

    Every turn is read in the context that it was sampled in; what a turn leaves of a context is its last turn alone, a summary or
    one that its environment did not survive. Limits: an attempt of hidden tokens or by an outside agent is not compared, nor a
    fenced turn with a call that could not be made, whose tool is not on record; that a call fits its tool's schema is not tried
    again.
    """
    episode = trace.episode
    if episode is None or episode.agent or any(segment.hidden for segment in trace.segments):
        return ""
    own = [0, *(number for number, part in enumerate(trace.parts, start=1) if part.kind != "subagent")]
    ids = {number: _sampled(trace, number) for number in own}
    told = dict.fromkeys(own, 0)
    said = dialect(episode.dialect)
    for number, turn in enumerate(episode.turns, start=1):
        if turn.part not in ids:
            return f"turn {number} is said to stand in context {turn.part}, which is none of the attempt's own"
        at = told[turn.part]
        text = tokenizer.decode(ids[turn.part][at:at + turn.tokens])
        told[turn.part] += turn.tokens
        if number == len(episode.turns) and trace.stop_reason in CUT and turn.action.text == text and not turn.action.calls:
            continue
        if episode.dialect == "fenced" and turn.misfits:
            continue
        tools = tuple(_named(call) for call in turn.action.calls)
        problem = _otherwise(turn, said.parse(text, tools))
        if problem:
            return f"turn {number} says {text[-60:]!r}, and {problem}"
    for number in own:
        left, last = len(ids[number]) - told[number], [*turns_of(trace.segments_of(number))][-1:]
        unread = sum(segment.count for turn in last for segment in turn)
        ended = number == 0 or trace.parts[number - 1].kind == "compacted"
        if left and not (ended and left == unread):
            return (f"{told[number]} tokens are counted in the turns of context {number}, the policy sampled {len(ids[number])} "
                    "there")
    return ""


def last_words(trace: Trace) -> tuple[tuple[int, ...], ...]:
    """The ids that the text of an attempt of several contexts may spell: those of its last turn on record, in the context that it
    was sampled in, and behind them in the last context those of a turn that its environment did not survive.

    Empty ids where the policy said nothing. A summary is no turn, and never the text.
    """
    own = [0, *(number for number, part in enumerate(trace.parts, start=1) if part.kind != "subagent")]
    told = dict.fromkeys(own, 0)
    turns = () if trace.episode is None else trace.episode.turns
    for turn in turns:
        told[turn.part] = told.get(turn.part, 0) + turn.tokens
    last = _sampled(trace, turns[-1].part)[:told[turns[-1].part]][-turns[-1].tokens:] if turns and turns[-1].tokens else ()
    after = _sampled(trace, 0)[told[0]:]
    return (last, after) if after else (last,)


def _sampled(trace: Trace, number: int) -> tuple[int, ...]:
    """What the policy sampled in one context."""
    if number > len(trace.parts):
        return ()
    return tuple(token for segment in trace.segments_of(number) if segment.owner == "policy" for token in segment.token_ids)


def _named(call: ToolCall) -> ToolSchema:
    """A tool of this name, for dialects that look for the names that were offered."""
    return ToolSchema(name=call.name, description="", parameters={"type": "object"})


def _otherwise(turn: Turn, spoken: Spoken) -> str:
    """In what a turn's record is not what was spoken; empty when it is."""
    known: dict[str, ToolCall | Misfit] = {one.id: one for one in (*turn.action.calls, *turn.misfits)}
    written = sorted(known, key=lambda name: int(name.rpartition("_")[2]))
    if turn.action.text != spoken.text:
        return f"the environment was told {turn.action.text[-60:]!r}"
    if len(written) != len(spoken.calls):
        return f"{len(written)} calls are on record for {len(spoken.calls)} that it makes"
    for name, made in zip(written, spoken.calls, strict=True):
        if isinstance(one := known[name], ToolCall) and (problem := _called(one, made)):
            return problem
    return ""


def _called(call: ToolCall, made: Made | Malformed) -> str:
    """In what a call on record is not the one that was made; empty when it is."""
    if isinstance(made, Malformed):
        return f"the environment was asked for {call.name}, by a call that cannot be read ({made.why})"
    given = _plain(list(call.arguments.values()) if isinstance(made.arguments, str) else call.arguments)
    if call.name != made.name or given != ([made.arguments] if isinstance(made.arguments, str) else made.arguments):
        return f"the environment was asked for {call.name}({dict(call.arguments)})"[:200]
    return ""


def _plain(value: Any) -> Any:
    """The same JSON value with lists where a record holds tuples."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value
