"""Stages 6-7: the request as it was made and the trajectory as it happened."""

from __future__ import annotations

import base64
import hashlib
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import ClassVar, Literal, NewType

from rollbook.records.codec import SPARSE, content_id
from rollbook.records.episode import Episode, PartKind
from rollbook.records.errors import RecordError
from rollbook.records.tasks import Owner, TaskId

UNSAMPLED = -1          # stands for the version of tokens that no policy sampled, where a batch trains on them all the same

TraceId = NewType("TraceId", str)
AttemptId = NewType("AttemptId", str)
# The last row is of episodes with an environment: it ended them, or a budget of theirs did; "end_of_turn" is then the answer.
StopReason = Literal["end_of_turn", "stop_string", "length", "context_full", "cancelled", "failed",
                     "terminal", "gave_up", "turn_limit", "call_limit", "time_limit", "environment_failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingEnvelope:
    """Stage 6: everything that decides what "the same model" may spend. Comparisons need equal envelopes.

    `policy` is the weight hash (None where a recorded host did not show its weights), `top_k` 0 and `min_p` 0.0 mean off,
    `temperature` 0.0 means greedy.

    Example: SamplingEnvelope(policy="3f..", temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=1, max_tokens=64,
        max_turns=1, max_seconds=None, stop=(), template="b2..", scaffold="single_turn/1")
    """

    SCHEMA: ClassVar[int] = 1
    policy: str | None
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    max_tokens: int
    max_turns: int
    max_seconds: float | None
    stop: tuple[str, ...]
    template: str
    scaffold: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFile:
    """The tokenizer and template a run speaks with: their digests, and the blob that holds both.

    Example: TokenizerFile(tokenizer="a1..", template="b2..", blob="77..")
    """

    SCHEMA: ClassVar[int] = 1
    tokenizer: str
    template: str
    blob: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """Attempts as they were issued, logged before the first token: `samples` at each of `tasks`, under one envelope.

    The attempts are named `scope/place/task/sample`, place and sample counting from 0. `envelope` is None only where a recorded
    host did not show how it samples.

    Example: Dispatch(scope="rl/000001/0", tasks=("Task:1f",), samples=8, envelope="SamplingEnvelope:9c")
    """

    SCHEMA: ClassVar[int] = 1
    scope: str
    tasks: tuple[str, ...]
    samples: int
    envelope: str | None

    def attempts(self) -> Iterator[tuple[AttemptId, str]]:
        """Every attempt with its task."""
        for place, task in enumerate(self.tasks):
            for sample in range(self.samples):
                yield AttemptId(f"{group_name(self.scope, place, task)}/{sample}"), task


def group_name(scope: str, place: int, task: str) -> str:
    """The name of the attempts at the task in this place of a dispatch."""
    return f"{scope}/{place}/{task}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotExposed:
    """Stands for numbers that exist in a host program and that it did not show; false, so that `logps or ()` is what there is."""

    def __bool__(self) -> Literal[False]:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive tokens of one owner and, for the policy's own, of one policy version.

    `logps` are the engine's log-probabilities at sampling temperature, in nats; None for tokens nobody sampled,
    `NotExposed()` for sampled tokens of a recorded host that did not show them. `hidden` counts tokens of which nothing but their
    number is known, as an endpoint states it that answers in text; then there are no ids and no version.

    Example: Segment(owner="policy", token_ids=(17, 2), logps=(-0.5, -0.01), version=3)
    """

    owner: Owner
    token_ids: tuple[int, ...]
    logps: tuple[float, ...] | NotExposed | None = None
    version: int | None = None
    hidden: int = field(default=0, metadata=SPARSE)

    def __post_init__(self) -> None:
        if self.hidden:
            shown = self.logps if self.owner != "policy" else None if isinstance(self.logps, NotExposed) else "no NotExposed()"
            if self.hidden < 0 or self.token_ids or self.version is not None or shown is not None:
                raise RecordError("hidden tokens have a number and neither ids, log-probs nor a version",
                                  got=f"{self.hidden} of the {self.owner}, {len(self.token_ids)} ids, version {self.version}")
        elif self.owner == "policy" and isinstance(self.logps, NotExposed):
            if not self.token_ids or self.version is None:
                raise RecordError("a policy segment without its log-probs has tokens and a policy version",
                                  got=f"{len(self.token_ids)} tokens, version {self.version}")
        elif self.owner == "policy":
            known = self.logps or ()
            if self.logps is None or self.version is None or len(known) != len(self.token_ids):
                got = "none" if self.logps is None else str(len(known))
                raise RecordError("a policy segment needs one log-prob per token and a policy version",
                                  got=f"{len(self.token_ids)} tokens, {got} log-probs, version {self.version}")
        elif self.logps is not None or self.version is not None:
            raise RecordError("only the policy's own tokens carry log-probs and a version", got=self.owner)

    @property
    def count(self) -> int:
        """Its tokens, shown or not."""
        return len(self.token_ids) + self.hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A context of an attempt besides the one it ended in, with what was sampled there.

    `parent` is the context that it came from: 0 the attempt's last one, n its part n - 1; None where it was the first.

    Example: Part(kind="compacted", parent=None, segments=(Segment(...), ...), stop_reason="end_of_turn", sampled=("5d..",))
    """

    kind: PartKind
    parent: int | None
    segments: tuple[Segment, ...]
    stop_reason: StopReason
    sampled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the engine decided while it sampled, so that the learner can decide the same (DeepSeek V3.2, 2512.02556 section 3.1).

    `support` holds the ids that each sampled token was drawn from, `counts` of them a token (Keep Sampling Mask); `routes` the
    experts that every position took whose keys and values were computed, the prompt's first, position by position and layer by
    layer (Keep Routing, R3 of 2510.11370). Both are base64 of little-endian numbers, int32 and int16; empty: not kept.

    Example: Kept(support="AwAAABEAAAACAAAA", counts=(2, 1))       # the first token from {3, 17}, the second from {2}
    """

    support: str = ""
    counts: tuple[int, ...] = ()
    routes: str = ""

    @classmethod
    def of(cls, *, ids: array[int] | None, counts: tuple[int, ...] = (), routes: array[int] | None = None) -> Kept:
        """Numbers as they are written down."""
        return cls(support="" if ids is None else _text(ids), counts=counts, routes="" if routes is None else _text(routes))

    @property
    def ids(self) -> array[int]:
        """The ids of all supports, one token's after the other's."""
        return _numbers("i", self.support)

    @property
    def experts(self) -> array[int]:
        """The experts of all positions."""
        return _numbers("h", self.routes)


def _text(numbers: array[int]) -> str:
    ordered = numbers if sys.byteorder == "little" else array(numbers.typecode, numbers)
    if ordered is not numbers:
        ordered.byteswap()
    return base64.b64encode(ordered.tobytes()).decode()


def _numbers(code: Literal["i", "h"], text: str) -> array[int]:
    found = array(code)
    try:
        found.frombytes(base64.b64decode(text, validate=True))
    except ValueError as error:
        raise RecordError("what was kept of sampling is not base64 of whole numbers", got=str(error)) from error
    if sys.byteorder != "little":
        found.byteswap()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Stage 7: one trajectory. The first segment is the prompt; text is `text`, kept beside the ids, never re-tokenised.

    `episode` is what happened in the environment, None for a single answer. `parts` are the attempt's other contexts in the order
    they were opened, those it was compacted or split from and its subagents'; `segments` is the one it ended in.
    `group` joins the attempts that share a baseline. `sampled` holds, for each turn of the policy, the hash that the engine made
    of its tokens as it sampled them (`sampled_hash`); empty where the engine gave none. `kept` is what its stage asked the engine
    to keep for the learner. `subagents_learn` is set by `with_subagents` alone. `envelope` is None only where a recorded
    host did not show how it samples. `observed` holds latency_s and the like, outside the id.

    Example: Trace(attempt="rl/000001/0/Task:1f/2", task="Task:1f..", group="rl/000001/0/Task:1f", envelope="SamplingEnvelope:9c",
        segments=(Segment(owner="user", token_ids=(5, 6)), Segment(owner="policy", token_ids=(17, 2), logps=(-.5, -.01),
        version=3)), sampled=("5d..",), stop_reason="end_of_turn", text="7")
    """

    SCHEMA: ClassVar[int] = 3
    attempt: AttemptId
    task: TaskId
    group: str
    envelope: str | None
    segments: tuple[Segment, ...]
    stop_reason: StopReason
    text: str
    sampled: tuple[str, ...] = ()
    observed: Mapping[str, float] = field(default_factory=dict)
    episode: Episode | None = field(default=None, metadata=SPARSE)
    parts: tuple[Part, ...] = field(default=(), metadata=SPARSE)
    kept: Kept | None = field(default=None, metadata=SPARSE)
    subagents_learn: bool = field(default=False, metadata=SPARSE)

    @property
    def id(self) -> TraceId:
        return TraceId(content_id(self))

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return self.segments[0].token_ids

    @property
    def prompt_count(self) -> int:
        """Tokens of the prompt, shown or not."""
        return self.segments[0].count

    @property
    def policy_segments(self) -> Iterator[Segment]:
        return (segment for segment in self.segments if segment.owner == "policy")

    @property
    def turns(self) -> Iterator[tuple[Segment, ...]]:
        """The policy's turns in its last context: runs of its segments with nobody else's in between."""
        return turns_of(self.segments)

    @property
    def action_count(self) -> int:
        return sum(segment.count for segment in self.policy_segments)

    @property
    def sampled_count(self) -> int:
        """Tokens that the policy sampled in all contexts of the attempt, its subagents' as well."""
        return self.action_count + sum(one.count for part in self.parts for one in part.segments if one.owner == "policy")

    @property
    def read_count(self) -> int:
        """Tokens of the prompts that its contexts began with, shown or not."""
        return self.prompt_count + sum(part.segments[0].count for part in self.parts)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token for segment in self.segments for token in segment.token_ids)

    def as_if_written(self) -> Trace:
        """The trajectory as if the policy had written all that follows the prompt: what others said has log-prob 0 (it was
        certain) and the version `UNSAMPLED`. For `PolicyGradient.observation_loss` alone; its id is another.
        """
        rest = (segment if segment.owner == "policy" else
                Segment(owner="policy", token_ids=segment.token_ids, logps=(0.0,) * len(segment.token_ids), version=UNSAMPLED)
                for segment in self.segments[1:])
        return replace(self, segments=(self.segments[0], *rest))

    def with_subagents(self) -> Trace:
        """The trajectory as it is learnt where subagents are trained beside the one that called them; its id is another."""
        return replace(self, subagents_learn=True) if self.parts else self

    @property
    def learnt_parts(self) -> tuple[int, ...]:
        """Numbers of the contexts that are trained, as `Part` counts them, in the order they were opened; the last one is 0.

        Not trained are subagents, unless `subagents_learn`, and, where reasoning is stripped and not split, contexts that
        still held it; nor is a context in which the policy said nothing, unless there is no other.
        """
        if not self.parts:
            return (0,)
        strips = self.episode is not None and self.episode.reasoning == "strip"
        taken = {"compacted": True, "context": not strips, "subagent": self.subagents_learn}
        own = [number for number, part in enumerate(self.parts, start=1) if taken[part.kind] and _spoke(part.segments)]
        return (*own, 0) if not own or _spoke(self.segments) else tuple(own)

    def contexts(self) -> tuple[Trace, ...]:
        """The attempt as one trajectory for each context that is trained, each without parts; itself where there is but one."""
        if not self.parts:
            return (self,)
        return tuple(replace(self, parts=()) if not number else self._of_part(self.parts[number - 1])
                     for number in self.learnt_parts)

    def _of_part(self, part: Part) -> Trace:
        return replace(self, segments=part.segments, stop_reason=part.stop_reason, sampled=part.sampled, parts=(), episode=None)

    def segments_of(self, number: int) -> tuple[Segment, ...]:
        """A context by its number: 0 the last one, n that of part n - 1."""
        return self.parts[number - 1].segments if number else self.segments

    @property
    def learnt_segments(self) -> Iterator[Segment]:
        """What the policy sampled in the contexts that are trained, one context after the other."""
        return (segment for number in self.learnt_parts for segment in self.segments_of(number) if segment.owner == "policy")

    @property
    def learnt_count(self) -> int:
        """Action tokens that are trained, over all contexts: the attempt is one sequence, however often it was compacted."""
        return self.action_count if not self.parts else sum(segment.count for segment in self.learnt_segments)

    @property
    def shown_count(self) -> int:
        """All tokens of the contexts that are trained: prompts, actions and observations."""
        return sum(len(segment.token_ids) for number in self.learnt_parts for segment in self.segments_of(number))

    @property
    def sampled_segments(self) -> Iterator[Segment]:
        """What the policy sampled in any context, trained or not, its subagents' too."""
        return (segment for number in range(len(self.parts) + 1) for segment in self.segments_of(number)
                if segment.owner == "policy")

    @property
    def spent(self) -> int:
        """Tokens that the policy sampled against the attempt's budget: in all its contexts, its subagents' too."""
        return self.sampled_count

    def misfit_tokens(self) -> tuple[int, ...]:
        """Places, among the trajectory's trained action tokens, of those that stand in calls that could not be made."""
        found: list[int] = []
        turns = self.episode.turns if self.episode is not None else ()
        start = 0
        for number in self.learnt_parts if turns else ():
            at = start
            for turn in turns:
                if turn.part == number:
                    found += [at + place for one in turn.misfits for place in range(one.start, one.start + one.length)]
                    at += turn.tokens
            start += sum(segment.count for segment in self.segments_of(number) if segment.owner == "policy")
        return tuple(found)


def turns_of(segments: Sequence[Segment]) -> Iterator[tuple[Segment, ...]]:
    """The policy's turns in a context."""
    for owner, run in groupby(segments, key=lambda segment: segment.owner):
        if owner == "policy":
            yield tuple(run)


def _spoke(segments: Sequence[Segment]) -> bool:
    return any(segment.owner == "policy" and segment.count for segment in segments)


def sampled_hash(token_ids: Sequence[int], logps: Sequence[float], versions: Sequence[int]) -> str:
    """SHA-256 over a turn's tokens as the engine sampled them: ids and versions as int32, log-probs as float32, little-endian.

    Shortened to 128 bits: one stands in every trace.
    """
    parts = (array("i", token_ids), array("f", logps), array("i", versions))
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:32]
