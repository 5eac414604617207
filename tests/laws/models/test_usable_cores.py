"""How many threads a run takes where its recipe does not say."""

import os

import pytest
import torch

from rollbook.models.runtime import prepare
from rollbook.records import ModelError
from rollbook.records.recipe import RunSettings


def settings(threads):
    return RunSettings(seed=1, device="cpu", threads=threads, dtype="float32")


def test_no_number_of_threads_means_the_cores_that_the_process_may_use_and_more_are_refused(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    try:
        prepare(settings(0))
        assert torch.get_num_threads() == 1
        with pytest.raises(ModelError, match="may use"):
            prepare(settings(2))
    finally:
        torch.set_num_threads(before)
