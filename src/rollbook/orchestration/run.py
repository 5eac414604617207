"""A run from its recipe to its report, and its continuation after an interruption."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

import psutil
import torch

from rollbook.evaluation.gate import undecided
from rollbook.evaluation.protocols import protect, registered
from rollbook.ledger import Ledger, environment_manifest
from rollbook.ledger.manifest import without_home
from rollbook.models.load import Policy, load_policy, news, placed
from rollbook.models.runtime import device_of, named, prepare
from rollbook.orchestration.along import Along, check_suites
from rollbook.orchestration.engines import engine_of
from rollbook.orchestration.environment_proof import prove_environment
from rollbook.orchestration.giving import checked
from rollbook.orchestration.imitation import check_imitated
from rollbook.orchestration.judges import default_judging
from rollbook.orchestration.proof import prove
from rollbook.orchestration.publish import Publisher
from rollbook.orchestration.readiness import check_begins, check_ready
from rollbook.orchestration.reuse import Reuse, reusable, take_over
from rollbook.orchestration.session import Progress, Session
from rollbook.orchestration.sourcing import LIKENESS, curated_tasks, kept_set, pinned, record_set
from rollbook.orchestration.stages import run_stage, steps_of
from rollbook.orchestration.state import StepState, drop_state, read_state, restore
from rollbook.orchestration.supported import check_curated_families, check_pruned, check_supported, check_weights, check_written
from rollbook.orchestration.surroundings import environment_tasks, surroundings
from rollbook.records import (
    Diverged,
    LedgerError,
    PolicyVersion,
    RecipeError,
    ResolvedRecipe,
    RunEnd,
    Selection,
    StageEnd,
    Task,
    TokenizerFile,
    content_id,
)
from rollbook.records.graph import START, order
from rollbook.records.recipe import (
    Fsdp2,
    Pretrained,
    Settings,
)
from rollbook.tasks import Acquired, Side, Split, acquire, decontaminate, shares, split
from rollbook.tasks.curated import Stored

ACQUIRED_AT = "2026-11-29"      # the day the generators' version was pinned; part of every raw task


def run_recipe(recipe: ResolvedRecipe, out: Path, progress: Progress, *, until: str | None = None,
               reuse: Reuse | None = None, kept: Stored | None = None, store: Path | None = None) -> int:
    """Runs all stages (or those up to `until`) into a new folder; returns the exit code.

    `kept` is the curated set of a recipe whose folder need not be here, `store` a folder with its other files by hash. Stages
    that an earlier run made of the same inputs are taken over from it where `reuse` names one. Everything that can be refused is
    refused before the folder is made.
    """
    recipe = _without_home(recipe) if kept is not None else pinned(_without_home(recipe))
    if until is not None and until not in recipe.settings.stages:
        raise RecipeError("the recipe has no stage to stop after by this name", got=until,
                          fix=f"one of {', '.join(recipe.settings.stages)}")
    check_supported(recipe.settings)
    dtype = prepare(recipe.settings.run)
    progress.note("loading the model")
    policy = _loaded(recipe.settings, progress)
    check_pruned(recipe.settings, policy)
    check_suites(recipe.settings, policy)
    recipe, files = checked(recipe, policy.tokenizer, progress, store)
    acquired, sides = _tasks(recipe.settings, kept)
    for why, count in acquired.rejected.items() if acquired.curated is not None else ():
        progress.note(f"left out of the curated set: {count} {why}")
    _check_context(recipe.settings, policy, sides)
    check_written(recipe.settings, sides.train)
    check_curated_families(recipe.settings, sides)
    check_weights(recipe.settings, sides)
    check_begins(recipe.settings, sides.train[0])
    check_imitated(recipe.settings, (acquired, sides), policy.tokenizer, progress)
    protect(_side(acquired, sides.train), registered(), likeness=LIKENESS)
    manifest = _manifest(recipe, policy, dtype)
    taken = None if reuse is None else reusable(recipe, manifest, reuse)
    kept = taken is not None and bool(taken.stages)
    with (Ledger.create(out, {**manifest, "taken_over": taken.told()} if taken is not None and kept else manifest) as ledger,
          _session(recipe, ledger, (policy, sides), progress, dtype) as session):
        for data in files:
            ledger.put(data)
        ledger.append(recipe)
        if taken is None or not kept:
            return _from_start(session, acquired, until)
        take_over(ledger, taken)
        progress.note(f"taken over from {taken.folder}: {', '.join(taken.stages)}")
        return _go(session, _rewind(session), until)


def resume_run(out: Path, progress: Progress) -> int:
    """Continues a run from its last complete step; what came after it is undone and made again under the same names."""
    with Ledger.open(out) as ledger:
        recipe = next(iter(ledger.records(ResolvedRecipe)), None)
        if recipe is None:
            raise LedgerError("this run stopped before its recipe was recorded", got=str(out),
                              why="there is nothing to continue", fix="delete the folder and start the run again")
        if any(end.status == "completed" for end in ledger.records(RunEnd)):
            progress.note("the run is complete; nothing to do")
            return 0
        check_ready(recipe.settings)
        dtype = prepare(recipe.settings.run)
        policy = _loaded(recipe.settings, progress)
        acquired, sides = _tasks(recipe.settings, kept_set(ledger))
        with _session(recipe, ledger, (policy, sides), progress, dtype) as session:
            if next(iter(ledger.records(PolicyVersion)), None) is None:
                ledger.rollback(after=next(ledger.events("ResolvedRecipe")).seq, reason="resume")
                return _from_start(session, acquired)
            return _go(session, _rewind(session))


def _from_start(session: Session, acquired: Acquired, until: str | None = None) -> int:
    """Everything after the recipe: sources, the first policy, the stages."""
    _record_sources(session, acquired)
    session.versions[START] = session.publisher.publish(START, None, (), optimizer=None)
    session.resident = session.versions[START].id
    return _go(session, None) if until is None else _go(session, None, until)


def _go(session: Session, state: StepState | None, until: str | None = None) -> int:
    """The stages that are not done yet, in graph order."""
    stages = session.settings.stages
    names = order(stages, session.settings.rewards)
    done = {end.stage for end in session.ledger.records(StageEnd)}
    with _stoppable(session):
        if session.along is not None and state is None and not done:
            session.along.begin()
        for index, name in enumerate(names, start=1):
            if name in done:
                continue
            session.check_stop()
            session.progress.stage(name, index, len(names), steps_of(stages[name]))
            mine = state if state is not None and state.stage == name else None
            if mine is not None:
                restore(session, mine)
            try:
                run_stage(session, name, stages[name], mine)
            except Diverged as error:
                session.ledger.append(RunEnd(status="diverged", detail=str(error), observed=_spent(session)))
                raise
            if session.along is not None:
                session.along.told(name)
            if name == until:
                session.progress.note(f"stopped after {name}, as asked: `rollbook resume {session.root}` goes on")
                return 0
    if session.along is not None:
        session.along.told()
    session.ledger.append(undecided(session.versions[names[-1]]))
    session.ledger.append(RunEnd(status="completed", detail="", observed=_spent(session)))
    return 0


def _rewind(session: Session) -> StepState | None:
    """Undoes what came after the last state that can be continued from; returns that state, None at a stage's start."""
    ledger = session.ledger
    versions = {version.id: version for version in ledger.records(PolicyVersion)}
    session.versions[START] = next(v for v in versions.values() if v.index == 0)
    ends = list(ledger.records(StageEnd))
    for end in ends:
        session.versions[end.stage] = versions[end.ended]
        if end.checkpoint is not None:
            session.checkpoints[end.ended] = end.checkpoint
    session.selections.update({s.stage: s.kept for s in ledger.records(Selection)})
    last = max((event.seq for event in ledger.events() if event.kind in ("StageEnd", "SplitManifest", "PolicyVersion")
                and (event.kind != "PolicyVersion" or event.body["index"] == 0)), default=0)
    state = read_state(session.root)
    if state is not None and state.stage in {end.stage for end in ends}:
        drop_state(session.root)
        state = None
    keep = state.seq if state is not None else last
    if ledger.last_seq > keep:
        ledger.rollback(after=keep, reason="resume")
    if state is None:
        session.publisher.next_index = max(version.index for version in ledger.records(PolicyVersion)) + 1
    return state


