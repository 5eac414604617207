"""The files beside a checkpoint's weights: who loads the folder must get the model that the run trained and sampled from."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from rollbook.audit.index import RunIndex
from rollbook.models.architecture import Architecture, from_config, tiny, without_fast_path
from rollbook.models.tokenizer import ChatTokenizer, load_tokenizer
from rollbook.records.recipe import Pretrained, Tiny

FREE = ("layers",)          # what a stage may change: pruning leaves some out


def files_otherwise(run: RunIndex, folder: Path) -> Iterator[str]:
    """In what tokenizer, template, ends of turn and configuration of a checkpoint are not the run's, or cannot be read."""
    try:
        held, own, config = load_tokenizer(folder), run.tokenizer, json.loads((folder / "config.json").read_text())
    except Exception as error:          # a file that is missing or none of its kind; tokenizers raises plain ones
        yield f"its tokenizer or configuration cannot be read ({error})"[:200]
        return
    if own is not None:
        yield from _spoken(held, own)
    if (due := _architecture(run)) is None or without_fast_path(config) is not None:
        return
    found = from_config(config)
    unlike = [field.name for field in dataclasses.fields(Architecture) if field.name not in FREE
              and getattr(found, field.name) != getattr(due, field.name)]
    if unlike:
        shown = ", ".join(f"{name} {getattr(found, name)} for {getattr(due, name)}" for name in unlike[:3])
        yield f"its config.json is of another architecture than the run's model: {shown}"


def _spoken(held: ChatTokenizer, own: ChatTokenizer) -> Iterator[str]:
    """What differs between two tokenizers."""
    for what, one, other in (("tokenizer.json is another tokenizer", held.digest, own.digest),
                             ("chat template is another one", held.template_digest, own.template_digest)):
        if one != other:
            yield f"its {what} than the run's: {one[:12]} for {other[:12]}"
    if held.stop_ids != own.stop_ids:
        yield (f"its generation_config.json and tokenizer end a turn at {sorted(held.stop_ids)}, the run at "
               f"{sorted(own.stop_ids)}")


def _architecture(run: RunIndex) -> Architecture | None:
    """The architecture that the recipe's model has; None where no file at hand says it."""
    settings = run.recipe.settings.model if run.recipe is not None else None
    if isinstance(settings, Tiny) and run.tokenizer is not None:
        stop = next(iter(run.tokenizer.stop_ids))
        return tiny(settings, vocab=run.tokenizer.vocab, eos=stop, bos=run.tokenizer.encode("<|im_start|>")[0])
    if isinstance(settings, Pretrained):
        file = Path(settings.path).expanduser() / "config.json"
        config = json.loads(file.read_text()) if file.is_file() else None
        if config is not None and without_fast_path(config) is None:
            return from_config(config)
    return None
