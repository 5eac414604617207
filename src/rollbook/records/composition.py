"""A reward as data: gates first, then weighted parts, then shaping. Recipes hold it, the composed judge computes it.

    R = 0                                            where a gate is not passed, and nothing later is graded
    R = sum over parts of weight * value + sum over shaping of its value            otherwise

A part is measured by a verifier, a reward model or a judge; shaping is computed from what was measured, from lengths and from the
other responses. Each is a component of the reward vector under its own name, so that the scalar can be summed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rollbook.records.codec import nearest

Scalar = str | bool | int | float | None
VERIFIERS = ("math", "exact", "choice", "pattern", "json_schema", "sql", "formats", "instructions", "language_consistency",
             "code", "code_fraction", "magistral_format", "magistral_code_format", "thinking_mode")
OWN = "own"                             # own:MODULE:FUNCTION is the user's verifying function
SCORERS = ("model", "judge")            # model:STAGE is the reward model of a stage, judge:NAME a judge of the recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One measured part. `measure` is a verifier's name, `model:STAGE`, `judge:NAME` or `own:MODULE:FUNCTION`; `weight` 0
    keeps it in the vector only.

    A verifier gives `passed` or `failed`, or with `fraction` its score between 0 and 1; a scorer gives its rating. `reference` is
    `task`, `prompt` (the last user message) or `text:...`, what the verifier compares with; JSON where it wants a structure.

    Example: Part(measure="math", passed=1.0, failed=-1.0)
    """

    measure: str
    weight: float = 1.0
    passed: float = 1.0
    failed: float = 0.0
    fraction: bool = False
    reference: str = "task"
    settings: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftLength:
    """0 up to length_max - length_cache tokens, then linear to -scale at length_max and beyond (DAPO Eq. 13, Magistral 2.2)."""

    length_max: int
    length_cache: int
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLength:
    """Kimi k1.5's length reward among the responses of one prompt, from step `start_step` (from 0) on; needs `accuracy`."""

    weight: float
    start_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingTime:
    """-coefficient * the share of free_tokens .. full_tokens that was spent, for right answers, or for all."""

    coefficient: float
    free_tokens: int
    full_tokens: int
    only_right: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sigmoid:
    """sigma(slope * value of the part `of`)."""

    of: str
    slope: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """value of the part `of` + by."""

    of: str
    by: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama2Whitened:
    """Llama 2: the safety score where the family is a safety family or it is below the threshold, else helpfulness; logit, then
    whitened over everything judged together. Both parts are probabilities."""

    safe: str
    helpful: str
    threshold: float
    clamp: float
    ddof: int
    safety_families: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoupled:
    """Each component normalised among the responses of its prompt before they are summed: sum_k w_k (r_k - mean) / (std + eps).

    It replaces the sum: every other component keeps its raw value in the vector. A component without spread gives 0; a gated
    response counts with 0 in every part.
    """

    eps: float
    ddof: int


Shape = SoftLength | GroupLength | ThinkingTime | Sigmoid | Shift | Llama2Whitened | Decoupled


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedReward:
    """A reward of a recipe. `gates` name parts in the order in which they are asked; `accuracy` names the part that says whether
    an answer is right (None: nothing does). `verify_seconds` is the hard limit of one verification.

    Example: ComposedReward(name="dapo", parts={"correctness": Part(measure="math", passed=1.0, failed=-1.0)},
        shaping={"overlong": SoftLength(length_max=20480, length_cache=4096, scale=1.0)}, accuracy="correctness",
        verify_seconds=2.0, verify_workers=2)
    """

    name: str
    parts: Mapping[str, Part]
    verify_seconds: float
    verify_workers: int
    gates: tuple[str, ...] = ()
    shaping: Mapping[str, Shape] = field(default_factory=dict)
    accuracy: str | None = None

    def weights(self) -> dict[str, float]:
        """Component name -> weight in the scalar; under decoupled normalisation only that one counts."""
        normalised = [name for name, shape in self.shaping.items() if isinstance(shape, Decoupled)]
        found = self.raw_weights()
        return dict.fromkeys(found, 0.0) | dict.fromkeys(normalised, 1.0) if normalised else found

    def raw_weights(self) -> dict[str, float]:
        """The weights before any normalisation, of parts and shaping."""
        shapes = {name: 1.0 for name, shape in self.shaping.items() if not isinstance(shape, Decoupled)}
        return {name: part.weight for name, part in self.parts.items()} | shapes

    @property
    def gate(self) -> str | None:
        """The component that must be above zero for the scalar not to be 0; the last gate, which runs only behind the others."""
        normalised = any(isinstance(shape, Decoupled) for shape in self.shaping.values())
        return self.gates[-1] if self.gates and not normalised else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """What is wrong with a composed reward, at which of its fields."""

    path: str
    what: str
    got: str
    fix: str