@contextlib.contextmanager
def _session(recipe: ResolvedRecipe, ledger: Ledger, made: tuple[Policy, Split], progress: Progress,
             dtype: torch.dtype) -> Iterator[Session]:
    policy, sides = made
    session = None
    settings = recipe.settings
    with surroundings(settings.environment, settings.tasks.max_tokens) as around, contextlib.ExitStack() as opened:
        default = default_judging(settings.reward, settings.judges, around)
        try:
            engine = opened.enter_context(engine_of(recipe.settings, policy, dtype))
            session = Session(recipe=recipe, ledger=ledger, policy=policy, engine=engine, judge=default.judge, sides=sides,
                              tasks={task.id: task for task in (*sides.train, *sides.heldout)}, image=default.image, dtype=dtype,
                              publisher=Publisher(ledger, policy.decoder, engine, next_index=0,
                                                  probe=policy.tokenizer.prompt(sides.train[0].prompt)), versions={},
                              around=around, progress=progress)
            session.along = None if settings.suites is None else Along(session, settings.suites)
            yield session
        finally:
            default.judge.close()
            for used in session.judges.values() if session is not None else ():
                used.judge.close()


def _loaded(settings: Settings, progress: Progress) -> Policy:
    policy = placed(load_policy(settings.model), device_of(settings.run.device))
    if settings.run.gradient_checkpointing:
        if policy.slow is not None:
            raise RecipeError("run.gradient_checkpointing works on the fast path only", got=policy.slow,
                              why="transformers computes this model", fix="--set run.gradient_checkpointing=false")
        policy.decoder.checkpointing = True
    if (told := news(policy)) is not None:
        progress.note(told)
    return policy


