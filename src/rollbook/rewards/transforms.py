"""Reward transforms of the papers: from scores, labels and lengths to the scalar that credit assignment reads.

Suffix: S responses (a batch unless a line says otherwise). Plain floats, no tensors, no settings read. A record's fields are
the paper's numbers; a field without a default is not printed. Labels: D disclosed, I inference, U unknown.

The per-token KL that several papers subtract is `objectives.credit.token_rewards`; Magistral's reward is `rewards.magistral`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from rollbook.rewards.errors import RewardError
from rollbook.rewards.inputs import check_counts, check_labels, check_numbers, check_scores
from rollbook.rewards.magistral import length_penalty


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Count, mean and sum of squared deviations of some numbers; merging ranks' moments gives those of the whole batch."""

    count: int
    mean: float
    squared: float

    def std(self, ddof: int) -> float:
        """sqrt(squared / (count - ddof))."""
        check_counts("Moments.std", ddof=ddof)
        if self.count <= ddof:
            raise RewardError(f"a standard deviation with ddof {ddof} needs more than {ddof} values", got=str(self.count),
                              why="it divides by count - ddof", fix="whiten a larger batch, or use ddof 0")
        return math.sqrt(self.squared / (self.count - ddof))


def moments(value_S: Sequence[float]) -> Moments:
    """The moments of one shard; exact rounding of both sums. Equal numbers have squared deviation exactly 0."""
    _finite("moments", value_S)
    if not value_S:
        return Moments(count=0, mean=0.0, squared=0.0)
    if min(value_S) == max(value_S):
        return Moments(count=len(value_S), mean=value_S[0], squared=0.0)
    mean = math.fsum(value_S) / len(value_S)
    return Moments(count=len(value_S), mean=mean, squared=math.fsum((value - mean) ** 2 for value in value_S))


def merged(parts: Iterable[Moments]) -> Moments:
    """The moments of all shards together."""
    filled = [part for part in parts if part.count]
    count = sum(part.count for part in filled)
    if not filled:
        return Moments(count=0, mean=0.0, squared=0.0)
    means = {part.mean for part in filled}
    mean = filled[0].mean if len(means) == 1 else math.fsum(part.count * part.mean for part in filled) / count
    between = math.fsum(part.count * (part.mean - mean) ** 2 for part in filled)
    return Moments(count=count, mean=mean, squared=between + math.fsum(part.squared for part in filled))


