"""The steps of episodes as a credit rule over steps sees them: what the environment had shown, what followed, which tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rollbook.records import Experience, Observation, RecordError


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """K steps of all sequences, end to end. A step is one turn of the policy; the verdict's reward is that of its last step.

    `state_K` numbers what the environment had shown last: before the first turn its opening, then the replies to the turn before.
    An environment's inner state is not looked at, so that this stands for it; nothing in it counts steps or time.
    """

    reward_K: Tensor
    state_K: Tensor
    seq_K: Tensor
    step_T: Tensor


def steps_of(members: Sequence[Experience]) -> Steps:
    """The steps of single-context episodes; an answer without an environment is one step."""
    rewards: list[float] = []
    states: list[int] = []
    sequences: list[int] = []
    tokens: list[int] = []
    numbers: dict[object, int] = {}
    for place, member in enumerate(members):
        turns = _turns(member)
        if sum(count for _, count in turns) != member.trace.learnt_count:
            raise RecordError("the turns of an episode do not hold its trained tokens",
                              got=f"{sum(count for _, count in turns)} of {member.trace.learnt_count} in {member.trace.attempt}",
                              why="every token belongs to one step", fix="use credit per sequence where attempts have contexts")
        for number, (shown, count) in enumerate(turns, start=1):
            rewards.append(member.verdict.vector.total if number == len(turns) else 0.0)
            states.append(numbers.setdefault(_state(shown), len(numbers)))
            tokens += [len(sequences)] * count
            sequences.append(place)
    return Steps(reward_K=torch.tensor(rewards, dtype=torch.float64), state_K=torch.tensor(states, dtype=torch.long),
                 seq_K=torch.tensor(sequences, dtype=torch.long), step_T=torch.tensor(tokens, dtype=torch.long))


def _turns(member: Experience) -> list[tuple[Observation, int]]:
    """What was shown before each turn of the policy, and how many tokens the turn has."""
    episode = member.trace.episode
    if episode is None or not episode.turns:
        return [(Observation(), member.trace.learnt_count)]
    shown = (episode.opening, *(turn.observation for turn in episode.turns[:-1]))
    return [(before, turn.tokens) for before, turn in zip(shown, episode.turns, strict=True)]


def _state(shown: Observation) -> object:
    return tuple((reply.owner, reply.content, reply.error) for reply in shown.replies)
