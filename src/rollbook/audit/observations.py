"""What an environment said against what the policy was shown, token by token."""

from __future__ import annotations

from rollbook.models.tokenizer import ChatTokenizer
from rollbook.records import Trace

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
