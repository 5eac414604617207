"""Traces of the run's curated set as the data of its stages: refused early where there are none, written down once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rollbook.models.tokenizer import ChatTokenizer
from rollbook.orchestration.session import Progress, Session
from rollbook.orchestration.sourcing import kept_set
from rollbook.records import Demonstration, LedgerError, RawTask, RecipeError, content_id
from rollbook.records.graph import CURATED, learns_curated
from rollbook.records.recipe import Settings
from rollbook.rewards.boxed import answers_rightly
from rollbook.tasks import Acquired, Split
from rollbook.tasks.imitating import imitated

TABLE = f"{CURATED}/demonstrations"


def check_imitated(settings: Settings, made: tuple[Acquired, Split], tokenizer: ChatTokenizer, progress: Progress) -> None:
    """Tells which traces are left out; RecipeError where a stage learns from traces and none can be imitated."""
    names = [name for name, stage in settings.stages.items() if learns_curated(stage)]
    acquired, sides = made
    if not names or acquired.curated is None:
        return
    found = imitated(acquired.curated.data, (sides.train, {content_id(raw): raw for raw in acquired.raw}), tokenizer,
                     answers_rightly)
    left_out = ", ".join(f"{count} {why}" for why, count in found.left_out.items())
    if not found.shown:
        raise RecipeError(f"stages.{names[0]} learns from the traces of the curated set, and none can be imitated",
                          got=left_out or f"no traces at the {len(sides.train)} training tasks",
                          why="the stage would have nothing to show",
                          fix="curate rows that have `traces`, each with its `text`, raise tasks.max_tokens where they are too "
                              f"long, or take {CURATED} out of the stage's data")
    progress.note(f"{len(found.shown)} traces of the curated set can be imitated"
                  + (f"; left out: {left_out}" if left_out else ""))


def demonstrated(session: Session, sources: Iterable[str]) -> dict[str, list[Demonstration]]:
    """What stages left, or the curated set holds, to be imitated; a task that weighs more gives its traces as often."""
    return {source: _traces(session) if source == CURATED else session.table(f"{source}/demonstrations", Demonstration)
            for source in sources}


def _traces(session: Session) -> list[Demonstration]:
    """The traces of the curated set, which the first stage that learns from them writes down."""
    ledger = session.ledger
    if not any(event.body["name"] == TABLE for event in ledger.events("RecordTable")):
        stored = kept_set(ledger)
        if stored is None:
            raise LedgerError("the run keeps no curated set", got="none", why="a stage learns from its traces")
        raws: Mapping[str, RawTask] = {content_id(raw): raw for raw in session.table("tasks/raw", RawTask)}
        ledger.write_table(TABLE, imitated(stored.data, (session.sides.train, raws), session.policy.tokenizer,
                                           answers_rightly).shown)
    weights = session.sides.weights
    return [one for one in session.table(TABLE, Demonstration) for _ in range(weights.get(one.task, 1))]  # type: ignore[call-overload]
