"""The files beside a checkpoint's weights: who loads the folder must get the model that the run trained and sampled from."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from rollbook.audit.index import RunIndex
from rollbook.models.architecture import Architecture, from_config, tiny, without_fast_path
from rollbook.models.tokenizer import ChatTokenizer, load_tokenizer
from rollbook.records.graph import outline
from rollbook.records.recipe import Pretrained, Tiny


def files_otherwise(run: RunIndex, folder: Path, stage: str) -> Iterator[str]:
    """In what the tokenizer, template, ends of turn or configuration of a stage's checkpoint are not its own, or unreadable."""
    try:
        held, own, config = load_tokenizer(folder), run.tokenizer, json.loads((folder / "config.json").read_text())
    except Exception as error:          # a file that is missing or none of its kind; tokenizers raises plain ones
        yield f"its tokenizer or configuration cannot be read ({error})"[:200]
        return
    if own is not None:
        yield from _spoken(held, own)
    if (due := _architecture(run, stage)) is None or without_fast_path(config) is not None:
        return
    found = from_config(config)
    unlike = [field.name for field in dataclasses.fields(Architecture) if getattr(found, field.name) != getattr(due, field.name)]
    if unlike:
        shown = ", ".join(f"{name} {getattr(found, name)} for {getattr(due, name)}" for name in unlike[:3])
        yield f"its config.json is of another architecture than the stage's policy: {shown}"


def _spoken(held: ChatTokenizer, own: ChatTokenizer) -> Iterator[str]:
    """What differs between two tokenizers."""
    for what, one, other in (("tokenizer.json is another tokenizer", held.digest, own.digest),
                             ("chat template is another one", held.template_digest, own.template_digest)):
        if one != other:
            yield f"its {what} than the run's: {one[:12]} for {other[:12]}"
    if held.stop_ids != own.stop_ids:
        yield (f"its generation_config.json and tokenizer end a turn at {sorted(held.stop_ids)}, the run at "
               f"{sorted(own.stop_ids)}")


def _architecture(run: RunIndex, stage: str) -> Architecture | None:
    """The architecture that a stage's policy has: the recipe's model, as the stages before it pruned it."""
    if run.recipe is None or (whole := _initial(run, run.recipe.settings.model)) is None:
        return None
    layers, neurons = outline(run.recipe.settings.stages, stage, (whole.layers, whole.intermediate))
    return dataclasses.replace(whole, layers=layers, intermediate=neurons)


def _initial(run: RunIndex, settings: Tiny | Pretrained) -> Architecture | None:
    """The architecture that a run's model begins with; None where no file at hand says it."""
    if isinstance(settings, Tiny) and run.tokenizer is not None:
        stop = next(iter(run.tokenizer.stop_ids))
        return tiny(settings, vocab=run.tokenizer.vocab, eos=stop, bos=run.tokenizer.encode("<|im_start|>")[0])
    if isinstance(settings, Pretrained):
        file = Path(settings.path).expanduser() / "config.json"
        config = json.loads(file.read_text()) if file.is_file() else None
        if config is not None and without_fast_path(config) is None:
            return from_config(config)
    return None
