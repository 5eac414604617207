"""Who measures a part: a verifier behind its hard limit, a rule on the form, a scorer, tests in a sandbox."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, get_args

from rollbook.records import Scorer, Task, TaskId, Trace, Unrated, VerifierStamp, digest
from rollbook.records.composition import OWN, SCORERS, Part
from rollbook.records.modes import NO_THINK, control_of
from rollbook.records.sandbox import Language, SolutionRunner
from rollbook.rewards.errors import RewardError
from rollbook.rewards.magistral import CLOSE, OPEN, format_gate
from rollbook.rewards.pool import Failure
from rollbook.rewards.stamps import stamp
from rollbook.rewards.verifiers.base import Judged, Judgement, Verifier, VerifierSpec
from rollbook.rewards.verifiers.code import CodeVerifier
from rollbook.rewards.verifiers.extraction import FENCE
from rollbook.rewards.verifiers.formats import FORMATS
from rollbook.rewards.verifiers.instructions.families import INSTRUCTIONS
from rollbook.rewards.verifiers.language import language_spec
from rollbook.rewards.verifiers.math_answers import MATH
from rollbook.rewards.verifiers.schema import JSON_SCHEMA
from rollbook.rewards.verifiers.sql import SQL
from rollbook.rewards.verifiers.text import CHOICE, EXACT, PATTERN

SPECS: Mapping[str, Callable[..., VerifierSpec]] = {
    "math": MATH.with_settings, "exact": EXACT.with_settings, "choice": CHOICE.with_settings, "pattern": PATTERN.with_settings,
    "json_schema": JSON_SCHEMA.with_settings, "sql": SQL.with_settings, "formats": FORMATS.with_settings,
    "instructions": INSTRUCTIONS.with_settings, "language_consistency": language_spec}
STRUCTURED = frozenset({"sql", "formats", "instructions", "code", "code_fraction"})      # their reference is JSON
FORMAT_RULES = ("magistral_format", "magistral_code_format", "thinking_mode")
CODE_SETTINGS: Mapping[str, tuple[type, ...]] = {"tests": (int,), "compare": (str,), "tolerance": (float, int), "block": (str,),
                                                 "languages": (str,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """What a part is worth for one response; `right` is None where the measure gives a rating and no verdict."""

    value: float
    detail: str
    right: bool | None = None
    confidence: float = 1.0


class Measure(Protocol):
    """One part's source of values: one `Value` or `Failure` per trace, in order."""

    stamp: VerifierStamp

    def values(self, traces: Sequence[Trace], tasks: Mapping[TaskId, Task]) -> list[Value | Failure]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What a composed reward is handed: scorers by their measure (`model:rm`), and the runner of solutions."""

    scorers: Mapping[str, Scorer] = dataclasses.field(default_factory=dict)
    runner: SolutionRunner | None = None


def measure_of(name: str, part: Part, sources: Sources, *, seconds: float, workers: int) -> Measure:
    """The source of a part's values; RewardError where what it needs was not handed over."""
    kind = part.measure.partition(":")[0]
    if kind in SCORERS:
        scorer = sources.scorers.get(part.measure)
        if scorer is None:
            raise RewardError(f"the part {name} is scored by {part.measure}, which does not exist here",
                              got=", ".join(sorted(sources.scorers)) or "no scorer",
                              why="a reward without it would be another one",
                              fix="name a reward-model stage that runs before, or a judge of the recipe")
        return ByScorer(scorer)
    if part.measure in FORMAT_RULES:
        return ByForm(part)
    if part.measure in ("code", "code_fraction"):
        if sources.runner is None:
            raise RewardError(f"the part {name} runs code and was handed no sandbox", got=part.measure,
                              why="an untrusted solution runs nowhere else",
                              fix="install bubblewrap: apt-get install bubblewrap")
        code = CodeVerifier(sources.runner, fraction=part.measure == "code_fraction", **code_options(name, part))
        return ByVerifier(part, code)
    return ByVerifier(part, Verifier(dataclasses.replace(spec_of(name, part), seconds=seconds), workers=workers))


