"""Steps of episodes by hand: what was shown is the state, the last step has the reward, advantages are the paper's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rollbook.audit.step_advantages import step_credit
from rollbook.experience.steps import steps_of
from rollbook.objectives.credit import Measured, StepGroups, assign_credit
from rollbook.records import (
    Action,
    AttemptId,
    Episode,
    Experience,
    FinalState,
    Observation,
    RecordError,
    Reply,
    RewardVector,
    Scored,
    Segment,
    TaskId,
    Trace,
    Turn,
)


def member(name: str, shown: list[str], reward: float, *, tokens: int = 2) -> Experience:
    """An episode of one turn more than `shown` has replies, each of two tokens."""
    seen = [Observation(replies=(Reply(owner="tool", content=text),)) for text in shown] + [Observation(ended="answered")]
    turns = tuple(Turn(action=Action(text="x"), misfits=(), observation=one, part=0, tokens=tokens, acted=True) for one in seen)
    said = [Segment(owner="policy", token_ids=(7, 2), logps=(-0.5, -0.5), version=0) for _ in turns]
    heard = [Segment(owner="tool", token_ids=(3,)) for _ in shown]
    between = [segment for pair in zip(said, [*heard, None], strict=True) for segment in pair if segment is not None]
    trace = Trace(attempt=AttemptId(f"rl/000001/0/0/T/{name}"), task=TaskId("Task:1"), group="g", envelope="E",
                  segments=(Segment(owner="user", token_ids=(5,)), *between), stop_reason="terminal", text="x",
                  episode=Episode(environment="EnvironmentSpec:1", seed=0, dialect="fenced", reasoning="keep",
                                  opening=Observation(), turns=turns, state=FinalState()))
    vector = RewardVector(components=(), absent=(), composition="c", composition_digest="d", total=reward, accuracy=reward)
    return Experience(trace=trace, verdict=Scored(trace=trace.id, vector=vector))


MEMBERS = [member("a", ["door"], 1.0), member("b", ["door"], 0.0), member("c", ["wall", "door"], 1.0)]


def test_a_state_is_what_was_shown_last_whenever_that_was() -> None:
    steps = steps_of(MEMBERS)
    assert steps.state_K.tolist() == [0, 1, 0, 1, 0, 2, 1] and steps.seq_K.tolist() == [0, 0, 1, 1, 2, 2, 2]
    assert steps.reward_K.tolist() == [0, 1, 0, 0, 0, 0, 1]
    assert steps.step_T.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]


def test_the_advantage_of_a_step_is_the_attempts_plus_that_among_the_visits_of_its_state_and_the_audit_finds_it_too() -> None:
    rule = StepGroups(gamma=0.5, omega=2.0, normalizer="one")
    steps, reward_S = steps_of(MEMBERS), torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    seq_T = torch.repeat_interleave(torch.arange(3), torch.tensor([4, 4, 6]))
    found = assign_credit(rule, Measured(reward_S=reward_S, group_S=torch.zeros(3, dtype=torch.long), seq_T=seq_T,
                                         step_reward_K=steps.reward_K, step_state_K=steps.state_K, step_seq_K=steps.seq_K,
                                         step_T=steps.step_T)).advantage_T
    begin, door = [0.5, 0.0, 0.25], [1.0, 0.0, 1.0]         # discounted returns of the three visits of either state
    due = [1 / 3 + 2 * (begin[0] - 0.25), 1 / 3 + 2 * (door[0] - 2 / 3), -2 / 3 + 2 * (begin[1] - 0.25),
           -2 / 3 + 2 * (door[1] - 2 / 3), 1 / 3 + 2 * (begin[2] - 0.25), 1 / 3, 1 / 3 + 2 * (door[2] - 2 / 3)]
    assert found.tolist() == pytest.approx([value for value in due for _ in range(2)])
    document = {"kind": "StepGroups", "gamma": 0.5, "omega": 2.0, "normalizer": "one"}
    again = step_credit(document, reward_S.tolist(), [one.trace for one in MEMBERS])
    assert again is not None and np.allclose(again, found.numpy())
    deviating = step_credit({**document, "normalizer": "std", "eps": 0.0, "ddof": 0}, reward_S.tolist(),
                            [one.trace for one in MEMBERS])
    assert deviating is not None and np.isfinite(deviating).all()


def test_turns_that_do_not_hold_the_trained_tokens_are_refused() -> None:
    with pytest.raises(RecordError, match="do not hold"):
        steps_of([member("a", ["door"], 1.0, tokens=1)])
