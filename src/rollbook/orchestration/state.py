"""The state between two steps of a training stage: every trained module with its optimizer, cursor; what resume starts from."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from safetensors.torch import load_file, save_file
from torch import nn

from rollbook.models.weights import load_into
from rollbook.orchestration.session import Session
from rollbook.records import PolicyVersion, decode, encode
from rollbook.training.optimizer import Optimizer

POLICY = "policy"       # the module that the session's decoder is


@dataclass(frozen=True, slots=True, kw_only=True)
class StepState:
    """Where a stage stands: `step` steps are done, the log is valid up to `seq`."""

    stage: str
    step: int
    seq: int
    cursor: int
    next_index: int
    version: PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A module in training (policy, critic, reward model) and its optimizer; None where it has none or begins anew."""

    module: nn.Module
    optimizer: Optimizer | None


def folder(root: Path) -> Path:
    return root / "checkpoints" / ".state"


def save_state(session: Session, trained: Mapping[str, Trained], *, stage: str, step: int, cursor: int,
               version: PolicyVersion, files: Mapping[str, str] = MappingProxyType({})) -> None:
    """Writes the state beside the old one and swaps them; a kill leaves one of the two whole. `trained` holds `policy`, `files`
    what else the stage goes on from, by name."""
    state = StepState(stage=stage, step=step, seq=session.ledger.last_seq, cursor=cursor,
                      next_index=session.publisher.next_index, version=version)
    target = folder(session.root)
    part = target.with_name(".state.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name, one in trained.items():
        save_file({key: p.detach() for key, p in one.module.named_parameters()}, str(part / f"{name}.safetensors"))
        if one.optimizer is not None:
            save_file(one.optimizer.state(), str(part / f"{name}.optimizer.safetensors"))
    for name, text in files.items():
        (part / name).write_text(text)
    (part / "state.json").write_text(json.dumps(encode(state)))
    old = target.with_name(".state.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.rename(target, old)
    os.rename(part, target)
    shutil.rmtree(old, ignore_errors=True)


def read_state(root: Path) -> StepState | None:
    """The state a run was left with, None where there is none."""
    for place in (folder(root), folder(root).with_name(".state.old")):
        if (place / "state.json").is_file():
            if place != folder(root):
                os.rename(place, folder(root))
            return decode(StepState, json.loads((folder(root) / "state.json").read_text()))
    return None


def restore(session: Session, state: StepState) -> None:
    """The policy's weights, numbering and engine as they were."""
    load_into(session.policy.decoder, load_file(str(folder(session.root) / f"{POLICY}.safetensors")))
    session.resident = None
    session.publisher.next_index = state.next_index
    session.publisher.rehash()
    session.publisher.load(state.version.index)


def restore_trained(session: Session, trained: Mapping[str, Trained]) -> None:
    """Moments and step count of each optimizer as they were, and the weights of every module but the policy (see `restore`)."""
    for name, one in trained.items():
        if name != POLICY:
            load_into(one.module, load_file(str(folder(session.root) / f"{name}.safetensors")))
        if one.optimizer is not None:
            one.optimizer.load(load_file(str(folder(session.root) / f"{name}.optimizer.safetensors")))


def drop_state(root: Path) -> None:
    """The stage has ended; its inner state is of no more use."""
    for name in (".state", ".state.old", ".state.part"):
        shutil.rmtree(root / "checkpoints" / name, ignore_errors=True)
