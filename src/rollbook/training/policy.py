"""The policy learner: scores what the objective reads, takes one optimizer step per batch, publishes weights.

Legend: T action tokens of an optimizer step.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rollbook.experience.batches import Packed, evaluate, with_scores
from rollbook.experience.mixing import Mixed
from rollbook.experience.token_credit import uses_kl
from rollbook.models.decoder import Decoder
from rollbook.models.layout import Layout
from rollbook.models.layout import pack as lay_out
from rollbook.models.logprobs import Scores, action_logprobs, support_logprobs
from rollbook.models.support import Support
from rollbook.objectives import all_reads, total_loss
from rollbook.objectives.core import Objective
from rollbook.objectives.kl import k3
from rollbook.objectives.terms import Ptx, ptx
from rollbook.records import Diverged, Experience, RecordError, TaskId
from rollbook.records.stages import Routing
from rollbook.training.averaging import Average
from rollbook.training.optimizer import Optimizer, Stepped
from rollbook.training.trees import demonstration_tree, experience_trees, sampled_routes, sampled_supports

KL_SEQUENCES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one update measured, per action token: current log-probs, entropies and `gradient_T`, the derivative of the step's
    loss by the log-prob; the loss by term; the optimizer's step; `mixed_T`, log-probs of the pretraining tokens beside the batch.
    """

    logp_T: Tensor
    entropy_T: Tensor
    clipped_T: Tensor
    gradient_T: Tensor
    loss: dict[str, float]
    stepped: Stepped
    mixed_T: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """An update under way: what each micro-batch finds is written to its tokens' places. `own_anchor`: so is the anchor."""

    packed: Packed
    objective: Objective
    where: str
    own_anchor: bool
    logp_T: Tensor
    entropy_T: Tensor
    gradient_T: Tensor
    clipped_T: Tensor
    loss: dict[str, float]
    mixed_T: Tensor | None

    @property
    def explores(self) -> bool:
        """Whether the loss rewards entropy, so that it has to be differentiated."""
        return "entropy_T" in all_reads(self.objective)

    def measured(self, stepped: Stepped) -> Measurement:
        return Measurement(logp_T=self.logp_T, entropy_T=self.entropy_T, clipped_T=self.clipped_T, gradient_T=self.gradient_T,
                           loss=self.loss, stepped=stepped, mixed_T=self.mixed_T)


@dataclass(frozen=True, slots=True, kw_only=True)
class Teachers:
    """Frozen policies by the name of their stage; `stages` maps a family of tasks, or `*`, to a name, `families` a task to its
    family.
    """

    models: Mapping[str, Decoder]
    stages: Mapping[str, str]
    families: Callable[[TaskId], str]

    def name_for(self, task: TaskId) -> str:
        """The teacher of a task: its family's own, else the one for all."""
        family = self.families(task)
        found = self.stages.get(family, self.stages.get("*"))
        if found is None:
            raise RecordError(f"no teacher for tasks of the family {family}", got=", ".join(self.stages),
                              why="every sequence of a distillation has a teacher", fix=f"set teachers.{family}, or teachers.*")
        return found


