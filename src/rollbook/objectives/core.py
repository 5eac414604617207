"""What an objective sees and what it returns.

Suffixes: T action tokens of this micro-batch, S sequences.

Only tokens that the policy itself sampled exist here. Prompt, tool, observation and padding tokens do not, so there is no
mask to forget, no 0.0 standing for "absent", no shift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import torch
from torch import Tensor

from rollbook.objectives.checks import (
    check_choice,
    check_coefficient,
    check_flags,
    check_no_infinity,
    check_record,
    check_tensor,
)
from rollbook.objectives.errors import ObjectiveError

if TYPE_CHECKING:
    from rollbook.objectives.credit.rules import Credit

Scope = Literal["token", "sequence"]
Aggregate = Literal["token_mean", "sequence_mean", "group_token_mean", "sequence_sum", "fixed_length"]
Population = Literal["actions", "correct", "pretraining"]

_PER_TOKEN = ("advantage_T", "anchor_T", "behavior_T", "reference_T", "teacher_T", "entropy_T")
_INTEGERS = (torch.int64, torch.int32)
_FLOATS = (torch.float32, torch.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionTokens:
    """The packed action tokens of one micro-batch. Only `logp_T` and `entropy_T` carry a gradient.

    `logp_T` trained policy, `anchor_T` centre of the trust region, `behavior_T` as the engine reported at sampling time,
    `reference_T` frozen policy of a KL term, `teacher_T` teacher: log-probabilities (nats) of the sampled token.
    `entropy_T` is the entropy (nats) of the trained policy's whole distribution there.
    `seq_T` says which sequence a token belongs to, as an index into `length_S`; the tokens of a sequence stand together.
    `length_S` is the *structural* number of action tokens of each sequence, at least as many as are present here.
    For compacted trajectories a "sequence" is one segment. Values are not checked here: what is not read may hold anything. What
    an objective reads besides `logp_T` must not be infinite (`read` refuses it); NaN there gives NaN on its own token, and with
    one number per sequence on its own sequence. `logp_T` may be -inf, a token that the policy can produce no more: losses take
    their limit, and refuse where there is none. A sequence of weight 0 is best left out before the loss (`Term.reduce`).

    Example: two sequences of 2 and 1 tokens
        ActionTokens(logp_T=tensor([-1.0, -0.5, -2.0]), advantage_T=tensor([1.0, 1.0, -0.5]), anchor_T=tensor([-1.1, -0.5, -2.0]),
            seq_T=tensor([0, 0, 1]), length_S=tensor([2, 1]))
    """

    logp_T: Tensor
    seq_T: Tensor
    length_S: Tensor
    advantage_T: Tensor | None = None
    anchor_T: Tensor | None = None
    behavior_T: Tensor | None = None
    reference_T: Tensor | None = None
    teacher_T: Tensor | None = None
    entropy_T: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("logp_T", "seq_T", "length_S"):
            check_tensor("ActionTokens", name, getattr(self, name))
        _check_dtype("logp_T", self.logp_T, _FLOATS)
        _check_dtype("seq_T", self.seq_T, _INTEGERS)
        _check_dtype("length_S", self.length_S, _INTEGERS)
        _check_vector("logp_T", self.logp_T)
        _check_vector("length_S", self.length_S)
        _check_length("seq_T", self.seq_T, self.logp_T)
        for name in _PER_TOKEN:
            value_T = getattr(self, name)
            if value_T is not None:
                check_tensor("ActionTokens", name, value_T)
                _check_dtype(name, value_T, (self.logp_T.dtype,))
                _check_length(name, value_T, self.logp_T)
        _check_ids(self.seq_T, self.length_S)
        object.__setattr__(self, "seq_T", self.seq_T.long())  # index_copy and scatter take no int32

    def read(self, who: object, *names: str) -> tuple[Tensor, ...]:
        """The named fields, detached; refuses one that `who` reads but the batch lacks, and an infinity.

        Detaching here means that passing the trained log-probabilities themselves as the anchor is the on-policy case, not a loss
        without gradient.
        """
        return tuple(self.one(who, name).detach() for name in names)

    def one(self, who: object, name: str) -> Tensor:
        """The named field with its gradient, refused as `read` refuses it."""
        value_T: Tensor | None = getattr(self, name)
        if value_T is None:
            raise ObjectiveError(
                f"{type(who).__name__} needs {name}",
                got="None",
                why=f"its equation reads {name}; a missing log-probability is not 0.0",
                fix=f"score the batch for every name in objective.reads, then build ActionTokens({name}=...)",
            )
        check_no_infinity(type(who).__name__, **{name: value_T})
        return value_T

    def only(self, keep_T: Tensor) -> ActionTokens:
        """The tokens where `keep_T`: what a loss must not even see. Sequences keep their number and their structural length.

        Example: tokens.only(weight_T != 0) before the loss, with weight_T[weight_T != 0] in `Term.reduce` (there: why)
        """
        check_flags("ActionTokens.only", "keep_T", keep_T, self.seq_T)
        columns = {name: value_T for name in ("logp_T", "seq_T", *_PER_TOKEN) if (value_T := getattr(self, name)) is not None}
        return replace(self, **{name: value_T[keep_T] for name, value_T in columns.items()})

    def require_whole(self, who: object) -> None:
        """Refuse when a sequence that is present is not present in full."""
        present_S = count_tokens(self.seq_T, self.length_S)
        partial_S = (present_S > 0) & (present_S != self.length_S)
        if bool(partial_S.any()):
            index = partial_S.nonzero().flatten().tolist()[0]
            raise ObjectiveError(
                f"{type(who).__name__} needs whole sequences in a micro-batch",
                got=f"{present_S[index].tolist()} of {self.length_S[index].tolist()} tokens of sequence {index}",
                why="its ratio, mask or square is one number per sequence",
                fix="cut micro-batches between sequences (objective.scope == 'sequence')",
            )


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Unreduced loss per token, and which tokens the trust rule left without a policy gradient."""

    loss_T: Tensor
    clipped_T: Tensor


