"""The rewards of the papers under their names, as compositions. A number that the source does not give has no default.

Sources: DAPO 2503.14476 Eq. 7 and 13; Qwen2.5-Math 2409.12122 section 3.2; Llama 2 2307.09288 section 3.2.3; InstructGPT
2203.02155 section 3.5; Kimi k1.5 2501.12599 section 2.3.3; rStar2-Agent 2508.20722 section 2.2; Magistral 2506.10910 section 2.2.
Muse Spark's release says "correctness subject to a thinking-time penalty" and no formula: every number of it is the user's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from rollbook.records.codec import nearest
from rollbook.records.composition import (
    ComposedReward,
    Decoupled,
    GroupLength,
    Llama2Whitened,
    Misfit,
    Part,
    Scalar,
    Shape,
    Shift,
    Sigmoid,
    SoftLength,
    ThinkingTime,
)

Body = tuple[dict[str, Part], dict[str, Shape]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedReward:
    """A ready-made composition. `measures` says who measures each of its signals, `numbers` is what the paper leaves to choose.

    `decoupled` normalises each component among the responses of its prompt before they are summed; empty: the plain sum.

    Example: NamedReward(composition="qwen25_math", measures={"correctness": "math", "preference": "model:rm"}, numbers={},
        verify_seconds=2.0, verify_workers=2)
    """

    composition: str
    measures: Mapping[str, str]
    verify_seconds: float
    verify_workers: int
    numbers: Mapping[str, Scalar] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Scalar]] = field(default_factory=dict)
    decoupled: Decoupled | None = None


def dapo(correctness: Part, *, length_max: int = 20480, length_cache: int = 4096) -> Body:
    """+1 or -1 for the answer, and the soft overlong penalty down to -1."""
    return ({"correctness": _as(correctness, passed=1.0, failed=-1.0)},
            {"overlong": SoftLength(length_max=length_max, length_cache=length_cache, scale=1.0)})


def qwen25_math(correctness: Part, preference: Part, *, slope: float = 0.5) -> Body:
    """sigma(slope * score) + (v - 1): any right answer is above any wrong one."""
    return ({"correctness": _as(correctness, passed=0.0, failed=-1.0), "preference": _as(preference, weight=0.0)},
            {"shaped_preference": Sigmoid(of="preference", slope=slope)})


def llama2(safe: Part, helpful: Part, *, clamp: float, ddof: int, safety_families: str = "", threshold: float = 0.15) -> Body:
    """The gated score, whitened after its logit; the KL penalty is the objective's `kl_beta`. Families separated by commas."""
    families = tuple(name.strip() for name in safety_families.split(",") if name.strip())
    return ({"safe": _as(safe, weight=0.0), "helpful": _as(helpful, weight=0.0)},
            {"whitened": Llama2Whitened(safe="safe", helpful="helpful", threshold=threshold, clamp=clamp, ddof=ddof,
                                        safety_families=families)})


def instructgpt(preference: Part, *, demonstration_mean: float) -> Body:
    """The reward model's score at the last token, shifted so that demonstrations average 0; the KL is paid per token, by the
    objective's `kl_beta` (0.02 [D])."""
    return {"preference": _as(preference, weight=0.0)}, {"terminal": Shift(of="preference", by=-demonstration_mean)}


def kimi_k15(correctness: Part, *, weight: float, start_step: int) -> Body:
    """Correctness and the length reward among the responses of one prompt."""
    return {"correctness": correctness}, {"length": GroupLength(weight=weight, start_step=start_step)}


def rstar2(correctness: Part) -> Body:
    """Correctness alone: tool errors and format choose among rollouts (GRPO-RoC) and are not paid."""
    return {"correctness": correctness}, {}