def _tasks(settings: Settings, kept: Stored | None = None) -> tuple[Acquired, Split]:
    """The tasks of a recipe on their two sides. `kept` is the run's own copy of its curated set."""
    if settings.environment is not None:
        return environment_tasks(settings, settings.environment)
    if settings.tasks.curated is not None:
        return curated_tasks(settings.tasks, settings.tasks.curated, kept, likeness=LIKENESS)
    acquired = acquire(settings.tasks, acquired_at=ACQUIRED_AT)
    return acquired, split(acquired.tasks, train=settings.tasks.train, heldout=settings.tasks.heldout, seed=settings.tasks.seed,
                           weights=shares(settings.tasks))


def _record_sources(session: Session, acquired: Acquired) -> None:
    """Stages 1 to 4 on the record: raw tasks, contracts, the split, contamination, the environment and what proves it."""
    ledger, sides = session.ledger, session.sides
    train, heldout = _side(acquired, sides.train), _side(acquired, sides.heldout)
    ledger.append(session.image)
    if session.around is not None:
        ledger.append(session.around.spec)
    if acquired.curated is not None:
        record_set(ledger, acquired.curated)
    ledger.write_table("tasks/raw", acquired.raw)
    ledger.write_table("tasks/train", sides.train)
    ledger.write_table("tasks/heldout", sides.heldout)
    ledger.append(decontaminate(train, heldout, protocol="heldout", likeness=LIKENESS))
    _protect(ledger, train)
    ledger.append(session.judge.composition)
    ledger.append(prove(session.image, session.judge, session.settings.reward, sides.train) if session.around is None
                  else prove_environment(session.around, session.settings.reward, sides.train))
    tokenizer = session.policy.tokenizer
    ledger.append(TokenizerFile(tokenizer=tokenizer.digest, template=tokenizer.template_digest,
                                blob=ledger.put(tokenizer.document())))
    ledger.append(sides.manifest)


def _side(acquired: Acquired, tasks: Sequence[Task]) -> Side:
    """Tasks with the raw tasks they were made from."""
    raw_of = {content_id(raw): raw for raw in acquired.raw}
    return Side(tasks=tuple(tasks), raws=tuple(raw_of[task.raw] for task in tasks))


def _protect(ledger: Ledger, train: Side) -> None:
    """Registered protocols on the record: their tasks, and that none of these is trained on."""
    bundles = list(registered())
    for bundle, found in zip(bundles, protect(train, bundles, likeness=LIKENESS), strict=True):
        ledger.write_table(f"protocols/{found.protocol}", bundle.tasks)
        ledger.write_table(f"protocols/{found.protocol}/raw", bundle.raws)
        ledger.append(found)


def _without_home(recipe: ResolvedRecipe) -> ResolvedRecipe:
    """The recipe as it is recorded: a model folder below the user's home is written with `~`."""
    model = recipe.settings.model
    if not isinstance(model, Pretrained):
        return recipe
    return replace(recipe, settings=replace(recipe.settings, model=replace(model, path=without_home(model.path))))


def _check_context(settings: Settings, policy: Policy, sides: Split) -> None:
    longest = max(len(policy.tokenizer.prompt(task.prompt)) for task in (*sides.train, *sides.heldout))
    context = min(settings.model.context, policy.decoder.architecture.context)
    if longest + settings.tasks.max_tokens > context:
        raise RecipeError("prompts and answers do not fit the model's context",
                          got=f"longest prompt {longest} + tasks.max_tokens {settings.tasks.max_tokens} > {context}",
                          why="an answer would be cut by the context and not by its budget",
                          fix="lower tasks.max_tokens, shorten tasks.system_prompt, or raise model.context")


def _manifest(recipe: ResolvedRecipe, policy: Policy, dtype: torch.dtype) -> dict[str, object]:
    learner = recipe.settings.run.learner
    ranks = {"learner": f"Fsdp2, {learner.ranks} ranks"} if isinstance(learner, Fsdp2) else {}      # sums in another order
    return {**ranks, **named(policy.decoder.device, dtype), **environment_manifest(), "recipe": content_id(recipe),
            "name": recipe.name, "scale": recipe.scale, "seed": recipe.settings.run.seed, "model": policy.source,
            "tokenizer": policy.tokenizer.digest, "template": policy.tokenizer.template_digest,
            "threads": torch.get_num_threads()}


@contextlib.contextmanager
def _stoppable(session: Session) -> Iterator[None]:
    """The first Ctrl-C asks for a stop at the next record boundary, the second stops at once."""
    def ask(signum: int, frame: FrameType | None) -> None:
        if session.stop:
            raise KeyboardInterrupt
        session.stop = True
        session.progress.note("stopping at the next record boundary (Ctrl-C again stops at once)")
    try:
        previous = signal.signal(signal.SIGINT, ask)
    except ValueError:                      # not the main thread: the host owns the signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _spent(session: Session) -> dict[str, float]:
    memory = psutil.Process().memory_info()
    peak = getattr(memory, "peak_wset", None) or _peak_bytes()
    return {"wall_s": time.monotonic() - session.began, "peak_rss_gib": peak / 2**30}


def _peak_bytes() -> int:
    import resource
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

