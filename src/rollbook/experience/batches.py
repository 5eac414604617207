"""From admitted groups to the packed batch of one optimizer step.

Legend: T action tokens of the step in sequence order, S sequences, G groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor

from rollbook.experience.admission import AdmittedGroup
from rollbook.experience.mixing import POPULATION, Mixed
from rollbook.experience.steps import steps_of
from rollbook.experience.token_credit import axes, per_token, uses_kl
from rollbook.objectives import ActionTokens, Term, Unstated, sequence_weight
from rollbook.objectives.aggregate import Aggregate
from rollbook.objectives.core import Objective
from rollbook.objectives.credit import Measured, assign_credit
from rollbook.objectives.credit.rules import Credit as Rule
from rollbook.objectives.credit.rules import StepGroups
from rollbook.objectives.terms import EntropyBonus
from rollbook.records import Credit, EntropyControl, Experience, RecordError, TermSpec, encode
from rollbook.records.recipe import Plain
from rollbook.records.rollout import UNSAMPLED


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """One optimizer step's input: sequences in order, their action tokens end to end, one weight per term and token.

    `plan` lists the sequences of each micro-batch, `correct_S` is 1, 0 or -1 where correctness is not known.
    `anchor_T`, `reference_T` and `teacher_T` are None unless the objective or its credit reads them, `value_T`, `return_T` and
    `kl_T` (nats) unless credit is given per token from them. `routes_LYK` are the experts that a replay takes, micro-batch after
    micro-batch, each in the order of its layout; None where the router is free. `mixed` is pretraining data beside the batch,
    `control` what a controlled bonus for entropy is at this step.
    """

    members: tuple[Experience, ...]
    group_S: Tensor
    length_S: Tensor
    correct_S: Tensor
    max_length: int | None
    seq_T: Tensor
    token_T: Tensor
    behavior_T: Tensor
    version_T: Tensor
    advantage_T: Tensor
    anchor_T: Tensor | None
    reference_T: Tensor | None
    terms: tuple[TermSpec, ...]
    weight_KT: Tensor
    plan: tuple[tuple[int, ...], ...]
    credit: Credit
    teacher_T: Tensor | None = None
    value_T: Tensor | None = None
    return_T: Tensor | None = None
    kl_T: Tensor | None = None
    routes_LYK: Tensor | None = None
    mixed: Mixed | None = None
    control: EntropyControl | None = None

    @property
    def sampled_T(self) -> Tensor:
        """Which of the tokens a policy sampled: all, unless the stage trains on observations."""
        return self.version_T != UNSAMPLED

    def tokens(self, index_T: Tensor, logp_T: Tensor, entropy_T: Tensor | None = None) -> ActionTokens:
        """The objective's view of some of the tokens."""
        def pick(value: Tensor | None) -> Tensor | None:
            return None if value is None else value[index_T]
        return ActionTokens(logp_T=logp_T, seq_T=self.seq_T[index_T], length_S=self.length_S,
                            advantage_T=self.advantage_T[index_T], behavior_T=self.behavior_T[index_T],
                            anchor_T=pick(self.anchor_T), reference_T=pick(self.reference_T), teacher_T=pick(self.teacher_T),
                            entropy_T=entropy_T)

    def tensors(self) -> dict[str, Tensor]:
        """What is stored of the batch, by name."""
        named = {"token_ids": self.token_T, "seq": self.seq_T, "group": self.group_S, "length": self.length_S,
                 "correct": self.correct_S,
                 "behavior": self.behavior_T, "version": self.version_T, "advantage": self.advantage_T, "weight": self.weight_KT,
                 "anchor": self.anchor_T, "reference": self.reference_T, "teacher": self.teacher_T, "value": self.value_T,
                 "return": self.return_T, "kl": self.kl_T, "routes": self.routes_LYK}
        beside = {} if self.mixed is None else self.mixed.tensors()
        return {name: value for name, value in named.items() if value is not None} | beside


