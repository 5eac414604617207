"""Weights on their way to servers: a file that all read, and the calls that make a server take it between two tokens."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from rollbook.models.decoder import Decoder
from rollbook.models.hashing import weight_hash
from rollbook.records import Unserved
from rollbook.rollouts.engines.stream import OnUpdate
from rollbook.rollouts.engines.wire import Unanswered, Wire

KEPT = 2            # publications whose files stay: one may still be read while the next is written
LOOK_S = 0.05       # how often a server is asked again which version it holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One publication: the file, the hash of its tensors, its version, and when it must be taken (monotonic seconds)."""

    path: str
    hash: str
    version: int
    deadline: float

    def left(self) -> float:
        return max(0.1, self.deadline - time.monotonic())


class Exchange:
    """A folder from which servers read weights; one of its own in this machine's memory unless it is named."""

    def __init__(self, folder: str | None):
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix="rollbook-weights-", dir=folder or memory))
        self._remover = weakref.finalize(self, shutil.rmtree, str(self.folder), True)

    def write(self, decoder: Decoder, dtype: torch.dtype, version: int, seconds: float) -> Offer:
        """A file of the weights as engines hold them, whose name appears whole or not at all.

        Raises `Unserved` for weights that are not finite: no server is offered them.
        """
        if not bool(torch.isfinite(nn.utils.get_total_norm(list(decoder.parameters())))):
            raise Unserved(f"the weights of version {version} are not finite", code="not_finite",
                           got="NaN or infinity among them",
                           why="a server that took them would sample nonsense under a published version",
                           fix="look at the last update; lower the learning rate")
        named: Mapping[str, Tensor] = {name: p.detach().to(decoder.held_as(name, dtype)).contiguous()
                                       for name, p in decoder.named_parameters()}
        target = self.folder / f"{version:08d}.safetensors"
        part = target.with_suffix(".part")
        save_file(dict(named), str(part))
        os.replace(part, target)
        for old in sorted(self.folder.glob("*.safetensors"), key=os.path.getmtime)[:-KEPT]:
            old.unlink()
        return Offer(path=str(target), hash=weight_hash(named.items()), version=version, deadline=time.monotonic() + seconds)

    def close(self) -> None:
        self._remover()


def give(wire: Wire, offer: Offer, on_update: OnUpdate) -> str:
    """Makes the server take the weights between two tokens of what it has in flight; the hash of what it read and loaded.

    pause (sequences stay) -> start, update, finish -> the version is read back -> where keys and values are made again, those of
    the running requests are dropped -> resume. A server that fails on the way stays paused: nothing may be sampled from half
    of an update. Raises `Unserved`.
    """
    try:
        wire.post("/pause", query={"mode": "keep", "clear_cache": "false"}, seconds=offer.left())
        wire.post("/start_weight_update", seconds=offer.left())
        wire.post("/update_weights", {"update_info": {"path": offer.path}}, seconds=offer.left())
        wire.post("/finish_weight_update", {"weight_version": str(offer.version)}, seconds=offer.left())
        taken = _taken(wire, offer)
        _acknowledged(wire, offer)
        if on_update == "recompute":
            _drop(wire, offer)
        wire.post("/resume", seconds=offer.left())
    except Unanswered as error:
        raise Unserved(f"{wire.url} did not take version {offer.version}", code=error.code, got=str(error),
                       why="what it samples from is not known, so nothing it says could be trained on",
                       fix="look at the server's log, start it again, then `rollbook resume RUN`") from error
    return taken


def _drop(wire: Wire, offer: Offer) -> None:
    """Keys and values of what is running are let go; the server makes them again by the new weights when it resumes."""
    done = wire.post("/reset_prefix_cache", query={"reset_running_requests": "true"}, seconds=offer.left())
    if not isinstance(done, Mapping) or done.get("success") is not True:
        raise Unanswered("refused", f"{wire.url} did not drop the keys and values of what is running: {done!r}"[:200])


def _taken(wire: Wire, offer: Offer) -> str:
    """The hash of the tensors that the server's own process read and loaded."""
    told = wire.post("/collective_rpc", {"method": "rollbook_taken"}, seconds=offer.left())
    try:
        documents = [json.loads(one) for one in told["results"]]
        hashes = {str(one["hash"]) for one in documents}
        missing = sorted({name for one in documents for name in one["missing"]})
    except (TypeError, KeyError, ValueError) as error:
        raise Unanswered("malformed", f"{wire.url} told {told!r}"[:200] + " of what it loaded") from error
    if missing or len(hashes) != 1:
        raise Unanswered("refused", f"{wire.url} loaded {len(hashes)} different sets of weights, without {missing[:3]}")
    return hashes.pop()


def _acknowledged(wire: Wire, offer: Offer) -> None:
    """Waits until the server says that it holds the version."""
    said: Any = None
    while time.monotonic() < offer.deadline:
        told = wire.get("/weight_info", seconds=offer.left())
        said = told.get("weight_version") if isinstance(told, Mapping) else told
        if said == str(offer.version):
            return
        time.sleep(min(LOOK_S, max(0.0, offer.deadline - time.monotonic())))
    raise Unserved(f"{wire.url} never acknowledged version {offer.version}", code="unacknowledged", got=f"version {said!r}",
                   why="its tokens would carry another version than the weights they were sampled from",
                   fix="look at the server's log, start it again, then `rollbook resume RUN`")
