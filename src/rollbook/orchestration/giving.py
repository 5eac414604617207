"""Files of conversations before a run begins: read, rendered, counted, and pinned in the recipe by their hash."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rollbook.ledger.manifest import without_home
from rollbook.models.tokenizer import ChatTokenizer
from rollbook.records import RecipeError, ResolvedRecipe, digest
from rollbook.records.problems import Problems
from rollbook.records.recipe import Conversations, Provenance
from rollbook.rollouts.conversations import SUFFIXES, Unreadable
from rollbook.rollouts.given import TOO_LONG, Given, given

if TYPE_CHECKING:
    from rollbook.orchestration.session import Progress

SHOWN = 12          # names of rows that a line holds


def checked(recipe: ResolvedRecipe, tokenizer: ChatTokenizer, progress: Progress,
            store: Path | None = None) -> tuple[ResolvedRecipe, list[bytes]]:
    """The recipe with the hash of every file of conversations, and the files. Tells what becomes of their rows; refuses all that
    is wrong. `store` is a folder of files by hash, in which a pinned one is looked for first."""
    problems, files = Problems(), []
    stages, about = dict(recipe.settings.stages), dict(recipe.provenance)
    for name, stage in recipe.settings.stages.items():
        if not isinstance(stage, Conversations):
            continue
        try:
            data = file_of(stage, store)
            made = given(data, Path(stage.path).suffix, stage, tokenizer, digest(data))
        except (RecipeError, Unreadable) as error:
            problems.add(error if isinstance(error, RecipeError) else RecipeError(
                f"stages.{name}.path is no file of conversations", got=f"{stage.path}: {error}",
                fix=f"a list of rows in {', '.join(SUFFIXES)}"))
            continue
        files.append(data)
        _check(name, stage, made, problems)
        for line in told(name, made):
            progress.note(line)
        if made.tools and tokenizer.describes_tools:
            progress.note(f"{name}: the model's template has words of its own for tools; they are described as {stage.dialect} "
                          "does, in training, sampling and serving alike")
        stages[name] = replace(stage, path=without_home(stage.path), sha256=digest(data))
        about[f"stages.{name}.sha256"] = about.get(f"stages.{name}.sha256", Provenance(origin="user", label=None))
    problems.raise_any("what the recipe learns from")
    return replace(recipe, settings=replace(recipe.settings, stages=stages), provenance=about), files


def file_of(stage: Conversations, store: Path | None) -> bytes:
    """The bytes of a stage's file. RecipeError where it cannot be read, or is another than the one that was pinned."""
    kept = store / stage.sha256 if store is not None and stage.sha256 is not None else None
    try:
        data = (kept if kept is not None and kept.is_file() else Path(stage.path).expanduser()).read_bytes()
    except OSError as error:
        raise RecipeError("a file of conversations cannot be read", got=f"{stage.path}: {error.strerror}",
                          fix="correct the stage's path") from error
    if stage.sha256 is not None and digest(data) != stage.sha256:
        raise RecipeError("a file of conversations is not the one that the recipe names", why="its content was changed",
                          got=f"{stage.path}, {digest(data)[:12]} for {stage.sha256[:12]}",
                          fix="restore it, or begin a run with the new one")
    return data


def told(name: str, made: Given) -> list[str]:
    """How many rows are learnt from, and which are left out or cut, by name."""
    kept = len(made.demonstrations) + len(made.rankings)
    lines = [f"{name}: {kept} of {made.rows} conversations are learnt from"]
    return lines + [f"{name}: {len(names)} {why}: {listed(names)}" for why, names in made.left.items()]


def listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _check(name: str, stage: Conversations, made: Given, problems: Problems) -> None:
    if made.wrong:
        shown = "; ".join(f"{row}: {why}" for row, why in list(made.wrong.items())[:SHOWN])
        problems.add(RecipeError(f"stages.{name}: {len(made.wrong)} of {made.rows} rows are no conversations", got=shown,
                                 why="a row that is left out unseen would not be missed", fix="correct them in the file"))
    over = made.left.get(TOO_LONG, ())
    if over and stage.too_long == "refuse":
        problems.add(RecipeError(f"stages.{name}: {len(over)} of {made.rows} conversations are longer than max_tokens = "
                                 f"{stage.max_tokens}", got=listed(over), why="stages.NAME.too_long is refuse",
                                 fix=f"raise stages.{name}.max_tokens, or set stages.{name}.too_long = drop or cut"))
    elif not made.demonstrations and not made.rankings and not made.wrong:
        problems.add(RecipeError(f"stages.{name} leaves nothing to learn from", got=f"{made.rows} rows, all left out",
                                 fix="look at the file, or raise max_tokens"))
