"""A device that is not there: tensors that say they are elsewhere, and hold their numbers in the processor's memory.

Whatever mixes them with plain tensors is refused as an accelerator would refuse it. Inside `pretending`, the device `meta` is
this one: tensors moved or made there are computed for real.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

ELSEWHERE = torch.device("meta")
MOVES = ("aten::_to_copy", "aten::copy_")
INDEXED = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")     # may be told places from here


class Mixed(RuntimeError):
    """An operation met tensors of two devices."""


class Elsewhere(torch.Tensor):
    """A tensor of the pretended device."""

    @staticmethod
    def __new__(cls, held):
        with torch.inference_mode(False):
            made = torch.Tensor._make_wrapper_subclass(
                cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype, device=ELSEWHERE)
        made.held = held
        return made

    def tolist(self):
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return computed(func, args, kwargs or {})


class Pretending(TorchDispatchMode):
    """Sees what is made on the device too, which no tensor of it takes part in."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return computed(func, args, kwargs or {})


def pretending():
    return Pretending()


def computed(func, args, kwargs):
    """The operation on what the tensors hold; its results are where an accelerator would leave them."""
    tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
    away = [one for one in tensors if isinstance(one, Elsewhere)]
    wanted = kwargs.get("device")
    if wanted is not None:
        kwargs = {**kwargs, "device": torch.device("cpu"), "pin_memory": False} if "pin_memory" in kwargs else {
            **kwargs, "device": torch.device("cpu")}
    goes = bool(away) if wanted is None else torch.device(wanted).type == ELSEWHERE.type
    name = func._schema.name
    if away and name not in MOVES:
        _check(name, args, tensors)
    found = func(*tree_map(_held, args), **tree_map(_held, kwargs))
    if func._schema.is_mutable and not name.endswith(("_out", ".out")) and isinstance(args[0], torch.Tensor):
        return args[0]
    return tree_map(lambda one: Elsewhere(one) if goes and isinstance(one, torch.Tensor) else one, found)


def _held(one):
    return one.held if isinstance(one, Elsewhere) else one


def _check(name, args, tensors):
    plain = [one for one in tensors if not isinstance(one, Elsewhere) and one.dim()]
    if name in INDEXED and isinstance(args[0], Elsewhere):
        plain = [one for one in plain if one.dtype not in (torch.int64, torch.int32, torch.bool)]
    if plain:
        raise Mixed(f"{name} met a tensor of the processor's, {tuple(plain[0].shape)} {plain[0].dtype}, among the device's")
