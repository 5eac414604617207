"""Credit rules as settings records: which advantage an objective is fed. The maths is in this package's other files.

A record holds exactly the numbers of its rule; none has a default unless "not used" is its meaning.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Literal

from rollbook.objectives.checks import check_at_most, check_choice, check_not_negative, check_positive, check_share, check_std
from rollbook.objectives.core import Unstated
from rollbook.objectives.errors import ObjectiveError


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCentered:
    """A = R - mean of the group (Dr.GRPO, DeepSeek V3.2, Kimi)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNormalized:
    """A = (R - mean) / (std + eps) of the group (GRPO, DAPO). No paper prints `eps` or `ddof`; artifacts: 1e-6 or 1e-4, 1."""

    eps: float
    ddof: int

    def __post_init__(self) -> None:
        check_std(type(self).__name__, self.eps, self.ddof)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOneOut:
    """A = R - mean of the *other* members of the group (RLOO). `kl_beta`: first take beta * sum_t k1 off the reward; None: no."""

    kl_beta: float | None = None

    def __post_init__(self) -> None:
        _check_kl(type(self).__name__, self.kl_beta)


@dataclass(frozen=True, slots=True, kw_only=True)
class MinibatchStandardized:
    """Magistral: centre per group, then divide by the std of the minibatch's advantages; groups without signal are left out.

    The report says "minibatch" and does not print `eps` or `ddof`; sequence weighting is an inference from its wording. Dividing
    without taking off the minibatch's mean is a reading [I]: the two agree where minibatches hold whole groups, not where one is
    cut. A minibatch whose advantages are equal up to rounding gets exactly 0 (`credit.minibatch_standardized`).
    """

    eps: float
    ddof: int

    def __post_init__(self) -> None:
        check_std(type(self).__name__, self.eps, self.ddof)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNormalized:
    """REINFORCE++: token returns of (terminal reward - beta k1), normalised over the global batch.

    `baseline="group_mean"` subtracts the group's mean first (the baseline variant; its KL is a separate k2 term, `kl_beta` None).
    `weighting` says what is averaged over: artifacts weight tokens, the paper says "global batch".
    """

    kl_beta: float | None
    baseline: Literal["none", "group_mean"]
    weighting: Literal["token", "sequence"]
    gamma: float
    eps: float
    ddof: int

    def __post_init__(self) -> None:
        who = type(self).__name__
        check_std(who, self.eps, self.ddof)
        check_choice(who, "baseline", self.baseline, ("none", "group_mean"))
        check_choice(who, "weighting", self.weighting, ("token", "sequence"))
        check_share(who, gamma=self.gamma)
        _check_kl(who, self.kl_beta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gae:
    """Generalised advantage estimation with a critic: `lam_policy` for the actor's advantages, `lam_critic` for its targets.

    Targets are never whitened. `kl_beta`: token reward -beta * k1 beside the terminal one; None: no KL in the reward.
    """

    gamma: float
    lam_policy: float
    lam_critic: float
    kl_beta: float | None = None

    def __post_init__(self) -> None:
        check_share(type(self).__name__, gamma=self.gamma, lam_policy=self.lam_policy, lam_critic=self.lam_critic)
        _check_kl(type(self).__name__, self.kl_beta)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthAdaptiveGae:
    """GAE whose actor uses lambda = 1 - 1/(alpha l) per sequence (VAPO, SAO); critic targets use `lam_critic`, never that one.

    `counts` is what l counts (all tokens: prompt, actions and observations), `floor` the least lambda (None: the printed formula,
    negative below l = 1/alpha): both unstated.
    """

    gamma: float
    alpha: float
    floor: float | None
    counts: Literal["action_tokens", "all_tokens"]
    lam_critic: float
    kl_beta: float | None = None

    def __post_init__(self) -> None:
        check_positive(type(self).__name__, alpha=self.alpha)
        check_choice(type(self).__name__, "counts", self.counts, ("action_tokens", "all_tokens"))
        check_share(type(self).__name__, gamma=self.gamma, lam_critic=self.lam_critic)
        _check_kl(type(self).__name__, self.kl_beta)
        if self.floor is not None:
            check_at_most(type(self).__name__, 1, floor=self.floor)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGroups:
    """GiGPO: episode advantage + omega * advantage among the visits of the same state. `normalizer="one"` divides by 1."""

    gamma: float
    omega: float
    normalizer: Literal["std", "one"]
    eps: float | None = None
    ddof: int | None = None

    def __post_init__(self) -> None:
        check_choice(type(self).__name__, "normalizer", self.normalizer, ("std", "one"))
        check_share(type(self).__name__, gamma=self.gamma)
        check_not_negative(type(self).__name__, omega=self.omega)
        if self.normalizer == "one":
            check_unused("StepGroups", self.eps, self.ddof)
        elif self.eps is None or self.ddof is None:
            raise Unstated(what="eps and ddof", known="normalizer std", missing=("eps", "ddof")).refuse("StepGroups")
        else:
            check_std(type(self).__name__, self.eps, self.ddof)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImplicitProcess:
    """PRIME's token rewards beta * (logp_prm - reference) with outcome leave-one-out, as the paper prints it."""

    beta: float
    gamma: float

    def __post_init__(self) -> None:
        check_positive(type(self).__name__, beta=self.beta)
        check_share(type(self).__name__, gamma=self.gamma)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImplicitProcessCode:
    """PRIME as its released code computes it; differs from the paper in five places (see `implicit_process_code`)."""

    beta: float
    process_coefficient: float
    outcome_coefficient: float
    eps: float

    def __post_init__(self) -> None:
        who = type(self).__name__
        check_positive(who, beta=self.beta)
        check_not_negative(who, process_coefficient=self.process_coefficient, outcome_coefficient=self.outcome_coefficient)
        check_std(who, self.eps, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FromTeacher:
    """No credit: the objective forms its advantage from the teacher's log-probabilities."""


Credit = (
    GroupCentered
    | GroupNormalized
    | LeaveOneOut
    | MinibatchStandardized
    | BatchNormalized
    | Gae
    | LengthAdaptiveGae
    | StepGroups
    | ImplicitProcess
    | ImplicitProcessCode
    | FromTeacher
)

RULES: dict[str, type] = {
    "GroupCentered": GroupCentered,
    "GroupNormalized": GroupNormalized,
    "LeaveOneOut": LeaveOneOut,
    "MinibatchStandardized": MinibatchStandardized,
    "BatchNormalized": BatchNormalized,
    "Gae": Gae,
    "LengthAdaptiveGae": LengthAdaptiveGae,
    "StepGroups": StepGroups,
    "ImplicitProcess": ImplicitProcess,
    "ImplicitProcessCode": ImplicitProcessCode,
    "FromTeacher": FromTeacher,
}


def supply(unstated: Unstated, **numbers: object) -> Credit:
    """The rule a paper names, from its printed numbers and the ones you supply.

    Refuses to change a number that the paper prints, one that the rule does not have, and to leave one out.

    Example: supply(Ppo().credit, lam_policy=0.95, lam_critic=0.95)
    """
    if not isinstance(unstated, Unstated):
        raise ObjectiveError(
            "supply completes an Unstated credit",
            got=repr(unstated),
            why="a rule that is stated has all its numbers",
            fix="pass the objective's default credit, or use this rule as it is",
        )
    if unstated.known not in RULES:
        raise unstated.refuse("supply")
    cls, printed = RULES[unstated.known], dict(unstated.printed)
    settings = {field.name: field for field in fields(cls)}
    changed = [name for name in printed if name in numbers and numbers[name] != printed[name]]
    if changed:
        raise ObjectiveError(
            f"supply: {', '.join(changed)} is printed",
            got=", ".join(f"{name} = {numbers[name]!r} for {printed[name]!r}" for name in changed),
            why="with another number the paper's name would not be true",
            fix=f"leave it out, or build your own rule with {cls.__name__}(...)",
        )
    strange = sorted(set(numbers) - set(settings))
    missing = [name for name, field in settings.items() if field.default is MISSING and name not in {*numbers, *printed}]
    if strange or missing:
        raise ObjectiveError(
            f"supply: these numbers do not complete {cls.__name__}",
            got=f"unknown: {', '.join(strange) or 'none'}; missing: {', '.join(missing) or 'none'}",
            why="the paper does not print them and rollbook does not invent numbers",
            fix=f"give {', '.join(unstated.missing)}",
        )
    rule: Credit = cls(**{**printed, **numbers})
    return rule


def check_unused(who: str, eps: object, ddof: object) -> None:
    """Refuse numbers of the std where nothing is divided by one."""
    if eps is not None or ddof is not None:
        raise ObjectiveError(
            f'{who} with normalizer = "one" takes no eps and no ddof',
            got=f"eps = {eps!r}, ddof = {ddof!r}",
            why="it divides by 1, and they would be ignored",
            fix='leave them out, or set normalizer = "std"',
        )


def _check_kl(who: str, kl_beta: float | None) -> None:
    if kl_beta is not None:
        check_not_negative(who, kl_beta=kl_beta)


# What the papers state about credit, where it is shared or incomplete: the defaults of `objective.credit`.
CENTERED = GroupCentered()
ONE_OUT = LeaveOneOut()
FROM_TEACHER = FromTeacher()
NORMALIZED = Unstated(what="credit", known="GroupNormalized", missing=("eps", "ddof"))
STANDARDIZED = Unstated(what="credit", known="MinibatchStandardized", missing=("eps", "ddof"))
UNNAMED = Unstated(what="credit")
REINFORCE_PLUS_PLUS = Unstated(
    what="credit",
    known="BatchNormalized",
    printed=(("gamma", 1.0),),
    missing=("kl_beta", "baseline", "weighting", "eps", "ddof"),
)
REINFORCE_PLUS_PLUS_BASELINE = Unstated(
    what="credit",
    known="BatchNormalized",
    printed=(("gamma", 1.0), ("baseline", "group_mean"), ("kl_beta", None)),
    missing=("weighting", "eps", "ddof"),
)
INSTRUCT_GPT = Unstated(
    what="credit", known="Gae", printed=(("gamma", 1.0), ("kl_beta", 0.02)), missing=("lam_policy", "lam_critic")
)
VAPO = Unstated(
    what="credit", known="LengthAdaptiveGae", printed=(("alpha", 0.05), ("lam_critic", 1.0)), missing=("gamma", "floor", "counts")
)
SAO = Unstated(
    what="credit", known="LengthAdaptiveGae", printed=(("alpha", 1.5), ("lam_critic", 1.0)), missing=("gamma", "floor", "counts")
)