def minibatches(groups: Sequence[AdmittedGroup], count: int) -> tuple[tuple[AdmittedGroup, ...], ...]:
    """The groups cut into at most `count` parts of nearly equal size, between groups; no part is empty."""
    parts = min(count, len(groups))
    bounds = [len(groups) * i // parts for i in range(parts + 1)] if parts else []
    return tuple(tuple(groups[a:b]) for a, b in pairwise(bounds))


def as_if_written(part: Sequence[AdmittedGroup]) -> tuple[AdmittedGroup, ...]:
    """The groups with every trajectory as if the policy had written its observations too."""
    return tuple(replace(one, members=tuple(replace(m, trace=m.trace.as_if_written()) for m in one.members)) for one in part)


def with_subagents(part: Sequence[AdmittedGroup]) -> tuple[AdmittedGroup, ...]:
    """The groups with every trajectory as it is learnt where its subagents are trained too."""
    return tuple(replace(one, members=tuple(replace(m, trace=m.trace.with_subagents()) for m in one.members)) for one in part)


def credited(parts: Sequence[Sequence[AdmittedGroup]], objective: Objective, scope: str, *,
             misfit_penalty: float = 0.0) -> tuple[Credit, ...]:
    """One credit record per minibatch; the rule sees the whole step, so that it may normalise over either.

    `misfit_penalty` is taken from the advantage of every token of a call that could not be made.
    """
    groups = [one for part in parts for one in part]
    members = [member for one in groups for member in one.members]
    reward_S = torch.tensor([m.verdict.vector.total for m in members], dtype=torch.float64)
    group_S = torch.tensor([g for g, one in enumerate(groups) for _ in one.members], dtype=torch.long)
    part_S = torch.tensor([p for p, part in enumerate(parts) for one in part for _ in one.members], dtype=torch.long)
    rule = objective.credit
    later = per_token(rule)         # what needs the models' numbers is given once they have scored the tokens
    advantage_S = None if later else assign_credit(rule, Measured(
        reward_S=reward_S, group_S=group_S, minibatch_S=part_S, seq_T=torch.arange(len(members)))).advantage_S
    if advantage_S is None and not later:
        raise RecordError("this credit rule gives no advantage per sequence", got=type(rule).__name__,
                          why="it needs rewards of steps", fix="use a rule over sequences or tokens")
    baseline, over = axes(rule)
    records, at = [], 0
    for index, part in enumerate(parts):
        size = sum(len(one.members) for one in part)
        here = slice(at, at + size)
        records.append(Credit(
            scope=f"{scope}/{index}", rule=_plain(rule), traces=tuple(m.trace.id for m in members[here]),
            group_of=tuple(one.id for one in part for _ in one.members), reward=tuple(reward_S[here].tolist()),
            advantage=() if advantage_S is None else tuple(advantage_S[here].tolist()), baseline=baseline, normalized_over=over,
            gamma=getattr(rule, "gamma", None), lam=getattr(rule, "lam_policy", None), per="token" if later else "sequence",
            misfit_penalty=misfit_penalty))
        at += size
    return tuple(records)


def pack(part: Sequence[AdmittedGroup], credit: Credit, objective: Objective, *, max_tokens: int,
         max_length: int | None) -> Packed:
    """The batch of one optimizer step; weights are fixed here, once, over all its sequences."""
    members = tuple(member for one in part for member in one.members)
    group_S = torch.tensor([g for g, one in enumerate(part) for _ in one.members], dtype=torch.long)
    length_S = torch.tensor([m.trace.learnt_count for m in members], dtype=torch.long)
    seq_T = torch.repeat_interleave(torch.arange(len(members)), length_S)
    segments = [list(m.trace.learnt_segments) for m in members]
    advantage_S = torch.tensor(credit.advantage or (0.0,) * len(members), dtype=torch.float32)
    correct_S = torch.tensor([_correct(m) for m in members], dtype=torch.int8)
    parts: tuple[tuple[str, float, Aggregate | Unstated, str], ...] = (
        ("policy", 1.0, objective.aggregate, "actions"),
        *((t.name, t.coefficient, cast(Aggregate | Unstated, t.aggregate), t.population) for t in objective.extra_terms))
    over = (length_S, group_S, correct_S == 1)
    kept_S = torch.tensor([not (drops_truncated(objective) and m.trace.stop_reason == "length") for m in members])
    weights = [_weight(how, population, (*over, kept_S), max_length)[seq_T] for _, _, how, population in parts]
    terms = tuple(TermSpec(name=name, coefficient=coefficient, aggregate=str(how), population=population)
                  for name, coefficient, how, population in parts)
    return Packed(
        members=members, group_S=group_S, length_S=length_S, correct_S=correct_S, max_length=max_length, seq_T=seq_T,
        token_T=torch.tensor([t for ss in segments for s in ss for t in s.token_ids], dtype=torch.long),
        behavior_T=torch.tensor([x for ss in segments for s in ss for x in s.logps or ()], dtype=torch.float32),
        version_T=torch.tensor([s.version for ss in segments for s in ss for _ in s.token_ids], dtype=torch.long),
        advantage_T=_less_misfits(advantage_S[seq_T], members, length_S, credit.misfit_penalty),
        anchor_T=None, reference_T=None, terms=terms, weight_KT=torch.stack(weights),
        plan=micro_batches(part, max_tokens), credit=credit)


def _less_misfits(advantage_T: Tensor, members: Sequence[Experience], length_S: Tensor, penalty: float) -> Tensor:
    """The advantages, less the penalty at exactly the tokens of calls that could not be made."""
    if penalty:
        start_S = torch.cumsum(length_S, 0) - length_S
        for member, start in zip(members, start_S.tolist(), strict=True):
            for place in member.trace.misfit_tokens():
                advantage_T[start + place] -= penalty
    return advantage_T


def _correct(member: Experience) -> int:
    accuracy = member.verdict.vector.accuracy
    return -1 if accuracy is None else int(accuracy == 1.0)


def drops_truncated(objective: Objective) -> bool:
    """Whether the objective filters answers that were cut off (DAPO's overlong filter): they have no weight and do not count."""
    inner: object = objective
    while (held := getattr(inner, "objective", None)) is not None:      # a correction, a bonus: one may stand around the other
        inner = held
    return getattr(inner, "overlong_filter", False) is True


def _weight(how: Aggregate | Unstated, population: str, of: tuple[Tensor, Tensor, Tensor, Tensor],
            max_length: int | None) -> Tensor:
    """A term's weight per sequence over its population, without the sequences that the objective filters."""
    length_S, group_S, correct_S, kept_S = of
    if population == POPULATION:            # its tokens stand beside the batch: no action token is one of them
        return torch.zeros(length_S.shape, dtype=torch.float64)
    keep_S = {"actions": kept_S, "correct": kept_S & correct_S}.get(population)
    if keep_S is not None:
        dropping = not bool(keep_S.all())
        return sequence_weight(how, length_S, group_S, max_length=max_length, keep_S=keep_S if dropping else None,
                               count_dropped=False if dropping else None)
    raise RecordError("a term of this population needs data that a policy batch does not hold", got=population,
                      why="its tokens are no action tokens", fix="use one of actions, correct, pretraining")


def with_scores(packed: Packed, *, anchor_T: Tensor | None, reference_T: Tensor | None,
                teacher_T: Tensor | None = None) -> Packed:
    """The batch with the log-probs its objective reads."""
    return replace(packed, anchor_T=anchor_T, reference_T=reference_T, teacher_T=teacher_T)


def with_token_credit(parts: Sequence[Packed], rule: Rule | Unstated, values: Sequence[Tensor] | None) -> list[Packed]:
    """The minibatches of a step with their advantages per token; `values` are the critic's, one tensor a minibatch."""
    sizes_T, sizes_S = [part.seq_T.numel() for part in parts], [len(part.members) for part in parts]
    starts = [sum(sizes_S[:at]) for at in range(len(parts))]
    kl_T = None
    if uses_kl(rule):
        gaps = [_anchor(part) - _reference(part) for part in parts]
        kl_T = torch.cat(gaps)
    members = [member for part in parts for member in part.members]
    actions = torch.cat([part.length_S for part in parts])
    steps = steps_of(members) if isinstance(rule, StepGroups) else None
    everything = torch.tensor([m.trace.shown_count for m in members])          # prompts, actions and observations
    given = assign_credit(rule, Measured(
        reward_S=torch.tensor([m.verdict.vector.total for m in members], dtype=torch.float64),
        group_S=torch.cat([part.group_S + start for part, start in zip(parts, starts, strict=True)]),
        minibatch_S=torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(sizes_S)),
        seq_T=torch.cat([part.seq_T + start for part, start in zip(parts, starts, strict=True)]), kl_T=kl_T,
        value_T=None if values is None else torch.cat(list(values)),
        length_S=actions if getattr(rule, "counts", "action_tokens") == "action_tokens" else everything,
        step_reward_K=None if steps is None else steps.reward_K, step_state_K=None if steps is None else steps.state_K,
        step_seq_K=None if steps is None else steps.seq_K, step_T=None if steps is None else steps.step_T))
    split = [None if value is None else torch.split(value.float(), sizes_T)
             for value in (given.advantage_T, given.return_T, kl_T)]
    less = [_less_misfits(advantage_T.clone(), part.members, part.length_S, part.credit.misfit_penalty)
            for part, advantage_T in zip(parts, split[0] or (), strict=True)]
    return [replace(part, advantage_T=less[at], return_T=_at(split[1], at), kl_T=_at(split[2], at),
                    value_T=None if values is None else values[at]) for at, part in enumerate(parts)]


