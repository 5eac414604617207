"""A model folder that is saved is whole and durable, or one clear error."""

import os

import pytest
from safetensors import SafetensorError

from rollbook.models.weights import save_checkpoint, stored_hash
from rollbook.records import ModelError


class Tokenizer:
    stop_ids = frozenset({2})

    def save(self, folder):
        (folder / "tokenizer.json").write_text("{}")


class Decoder:
    """Writes a file, or meets a full disk."""

    def __init__(self, error=None):
        self.error = error

    def write(self, folder):
        (folder / "model.safetensors").write_bytes(b"weights")
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [SafetensorError("No space left on device (os error 28)"), OSError(28, "no space")])
def test_a_full_disk_while_a_checkpoint_is_saved_is_one_clear_error_and_leaves_the_earlier_one(tmp_path, error):
    save_checkpoint(tmp_path / "rl", Decoder(), Tokenizer())
    with pytest.raises(ModelError, match="rl could not be saved") as refused:
        save_checkpoint(tmp_path / "rl", Decoder(error), Tokenizer())
    assert "free space, then resume" in str(refused.value)
    assert (tmp_path / "rl" / "model.safetensors").read_bytes() == b"weights"


def test_every_file_of_a_checkpoint_is_synced_before_it_gets_its_name(tmp_path, monkeypatch):
    calls, sync, rename = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(os.readlink(f"/proc/self/fd/{fd}")), sync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("named"), rename(a, b)))
    save_checkpoint(tmp_path / "rl", Decoder(), Tokenizer())
    named = calls.index("named")
    synced = {path.rpartition("/")[2] for path in calls[:named]}
    assert synced >= {"model.safetensors", "tokenizer.json", "generation_config.json"}
    assert calls[named + 1:] == [str(tmp_path)]


@pytest.mark.parametrize("held", [{}, {"model.safetensors": b"\x00" * 40}, {"config.json": b"{", "model.safetensors": b""},
                                  {"model.safetensors.index.json": b"{}"}])
def test_a_folder_without_weights_that_can_be_read_is_one_error_whatever_its_reader_raised(tmp_path, held):
    for name, data in held.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ModelError, match="no weights that can be read") as refused:
        stored_hash(tmp_path)
    assert refused.value.got
