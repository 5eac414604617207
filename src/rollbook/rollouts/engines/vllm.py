"""What runs inside a vLLM server's own process: weights taken from a file, and the hash of what was taken.

`vllm serve` imports it by name (`--worker-extension-cls rollbook.rollouts.engines.vllm.Taking`), in vLLM's environment. It needs
vLLM, torch, safetensors and BLAKE3, which are there, and this package on PYTHONPATH; nothing else of the package is imported.

None of vLLM's own transfer engines works without an accelerator (NCCL, CUDA IPC, RDMA); this one registers through its factory
under the name `rollbook_file` and works on any device. Limit: a server and the run share the folder of the file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from rollbook.models.hashing import weight_hash

BACKEND = "rollbook_file"


@dataclass
class FileInit(WeightTransferInitInfo):
    """Nothing has to be agreed on before."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    """A safetensors file of all weights under checkpoint names."""

    path: str


class FileTransfer(WeightTransferEngine[FileInit, FileUpdate]):
    """Reads a file and loads it layer by layer into the model; remembers the hash of what it read and what it did not find."""

    init_info_cls = FileInit
    update_info_cls = FileUpdate
    taken: dict[str, Any] | None = None

    def init_transfer_engine(self, init_info: FileInit) -> None:
        """Nothing to do."""

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload
        self.taken = None
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: FileUpdate) -> None:
        with safe_open(update_info.path, framework="pt") as file:
            named = {name: file.get_tensor(name) for name in file.keys()}
        expected = {name for name, _ in self.model.named_parameters()}
        if self._tied():
            expected.discard("lm_head.weight")
        loaded = self.model.load_weights((name, tensor.to(self.device)) for name, tensor in named.items())
        missing = sorted(expected - loaded) if isinstance(loaded, set) else []
        self.taken = {"hash": weight_hash(named.items()), "tensors": len(named), "missing": missing}

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload
        finalize_layerwise_reload(self.model, self.model_config)
        head = getattr(self.model, "lm_head", None)
        if self._tied() and getattr(head, "quant_method", None) is not None:     # no weight of its own arrived: packed anew here
            head.quant_method.process_weights_after_loading(head)

    def _tied(self) -> bool:
        return bool(getattr(self.model_config.hf_config, "tie_word_embeddings", False))

    def shutdown(self) -> None:
        """Nothing is held."""


WeightTransferEngineFactory.register_engine(BACKEND, FileTransfer)


class Taking:
    """Becomes a base of vLLM's worker: what `/collective_rpc` may ask it."""

    weight_transfer_engine: Any
    model_config: Any

    def rollbook_taken(self) -> str:
        """The last weights that were taken, as JSON: their hash, their number, parameters that none of them was for."""
        engine = self.weight_transfer_engine
        taken = engine.taken if isinstance(engine, FileTransfer) else None
        if taken is None:
            raise RuntimeError("no weights were taken from a file yet")
        return json.dumps({**taken, "dtype": str(self.model_config.dtype).removeprefix("torch.")})
