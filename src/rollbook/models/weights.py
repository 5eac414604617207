"""Weights on disk and their hashes: safetensors under transformers' names, loadable with `from_pretrained`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rollbook.models.architecture import without_fast_path
from rollbook.models.decoder import Decoder
from rollbook.models.fallback import load_fallback
from rollbook.models.hashing import ordered_hash, weight_hash
from rollbook.models.tokenizer import ChatTokenizer
from rollbook.records import ModelError

__all__ = ["load_into", "published_hash", "read_tensors", "save_checkpoint", "saving", "stored_hash", "weight_hash"]


def published_hash(decoder: Decoder, dtype: torch.dtype) -> str:
    """The hash an engine must report after loading these weights in its compute dtype."""
    named = sorted(decoder.named_parameters(), key=lambda item: item[0])
    return ordered_hash((name, p.detach().to(decoder.held_as(name, dtype))) for name, p in named)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All weights of a model folder under the names that its decoder gives them, sharded or not."""
    config = folder / "config.json"
    if config.is_file() and without_fast_path(json.loads(config.read_text())) is not None:
        return {name: p.detach() for name, p in load_fallback(folder).named_parameters()}
    index = folder / "model.safetensors.index.json"
    files = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.is_file() else ["model.safetensors"]
    tensors: dict[str, Tensor] = {}
    for name in files:
        if not (folder / name).is_file():
            raise ModelError("the model folder lacks its weights", got=f"{folder}/{name} is missing",
                             fix="give a folder that from_pretrained could load")
        with safe_open(str(folder / name), framework="pt") as handle:
            tensors |= {key: handle.get_tensor(key) for key in handle.keys()}
    return tensors


def stored_hash(folder: Path) -> str:
    """The hash of the weights in a model folder; ModelError, whose `got` says why, where it holds none that can be read."""
    try:
        return weight_hash(read_tensors(folder).items())
    except Exception as error:          # no weights file, or one that is none; each reader raises its own kind
        raise ModelError("the model folder holds no weights that can be read", got=" ".join(str(error).split())[:160],
                         fix="restore it from a copy") from error


def load_into(decoder: Decoder, tensors: Mapping[str, Tensor]) -> None:
    """Copies tensors into fp32 master weights; missing and unexpected names are refused."""
    own = dict(decoder.named_parameters())
    given = dict(tensors)
    if "lm_head.weight" not in own:         # tied
        given.pop("lm_head.weight", None)
    missing, extra = sorted(own.keys() - given.keys()), sorted(given.keys() - own.keys())
    extra = [name for name in extra if not name.endswith("rotary_emb.inv_freq")]
    if missing or extra:
        raise ModelError("the checkpoint does not fit its architecture",
                         got=f"missing {missing[:3]}{'…' if len(missing) > 3 else ''}, unexpected {extra[:3]}")
    with torch.no_grad():
        for name, parameter in own.items():
            if parameter.shape != given[name].shape:
                raise ModelError(f"weight {name} has another shape than its architecture says",
                                 got=f"{tuple(given[name].shape)} for {tuple(parameter.shape)}")
            parameter.copy_(given[name])


def save_checkpoint(folder: Path, decoder: Decoder, tokenizer: ChatTokenizer) -> None:
    """A complete model folder, written beside and renamed into place, durable when it returns."""
    part = folder.with_name(folder.name + ".part")
    with saving(folder):
        part.mkdir(parents=True, exist_ok=True)
        decoder.write(part)
        stops = sorted(tokenizer.stop_ids)
        (part / "generation_config.json").write_text(json.dumps({"eos_token_id": stops, "do_sample": True}, indent=1))
        tokenizer.save(part)
        put_in_place(part, folder)


@contextlib.contextmanager
def saving(folder: Path) -> Iterator[None]:
    """Turns whatever keeps files from being written into one ModelError."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{folder.name} could not be saved", got=str(error),
                         why="the disk may be full or not writable; what was recorded before is kept",
                         fix="free space, then resume the run") from error


def put_in_place(part: Path, folder: Path) -> None:
    """Makes a written folder durable and renames it to its name, in the place of one that a killed process left there before it
    was on record: a record that names a checkpoint must not outlive it."""
    for path in (*sorted(one for one in part.rglob("*") if one.is_file()), part):
        _sync(path)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(part, folder)
    _sync(folder.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