def with_control(packed: Packed, control: EntropyControl) -> Packed:
    """The batch of an optimizer step whose bonus for entropy is controlled: that term has the coefficient of this step."""
    return replace(packed, control=control, terms=tuple(replace(term, coefficient=control.coefficient)
                                                        if term.name == EntropyBonus.name else term for term in packed.terms))


def _at(parts: Sequence[Tensor] | None, at: int) -> Any:
    return None if parts is None else parts[at].contiguous()


def _anchor(part: Packed) -> Tensor:
    """Log-probs of the sampling policy by the trainer's arithmetic."""
    if part.anchor_T is None:
        raise RecordError("a KL in the reward needs the anchor's log-probs", got="None", why="it is taken at sampling parameters")
    return part.anchor_T


def _reference(part: Packed) -> Tensor:
    if part.reference_T is None:
        raise RecordError("a KL in the reward needs the reference's log-probs", got="None")
    return part.reference_T


def micro_batches(part: Sequence[AdmittedGroup], max_tokens: int) -> tuple[tuple[int, ...], ...]:
    """Sequence indices per micro-batch: whole groups, longest first into the fullest bin that holds them.

    A group longer than `max_tokens` gets a micro-batch of its own.
    """
    sizes, first = [], 0
    for one in part:
        sizes.append((_laid_out(one.members), first, len(one.members)))
        first += len(one.members)
    bins: list[tuple[int, list[int]]] = []
    for size, start, count in sorted(sizes, key=lambda item: (-item[0], item[1])):
        fitting = [i for i, (used, _) in enumerate(bins) if used + size <= max_tokens]
        where = max(fitting, key=lambda i: bins[i][0], default=None)
        held = list(range(start, start + count))
        if where is None:
            bins.append((size, held))
        else:
            bins[where] = (bins[where][0] + size, bins[where][1] + held)
    return tuple(tuple(sorted(held)) for _, held in bins)


def _laid_out(members: Sequence[Experience]) -> int:
    """Tokens of a group's contexts, a prompt that is the group's counted once."""
    prompt = members[0].trace.prompt_ids
    return len(prompt) + sum(len(one.token_ids) - (len(prompt) if one.prompt_ids == prompt else 0)
                             for member in members for one in member.trace.contexts())


def evaluate(objective: Objective, packed: Packed, index_T: Tensor, logp_T: Tensor,
             entropy_T: Tensor | None = None) -> tuple[list[Term], Tensor]:
    """The terms of some of the tokens, in the order of `packed.terms`, and which of them the trust rule clipped."""
    tokens = packed.tokens(index_T, logp_T, entropy_T)
    policy = objective(tokens)
    first = packed.terms[0]
    terms = [Term(first.name, policy.loss_T, first.coefficient, first.aggregate, first.population)]
    terms += [extra.term(tokens) for extra in objective.extra_terms]
    return terms, policy.clipped_T


def _plain(rule: object) -> Mapping[str, Plain]:
    document = encode(rule)
    return {key: value for key, value in document.items() if not isinstance(value, (list, dict))}
