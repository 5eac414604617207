"""An attempt of several contexts: each goes on from its parent, and shows nothing that nobody said.

A context is compacted, split from another or a subagent's. Its tokens beside the policy's own are what its parent shows, what the
environment is on record to have said, or the sum that the policy wrote last in its parent; a subagent's, the text it was asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rollbook.models.tokenizer import ChatTokenizer
from rollbook.records import Reply, Segment, Trace
from rollbook.records.rollout import turns_of
from rollbook.rollouts.dialects import dialect
from rollbook.rollouts.rules import DELEGATE, SUMMARISE, SUMMARY

SAID = ("tool", "environment", "user_simulator", "subagent", "system", "user")      # whose words stand between turns


def misplaced(trace: Trace) -> str:
    """What is wrong with the parents of an attempt's contexts; empty when nothing is."""
    own = [number for number, part in enumerate(trace.parts, start=1) if part.kind != "subagent"]
    parents = [trace.parts[number - 1].parent for number in own]
    outside = trace.episode is None or bool(trace.episode.agent) or not trace.episode.turns     # it begins anew where it wants
    if parents != [None, *own][:len(own)] and not (outside and not any(parents)):
        return f"its contexts come from {parents}, one after the other they would from {[None, *own][:len(own)]}"
    for number, part in enumerate(trace.parts, start=1):
        if part.kind == "subagent" and part.parent not in (0, *own):
            return f"the subagent of context {number} was called in context {part.parent}, which is none of the attempt's own"
    return ""


def invented(trace: Trace, tokenizer: ChatTokenizer) -> str:
    """What a context shows that nobody said, or does not show though it was said; empty when there is no such thing.

    Limit: in which order observations stand is not compared. An outside agent's contexts are its own, and not compared.
    """
    episode = trace.episode
    if episode is None or not trace.parts or episode.agent or not episode.turns:
        return ""
    told = [*episode.opening.replies, *(reply for turn in episode.turns for reply in turn.observation.replies)]
    known = {one for one in ((reply.owner, tokenizer.encode_plain(reply.content)) for reply in told) if one[1]}
    main = [*(number for number, part in enumerate(trace.parts, start=1) if part.kind != "subagent"), 0]
    shown: set[tuple[str, tuple[int, ...]]] = set()
    parent: tuple[Segment, ...] = ()
    for number in main:
        segments = trace.segments_of(number)
        for problem in _strange(segments, parent, known | _summed(parent, trace, tokenizer), tokenizer):
            return f"context {number} {problem}"
        shown |= {(segment.owner, segment.token_ids) for segment in segments}
        parent = segments
    last = {(reply.owner, tokenizer.encode_plain(reply.content)) for reply in (
        episode.turns[-1].observation.replies if episode.turns else episode.opening.replies)}
    if unseen := known - shown - last:
        owner, ids = min(unseen)
        return f"{len(unseen)} observations on record were never shown, one of the {owner}: {tokenizer.decode(ids)[:40]!r}"
    return _subagents(trace, tokenizer)


def _strange(segments: Sequence[Segment], parent: Sequence[Segment], known: set[tuple[str, tuple[int, ...]]],
             tokenizer: ChatTokenizer) -> Iterator[str]:
    """What a context shows that neither its parent does, nor anybody is on record to have said."""
    before = {(segment.owner, segment.token_ids) for segment in parent}
    own = {segment.token_ids for segment in parent if segment.owner in ("policy", "history")}
    said = [tokenizer.decode(_ids(turn)) for turn in turns_of(parent)][-1:]
    asked = {("user", tokenizer.encode_plain(SUMMARISE))}
    for place, segment in enumerate(segments[1:], start=1):
        if segment.owner == "history" and segment.token_ids not in own:
            text = tokenizer.decode(segment.token_ids)
            if not any(turn.endswith(text) for turn in said):
                yield f"shows as the policy's own words {text[:40]!r}, which were not sampled in the context it came from"
        elif segment.owner in SAID and (segment.owner, segment.token_ids) not in known | before | asked:
            yield f"shows {tokenizer.decode(segment.token_ids)[:40]!r} at segment {place}, which the {segment.owner} never said"


def _summed(parent: Sequence[Segment], trace: Trace, tokenizer: ChatTokenizer) -> set[tuple[str, tuple[int, ...]]]:
    """What the policy wrote last in a context, as the next one tells it."""
    turns = list(turns_of(parent))
    if not turns or trace.episode is None:
        return set()
    written = dialect(trace.episode.dialect).parse(tokenizer.decode(_ids(turns[-1])), ()).text
    return {("environment", tokenizer.encode_plain(SUMMARY.format(written)))}


def _subagents(trace: Trace, tokenizer: ChatTokenizer) -> str:
    """How a subagent's context differs from what it was asked, or its report from what it said; empty when neither does."""
    episode = trace.episode
    assert episode is not None
    asked = [(str(call.arguments["task"]), reply) for turn in episode.turns for call, reply in _delegated(turn.action.calls,
             turn.observation.replies) if call.name == DELEGATE.name and reply.owner == "subagent"
             and reply.error != "call_limit"]
    held = [part for part in trace.parts if part.kind == "subagent"]
    if len(asked) != len(held):
        return f"{len(asked)} calls went to subagents, {len(held)} contexts of subagents are on record"
    for number, ((task, reply), part) in enumerate(zip(asked, held, strict=True), start=1):
        if task not in tokenizer.decode(part.segments[0].token_ids):
            return f"subagent {number} was not shown what it was asked, {task[:40]!r}"
        turns = list(turns_of(part.segments))
        said = dialect(episode.dialect).parse(tokenizer.decode(_ids(turns[-1])) if turns else "", ()).text
        if reply.error is None and reply.content != said:
            return f"subagent {number} is told to have said {reply.content[:40]!r}, it wrote {said[:40]!r}"
    return ""


def _delegated(calls: Sequence, replies: Sequence[Reply]) -> Iterator[tuple]:  # type: ignore[type-arg]
    """Each call with the reply that names it."""
    by_call = {reply.call: reply for reply in replies}
    return ((call, by_call[call.id]) for call in calls if call.id in by_call)


def _ids(turn: Sequence[Segment]) -> tuple[int, ...]:
    return tuple(token for segment in turn for token in segment.token_ids)
