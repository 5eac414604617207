"""A learner on several ranks (FSDP2): the interface of `PolicyLearner`, its passes and its optimizer elsewhere.

The decoder here is the whole policy as it was published: after each step the ranks' rows are gathered into it, so that hashes,
checkpoints and engines see what they always see. Limit: it, and every frozen policy of the stage, is whole in this process.
"""

from __future__ import annotations

import itertools
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rollbook.experience.batches import Packed
from rollbook.models.decoder import Decoder
from rollbook.models.fallback import Fallback
from rollbook.models.logprobs import Scores
from rollbook.models.weights import load_into, weight_hash
from rollbook.objectives.core import Objective
from rollbook.records import Experience, LedgerError, RecipeError
from rollbook.records.recipe import Fsdp2, OptimizerSettings
from rollbook.training.optimizer import standing
from rollbook.training.policy import Measurement, PolicyLearner
from rollbook.training.ranks import Ranks

if TYPE_CHECKING:
    from rollbook.training.sharded import RankPart, RankSpec


def rank_of(spec: RankSpec, rank: int, size: int) -> Any:
    """A rank's object, made in its own process: only there is torch.distributed set up."""
    from rollbook.training.sharded import Rank
    return Rank(spec, rank, size)


class RankedOptimizer:
    """The optimizer of all ranks, as one: its state whole, its steps theirs."""

    def __init__(self, ranks: Ranks, decoder: Decoder, settings: OptimizerSettings):
        self.ranks, self.settings, self.steps = ranks, settings, 0
        still = standing(decoder, settings.frozen)
        self.standing = weight_hash(still.items()) if still else None

    def state(self) -> dict[str, Tensor]:
        """Moments and step count as `Optimizer.state` gives them."""
        path = self.ranks.folder / "state.safetensors"
        self.ranks.call("write_optimizer", str(path))
        return load_file(str(path))

    def load(self, named: Mapping[str, Tensor]) -> None:
        """Restores what `state` gave, on any number of ranks or none."""
        path = self.ranks.folder / "state.safetensors"
        save_file({name: value.cpu().contiguous() for name, value in named.items()}, str(path))
        self.ranks.call("read_optimizer", str(path))
        self.steps = int(named["steps"])

    def forget(self) -> None:
        """Begins anew on every rank, as `Optimizer.forget`."""
        self.ranks.call("forget")

    def digest(self) -> str:
        """A hash over the norms of every moment and the step count."""
        return str(self.ranks.call("digest")[0])

    def check_standing(self, module: nn.Module) -> str | None:
        """The hash of the frozen parameters, once it is sure that they did not move; None where all are trained."""
        still = standing(module, self.settings.frozen)
        now = weight_hash(still.items()) if still else None
        if now != self.standing:
            raise LedgerError("frozen parameters have moved", got=f"{len(still)} parameters, first {next(iter(still))}",
                              why="the optimizer was given what it was not to touch", fix="keep optimizer.frozen as it was")
        return now


