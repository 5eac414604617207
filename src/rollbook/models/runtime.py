"""How this process computes: threads, precision, denormals, and memory that is kept instead of given back."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys

import torch

from rollbook.records import ModelError
from rollbook.records.recipe import RunSettings

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 32 << 20       # glibc accepts no more: larger blocks are mapped and given back


def prepare(settings: RunSettings) -> torch.dtype:
    """Sets the process up and returns the compute dtype.

    Denormals are flushed before the worker threads start: gradients of near-certain tokens are denormal and cost tenfold.
    """
    if settings.device != "cpu":
        raise ModelError("only device cpu has been built and run", got=settings.device,
                         why="nothing here has been executed on an accelerator yet", fix="--set run.device=cpu")
    cores = usable_cores()
    if settings.threads > cores:
        raise ModelError("run.threads exceeds the cores that this process may use",
                         got=f"{settings.threads} threads, {cores} cores",
                         why="waiting threads spin and slow each other down", fix=f"--set run.threads={cores}")
    torch.set_flush_denormal(True)
    torch.set_num_threads(settings.threads or cores)
    keep_memory()
    if settings.dtype == "auto":
        return torch.bfloat16 if has_fast_bfloat16() else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[settings.dtype]


def usable_cores() -> int:
    """The cores that this process may run on: more threads than these spin and wait for each other."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_fast_bfloat16() -> bool:
    """Whether the processor multiplies bf16 matrices natively."""
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
