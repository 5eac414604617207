"""One rank of a learner whose weights are sharded over several (FSDP2): the same pass per micro-batch, another loop over them.

Every rank is given the whole batch and takes every `size`-th micro-batch of its plan. Weights per token were fixed over all
micro-batches before, so gradients are summed, not averaged. A rank that has nothing left runs a pass that weighs 0: collectives
need everybody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from rollbook.experience.batches import Packed
from rollbook.models.architecture import Architecture
from rollbook.models.decoder import Decoder
from rollbook.models.layout import Layout, Tree
from rollbook.models.layout import pack as lay_out
from rollbook.models.logprobs import Scores, action_logprobs
from rollbook.models.support import Support
from rollbook.objectives.core import Objective
from rollbook.records import Diverged, Experience, ModelError
from rollbook.records.recipe import OptimizerSettings
from rollbook.training.optimizer import Optimizer, Stepped
from rollbook.training.policy import PolicyLearner, Work

CURRENT = "current"         # the name of the policy in training among those that a rank holds
IDLE = Tree(prompt=(0,), continuations=((0,),), actions=((True,),))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec:
    """What every rank is built from. `weights` is a safetensors file of the policy as it is now; `dtype` torch's name of one;
    `device` the kind of device that holds each rank's rows."""

    architecture: Architecture
    weights: str
    optimizer: OptimizerSettings
    total: int
    dtype: str
    temperature: float
    checkpointing: bool
    threads: int
    device: str = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPart:
    """What one rank measured of an update: the tokens of its own micro-batches (`mine_T`), its share of the loss, the step."""

    mine_T: Tensor
    logp_T: Tensor
    entropy_T: Tensor
    clipped_T: Tensor
    gradient_T: Tensor
    loss: dict[str, float]
    stepped: Stepped | None
    steps: int
    mixed_T: Tensor | None
    mixed_mine_T: Tensor | None


