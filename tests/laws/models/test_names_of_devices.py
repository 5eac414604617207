"""A device's name is taken whole or refused with a reason, whatever torch makes of it."""

import pytest
import torch

from rollbook.models.runtime import device_of, nearest
from rollbook.records import ModelError

WRONG = ("", "CUDA", " cuda", "cuda:x", "cuda:-1", "cuda:01", "cuda:128", "cuda:256", "cuda:99999999999", "cpu:3", "meta", "mps")


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_device_of_this_process_is_refused_and_has_the_processor_nearest(name):
    with pytest.raises(ModelError):
        device_of(name)
    assert nearest(name) == torch.device("cpu")


def test_the_processor_is_itself():
    assert device_of("cpu") == nearest("cpu") == torch.device("cpu")