@dataclass(frozen=True, slots=True)
class Term:
    """One named term of a step's loss: coefficient * sum_T(weight_T * loss_T), over its own population.

    `weight_T` is `sequence_weight(aggregate, ...)[seq_T]`; `population` names the sequences that are kept for it.

    Example: Term("policy", tensor([0.5, 2.0]), 1.0, "token_mean", "actions").reduce(tensor([0.5, 0.5])) -> 1.25
    """

    name: str
    loss_T: Tensor
    coefficient: float
    aggregate: str
    population: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            got = repr(self.name)
            raise ObjectiveError("Term.name must be a name", got=got, why="losses are reported by name", fix="name the term")
        check_tensor("Term", "loss_T", self.loss_T)
        check_coefficient("Term", self.coefficient)
        check_choice("Term", "aggregate", self.aggregate, get_args(Aggregate))
        check_choice("Term", "population", self.population, get_args(Population))

    def reduce(self, weight_T: Tensor) -> Tensor:
        """This micro-batch's share of the step's loss. A token of weight 0 adds exactly 0, and `loss_T` gets gradient 0 there.

        Limit: what `loss_T` was computed from gets that 0 times the loss's own derivative, and 0 * inf is NaN. Where a sequence
        may hold what has no finite derivative, leave its tokens out *before* the loss is computed, which changes nothing else
        (`ActionTokens.only`). No selection made here could help: the loss was already computed from what it must not see.
        """
        check_tensor("Term.reduce", "weight_T", weight_T)
        _check_length("weight_T", weight_T, self.loss_T)
        share_T = weight_T * self.loss_T
        return self.coefficient * torch.where(weight_T == 0, torch.zeros_like(share_T), share_T).sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unstated:
    """A setting that the sources name without all its numbers, or do not name at all: refused until the user supplies it.

    `known` is the rule's name (None: not even that), `printed` the numbers the paper does print, `missing` the others.

    Example: GSPO normalises rewards in the group and prints neither number
        Unstated(what="credit", known="GroupNormalized", missing=("eps", "ddof"))
    """

    what: str
    known: str | None = None
    printed: tuple[tuple[str, float | str | None], ...] = ()
    missing: tuple[str, ...] = ()

    def refuse(self, who: str) -> ObjectiveError:
        rule = "nothing" if self.known is None else f"{self.known} without {', '.join(self.missing)}"
        return ObjectiveError(
            f"{who} needs {self.what}",
            got=f"what the paper states: {rule}",
            why="the paper does not print it and rollbook does not invent numbers",
            fix=f"set objective.{self.what} yourself; the run then records it as yours",
        )


