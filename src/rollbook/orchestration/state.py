"""The state between two steps of a training stage: every trained module with its optimizer, cursor; what resume starts from."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rollbook.ledger.layout import sync_file, sync_folder
from rollbook.models.shape import load_shaped
from rollbook.models.weights import load_into, saving, weight_hash
from rollbook.orchestration.session import Session
from rollbook.records import CodecError, LedgerError, PolicyVersion, decode, digest, encode
from rollbook.training.optimizer import Optimizer

POLICY = "policy"       # the module that the session's decoder is


@dataclass(frozen=True, slots=True, kw_only=True)
class StepState:
    """Where a stage stands: `step` steps are done, the log is valid up to `seq`. `files` holds a hash of every file's tensors."""

    stage: str
    step: int
    seq: int
    cursor: int
    next_index: int
    version: PolicyVersion
    files: Mapping[str, str]


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
                      next_index=session.publisher.next_index, version=version, files={})
    with saving(folder(session.root)):
        _write(folder(session.root), trained, files, state)


def _write(target: Path, trained: Mapping[str, Trained], files: Mapping[str, str], state: StepState) -> None:
    part = target.with_name(".state.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    hashes: dict[str, str] = {}
    for name, one in trained.items():
        held = {f"{name}.safetensors": {key: p.detach() for key, p in one.module.named_parameters()}}
        if one.optimizer is not None:
            held[f"{name}.optimizer.safetensors"] = one.optimizer.state()
        for file, tensors in held.items():
            tensors = {key: one.cpu() for key, one in tensors.items()}
            save_file(tensors, str(part / file))
            hashes[file] = weight_hash(tensors.items())
    for name, text in files.items():
        (part / name).write_text(text)
        hashes[name] = digest(text.encode())
    (part / "state.json").write_text(json.dumps(encode(replace(state, files=hashes))))
    for path in part.iterdir():
        sync_file(path)
    sync_folder(part)
    old = target.with_name(".state.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.rename(target, old)
    os.rename(part, target)
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def read_state(root: Path) -> StepState | None:
    """The state a run was left with, None where there is none; refuses one that cannot be read."""
    for place in (folder(root), folder(root).with_name(".state.old")):
        if (place / "state.json").is_file():
            if place != folder(root):
                os.rename(place, folder(root))
            try:
                state = decode(StepState, json.loads((folder(root) / "state.json").read_text()))
                texts = {name: digest((folder(root) / name).read_bytes()) for name in state.files
                         if not name.endswith(".safetensors")}
            except (OSError, ValueError, RecursionError, CodecError) as error:
                raise _damaged(f"state.json: {error}") from error
            if other := sorted(name for name, found in texts.items() if found != state.files[name]):
                raise _damaged(f"{other[0]} holds another text than was saved")
            return state
    return None


def restore(session: Session, state: StepState) -> None:
    """The policy's weights, numbering and engine as they were."""
    load_shaped(session.policy.decoder, _loaded(session.root, f"{POLICY}.safetensors"))
    session.resident = None
    session.publisher.next_index = state.next_index
    session.publisher.rehash()
    session.publisher.load(state.version.index)


def restore_trained(session: Session, trained: Mapping[str, Trained]) -> None:
    """Moments and step count of each optimizer as they were, and the weights of every module but the policy (see `restore`)."""
    for name, one in trained.items():
        if name != POLICY:
            load_into(one.module, _loaded(session.root, f"{name}.safetensors"))
        if one.optimizer is not None:
            one.optimizer.load(_loaded(session.root, f"{name}.optimizer.safetensors"))


def _loaded(root: Path, file: str) -> dict[str, Tensor]:
    """The tensors of a file of the state; refuses a file that is missing or is not what was saved."""
    state = read_state(root)
    try:
        tensors: dict[str, Tensor] = load_file(str(folder(root) / file))
    except (OSError, SafetensorError) as error:
        raise _damaged(f"{file}: {error}") from error
    if state is None or weight_hash(tensors.items()) != state.files.get(file):
        raise _damaged(f"{file} holds other tensors than were saved")
    return tensors


def _damaged(got: str) -> LedgerError:
    return LedgerError("the state that this run would continue from is damaged", got=got[:200],
                       why="training on from it would be another training", fix="delete RUN/checkpoints/.state and .state.old: "
                       "resuming then begins the open stage again")


def drop_state(root: Path) -> None:
    """The stage has ended; its inner state is of no more use."""
    for name in (".state", ".state.old", ".state.part"):
        shutil.rmtree(root / "checkpoints" / name, ignore_errors=True)