def check_settings(name: str, part: Part) -> None:
    """Refuses settings that the part's verifier does not have, before anything is started; RewardError."""
    if part.measure in ("code", "code_fraction"):
        code_options(name, part)
        part_languages(part)
    elif part.measure.partition(":")[0] in SCORERS or part.measure in FORMAT_RULES:
        if part.settings:
            raise RewardError(f"the part {name} has settings that {part.measure} does not read", got=", ".join(part.settings),
                              why="they would be ignored", fix="leave them out")
    else:
        spec_of(name, part).stamp()


def spec_of(name: str, part: Part) -> VerifierSpec:
    """The verifier of a part with its settings; RewardError where it has no such setting."""
    try:
        return own_spec(part) if part.measure.partition(":")[0] == OWN else SPECS[part.measure](**part.settings)
    except TypeError as error:
        raise RewardError(f"the part {name} has settings that {part.measure} cannot take", got=repr(dict(part.settings))[:120],
                          why=str(error)[:120], fix="see docs/verifiers.md for its settings") from None


def code_options(name: str, part: Part) -> dict[str, Any]:
    """What a part says of its code verifier; RewardError with the first setting that it does not have or cannot take."""
    for key, value in part.settings.items():
        kinds: tuple[type, ...] | None = CODE_SETTINGS.get(key)
        if kinds is None:
            raise RewardError(f"the part {name} has a setting that {part.measure} does not have", got=key,
                              fix=f"it has: {', '.join(CODE_SETTINGS)}")
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise RewardError(f"the part {name} has a setting of another type: {key}", got=repr(value),
                              fix=f"write it as {kinds[0].__name__}")
    return {key: value for key, value in part.settings.items() if key != "languages"}


def part_languages(part: Part) -> tuple[Language, ...]:
    """The languages whose solutions a code part runs, `languages: "python,cpp"`; Python alone where it names none."""
    named = [one.strip() for one in str(part.settings.get("languages", "python")).split(",") if one.strip()]
    unknown = [one for one in named if one not in get_args(Language)]
    if unknown or not named:
        raise RewardError("a code part names languages that no sandbox here runs", got=", ".join(unknown) or "none",
                          fix=f"of {', '.join(get_args(Language))}, separated by commas")
    return tuple(dict.fromkeys(named))  # type: ignore[arg-type]


def own_spec(part: Part) -> VerifierSpec:
    """The user's function (response, reference, settings) -> bool | {"passed", "score", "detail"}, stamped with its source.

    RewardError where there is no such module; what the function raises is the failure of that one response.
    """
    module, _, function = part.measure.removeprefix(f"{OWN}:").partition(":")
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None or found.origin is None:
        raise RewardError("no module of that name can be imported", got=module,
                          why=f"{part.measure} names a verifying function in it",
                          fix="install it, or add its folder to PYTHONPATH")
    source = digest(Path(found.origin).read_bytes())
    return VerifierSpec(name=f"own_{function}", version=source[:12], work=f"{module}:{function}", sources=(),
                        settings=dict(part.settings))


class ByVerifier:
    """A verifier's verdict as the part's passed or failed value, or its score as it is."""

    def __init__(self, part: Part, verifier: Verifier | CodeVerifier):
        self.part, self.verifier = part, verifier
        settings = {"part": dataclasses.asdict(part), "verifier": verifier.stamp.digest}
        self.stamp = stamp(verifier.stamp.name, verifier.stamp.version, ("composed/measures.py",), settings)

    def values(self, traces: Sequence[Trace], tasks: Mapping[TaskId, Task]) -> list[Value | Failure]:
        done: list[Value | Failure] = []
        references = [reference_of(self.part, tasks[trace.task]) for trace in traces]
        asked = [(trace, reference) for trace, reference in zip(traces, references, strict=True)
                 if not isinstance(reference, Failure)]
        found = iter(self._judge([(trace.text, reference, trace.group) for trace, reference in asked]))
        for reference in references:
            judgement = reference if isinstance(reference, Failure) else next(found)
            done.append(judgement if isinstance(judgement, Failure) else self._value(judgement))
        return done

    def close(self) -> None:
        self.verifier.close()

    def _judge(self, items: Sequence[tuple[str, Any, str]]) -> Sequence[Judgement]:
        if isinstance(self.verifier, CodeVerifier):
            return self.verifier.judge_groups(items)
        return self.verifier.judge([(response, reference) for response, reference, _ in items])

    def _value(self, judged: Judged) -> Value:
        value = judged.score if self.part.fraction else self.part.passed if judged.passed else self.part.failed
        return Value(value=value, detail=judged.detail, right=judged.passed)