class Scored(nn.Module):
    """A decoder and its head in one forward, so that every weight is whole exactly while it is used."""

    def __init__(self, decoder: Decoder):
        super().__init__()
        self.decoder = decoder

    def forward(self, layout: Layout, temperature: float, dtype: torch.dtype,
                entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        scores = action_logprobs(self.decoder, layout, temperature=temperature, dtype=dtype, entropy_gradient=entropy_gradient)
        return scores.logp_T, scores.entropy_T


def sharded(architecture: Architecture, mesh: DeviceMesh, weights: str) -> Scored:
    """A decoder of which this rank holds its rows alone, read from a file of whole weights."""
    with torch.device("meta"):
        scored = Scored(Decoder(architecture))
    for block in scored.decoder.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(scored, mesh=mesh)
    scored.to_empty(device=mesh.device_type)
    for module in scored.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    scored.set_reduce_scatter_unused_params(True)       # type: ignore[operator]  # experts that only another rank's tokens chose
    read_rows(scored.decoder.named_parameters(), weights)
    return scored


def read_rows(named: Iterator[tuple[str, Tensor]] | Sequence[tuple[str, Tensor]], path: str) -> None:
    """Fills tensors from a file of whole ones under the same names; of a sharded one only this rank's rows are read."""
    with safe_open(path, framework="pt") as file, torch.no_grad():
        for name, tensor in named:
            if not isinstance(tensor, DTensor):
                tensor.copy_(file.get_tensor(name))
                continue
            shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
            whole = file.get_slice(name)
            rows = whole[offset[0]:offset[0] + shape[0]] if shape else file.get_tensor(name)
            tensor.to_local().copy_(rows)


class Rank(PolicyLearner):
    """A learner's part on one rank. Every method is called on all ranks in the same order."""

    def __init__(self, spec: RankSpec, rank: int, size: int):
        torch.set_num_threads(spec.threads)
        torch.set_flush_denormal(True)
        self.spec, self.rank, self.size = spec, rank, size
        self.mesh = init_device_mesh(spec.device, (size,))
        self.models = {CURRENT: sharded(spec.architecture, self.mesh, spec.weights)}
        decoder = self.models[CURRENT].decoder
        decoder.checkpointing = spec.checkpointing
        super().__init__(decoder, Optimizer.of(decoder, spec.optimizer, spec.total, watch=False),
                         dtype=getattr(torch, spec.dtype), temperature=spec.temperature, start=decoder)
        self._bad = False
        self._error: Exception | None = None

    def hold(self, name: str, weights: str) -> None:
        """A further, frozen policy under a name."""
        self.models[name] = sharded(self.spec.architecture, self.mesh, weights)
        self.models[name].requires_grad_(False)

    def drop(self, name: str) -> None:
        """Lets go of a frozen policy."""
        del self.models[name]

    def part(self, packed: Packed, objective: Objective, where: str) -> RankPart:
        """One optimizer step of all ranks. Raises `Diverged` on every rank, before any weight moves, where one rank's loss or the
        gradient of all is not finite."""
        self.optimizer.zero()
        (mine_T, mixed_mine_T), work = self._passes(packed, objective, where)
        stepped = self.optimizer.step(where)
        return RankPart(mine_T=mine_T, mixed_T=work.mixed_T, mixed_mine_T=mixed_mine_T, logp_T=work.logp_T,
                        entropy_T=work.entropy_T, clipped_T=work.clipped_T, gradient_T=work.gradient_T, loss=work.loss,
                        stepped=stepped, steps=self.optimizer.steps)

    def _passes(self, packed: Packed, objective: Objective, where: str) -> tuple[tuple[Tensor, Tensor | None], Work]:
        """Forward and backward of this rank's micro-batches; which tokens they held, of the batch and of what is mixed in."""
        work, self._bad, self._error = self._begin(packed, objective, where), False, None
        mine_T = torch.zeros(packed.seq_T.numel(), dtype=torch.bool)
        layouts = list(self._layouts(packed))
        for at in self._turns(len(packed.plan)):
            if at is None:
                self._nothing()
            else:
                self._micro(work, packed.plan[at], layouts[at])
                mine_T |= torch.isin(packed.seq_T, torch.tensor(packed.plan[at]))
        mixed = packed.mixed
        mixed_mine_T = None if mixed is None else torch.zeros(mixed.token_T.numel(), dtype=torch.bool)
        for at in self._turns(len(mixed.plan)) if mixed is not None else ():
            index_T = None if at is None or mixed is None else self._beside(work, mixed, mixed.plan[at])
            if index_T is None:
                self._nothing()
            elif mixed_mine_T is not None:
                mixed_mine_T[index_T] = True
        bad = torch.tensor(float(self._bad), device=self.mesh.device_type)
        dist.all_reduce(bad)
        if float(bad):
            self.optimizer.zero()
            if self._error is not None:
                raise self._error
            raise Diverged(f"the loss of {where} is not finite", got=f"on {int(bad)} of {self.size} ranks",
                           why="a log-prob or weight in the batch is not finite",
                           fix="look at the batch kept in the run; lower the learning rate or the clip bounds")
        return (mine_T, mixed_mine_T), work

    def _nothing(self) -> None:
        """A pass that weighs 0, for the others' collectives."""
        logp_T, _ = self.models[CURRENT](self._idle(), self.temperature, self.dtype)
        (0.0 * logp_T.sum()).backward()

    def frozen_logps(self, name: str, packed: Packed, only: frozenset[int] | None) -> tuple[Tensor, Tensor]:
        """Log-probs of this rank's micro-batches under a policy by name, and which tokens they held."""
        logp_T = torch.zeros(packed.seq_T.numel())
        mine_T = torch.zeros(packed.seq_T.numel(), dtype=torch.bool)
        with torch.no_grad():
            for at in self._turns(len(packed.plan)):
                part = () if at is None else packed.plan[at]
                sequences = tuple(one for one in part if only is None or one in only)
                layout = self._layout([packed.members[one] for one in sequences]) if sequences else self._idle()
                found_T, _ = self.models[name](layout, self.temperature, self.dtype)
                if sequences:
                    here_T = torch.isin(packed.seq_T, torch.tensor(sequences))
                    logp_T[here_T], mine_T = found_T, mine_T | here_T
        self.models[name].reshard()                     # type: ignore[operator]
        return logp_T, mine_T

    def scored(self, name: str, members: Sequence[Experience]) -> Scores:
        """Log-probs of sequences under a policy by name, computed by every rank alike."""
        with torch.no_grad():
            logp_T, entropy_T = self.models[name](self._layout(members), self.temperature, self.dtype)
        self.models[name].reshard()                     # type: ignore[operator]
        return Scores(logp_T=logp_T, entropy_T=entropy_T)

    # whole weights, and states on any number of ranks

    def write_weights(self, path: str) -> None:
        """The whole policy as one file, gathered tensor by tensor."""
        self._write({name: p.detach() for name, p in self.decoder.named_parameters()}, path)

    def write_gradients(self, path: str) -> None:
        """The whole gradient of the last passes as one file."""
        self._write({name: p.grad for name, p in self.decoder.named_parameters() if p.grad is not None}, path)

    def write_optimizer(self, path: str) -> None:
        """Moments and step count as one file, named as `Optimizer.state` names them."""
        self._write(self.optimizer.state(), path)

    def read_weights(self, path: str) -> None:
        """The policy from a file of whole weights."""
        read_rows(list(self.decoder.named_parameters()), path)

    def read_optimizer(self, path: str) -> None:
        """Moments and step count from such a file."""
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            plain = {name: file.get_tensor(name) for name in names if name.rsplit(".", 1)[-1] in ("steps", "step")}
        rows = {name: torch.empty_like(self.optimizer.parameters[int(name.split(".", 1)[0])]) for name in names
                if name not in plain}
        read_rows(list(rows.items()), path)
        self.optimizer.load({**plain, **rows})

    def save_shards(self, folder: str) -> None:
        """Weights, moments and step count, each rank its own rows (torch.distributed.checkpoint)."""
        dcp.save(self._state(), checkpoint_id=folder)

    def load_shards(self, folder: str) -> int:
        """What any number of ranks saved; the steps that were taken before."""
        reader = dcp.FileSystemReader(folder)
        names = [name for name in reader.read_metadata().state_dict_metadata if name.startswith("optimizer.")]
        state: dict[str, Any] = {f"weights.{name}": p.detach() for name, p in self.decoder.named_parameters()}
        for name in names:
            index, _, key = name.removeprefix("optimizer.").partition(".")
            if key in ("", "step"):
                state[name] = torch.tensor(0.0 if key else 0)
            else:
                state[name] = torch.empty_like(self.optimizer.parameters[int(index)])
        dcp.load(state, checkpoint_id=folder)
        self.optimizer.load({name.removeprefix("optimizer."): state[name] for name in names})
        return self.optimizer.steps

    def forget(self) -> None:
        """No moments from here on."""
        self.optimizer.forget()

    def digest(self) -> str:
        """As `Optimizer.digest`, over the whole tensors."""
        norms = []
        for _, value in sorted(self.optimizer.state().items()):
            square = _local(value).double().square().sum()
            if isinstance(value, DTensor):
                dist.all_reduce(square)
            norms.append(square.sqrt().cpu())
        return hashlib.sha256(torch.stack(norms).numpy().tobytes()).hexdigest()

    def _state(self) -> dict[str, Any]:
        weights = {f"weights.{name}": p.detach() for name, p in self.decoder.named_parameters()}
        return weights | {f"optimizer.{name}": value for name, value in self.optimizer.state().items()}

    def _write(self, named: Mapping[str, Tensor], path: str) -> None:
        held: dict[str, Tensor] = {}
        for name, value in named.items():
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            if self.rank == 0:
                held[name] = whole.cpu().contiguous().clone()
        if self.rank == 0:
            save_file(held, str(Path(path)))

    def _turns(self, count: int) -> Iterator[int | None]:
        """This rank's places in the plan, None where others still have one and it has none."""
        for first in range(0, count, self.size):
            at = first + self.rank
            yield at if at < count else None

    def _idle(self) -> Layout:
        return lay_out((IDLE,), window=self.decoder.architecture.window)

    def _scores(self, decoder: Decoder, layout: Layout, *, temperature: float | None = None,
                entropy_gradient: bool = False, support: Support | None = None) -> Scores:
        if support is not None:
            raise ModelError("ranks score over the whole vocabulary", got="a support", fix="--set 'run.learner={kind: Alone}'")
        own = self.temperature if temperature is None else temperature
        logp_T, entropy_T = self.models[CURRENT](layout, own, self.dtype, entropy_gradient)
        return Scores(logp_T=logp_T, entropy_T=entropy_T)

    def _backward(self, work: Work, index_T: Tensor, scores: Scores) -> Tensor:
        """As in one process; what an objective refuses on this rank is raised when all ranks have come through."""
        try:
            return super()._backward(work, index_T, scores)
        except Exception as error:
            self._bad, self._error = True, error
            (0.0 * scores.logp_T.sum()).backward()
            return torch.zeros(index_T.numel(), dtype=torch.bool)

    def _check(self, loss: Tensor, where: str) -> None:
        self._bad = self._bad or not bool(torch.isfinite(loss.detach()))


def _local(value: Tensor) -> Tensor:
    return value.to_local() if isinstance(value, DTensor) else value