def muse(correctness: Part, *, coefficient: float, free_tokens: int, full_tokens: int, only_right: bool) -> Body:
    """Correctness subject to a thinking-time penalty [I: the form of the penalty]."""
    return {"correctness": correctness}, {"thinking_time": ThinkingTime(coefficient=coefficient, free_tokens=free_tokens,
                                                                        full_tokens=full_tokens, only_right=only_right)}


def magistral(format: Part, correctness: Part, language: Part, *, length_max: int, length_cache: int) -> Body:
    """Format gate .1, correctness .9 (mathematics or code), soft length down to -.1, the prompt's language .1."""
    return ({"format": _as(format, passed=0.1), "correctness": _as(correctness, passed=0.9),
             "language_consistency": _as(language, passed=0.1, reference="prompt")},
            {"length": SoftLength(length_max=length_max, length_cache=length_cache, scale=0.1)})


READY_MADE: Mapping[str, Callable[..., Body]] = {
    made.__name__: made for made in (dapo, qwen25_math, llama2, instructgpt, kimi_k15, rstar2, muse, magistral)}


def expanded(named: NamedReward) -> ComposedReward:
    """The composition of that name with these measures and numbers; `named_misfits` says beforehand what is wrong with them."""
    given = {signal: Part(measure=measure, settings=named.settings.get(signal, {})) for signal, measure in named.measures.items()}
    parts, shaping = READY_MADE[named.composition](**given, **named.numbers)
    if named.decoupled is not None:
        shaping["decoupled"] = named.decoupled
    return ComposedReward(name=named.composition, parts=parts, shaping=shaping, verify_seconds=named.verify_seconds,
                          verify_workers=named.verify_workers, gates=("format",) if "format" in parts else (),
                          accuracy="correctness" if "correctness" in parts else None)


def named_misfits(named: NamedReward) -> Iterator[Misfit]:
    """A composition that does not exist, a signal without its measure, a number missing or too many."""
    made = READY_MADE.get(named.composition)
    if made is None:
        yield Misfit(path="composition", what="is no ready-made composition", got=named.composition,
                     fix=f"nearest names: {nearest(named.composition, list(READY_MADE))}")
        return
    wanted = inspect.signature(made).parameters
    signals = [name for name, one in wanted.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    numbers = {name: one for name, one in wanted.items() if one.kind is one.KEYWORD_ONLY}
    needed = {"measures": signals, "numbers": [name for name, one in numbers.items() if one.default is one.empty]}
    known = {"measures": signals, "numbers": list(numbers), "settings": signals}
    given: dict[str, Mapping[str, object]] = {"measures": named.measures, "numbers": named.numbers, "settings": named.settings}
    for where, names in needed.items():
        for name in (name for name in names if name not in given[where]):
            yield Misfit(path=f"{where}.{name}", what=f"is missing: {named.composition} needs it", got="nothing",
                         fix=f"write reward.{where}.{name}")
    for where, names in known.items():
        for name in (name for name in given[where] if name not in names):
            yield Misfit(path=f"{where}.{name}", what=f"is unknown to {named.composition}", got=name,
                         fix=f"nearest names: {nearest(name, names)}")
    for name in (name for name in named.numbers if name in numbers):
        if not _fits(numbers[name].annotation, named.numbers[name]):
            yield Misfit(path=f"numbers.{name}", what=f"must be of type {numbers[name].annotation}",
                         got=repr(named.numbers[name]), fix=f"see the composition {named.composition}")


def _fits(annotation: str, value: Scalar) -> bool:
    match annotation:
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case "bool":
            return isinstance(value, bool)
        case _:
            return isinstance(value, str)


def _as(part: Part, *, weight: float | None = None, passed: float | None = None, failed: float | None = None,
        reference: str | None = None) -> Part:
    """The part with what the composition fixes."""
    return Part(measure=part.measure, settings=part.settings, fraction=part.fraction,
                weight=part.weight if weight is None else weight, passed=part.passed if passed is None else passed,
                failed=part.failed if failed is None else failed, reference=part.reference if reference is None else reference)