class ByScorer:
    """A scorer's rating, with the scorer's own stamp."""

    def __init__(self, scorer: Scorer):
        self.scorer, self.stamp = scorer, scorer.stamp

    def values(self, traces: Sequence[Trace], tasks: Mapping[TaskId, Task]) -> list[Value | Failure]:
        rated = self.scorer.score(traces, tasks)
        if len(rated) != len(traces):
            raise RewardError(f"the scorer {self.stamp.name} rated {len(rated)} of {len(traces)} responses",
                              why="a rating must belong to its response")
        return [Failure(code=one.code, detail=one.detail) if isinstance(one, Unrated) else
                Value(value=one.value, detail=one.detail, confidence=one.confidence) for one in rated]

    def close(self) -> None:
        """The scorer belongs to whoever made it."""


class ByForm:
    """Magistral's format gate, of mathematics or of code, or the mode that the question asked for; pure text."""

    def __init__(self, part: Part):
        self.part = part
        self.stamp = stamp(part.measure, "1", ("boxes.py", "magistral.py", "verifiers/extraction.py", "composed/measures.py"),
                           dataclasses.asdict(part))

    def values(self, traces: Sequence[Trace], tasks: Mapping[TaskId, Task]) -> list[Value | Failure]:
        return [self._value(trace.text, tasks[trace.task].prompt[-1].content) for trace in traces]

    def close(self) -> None:
        """Nothing runs."""

    def _value(self, text: str, question: str) -> Value:
        if self.part.measure == "thinking_mode":
            reason = thinking_mode(text, question)
        elif self.part.measure == "magistral_format":
            gate = format_gate(text)
            reason = str(gate.reason) if gate.reason else ""
        else:
            reason = code_format(text)
        return Value(value=self.part.failed if reason else self.part.passed, detail=reason, right=not reason)


def thinking_mode(text: str, question: str) -> str:
    """Which rule of the mode that the question chose a response breaks, empty where none: after /no_think the block of thought
    is there and empty, otherwise it says something (2505.09388 section 4.3)."""
    thought, closed, _ = text.removeprefix(OPEN).partition(CLOSE)
    if not text.startswith(OPEN) or not closed:
        return "no_thinking_block"
    if control_of(question) == NO_THINK:
        return "thought_unasked" if thought.strip() else ""
    return "" if thought.strip() else "no_thought"


def code_format(text: str) -> str:
    """Which rule of Magistral's format for code a response breaks, empty where none: thinking first, then a typed code block."""
    if not text.startswith(OPEN) or text.count(OPEN) != 1:
        return "no_opening_tag" if not text.startswith(OPEN) else "several_opening_tags"
    if text.count(CLOSE) != 1:
        return "several_closing_tags" if CLOSE in text else "no_closing_tag"
    block = FENCE.search(text.partition(CLOSE)[2])
    if block is None:
        return "no_code_block"
    return "" if block[2] else "untyped_code_block"


def reference_of(part: Part, task: Task) -> Any:
    """What a part compares with: the task's reference, its prompt or the recipe's text; parsed where a structure is wanted."""
    match part.reference.partition(":"):
        case ("task", "", ""):
            text = task.reference
        case ("prompt", "", ""):
            text = task.prompt[-1].content
        case (_, _, literal):
            text = literal
    if not text.strip():
        return Failure(code="no_reference", detail="the reference is empty")
    if part.measure not in STRUCTURED:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        return Failure(code="unparsable_reference", detail=f"the reference of {part.measure} is JSON: {error}"[:200])
