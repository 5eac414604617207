"""The ten parts of a release that somebody else could run again, and what the sources say of each for a system.

A claim speaks of an artifact and is none: what is described here may still be unavailable. `rollbook export` holds a run's own
artifacts against the same ten parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rollbook.evidence.claims import Claim
from rollbook.evidence.matrix import about, aspect, says
from rollbook.evidence.registry import Registry

Status = Literal["described", "in part", "inferred", "withheld", "not spoken of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One of the ten parts and which claims speak of it. A claim may speak of several."""

    number: int
    title: str
    covers: Callable[[Claim], bool]


def _stages(*stages: str) -> Callable[[Claim], bool]:
    return lambda claim: claim.stage in stages


def _words(*words: str) -> Callable[[Claim], bool]:
    return lambda claim: says(claim.quantity, words)


def _any(*rules: Callable[[Claim], bool]) -> Callable[[Claim], bool]:
    return lambda claim: any(rule(claim) for rule in rules)


PARTS: tuple[Part, ...] = (
    Part(number=1, title="Task identifiers, raw and filtered", covers=lambda claim: aspect(claim) == "data"),
    Part(number=2, title="Synthesis prompts, teachers and their sampling",
         covers=_words("synth*", "teacher", "trace", "generator", "candidate", "rejection", "annotat*", "grader", "curation")),
    Part(number=3, title="Environment images, reset, network and tool schemas", covers=_stages("environment")),
    Part(number=4, title="Verifier sources, hidden tests, timeouts, judge prompts",
         covers=lambda claim: claim.stage == "reward" or says(claim.quantity, ("verif*", "judge", "hidden_test", "grader"))),
    Part(number=5, title="Every mixture and mask",  # weights of a mixture or of rewards, not those of a model
         covers=lambda claim: claim.stage != "release" and says(claim.quantity,
                                                                ("mixture", "mix", "mask", "share", "weights", "mixed"))),
    Part(number=6, title="Rollout log-probs, versions, queue policy and staleness limit",
         covers=_words("stale*", "queue", "async*", "lag", "partial_rollout*", "logprob", "age", "admission", "concurren*",
                       "off_policy", "generators", "weight_update", "mid_generation*", "version_span*", "weight_broadcast")),
    Part(number=7, title="Model, optimizer, scheduler, precision, parallelism, seeds",
         covers=_any(_stages("architecture"),
                     _words("optimizer", "learning_rate", "warmup", "schedule", "precision", "parallelism", "seed", "beta1",
                            "beta2", "weight_decay", "max_grad_norm"))),
    Part(number=8, title="Reward and value models, checkpoint selection rules",
         covers=_any(_stages("reward_model"), _words("value", "critic", "checkpoint", "start_choice", "averaging", "selection"))),
    Part(number=9, title="Hardware, failures, restarts, times", covers=lambda claim: aspect(claim) == "hardware"),
    Part(number=10, title="Evaluation scaffold, budget and aggregation", covers=_stages("evaluation")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartScore:
    """What the sources say of one part."""

    number: int
    title: str
    claims: tuple[Claim, ...]

    @property
    def status(self) -> Status:
        labels = {claim.label for claim in self.claims}
        if labels & {"D", "C", "R"}:
            return "in part" if "U" in labels else "described"
        return "inferred" if "I" in labels else "withheld" if labels else "not spoken of"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The ten parts of one release. `described` counts the parts of which anything is disclosed or visible.

    Example: str(score(builtin(), "magistral-small")) == "8 of 10 parts described, 4 of them whole"
    """

    release: str
    parts: tuple[PartScore, ...]

    @property
    def described(self) -> int:
        return sum(part.status in ("described", "in part") for part in self.parts)

    def __str__(self) -> str:
        whole = sum(part.status == "described" for part in self.parts)
        return f"{self.described} of {len(self.parts)} parts described, {whole} of them with nothing said to be unknown"


def score(registry: Registry, release: str) -> Score:
    """The ten-part score of a release, from every claim that is about it or may be used for it."""
    wanted = registry.release(release).id
    return of_claims(wanted, about(registry)[wanted])


def of_claims(release: str, claims: Sequence[Claim]) -> Score:
    """The score of a release from its claims."""
    return Score(release=release, parts=tuple(
        PartScore(number=part.number, title=part.title, claims=tuple(claim for claim in claims if part.covers(claim)))
        for part in PARTS))