class Objective:
    """What every objective has: `reads`, `scope`, `credit`, `aggregate`, `extra_terms` and `__call__(tokens) -> TokenLoss`.

    `reads` are the fields of `ActionTokens` that `__call__` uses. `credit` is the settings record of the advantage it is fed,
    `aggregate` the `how` of `sequence_weight`; either is `Unstated` where the paper is silent. `extra_terms` are further
    per-token terms (KL, positive NLL) with coefficients of their own; they are never inside the surrogate.
    """

    __slots__ = ()
    scope: ClassVar[Scope] = "token"
    reads: ClassVar[frozenset[str]] = frozenset()

    if TYPE_CHECKING:  # dataclass fields of the subclasses; a property here would become their default

        @property
        def credit(self) -> Credit | Unstated: ...

        @property
        def aggregate(self) -> Aggregate | Unstated: ...

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        raise NotImplementedError

    @property
    def extra_terms(self) -> tuple[ExtraTerm, ...]:
        return ()


class ExtraTerm:
    """A per-token term beside the policy loss: `name`, `reads`, `coefficient`, `aggregate`, `population`, call -> `loss_T`."""

    __slots__ = ()
    name: ClassVar[str] = ""
    reads: ClassVar[frozenset[str]] = frozenset()
    population: ClassVar[Population] = "actions"
    coefficient: float
    aggregate: str | Unstated

    def __call__(self, tokens: ActionTokens) -> Tensor:
        raise NotImplementedError

    def term(self, tokens: ActionTokens, *, coefficient: float | None = None) -> Term:
        """This term of a step's loss; `coefficient` overrides the record's where it is adapted during the run."""
        if isinstance(self.aggregate, Unstated):
            raise self.aggregate.refuse(type(self).__name__)
        chosen = self.coefficient if coefficient is None else coefficient
        return Term(self.name, self(tokens), chosen, self.aggregate, self.population)


def read(tokens: ActionTokens, who: object, *names: str) -> tuple[Tensor, ...]:
    """`tokens.read` for `who`; refuses what is no packed micro-batch."""
    check_record(type(who).__name__, "tokens", tokens, ActionTokens)
    return tokens.read(who, *names)


def all_reads(objective: Objective) -> frozenset[str]:
    """Every field that the objective or one of its extra terms reads: what the learner has to score."""
    check_record("all_reads", "objective", objective, Objective)
    return objective.reads.union(*(term.reads for term in objective.extra_terms))


def total_loss(terms: Sequence[Term], weight_T: Sequence[Tensor]) -> Tensor:
    """sum_k coefficient_k * sum_T(weight_kT * loss_kT) of this micro-batch; the step's loss is the sum over micro-batches."""
    for name, value in {"terms": terms, "weight_T": weight_T}.items():
        check_record("total_loss", name, value, (list, tuple))
    for term in terms:
        check_record("total_loss", "each of terms", term, Term)
    if not terms or len(terms) != len(weight_T):
        raise ObjectiveError(
            "total_loss needs at least one term, and one weight_T for each",
            got=f"{len(terms)} terms, {len(weight_T)} weights",
            why="a step without a term has no loss, which is not a loss of 0",
            fix="pass the policy term and every extra term, each with the weights of its own population",
        )
    return torch.stack([term.reduce(w_T) for term, w_T in zip(terms, weight_T, strict=True)]).sum()


def count_tokens(seq_T: Tensor, length_S: Tensor) -> Tensor:
    """Tokens of each sequence present in this micro-batch."""
    return torch.zeros_like(length_S).index_add(0, seq_T, torch.ones_like(seq_T, dtype=length_S.dtype))


def number_ids(id_S: Tensor) -> tuple[Tensor, int]:
    """Consecutive numbers 0 .. n-1 for arbitrary integer ids (rows, when 2-D), and n."""
    if id_S.numel() == 0:
        return torch.zeros(id_S.shape[0], dtype=torch.int64, device=id_S.device), 0
    member_S: Tensor = torch.unique(id_S, return_inverse=True, dim=0)[1]
    return member_S, int(member_S.max()) + 1 if member_S.numel() else 0


