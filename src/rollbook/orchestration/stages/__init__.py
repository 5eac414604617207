"""The kinds of stage of a pipeline, one module each, and the one place that says which module runs which kind."""

from __future__ import annotations

from typing import assert_never

from rollbook.orchestration.session import Session
from rollbook.orchestration.stages import (
    comparisons,
    conversations,
    distill,
    evaluation,
    lessons,
    merge,
    pass_rate,
    policy_gradient,
    preference,
    prune,
    rejection_sampling,
    revise,
    reward_model,
    supervised,
)
from rollbook.orchestration.state import StepState
from rollbook.records.recipe import (
    Comparisons,
    Conversations,
    Distill,
    Evaluate,
    Lessons,
    Merge,
    PassRate,
    PolicyGradient,
    Preference,
    Prune,
    RejectionSampling,
    Revise,
    RewardModel,
    Sft,
    Stage,
)


def run_stage(session: Session, name: str, stage: Stage, state: StepState | None) -> None:
    """Runs one stage to its end; `state` is where an interrupted run of it stood."""
    match stage:
        case Evaluate():
            evaluation.run(session, name, stage)
        case Sft():
            supervised.run(session, name, stage, state)
        case PassRate():
            pass_rate.run(session, name, stage)
        case PolicyGradient():
            policy_gradient.run(session, name, stage, state)
        case RejectionSampling():
            rejection_sampling.run(session, name, stage)
        case Comparisons():
            comparisons.run(session, name, stage)
        case Conversations():
            conversations.run(session, name, stage)
        case Revise():
            revise.run(session, name, stage)
        case Lessons():
            lessons.run(session, name, stage)
        case RewardModel():
            reward_model.run(session, name, stage, state)
        case Preference():
            preference.run(session, name, stage, state)
        case Distill():
            distill.run(session, name, stage, state)
        case Prune():
            prune.run(session, name, stage)
        case Merge():
            merge.run(session, name, stage)
        case _:
            assert_never(stage)


def steps_of(stage: Stage) -> int:
    """How many steps a stage shows in its progress."""
    return stage.steps if isinstance(stage, (Sft, PolicyGradient, RewardModel, Preference, Distill)) else 1
