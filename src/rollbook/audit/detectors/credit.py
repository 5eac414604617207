"""Stage 10: credit. Advantages follow from verdicts, groups and the rule, and stand on action tokens only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rollbook.audit.advantages import AXES, advantages
from rollbook.audit.detector import Detector, StoredStep
from rollbook.audit.estimator import differences, inner, whole
from rollbook.audit.index import RunIndex
from rollbook.audit.step_advantages import STEPS, step_axes, step_credit
from rollbook.audit.token_advantages import token_credit
from rollbook.records import AuditRow, Credit, Scored, StepReport, Trace, Verdict
from rollbook.records.recipe import PolicyGradient
from rollbook.records.rollout import UNSAMPLED

TENSORS = ("token_ids", "seq", "group", "length", "advantage")
CLOSE = 1e-9            # relative: rewards and advantages are recorded in double precision
HOST_CLOSE = 1e-4       # the same where a host computed them in single precision


@dataclass(frozen=True, slots=True)
class Part:
    """One minibatch of a step: its credit record, the rewards of the traces' own verdicts, and the traces' own groups."""

    identity: str
    credit: Credit
    rule: Mapping[str, object]
    reward: tuple[float, ...]
    group: tuple[str, ...]


class CreditDetector(Detector):
    """Gives credit again from the trajectories; holds one step's rewards and groups at a time."""

    stage, name = 10, "credit"
    absent = "no step gave credit"

    def __init__(self) -> None:
        super().__init__()
        self.step_name = ""
        self.parts: list[Part] = []
        self.unseen = self.observed = 0
        self.unknown: Counter[str] = Counter()

    def record(self, run: RunIndex, identity: str, record: object) -> None:
        if isinstance(record, StepReport):
            self._recompute()
        elif isinstance(record, Credit) and run.host is not None:
            self.checked(len(record.traces))
            self._of_trajectories(run, identity, record, record.rule)
            self._recompute(HOST_CLOSE)

    def step(self, run: RunIndex, step: StoredStep) -> None:
        name = step.batch.scope.rpartition("/")[0]
        if name != self.step_name:
            self._recompute()
            self.step_name = name
        credit, where = step.credit, step.credit_id
        if credit is None or where is None:
            self.fail(step.batch_id, f"no Credit record says where the advantages of {step.batch.scope} come from",
                      "record the credit of every batch before the batch")
            return
        self.checked(len(credit.traces))
        lacking = [name for name in TENSORS if name not in step.given]
        if lacking:
            self.fail(step.batch_id, f"the batch of {credit.scope} does not store {', '.join(lacking)}",
                      "store every tensor of the batch")
            return
        if credit.traces != step.batch.traces:
            self.fail(where, f"the credit of {credit.scope} names {len(credit.traces)} trajectories, its batch "
                      f"{len(step.batch.traces)}, not the same in the same order", "credit the sequences of the batch in its "
                      "order")
            return
        rule = self._rule(run, step, where, credit)
        traces = self._of_trajectories(run, where, credit, rule)
        if traces is not None:
            self._tokens(step, traces)
        if credit.per == "token":
            self._per_token(step, credit, rule, traces)
        else:
            self._constant(step, credit, traces)

    def finish(self, run: RunIndex) -> None:
        self._recompute()
        if self.observed:
            self.note(f"{self.observed} of the trained tokens are observations that no policy wrote, as the recipe asks "
                      "(observation_loss)")
        if self.unseen:
            self.note(f"{self.unseen} sequences were trained whose trajectories no earlier table of the run holds")
        if self.unknown:
            self.note("advantages not computed again: " + ", ".join(f"{rule} ({count} batches)"
                                                                    for rule, count in sorted(self.unknown.items())))

    def result(self) -> AuditRow:
        """A rule whose advantages were not computed again is no pass."""
        if not self.failures and (self.unknown or self.unseen):
            self.examined = 0
        return super().result()

    def _rule(self, run: RunIndex, step: StoredStep, where: str, credit: Credit) -> Mapping[str, object]:
        """The rule in force; Credit, Batch and recipe must say the same."""
        stated = dict(credit.rule)
        named = _mapping(inner(step.batch.objective).get("credit"))
        recipe = run.recipe.settings.stages.get(credit.scope.partition("/")[0]) if run.recipe is not None else None
        wanted = _mapping(inner(whole(recipe.objective)).get("credit")) if isinstance(recipe, PolicyGradient) else named
        for other, whose in ((named, "its batch's objective"), (wanted, "the recipe")):
            if unlike := differences(stated, other):
                self.fail(where, f"credit was given by {stated.get('kind')}, {whose} says otherwise: {'; '.join(unlike)}",
                          "give credit with the rule of the recipe, and record that rule")
        axes = step_axes(wanted) if stated.get("kind") == STEPS else AXES.get(str(stated.get("kind")))
        if axes is not None:
            for name, value, true in (("baseline", credit.baseline, axes[0]), ("normalized_over", credit.normalized_over,
                                                                               axes[1]),
                                      ("gamma", credit.gamma, wanted.get("gamma")), ("lam", credit.lam, None)):
                if value != true:
                    self.fail(where, f"{name} = {value!r}, the rule {stated['kind']} has {true!r}",
                              "record the axes of the rule used")
        return wanted

    def _of_trajectories(self, run: RunIndex, where: str, credit: Credit, rule: Mapping[str, object]) -> list[Trace] | None:
        """Rewards and groups against the trajectories, which are returned; the minibatch waits for its step to be over."""
        found = [run.recent.get(trace) for trace in credit.traces]
        known = [pair for pair in found if pair is not None]
        if len(known) < len(found):
            self.unseen += len(found) - len(known)
            return None
        self._rewards(where, credit, known)
        totals = tuple(verdict.vector.total for _, verdict in known if isinstance(verdict, Scored))
        if credit.per != "token" and len(totals) == len(known):         # of an unscored attempt nothing follows: it has failed
            self.parts.append(Part(where, credit, rule, totals, tuple(trace.group for trace, _ in known)))
        return [run.learnt(credit.scope, trace) for trace, _ in known]

    def _rewards(self, where: str, credit: Credit, known: Sequence[tuple[Trace, Verdict | None]]) -> None:
        """Reward and group of each sequence against its trajectory's own."""
        for trace, reward, group, (own, verdict) in zip(credit.traces, credit.reward, credit.group_of, known, strict=True):
            if not isinstance(verdict, Scored):
                self.fail(where, f"{trace} was given reward {reward:g} and has no verdict", "give credit to scored attempts only")
            elif reward != verdict.vector.total:
                self.fail(where, f"{trace} was credited with reward {reward:g}, its verdict says {verdict.vector.total:g}",
                          "take rewards from the verdict of the very trajectory")
            if group != own.group:
                self.fail(where, f"{trace} was credited in group {group}, it belongs to {own.group}",
                          "join sequences by the group id that their trajectory carries, not by position")

    def _tokens(self, step: StoredStep, traces: Sequence[Trace]) -> None:
        """The batch's tokens are the trajectories' action tokens, each once, in order."""
        given, where = step.given, step.batch_id
        lengths = np.array([trace.learnt_count for trace in traces], dtype=np.int64)
        own = [segment.token_ids for trace in traces for segment in trace.learnt_segments]
        self.observed += sum(len(s.token_ids) for trace in traces for s in trace.learnt_segments if s.version == UNSAMPLED)
        tokens = np.array([token for ids in own for token in ids], dtype=np.int64)
        if not np.array_equal(given["length"], lengths):
            self.fail(where, f"the batch of {step.batch.scope} holds {int(given['length'].sum())} action tokens, its "
                      f"trajectories {int(lengths.sum())}", "train on the tokens the policy emitted: no observation, no padding")
        elif not np.array_equal(given["token_ids"], tokens):
            where_T = np.flatnonzero(given["token_ids"] != tokens) if given["token_ids"].shape == tokens.shape else [0]
            self.fail(where, f"{len(where_T)} tokens of the batch of {step.batch.scope} are not the trajectories' action tokens, "
                      f"first at {int(where_T[0])}", "pack the policy's own token ids in order")

    def _constant(self, step: StoredStep, credit: Credit, traces: Sequence[Trace] | None) -> None:
        """Every token of a sequence carries the sequence's advantage, less the penalty where a call could not be made; groups of
        the batch are the credit's."""
        given, where = step.given, step.batch_id
        count = len(credit.traces)
        if given["length"].shape != (count,) or not np.array_equal(given["seq"], np.repeat(np.arange(count), given["length"])):
            self.fail(where, f"the tokens of {step.batch.scope} are not laid out sequence by sequence",
                      "number the tokens of the batch by their sequence, end to end")
            return
        wanted = np.array(credit.advantage, dtype=np.float64).astype(np.float32)[given["seq"]]
        if int(given["length"].sum()) == len(wanted):
            take_misfits(wanted, credit, given["length"], traces)
        off = np.flatnonzero(~(given["advantage"] == wanted)) if given["advantage"].shape == wanted.shape else np.array([0])
        if off.size:
            at = int(off[0])
            self.fail(where, f"{off.size} tokens of {step.batch.scope} carry another advantage than their sequence, first token "
                      f"{at} of sequence {int(given['seq'][at])}: {_at(given['advantage'], at)} for {_at(wanted, at)}",
                      "give each action token the advantage of its sequence")
        names = {name: place for place, name in enumerate(dict.fromkeys(credit.group_of))}
        if not np.array_equal(given["group"], [names[name] for name in credit.group_of]) or step.batch.groups != len(names):
            self.fail(where, f"the batch of {step.batch.scope} groups its sequences otherwise than its credit",
                      "number the groups of a batch in the order of its sequences")

    def _per_token(self, step: StoredStep, credit: Credit, rule: Mapping[str, object], traces: Sequence[Trace] | None) -> None:
        """Advantages token by token, from the values and the KL that the batch stores; returns and KL as well."""
        given = step.given
        total_S = None if traces is None else np.array([trace.shown_count for trace in traces], dtype=np.int64)
        if rule.get("kind") == STEPS:
            by_step = None if traces is None else step_credit(rule, credit.reward, traces)
            found = None if by_step is None else {"advantage": by_step}
        else:
            found = token_credit(rule, np.array(credit.reward), given, total_S)
        if found is None or (credit.misfit_penalty and traces is None):
            self.unknown[str(rule.get("kind"))] += 1
            return
        take_misfits(found["advantage"], credit, given["length"], traces)
        for name, mine in found.items():
            stated = given.get(name)
            if stated is None or stated.shape != mine.shape:
                self.fail(step.batch_id, f"the batch of {credit.scope} does not store {name} for every token",
                          "store what the advantages were made of")
                continue
            off = np.flatnonzero(~(np.abs(stated - mine) <= HOST_CLOSE * np.maximum(1, np.abs(mine).max(initial=0.0))))
            if off.size:
                at = int(off[0])
                self.fail(step.batch_id, f"{off.size} of {mine.size} values of {name} of {credit.scope} do not follow by "
                          f"{rule.get('kind')}: token {at} has {stated[at]:.6g}, computed {mine[at]:.6g}",
                          "give credit with the recipe's rule from the values and the KL of the batch")

    def _recompute(self, close: float = CLOSE) -> None:
        """The advantages of a step that is over, all minibatches at once."""
        parts, self.parts = self.parts, []
        if not parts:
            return
        names = {name: place for place, name in enumerate(dict.fromkeys(g for part in parts for g in part.group))}
        found = advantages(parts[0].rule, np.array([r for part in parts for r in part.reward]),
                           np.array([names[g] for part in parts for g in part.group], dtype=np.int64),
                           np.array([p for p, part in enumerate(parts) for _ in part.reward], dtype=np.int64))
        if found is None:
            self.unknown[str(parts[0].rule.get("kind"))] += len(parts)
            return
        at = 0
        for part in parts:
            mine = found[at:at + len(part.reward)]
            at += len(part.reward)
            stated = np.array(part.credit.advantage)
            off = np.flatnonzero(~(np.abs(stated - mine) <= close * np.maximum(1, np.abs(mine))))
            if off.size:
                first = int(off[0])
                self.fail(part.identity, f"{off.size} of {mine.size} advantages of {part.credit.scope} do not follow from the "
                          f"verdicts by {part.rule.get('kind')}: {part.credit.traces[first]} has {stated[first]:.6g}, computed "
                          f"{mine[first]:.6g}",
                          "compute advantages from the verdicts with the recipe's rule")


def take_misfits(advantage_T: np.ndarray, credit: Credit, length_S: np.ndarray, traces: Sequence[Trace] | None) -> None:
    """Takes the penalty off the advantages of exactly the tokens of calls that could not be made."""
    if not credit.misfit_penalty or traces is None:
        return
    for trace, start in zip(traces, (np.cumsum(length_S) - length_S).tolist(), strict=True):
        for place in trace.misfit_tokens():
            advantage_T[start + place] -= advantage_T.dtype.type(credit.misfit_penalty)


def _mapping(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, Mapping) else {}


def _at(value: np.ndarray, at: int) -> str:
    return f"{value[at]:.6g}" if at < len(value) else "nothing"
