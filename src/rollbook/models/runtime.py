"""How this process computes: device, threads, precision, denormals, and memory that is kept instead of given back."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys

import torch

from rollbook.models.native.build import built
from rollbook.records import ModelError
from rollbook.records.devices import DEVICE
from rollbook.records.recipe import RunSettings

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 32 << 20       # glibc accepts no more: larger blocks are mapped and given back


def prepare(settings: RunSettings) -> torch.dtype:
    """Sets the process up and returns the compute dtype; refuses a device that is not here.

    On an accelerator products are fp32 or bf16 as the dtype says, never TF32, and kernels are deterministic ones where there are.
    Denormals are flushed before the worker threads start: gradients of near-certain tokens are denormal and cost tenfold.
    """
    device = device_of(settings.device)
    cores = usable_cores()
    if settings.threads > cores:
        raise ModelError("run.threads exceeds the cores that this process may use",
                         got=f"{settings.threads} threads, {cores} cores",
                         why="waiting threads spin and slow each other down", fix=f"--set run.threads={cores}")
    torch.set_flush_denormal(True)
    torch.set_num_threads(settings.threads or cores)
    keep_memory()
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")         # without it cuBLAS sums in a changing order
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.use_deterministic_algorithms(True, warn_only=True)
    if settings.dtype == "auto":
        return torch.bfloat16 if has_fast_bfloat16(device) else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[settings.dtype]


def device_of(name: str) -> torch.device:
    """The device of a setting's name, `cpu`, `cuda` or `cuda:N`; refuses one that this process does not have."""
    if name == "mps":
        raise ModelError("sampling draws in fp64, which mps does not have", got=name, fix="--set run.device=cpu")
    if DEVICE.fullmatch(name) is None:
        raise ModelError("no device has this name", got=repr(name), fix="one of cpu, cuda, cuda:N")
    if name != "cpu" and _index(name) >= torch.cuda.device_count():
        raise ModelError("this process sees no such accelerator", got=f"{name}, of {torch.cuda.device_count()}",
                         why="there is none, its driver is missing, or torch was built without CUDA", fix="--set run.device=cpu")
    return torch.device(name)


def nearest(name: str) -> torch.device:
    """The device of a setting's name where this process has it, the processor where it has not."""
    here = DEVICE.fullmatch(name) is not None and name != "cpu" and _index(name) < torch.cuda.device_count()
    return torch.device(name if here else "cpu")


def _index(name: str) -> int:
    """N of `cuda:N`; torch itself keeps eight bits of it."""
    return int(name.partition(":")[2] or 0)


def named(device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    """What a manifest says of what computes: an accelerator, `{"device": "NVIDIA H100"}`, or a processor's kernels in bf16,
    `{"kernels": "torch"}` or those of our own by the hash of their source; nothing in fp32, where torch's compute alone.
    """
    if device.type == "cuda":
        return {"device": torch.cuda.get_device_name(device)}
    return {"kernels": built().name} if dtype == torch.bfloat16 else {}


def usable_cores() -> int:
    """The cores that this process may run on: more threads than these spin and wait for each other."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether the processor, or the accelerator, multiplies bf16 matrices natively."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    try:
        with open("/proc/cpuinfo") as file:
            flags = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def keep_memory() -> None:
    """Lets glibc keep freed buffers: returning and faulting them in again costs more than the arithmetic on them."""
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(ctypes.util.find_library("c") or "libc.so.6")
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
