"""A plain training loop without a model, as small as a host can be."""

from __future__ import annotations

from rollbook.adapters import Recorder, RewardParts, Rollouts, Sampled
from rollbook.records import HostTask, SamplingEnvelope, VerifierStamp

TASKS = [HostTask(family="sums", prompt=f"{n} + 1 =", reference=str(n + 1)) for n in range(3)]
ENVELOPE = SamplingEnvelope(policy=None, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=1, max_tokens=4, max_turns=1,
                            max_seconds=None, stop=(), template="plain text", scaffold="my loop/1")
STAMP = VerifierStamp(name="right", version="1", digest="77")
RIGHT = RewardParts(name="my_reward/1", weights={"right": 1.0}, verifiers={"right": STAMP})
TWO = RewardParts(name="my_reward/2", weights={"right": 1.0, "short": 0.5}, verifiers={"right": STAMP, "short": STAMP})


def begun(path, **changes) -> Recorder:
    return Recorder.create(path, **{"host": "my loop", "version": "1", "publishes": False, **changes})


def answered(attempt, place, **changes) -> Sampled:
    values = {"attempt": attempt, "prompt_ids": (5, 6), "token_ids": (7 + place, 2), "text": str(place), "version": 0,
              "stop_reason": "end_of_turn"}
    return Sampled(**{**values, **changes})


def rolled(recorder: Recorder, number: int, tasks=TASKS, samples=2, **changes) -> list:
    """One step's rollouts with a reward of 0 and 1 in turn; the names of its attempts."""
    with recorder.rollouts(f"rl/{number:06d}", reward=RIGHT) as rollouts:
        return fill(rollouts, tasks, samples, **changes)


def fill(rollouts: Rollouts, tasks=TASKS, samples=2, **changes) -> list:
    attempts = rollouts.issue(tasks, samples, ENVELOPE)
    rollouts.sampled(answered(attempt, place, **changes) for place, attempt in enumerate(attempts))
    rollouts.rewarded({attempt: float(place % 2) for place, attempt in enumerate(attempts)})
    return attempts


def trained(recorder: Recorder, number: int) -> list:
    """One step of the loop: rollouts and their update."""
    attempts = rolled(recorder, number)
    recorder.update(number, trained=attempts, numbers={"loss": 0.5, "grad_norm": 1.0, "learning_rate": 1e-5})
    return attempts