class RankedLearner(PolicyLearner):
    """Owns the ranks for as long as a policy stage lasts; `close` ends them."""

    def __init__(self, decoder: Decoder, settings: OptimizerSettings, total: int, *, how: Fsdp2, dtype: torch.dtype,
                 temperature: float, start: Decoder | None = None):
        from rollbook.training.sharded import RankSpec

        check_rankable(decoder, settings)
        self._names = itertools.count()
        self._held: dict[int, tuple[str, Decoder]] = {}
        weights = Path(f"{_scratch()}/begin.safetensors")
        save_file({name: p.detach().cpu().contiguous() for name, p in decoder.named_parameters()}, str(weights))
        spec = RankSpec(architecture=decoder.architecture, weights=str(weights), optimizer=settings, total=total,
                        dtype=str(dtype).removeprefix("torch."), temperature=temperature, checkpointing=decoder.checkpointing,
                        threads=max(1, torch.get_num_threads() // how.ranks), device=decoder.device.type)
        try:
            self.ranks = Ranks(partial(rank_of, spec), how.ranks, patience_s=how.patience_s)
        finally:
            weights.unlink()
            weights.parent.rmdir()
        super().__init__(decoder, RankedOptimizer(self.ranks, decoder, settings), dtype=dtype,      # type: ignore[arg-type]
                         temperature=temperature, start=start)

    def close(self) -> None:
        """Ends every rank."""
        self.ranks.close()

    def update(self, packed: Packed, objective: Objective, *, where: str) -> Measurement:
        """One optimizer step of all ranks; afterwards the decoder here holds what they hold."""
        measured = self._joined(packed, objective, self.ranks.call("part", packed, objective, where))
        self.optimizer.steps += 1
        self._gather()
        if self.average is not None:
            self.average.take(self.decoder)
        return measured

    def save_shards(self, folder: Path) -> None:
        """Weights and optimizer, each rank its own rows; any number of ranks loads them."""
        self.ranks.call("save_shards", str(folder))

    def load_shards(self, folder: Path) -> None:
        """What `save_shards` wrote, into ranks and decoder."""
        self.optimizer.steps = int(self.ranks.call("load_shards", str(folder))[0])
        self._gather()

    def _joined(self, packed: Packed, objective: Objective, parts: Sequence[RankPart]) -> Measurement:
        """The ranks' measurements, each token from the rank that had it."""
        work = self._begin(packed, objective, "")
        for part in parts:
            for mine, theirs in ((work.logp_T, part.logp_T), (work.entropy_T, part.entropy_T),
                                 (work.gradient_T, part.gradient_T), (work.clipped_T, part.clipped_T)):
                mine[part.mine_T] = theirs[part.mine_T]
            if work.mixed_T is not None and part.mixed_T is not None and part.mixed_mine_T is not None:
                work.mixed_T[part.mixed_mine_T] = part.mixed_T[part.mixed_mine_T]
            for name, value in part.loss.items():
                work.loss[name] += value
        stepped = parts[0].stepped
        assert stepped is not None
        return work.measured(stepped)

    def _gather(self) -> None:
        path = self.ranks.folder / "weights.safetensors"
        self.ranks.call("write_weights", str(path))
        load_into(self.decoder, load_file(str(path)))

    def _name_of(self, decoder: Decoder) -> str:
        """The name under which the ranks hold a policy, sent to them the first time it is asked for."""
        if decoder is self.decoder:
            return "current"
        if id(decoder) not in self._held:
            name = f"frozen-{next(self._names)}"
            path = self.ranks.folder / f"{name}.safetensors"
            save_file({key: p.detach().cpu().float().contiguous() for key, p in decoder.named_parameters()}, str(path))
            self.ranks.call("hold", name, str(path))
            path.unlink()
            self._held[id(decoder)] = (name, decoder)
        return self._held[id(decoder)][0]

    def _frozen(self, decoder: Decoder, packed: Packed, only: set[int] | None = None) -> Tensor:
        logp_T = torch.full((packed.seq_T.numel(),), math.nan)
        for found_T, mine_T in self.ranks.call("frozen_logps", self._name_of(decoder), packed,
                                               None if only is None else frozenset(only)):
            logp_T[mine_T] = found_T[mine_T]
        return logp_T

    def _forward(self, decoder: Decoder, members: Sequence[Experience]) -> Scores:
        found: Scores = self.ranks.call("scored", self._name_of(decoder), tuple(members))[0]
        return found

    def hold_anchor(self, objective: Objective) -> None:
        """As in one process; the anchor before it is let go everywhere."""
        before = self._held.pop(id(self.anchor), None)
        if before is not None:
            self.ranks.call("drop", before[0])
        super().hold_anchor(objective)


def check_rankable(decoder: Decoder, settings: OptimizerSettings) -> None:
    """Refuses what has been built for one process only."""
    if isinstance(decoder, Fallback):
        raise RecipeError("a learner of several ranks needs a model of the fast path", got=type(decoder).__name__,
                          why="only its own decoder is sharded layer by layer", fix="--set 'run.learner={kind: Alone}'")
    if settings.muon is not None:
        raise RecipeError("a learner of several ranks has no Muon", got="optimizer.muon",
                          why="its update is of a whole matrix, and each rank has some of its rows",
                          fix="leave out optimizer.muon, or --set 'run.learner={kind: Alone}'")


def _scratch() -> str:
    """A folder in memory where there is one."""
    return tempfile.mkdtemp(prefix="rollbook-begin-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