def sum_S(value_T: Tensor, tokens: ActionTokens) -> Tensor:
    """Sum of the present tokens' values per sequence."""
    zero_S = torch.zeros(tokens.length_S.shape[0], dtype=value_T.dtype, device=value_T.device)
    return zero_S.index_add(0, tokens.seq_T, value_T)


def mean_S(value_T: Tensor, tokens: ActionTokens) -> Tensor:
    """(1/L_i) sum_t value_it per sequence over its structural length; 0 for an empty sequence."""
    return sum_S(value_T, tokens) / tokens.length_S.clamp(min=1)


def advantage_S(tokens: ActionTokens, who: object) -> Tensor:
    """The one advantage of each sequence; refuses advantages that differ between its tokens. All NaN stays NaN."""
    (advantage_T,) = read(tokens, who, "advantage_T")
    value_S = advantage_T.new_zeros(tokens.length_S.shape[0]).index_copy(0, tokens.seq_T, advantage_T)
    shared_T = value_S[tokens.seq_T]
    same_T = (shared_T == advantage_T) | (shared_T.isnan() & advantage_T.isnan())
    if not bool(same_T.all()):
        raise ObjectiveError(
            f"{type(who).__name__} takes one advantage per sequence",
            got="different advantages inside one sequence",
            why="its surrogate is one number per sequence",
            fix="use a per-sequence credit rule, or GspoToken for per-token advantages",
        )
    return value_S


def _check_dtype(name: str, value: Tensor, allowed: tuple[torch.dtype, ...]) -> None:
    if value.dtype not in allowed:
        names = " or ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
        raise ObjectiveError(
            f"ActionTokens.{name} must be {names}",
            got=str(value.dtype).removeprefix("torch."),
            why="ids and lengths are integers; log-probabilities share one float precision, or a ratio of 1 is not exactly 1",
            fix=f"convert {name} where it is produced, with {name}.to(torch.{names.split()[0]})",
        )


def _check_vector(name: str, value: Tensor) -> None:
    if value.dim() != 1:
        raise ObjectiveError(
            f"ActionTokens.{name} must be a vector",
            got=f"shape {tuple(value.shape)}",
            why="objectives see packed tokens, not padded rows",
            fix="select the action tokens and lay them end to end",
        )


def _check_length(name: str, value_T: Tensor, logp_T: Tensor) -> None:
    if value_T.shape != logp_T.shape:
        raise ObjectiveError(
            f"{name} must have the length of logp_T, {logp_T.shape[0]}",
            got=f"shape {tuple(value_T.shape)}",
            why="every per-token field describes the same action tokens in the same order",
            fix=f"build {name} from the same packing as logp_T",
        )


def _check_ids(seq_T: Tensor, length_S: Tensor) -> None:
    why = "seq_T indexes length_S and the tokens of a sequence stand together"
    if bool((length_S < 0).any()):
        raise ObjectiveError("ActionTokens.length_S must be >= 0", got=str(length_S.tolist()), why="it counts", fix="count")
    if seq_T.numel() == 0:
        return
    if bool(((seq_T < 0) | (seq_T >= length_S.shape[0])).any()):
        raise ObjectiveError(
            f"ActionTokens.seq_T must lie in 0 .. {length_S.shape[0] - 1}",
            got=f"ids {seq_T.min().tolist()} .. {seq_T.max().tolist()} for {length_S.shape[0]} lengths",
            why=why,
            fix="number the sequences in the order of length_S, without gaps",
        )
    present_S = count_tokens(seq_T, length_S)
    runs = 1 + (seq_T[1:] != seq_T[:-1]).sum()
    if bool(runs != (present_S > 0).sum()):
        raise ObjectiveError(
            "ActionTokens.seq_T must be contiguous per sequence",
            got=f"{runs.tolist()} runs of {int((present_S > 0).sum())} ids",
            why=why,
            fix="pack one sequence after the other",
        )
    if bool((present_S > length_S).any()):
        raise ObjectiveError(
            "ActionTokens.length_S must be at least the tokens present",
            got=f"lengths {length_S.tolist()} for {present_S.tolist()} tokens",
            why="length_S is the structural number of action tokens of the whole sequence",
            fix="count the sequence's action tokens before cutting it into micro-batches",
        )
