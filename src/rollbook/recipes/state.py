"""Whether a recipe can be run, at which scale, and what a user would have to supply first."""

from __future__ import annotations

from rollbook.recipes.assumed import SCHEMA
from rollbook.recipes.document import Document
from rollbook.recipes.resolve import unknowns

UNBUILT = "not built"


def missing(document: Document) -> dict[str, int]:
    """By scale, smallest first: how many values a run at it would need from the user. Empty where nothing is built."""
    if document.unbuilt:
        return {}
    return {scale: len(unknowns(document, scale)) for scale in (*reversed(tuple(document.scales)), "full")}


def state(document: Document) -> str:
    """The state in a few words.

    Example: "runs at tiny, lab; needs values: full 43", "needs values: tiny 31, lab 33, full 40" or "not built"
    """
    needed = missing(document)
    if not needed:
        return UNBUILT
    ready = [scale for scale, count in needed.items() if not count]
    open_ = [f"{scale} {count}" for scale, count in needed.items() if count]
    parts = [f"runs at {', '.join(ready)}"] if ready else []
    return "; ".join(parts + ([f"needs values: {', '.join(open_)}"] if open_ else []))


def template(document: Document, scale: str) -> str:
    """A file for `--assume` that names every value left open at a scale, each commented out below its meaning and usual range.

    Example: "schema: rollbook.assumptions/1\\n\\n# steps of the stage\\n# typical, I: 170 (Qwen3) ...\\n# stages.rl.steps:\\n"
    """
    blocks = [f"# {entry.note}\n# typical, I: {entry.typical}\n# {path}:" for path, entry in unknowns(document, scale)]
    return "\n\n".join([f"schema: {SCHEMA}", *blocks]) + "\n"