def misfits(reward: ComposedReward) -> Iterator[Misfit]:
    """Everything that keeps a composed reward from being computed."""
    if not reward.parts:
        yield Misfit(path="parts", what="names nothing that is measured", got="none", fix="name at least one part")
    if both := sorted(set(reward.parts) & set(reward.shaping)):
        yield Misfit(path=f"shaping.{both[0]}", what="is the name of a part as well", got=both[0], fix="rename one of the two")
    names = [("accuracy", reward.accuracy)] if reward.accuracy is not None else []
    names += [(f"gates[{place}]", gate) for place, gate in enumerate(reward.gates)]
    for name, part in reward.parts.items():
        yield from _part_misfits(name, part)
    for name, shape in reward.shaping.items():
        names += [(f"shaping.{name}.{key}", getattr(shape, key)) for key in ("of", "safe", "helpful") if hasattr(shape, key)]
        yield from _shape_misfits(name, shape, reward)
    for path, named in names:
        if named not in reward.parts:
            yield Misfit(path=path, what="names no part", got=named, fix=f"nearest names: {nearest(named, list(reward.parts))}")
    for gate in (gate for gate in reward.gates if gate in reward.parts and reward.parts[gate].passed <= 0):
        yield Misfit(path=f"parts.{gate}.passed", what="must be above 0: the part is a gate",
                     got=f"{reward.parts[gate].passed:g}", fix="give it a value above 0; weight 0 adds nothing to the sum")
    if sum(isinstance(shape, Decoupled) for shape in reward.shaping.values()) > 1:
        yield Misfit(path="shaping", what="normalises the components twice", got="two Decoupled", fix="keep one")


def _part_misfits(name: str, part: Part) -> Iterator[Misfit]:
    kind, colon, who = part.measure.partition(":")
    own = kind == OWN and who.count(":") == 1 and all(piece.replace(".", "_").isidentifier() for piece in who.split(":"))
    if not own and ((kind in SCORERS) != bool(colon and who) or (kind not in SCORERS and part.measure not in VERIFIERS)):
        yield Misfit(path=f"parts.{name}.measure", what="is no verifier, and neither model:STAGE nor judge:NAME",
                     got=part.measure, fix=f"nearest names: {nearest(part.measure, [*VERIFIERS, 'model:', 'judge:'])}")
    if part.reference not in ("task", "prompt") and not part.reference.startswith("text:"):
        yield Misfit(path=f"parts.{name}.reference", what="must be task, prompt or text:...", got=part.reference,
                     fix="write task")


def _shape_misfits(name: str, shape: Shape, reward: ComposedReward) -> Iterator[Misfit]:
    path = f"shaping.{name}"
    match shape:
        case SoftLength() if not 0 < shape.length_cache <= shape.length_max or shape.scale < 0:
            yield Misfit(path=path, what="needs 0 < length_cache <= length_max and scale >= 0",
                         got=f"{shape.length_cache}, {shape.length_max}, {shape.scale:g}", fix="lower length_cache")
        case GroupLength() | ThinkingTime() if reward.accuracy is None:
            yield Misfit(path=path, what="treats right and wrong answers differently", got="accuracy is empty",
                         fix="name in `accuracy` the part that says which answers are right")
        case GroupLength() if shape.weight < 0 or shape.start_step < 0:
            yield Misfit(path=path, what="needs weight >= 0 and start_step >= 0", got=f"{shape.weight:g}, {shape.start_step}",
                         fix="use 0 or more")
        case ThinkingTime() if shape.coefficient < 0 or not 0 <= shape.free_tokens < shape.full_tokens:
            yield Misfit(path=path, what="needs coefficient >= 0 and 0 <= free_tokens < full_tokens",
                         got=f"{shape.coefficient:g}, {shape.free_tokens}, {shape.full_tokens}", fix="lower free_tokens")
        case Sigmoid() if shape.slope <= 0:
            yield Misfit(path=f"{path}.slope", what="must be above 0", got=f"{shape.slope:g}",
                         fix="a better score must not count less")
        case Llama2Whitened() if not 0 <= shape.clamp < 0.5 or not 0 <= shape.threshold <= 1 or shape.ddof < 0:
            yield Misfit(path=path, what="needs 0 <= clamp < 0.5, 0 <= threshold <= 1 and ddof >= 0",
                         got=f"{shape.clamp:g}, {shape.threshold:g}, {shape.ddof}", fix="see Llama2Reward")
        case Decoupled() if shape.eps < 0 or shape.ddof < 0:
            yield Misfit(path=path, what="needs eps >= 0 and ddof >= 0", got=f"{shape.eps:g}, {shape.ddof}", fix="use 0 or more")
        case _:
            pass