def whitened(value_S: Sequence[float], over: Moments, *, ddof: int) -> tuple[float, ...]:
    """(value - mean) / std with the moments of the whole batch; a batch of equal values is exactly 0 [I]."""
    if not value_S:
        return ()
    _finite("whitened", value_S)
    std = over.std(ddof)
    if std == 0.0:
        return (0.0,) * len(value_S)
    return tuple((value - over.mean) / std for value in value_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama2Reward:
    """Llama 2's RLHF reward (2307.09288 section 3.2.3), before its KL penalty (beta 0.01 for 7B and 13B, 0.005 above [D]).

        s = R_safe  if safety-tagged or R_safe < threshold  else R_help        (strict; probabilities, not logits)
        w = (z - mean(z)) / std(z),   z = log(s / (1 - s))                     (logit first, then one whitening of all)

    U: `clamp` keeps s in clamp .. 1-clamp so that z is finite (0 refuses s of 0 or 1); `ddof`; what tags a prompt as safety.
    """

    threshold: float = 0.15
    clamp: float
    ddof: int

    def __post_init__(self) -> None:
        check_numbers("Llama2Reward", threshold=self.threshold, clamp=self.clamp)
        check_counts("Llama2Reward", ddof=self.ddof)
        if not 0 <= self.clamp < 0.5 or not 0 <= self.threshold <= 1 or self.ddof > 1:
            raise RewardError("Llama2Reward needs 0 <= clamp < 0.5, 0 <= threshold <= 1 and ddof 0 or 1",
                              got=f"clamp {self.clamp}, threshold {self.threshold}, ddof {self.ddof}",
                              why="scores are probabilities and the clamp cuts both ends of 0 .. 1")

    def gate(self, safe_S: Sequence[float], helpful_S: Sequence[float], safety_S: Sequence[bool]) -> tuple[float, ...]:
        """s of each response."""
        _same_length("Llama2Reward", safe=safe_S, helpful=helpful_S, safety=safety_S)
        check_labels("Llama2Reward", safety=safety_S)
        _probabilities("Llama2Reward", (*safe_S, *helpful_S))
        return tuple(safe if tagged or safe < self.threshold else helpful
                     for safe, helpful, tagged in zip(safe_S, helpful_S, safety_S, strict=True))

    def logits(self, score_S: Sequence[float]) -> tuple[float, ...]:
        """z of each gated score; what each rank takes `moments` of."""
        clamped_S = [min(max(score, self.clamp), 1 - self.clamp) for score in score_S]
        if any(not 0 < score < 1 for score in clamped_S):
            raise RewardError("a score of 0 or 1 has no logit", got=f"clamp {self.clamp}",
                              why="log(s / (1 - s)) is infinite there", fix="set clamp to a small positive number, e.g. 1e-6")
        return tuple(math.log(score) - math.log1p(-score) for score in clamped_S)

    def __call__(self, safe_S: Sequence[float], helpful_S: Sequence[float], safety_S: Sequence[bool]) -> tuple[float, ...]:
        """w of the whole batch, both branches of the gate together."""
        logit_S = self.logits(self.gate(safe_S, helpful_S, safety_S))
        return whitened(logit_S, moments(logit_S), ddof=self.ddof)


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen25MathShaping:
    """Qwen2.5-Math (2409.12122): sigma(slope s) + (v - 1), v = 1 if verified correct; any correct answer >= any wrong one."""

    slope: float = 0.5

    def __post_init__(self) -> None:
        check_numbers("Qwen25MathShaping", slope=self.slope)
        if not self.slope > 0:
            raise RewardError("Qwen25MathShaping.slope must be finite and > 0", got=str(self.slope),
                              why="a better score must not lower the reward")

    def __call__(self, score_S: Sequence[float], correct_S: Sequence[bool]) -> tuple[float, ...]:
        _same_length("Qwen25MathShaping", score=score_S, correct=correct_S)
        _finite("Qwen25MathShaping", score_S)
        check_labels("Qwen25MathShaping", correct=correct_S)
        return tuple(sigmoid(self.slope * score) + (1.0 if correct else 0.0) - 1.0
                     for score, correct in zip(score_S, correct_S, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiK15Length:
    """Kimi k1.5's length reward (2501.12599 section 2.3.3), added to the reward; min and max over the responses of one prompt.

        lambda = 0.5 - (len - min) / (max - min);   weight * (lambda if correct else min(0, lambda));   0 when max = min

    U: `weight`, and `start_step`, the first step (from 0) at which it is switched on after the initial phase [D].
    """

    weight: float
    start_step: int

    def __post_init__(self) -> None:
        check_numbers("KimiK15Length", weight=self.weight)
        check_counts("KimiK15Length", start_step=self.start_step)
        if self.weight < 0:
            raise RewardError("KimiK15Length.weight must be >= 0", got=str(self.weight), why="longer would be paid better")

    def __call__(self, length_S: Sequence[int], correct_S: Sequence[bool], prompt_S: Sequence[Hashable], *,
                 step: int) -> tuple[float, ...]:
        _same_length("KimiK15Length", length=length_S, correct=correct_S, prompt=prompt_S)
        _lengths("KimiK15Length", length_S)
        check_labels("KimiK15Length", correct=correct_S)
        check_counts("KimiK15Length", step=step)
        if step < self.start_step:
            return (0.0,) * len(length_S)
        spans = {prompt: (min(own), max(own)) for prompt, own in _by_prompt(length_S, prompt_S).items()}
        return tuple(self.weight * _length_bonus(length, correct, *spans[prompt])
                     for length, correct, prompt in zip(length_S, correct_S, prompt_S, strict=True))


def _length_bonus(length: int, correct: bool, shortest: int, longest: int) -> float:
    if shortest == longest:
        return 0.0
    bonus = 0.5 - (length - shortest) / (longest - shortest)
    return bonus if correct else min(0.0, bonus)


Interpolation = Literal["linear", "nearest_rank"]
Phase = Literal["budget", "free"]


def toggle_budgets(length_S: Sequence[int], correct_S: Sequence[bool], prompt_S: Sequence[Hashable], *, percentile: float,
                   interpolation: Interpolation) -> Mapping[Hashable, float]:
    """Toggle's budgets: per prompt the percentile (0 .. 100) of its correct lengths; call it once, before training.

    A prompt without a correct response has no budget and is absent. The percentile and its interpolation are U.
    """
    _same_length("toggle_budgets", length=length_S, correct=correct_S, prompt=prompt_S)
    _lengths("toggle_budgets", length_S)
    check_labels("toggle_budgets", correct=correct_S)
    check_numbers("toggle_budgets", percentile=percentile)
    if not 0 <= percentile <= 100 or interpolation not in ("linear", "nearest_rank"):
        raise RewardError("toggle_budgets needs a percentile in 0 .. 100, interpolated linear or nearest_rank",
                          got=f"{percentile}, {interpolation!r}")
    right = [(length, prompt) for length, correct, prompt in zip(length_S, correct_S, prompt_S, strict=True) if correct]
    found = _by_prompt([length for length, _ in right], [prompt for _, prompt in right])
    return {prompt: _percentile(sorted(own), percentile, interpolation) for prompt, own in found.items()}


def _percentile(ordered: Sequence[int], percentile: float, interpolation: Interpolation) -> float:
    match interpolation:
        case "nearest_rank":
            return float(ordered[max(1, math.ceil(percentile * len(ordered) / 100)) - 1])
        case "linear":
            place = percentile * (len(ordered) - 1) / 100
            low = math.floor(place)
            high = min(low + 1, len(ordered) - 1)
            return ordered[low] + (place - low) * (ordered[high] - ordered[low])
        case _:
            assert_never(interpolation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Toggle:
    """Kimi K2.5's Toggle (2602.02276): phases of `period` iterations take turns.

        budget phase: r  if mean accuracy of the prompt's responses < accuracy or length <= budget, else 0;   free phase: r

    U: all three fields (`first` is the phase of iteration 0). A prompt without a budget keeps its reward [I].
    """

    accuracy: float
    period: int
    first: Phase

    def __post_init__(self) -> None:
        check_numbers("Toggle", accuracy=self.accuracy)
        check_counts("Toggle", period=self.period)
        if not 0 <= self.accuracy <= 1 or self.period < 1 or self.first not in ("budget", "free"):
            raise RewardError("Toggle needs accuracy in 0 .. 1, period >= 1 and a first phase, budget or free",
                              got=f"accuracy {self.accuracy}, period {self.period}, first {self.first!r}")

    def phase(self, iteration: int) -> Phase:
        """The phase of an iteration (from 0)."""
        check_counts("Toggle", iteration=iteration)
        other: Phase = "free" if self.first == "budget" else "budget"
        return self.first if iteration // self.period % 2 == 0 else other

    def __call__(self, reward_S: Sequence[float], correct_S: Sequence[bool], length_S: Sequence[int],
                 prompt_S: Sequence[Hashable], *, budgets: Mapping[Hashable, float], iteration: int) -> tuple[float, ...]:
        _same_length("Toggle", reward=reward_S, correct=correct_S, length=length_S, prompt=prompt_S)
        _finite("Toggle", reward_S)
        _lengths("Toggle", length_S)
        check_labels("Toggle", correct=correct_S)
        if self.phase(iteration) == "free":
            return tuple(reward_S)
        solved = {prompt: sum(own) / len(own) for prompt, own in _by_prompt(correct_S, prompt_S).items()}
        return tuple(reward if solved[prompt] < self.accuracy or length <= budgets.get(prompt, math.inf) else 0.0
                     for reward, length, prompt in zip(reward_S, length_S, prompt_S, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class DapoOverlong:
    """DAPO's soft overlong penalty (2503.14476 Eq. 13), added to the reward; lengths in the policy's tokens.

        0  if y <= max - cache;   ((max - cache) - y) / cache  if y <= max;   -1  beyond

    It is Magistral's penalty at scale 1. A public artifact leaves out the floor of -1; this is the printed form.
    """

    length_max: int = 20480
    length_cache: int = 4096

    def __post_init__(self) -> None:
        self(0)  # refuses lengths that define no slope

    def __call__(self, length: int) -> float:
        _lengths("DapoOverlong", (length,))
        return length_penalty(length, length_max=self.length_max, length_cache=self.length_cache, scale=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of an orchestrated episode: the orchestrator's own steps, then the steps of subagents that ran side by side.

    Example: Stage(main=1, subagents=(4, 7)) takes 1 + 7 critical steps.
    """

    main: int
    subagents: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_counts("Stage", main=self.main, **{f"subagents[{place}]": steps for place, steps in enumerate(self.subagents)})


def critical_steps(stages: Iterable[Stage]) -> int:
    """Kimi K2.5's critical path (2602.02276 section 3): sum over stages of main + max over subagents."""
    return sum(stage.main + max(stage.subagents, default=0) for stage in stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParlReward:
    """Kimi K2.5's PARL: lambda_parallel r_parallel + lambda_finish r_finish + r_performance.

    U: both coefficients at this moment of training (the schedule reaches 0 [D]) and the formulas of the two auxiliary rewards.
    At 0 an auxiliary reward is not read. Subagent tokens are observations: they carry no loss.
    """

    lambda_parallel: float
    lambda_finish: float

    def __post_init__(self) -> None:
        check_numbers("ParlReward", lambda_parallel=self.lambda_parallel, lambda_finish=self.lambda_finish)
        if self.lambda_parallel < 0 or self.lambda_finish < 0:
            raise RewardError("ParlReward's coefficients must be >= 0",
                              got=f"lambda_parallel {self.lambda_parallel}, lambda_finish {self.lambda_finish}")

    def __call__(self, performance: float, *, parallel: float, finish: float) -> float:
        used = (performance, *(x for c, x in ((self.lambda_parallel, parallel), (self.lambda_finish, finish)) if c))
        check_scores("ParlReward", used=used)
        reward = performance
        for coefficient, auxiliary in ((self.lambda_parallel, parallel), (self.lambda_finish, finish)):
            reward += coefficient * auxiliary if coefficient else 0.0
        return reward


@dataclass(frozen=True, slots=True, kw_only=True)
class ParlBlogReward:
    """The earlier blog's form of PARL: lambda r_parallel + (1 - lambda) 1[success] quality. lambda's schedule is U."""

    lambda_parallel: float

    def __post_init__(self) -> None:
        check_numbers("ParlBlogReward", lambda_parallel=self.lambda_parallel)
        if not 0 <= self.lambda_parallel <= 1:
            raise RewardError("ParlBlogReward.lambda_parallel must be in 0 .. 1", got=str(self.lambda_parallel))

    def __call__(self, *, parallel: float, success: bool, quality: float) -> float:
        check_numbers("ParlBlogReward", parallel=parallel, quality=quality)
        check_labels("ParlBlogReward", success=(success,))
        return self.lambda_parallel * parallel + (1 - self.lambda_parallel) * (quality if success else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentWorldReward:
    """AgentWorld's RL reward (2606.24597): rubric and rule 9 : 1, both out of 25.

        rubric = 5 mean(scores), scores in 1 .. 5;   rule = 25 if passed else 0;   the weighted mean of the two [I: mean, not sum]
    """

    rubric_weight: float = 9.0
    rule_weight: float = 1.0

    def __post_init__(self) -> None:
        weights = (self.rubric_weight, self.rule_weight)
        check_numbers("AgentWorldReward", rubric_weight=self.rubric_weight, rule_weight=self.rule_weight)
        if min(weights) < 0 or not any(weights):
            raise RewardError("AgentWorldReward needs weights >= 0, not both 0",
                              got=f"rubric {self.rubric_weight}, rule {self.rule_weight}")

    def __call__(self, scores: Sequence[float], *, rule_passed: bool) -> float:
        check_labels("AgentWorldReward", rule_passed=(rule_passed,))
        check_scores("AgentWorldReward", scores=scores)
        if not scores or any(not 1 <= score <= 5 for score in scores):
            raise RewardError("rubric scores are at least one number in 1 .. 5", got=repr(tuple(scores)))
        rubric, rule = 5 * math.fsum(scores) / len(scores), 25.0 if rule_passed else 0.0
        return (self.rubric_weight * rubric + self.rule_weight * rule) / (self.rubric_weight + self.rule_weight)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(max(x, -745.0)) / (1 + math.exp(max(x, -745.0)))


def _by_prompt(value_S: Sequence[int], prompt_S: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    found: dict[Hashable, list[int]] = defaultdict(list)
    for value, prompt in zip(value_S, prompt_S, strict=True):
        found[prompt].append(value)
    return dict(found)


def _same_length(who: str, **columns: Sequence[object]) -> None:
    counts = {name: len(column) for name, column in columns.items()}
    if len(set(counts.values())) > 1:
        raise RewardError(f"{who} needs one value per response in every column",
                          got=", ".join(f"{name} {count}" for name, count in counts.items()),
                          why="row i of each column is the same response")


def _finite(who: str, value_S: Sequence[float]) -> None:
    check_scores(who, values=value_S)


def _probabilities(who: str, value_S: Sequence[float]) -> None:
    for value in value_S:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise RewardError(f"{who} needs scores in 0 .. 1", got=f"{value!r:.60}",
                              why="the gate's threshold is on the sigmoid scale", fix="pass sigmoid(score), not the raw score")


def _lengths(who: str, length_S: Sequence[int]) -> None:
    check_scores(who, lengths=length_S)
    for length in length_S:
        if length < 0:
            raise RewardError(f"{who} needs finite lengths >= 0", got=str(length), why="a length is a count of tokens")