class PolicyLearner:
    """Owns the trained weights during a policy stage. `start`: the frozen policy it began with, `reference`: that of a KL."""

    def __init__(self, decoder: Decoder, optimizer: Optimizer, *, dtype: torch.dtype, temperature: float,
                 start: Decoder | None = None):
        self.decoder, self.optimizer, self.dtype, self.temperature = decoder, optimizer, dtype, temperature
        self.start = frozen_copy(decoder, dtype) if start is None else start
        self.reference: Decoder | None = None               # None: the start
        self.teachers: Teachers | None = None
        self.anchor: Decoder | None = None
        self.average: Average | None = None
        self.routing: Routing = "free"

    def close(self) -> None:
        """Gives back what it holds outside this process: nothing."""

    def hold_anchor(self, objective: Objective) -> None:
        """Keeps the policy as it is now as the anchor of what is scored next, for minibatches that come one at a time.

        In full precision: the same bits as the decoder itself would give.
        """
        needed = self.routing == "replayed" or "anchor_T" in all_reads(objective)
        self.anchor = copy.deepcopy(self.decoder).requires_grad_(False) if needed else None

    def score(self, packed: Packed, objective: Objective, *, next_up: bool = False) -> Packed:
        """Adds the anchor and reference log-probs where the objective reads them; nothing is scored that is not read.

        All minibatches of a step are scored before its first update: the anchor is one policy for the whole step. The minibatch
        that is `next_up`, before any weight moves, needs no pass for it: its anchor is what `update` computes first.
        """
        reads = all_reads(objective)
        if uses_kl(objective.credit):                       # taken at sampling parameters, before any update
            reads, next_up = reads | {"anchor_T", "reference_T"}, False
        if self.routing == "replayed" and not next_up:            # the first minibatch meets the routers it would replay
            packed = replace(packed, routes_LYK=self._routes(self.anchor or self.decoder, packed))
        anchor_T = self._frozen(self.anchor or self.decoder, packed) if "anchor_T" in reads and not next_up else None
        reference_T = self._frozen(self.reference or self.start, packed) if "reference_T" in reads else None
        teacher_T = self._taught(packed) if "teacher_T" in reads else None
        return with_scores(packed, anchor_T=anchor_T, reference_T=reference_T, teacher_T=teacher_T)

    def update(self, packed: Packed, objective: Objective, *, where: str) -> Measurement:
        """One optimizer step; raises `Diverged` before touching the weights when loss or gradient is not finite.

        A batch without the anchor that the objective reads is anchored at the weights as they are: at its own log-probs.
        """
        self.optimizer.zero()
        work = self._begin(packed, objective, where)
        for sequences, layout in zip(work.packed.plan, self._layouts(work.packed), strict=True):
            self._micro(work, sequences, layout)
        for places in packed.mixed.plan if packed.mixed is not None else ():
            self._beside(work, packed.mixed, places)
        stepped = self.optimizer.step(where)
        if self.average is not None:
            self.average.take(self.decoder)
        return work.measured(stepped)

    def entropy(self, packed: Packed) -> float:
        """Mean entropy (nats) of the batch's tokens under the weights as they are."""
        with torch.no_grad():
            sums = [float(self._scores(self.decoder, layout).entropy_T.double().sum()) for layout in self._layouts(packed)]
        return sum(sums) / packed.seq_T.numel()

    def _begin(self, packed: Packed, objective: Objective, where: str) -> Work:
        """The step's work, nothing of it done; its anchor is still to be found where the batch brings none."""
        own_anchor = packed.anchor_T is None and "anchor_T" in all_reads(objective)
        if own_anchor:
            packed = replace(packed, anchor_T=torch.empty(packed.seq_T.numel()))
        logp_T = torch.empty(packed.seq_T.numel())
        return Work(packed=packed, objective=objective, where=where, own_anchor=own_anchor, logp_T=logp_T,
                    entropy_T=torch.empty_like(logp_T), gradient_T=torch.empty_like(logp_T),
                    clipped_T=torch.zeros(packed.seq_T.numel(), dtype=torch.bool),
                    loss=dict.fromkeys((term.name for term in packed.terms), 0.0),
                    mixed_T=None if packed.mixed is None else torch.empty(packed.mixed.token_T.numel()))

    def _micro(self, work: Work, sequences: Sequence[int], layout: Layout) -> None:
        """Forward and backward of one micro-batch; its numbers go to their places."""
        packed = work.packed
        index_T = torch.isin(packed.seq_T, torch.tensor(sequences)).nonzero()[:, 0]
        scores = self._scores(self.decoder, layout, entropy_gradient=work.explores,
                              support=sampled_supports([packed.members[at].trace for at in sequences]))
        scores.logp_T.retain_grad()
        if work.own_anchor and packed.anchor_T is not None:
            packed.anchor_T[index_T] = scores.logp_T.detach()
        clipped_T = self._backward(work, index_T, scores)
        own_T = scores.logp_T.grad if scores.logp_T.grad is not None else torch.zeros_like(scores.logp_T)
        work.gradient_T[index_T], work.logp_T[index_T] = own_T, scores.logp_T.detach()
        work.entropy_T[index_T], work.clipped_T[index_T] = scores.entropy_T.detach(), clipped_T

    def _backward(self, work: Work, index_T: Tensor, scores: Scores) -> Tensor:
        """The objective's loss of these tokens and its gradient; which of them its trust rule clipped."""
        terms, clipped_T = evaluate(work.objective, work.packed, index_T, scores.logp_T,
                                    scores.entropy_T if work.explores else None)
        weights = list(work.packed.weight_KT[:, index_T])
        part = total_loss(terms, weights)
        self._check(part, work.where)
        part.backward()
        for term, weight_T in zip(terms, weights, strict=True):
            work.loss[term.name] += float(term.reduce(weight_T).detach())
        return clipped_T

    def _beside(self, work: Work, mixed: Mixed | None, places: Sequence[int]) -> Tensor | None:
        """Adds gradient and loss of a micro-batch of the pretraining term; which of its tokens it had. Log-probs in nats."""
        if mixed is None or work.mixed_T is None:
            return None
        seq_T = torch.repeat_interleave(torch.arange(len(mixed.shown)), mixed.length_S)
        index_T = torch.isin(seq_T, torch.tensor(places)).nonzero()[:, 0]
        layout = lay_out([demonstration_tree(mixed.shown[i]) for i in places], window=self.decoder.architecture.window)
        own_T = self._scores(self.decoder, layout, temperature=1.0).logp_T
        part = mixed.coefficient * (mixed.weight_T[index_T] * ptx(own_T)).sum()
        self._check(part, work.where)
        part.backward()
        work.mixed_T[index_T] = own_T.detach()
        work.loss[Ptx.name] += float(part.detach())
        return index_T

    def _check(self, loss: Tensor, where: str) -> None:
        """Refuses a loss that is not finite before it moves anything."""
        _finite(loss, where)

    def _scores(self, decoder: Decoder, layout: Layout, *, temperature: float | None = None,
                entropy_gradient: bool = False, support: Support | None = None) -> Scores:
        """Over what each token was drawn from, where the trajectories say it; over the whole vocabulary otherwise."""
        own = self.temperature if temperature is None else temperature
        if support is not None:
            return support_logprobs(decoder, layout, support, temperature=own, dtype=self.dtype)
        return action_logprobs(decoder, layout, temperature=own, dtype=self.dtype, entropy_gradient=entropy_gradient)

    def kl_to_start(self, packed: Packed, logp_T: Tensor) -> float:
        """Mean k3 estimate (nats per token) of KL(policy || start) on the batch's first sequences, `KL_SEQUENCES` at most.

        `logp_T` are the batch's log-probs under the current policy. Where the objective reads the reference, nothing is computed
        for it again.
        """
        if packed.reference_T is not None and self.reference is None:
            start_T = packed.reference_T[packed.seq_T < KL_SEQUENCES]
        else:
            with torch.no_grad():
                start_T = self._forward(self.start, packed.members[:KL_SEQUENCES]).logp_T
        return float(k3(logp_T[:start_T.numel()], start_T).mean())

    def _taught(self, packed: Packed) -> Tensor:
        """Each sequence scored by the teacher of its task's family."""
        if self.teachers is None:
            raise RecordError("the objective reads a teacher and the stage has none", got="no teachers", fix="set teachers")
        logp_T = torch.full((packed.seq_T.numel(),), math.nan)
        names = [self.teachers.name_for(member.trace.task) for member in packed.members]
        for name in dict.fromkeys(names):
            own_T = self._frozen(self.teachers.models[name], packed, {at for at, other in enumerate(names) if other == name})
            logp_T = torch.where(own_T.isnan(), logp_T, own_T)
        return logp_T

    def _frozen(self, decoder: Decoder, packed: Packed, only: set[int] | None = None) -> Tensor:
        """Log-probs under a frozen model; NaN for sequences that are not asked for."""
        logp_T = torch.full((packed.seq_T.numel(),), math.nan)
        with torch.no_grad():
            for part in packed.plan:
                sequences = part if only is None else tuple(at for at in part if at in only)
                if not sequences:
                    continue
                index_T = torch.isin(packed.seq_T, torch.tensor(sequences)).nonzero()[:, 0]
                logp_T[index_T] = self._forward(decoder, [packed.members[i] for i in sequences]).logp_T
        return logp_T

    def _layouts(self, packed: Packed) -> Iterator[Layout]:
        """The micro-batches laid out, each with its part of the routes where the batch replays them."""
        at = 0
        for sequences in packed.plan:
            layout = self._layout([packed.members[i] for i in sequences])
            if packed.routes_LYK is not None:
                end = at + layout.token_L.numel()
                layout = replace(layout, routes_LYK=packed.routes_LYK[at:end].long())
                at = end
            yield layout
        if packed.routes_LYK is not None and at != packed.routes_LYK.shape[0]:
            raise RecordError("the batch's routes are not those of its tokens", got=f"{packed.routes_LYK.shape[0]} for {at}",
                              why="one missing route shifts every later one")

    def _routes(self, decoder: Decoder, packed: Packed) -> Tensor:
        """The experts that these weights choose for every position, micro-batch after micro-batch, int16 [L, Y, K]."""
        if not decoder.architecture.experts:
            raise RecordError("routing replay needs a model with experts", got="a dense model", fix="routing: free")
        parts = []
        with torch.no_grad():
            for sequences in packed.plan:
                layout = replace(self._layout([packed.members[i] for i in sequences]), chosen=[])
                decoder(layout, self.dtype)
                parts.append(torch.stack(layout.chosen or [], 1).to(torch.int16).cpu())
        return torch.cat(parts)

    def _layout(self, members: Sequence[Experience]) -> Layout:
        """How the policy in training, or its anchor, meets these members."""
        trees, a = experience_trees(members), self.decoder.architecture
        layout = lay_out(trees, window=a.window)
        if self.routing != "sampled":
            return layout
        traces = [member.trace for member in members]
        return replace(layout, routes_LYK=sampled_routes(traces, trees, layers=a.layers, per_token=a.experts_per_token))

    def _forward(self, decoder: Decoder, members: Sequence[Experience]) -> Scores:
        """Log-probs under a frozen policy. The anchor takes the routes of the policy in training, any other chooses its own."""
        own = decoder is self.decoder or decoder is self.anchor
        layout = self._layout(members) if own else lay_out(experience_trees(members), window=decoder.architecture.window)
        return self._scores(decoder, layout, support=sampled_supports([member.trace for member in members]))


def frozen_copy(decoder: Decoder, dtype: torch.dtype) -> Decoder:
    """The weights as they are now, without gradient: matrices in the compute dtype, vectors in fp32."""
    clone = copy.deepcopy(decoder).requires_grad_(False)
    with torch.no_grad():
        for parameter in clone.parameters():
            if parameter.ndim > 1:
                parameter.data = parameter.data.to(dtype)
    return clone


def _finite(loss: Tensor, where: str) -> None:
    if not math.isfinite(float(loss.detach())):
        raise Diverged(f"the loss of {where} is not finite", got=str(float(loss.detach())),
                       why="a log-prob or weight in the batch is not finite",
                       fix="look at the batch kept in the run; lower the learning rate or the clip bounds")
