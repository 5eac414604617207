"""Which policy `--policy` names: of a run and a stage, of a model folder, built in; with where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rollbook.evaluation.comparison import Training
from rollbook.ledger import Ledger
from rollbook.ledger.manifest import without_home
from rollbook.models.load import Policy, load_policy, locate, read_policy
from rollbook.records import (
    Batch,
    Dispatch,
    LedgerError,
    ModelError,
    PolicyVersion,
    ResolvedRecipe,
    SftReport,
    StageEnd,
    StepReport,
    encode,
)
from rollbook.records.graph import START
from rollbook.rollouts.endpoint import Endpoint, check_listens, models_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A policy that can answer, and its origin: `run` is the genesis hash of the run that made it, None for another model or an
    endpoint.

    `recipe` are that run's values by dotted path, `training` what it had spent when the policy was published, `folder` the run
    whose training this policy had, None for one that it only started from and for others.
    """

    policy: Policy | Endpoint
    name: str
    run: str | None
    stage: str | None
    version: str | None
    weights: str | None
    recipe: Mapping[str, Any] | None
    training: Training | None
    folder: Path | None = None


Rebuild = Callable[[Path, PolicyVersion], Policy]


def endpoint_subject(url: str, *, model: str, key_variable: str | None, workers: int, seconds: float) -> Subject:
    """A model behind an address. Without a name it is the only one that the endpoint lists; refuses several."""
    endpoint = Endpoint(url=url.rstrip("/"), model=model, key_variable=key_variable, workers=workers, seconds=seconds)
    wire = endpoint.wire()
    if model:
        check_listens(wire, seconds)
    else:
        names = models_of(wire, seconds)
        if len(names) > 1:
            raise ModelError("the endpoint has several models", got=", ".join(names)[:300],
                             why="an evaluation is of one", fix="name it with --model")
        endpoint = replace(endpoint, model=names[0])
    return Subject(policy=endpoint, name=f"{endpoint.model} at {urlsplit(endpoint.url).netloc}", run=None, stage=None,
                   version=None, weights=None, recipe=None, training=None)


def subject(text: str, *, rebuild: Rebuild) -> Subject:
    """RUN[:STAGE[:STEP]], a model folder, or a built-in name.

    `rebuild` computes a version whose weights a run did not keep, those of a step before its stage's last.
    """
    path, stage, step = _parts(text)
    if (path / "manifest.json").is_file():
        return _of_run(path, (stage, step), rebuild)
    if stage is not None and not Path(text).exists():
        raise ModelError("no run and no model under this name", got=text, why=f"{path} has no manifest.json",
                         fix="give RUN, RUN:STAGE, a model folder, or a built-in name")
    return Subject(policy=read_policy(locate(text), source=without_home(text)), name=without_home(text), run=None, stage=None,
                   version=None, weights=None, recipe=None, training=None)


def _parts(text: str) -> tuple[Path, str | None, str | None]:
    if Path(text).exists():
        return Path(text), None, None
    path, _, rest = text.partition(":")
    stage, _, step = rest.partition(":")
    return Path(path), stage or None, step or None


def _of_run(path: Path, asked: tuple[str | None, str | None], rebuild: Rebuild) -> Subject:
    stage, step = asked
    ledger = Ledger.open(path, write=False)
    recipe = next(iter(ledger.records(ResolvedRecipe)), None)
    ends = {end.stage: end for end in ledger.records(StageEnd)}
    versions = {version.id: version for version in ledger.records(PolicyVersion)}
    kept = {name: end for name, end in ends.items() if end.checkpoint is not None}
    if recipe is None or not versions:
        raise LedgerError("this run holds no policy", got=path.name,
                          why="it stopped before it published one, or is no training run",
                          fix="give a run whose first stage has begun")
    name = stage or (list(kept)[-1] if kept else START)
    earlier = None if step is None else _published(ledger, ends.get(name), name, step)
    if earlier is not None:
        version = versions[earlier]
        policy, name = rebuild(path, version), f"{name}:{step}"
    elif name == START:
        version = next(one for one in versions.values() if one.index == 0)
        policy = load_policy(recipe.settings.model)
    else:
        end = ends.get(name)
        if end is None:
            raise LedgerError("no finished stage of this run has this name", got=repr(name),
                              why="weights are kept where a stage ends", fix=f"one of {', '.join((START, *ends))}")
        version, policy = versions[end.ended], _load(ledger, end, kept, recipe)
    return Subject(policy=policy, name=f"{recipe.name}:{name}", run=ledger.genesis, stage=name, version=version.id,
                   weights=version.weights, recipe=dict(leaves(encode(recipe.settings))), training=training(ledger, version),
                   folder=None if name == START else path)


def _published(ledger: Ledger, end: StageEnd | None, stage: str, step: str) -> str | None:
    """The version that a policy stage published after `step`; None where the stage ended with it and kept its weights."""
    made = {str(report.step): report.published for report in ledger.records(StepReport) if report.stage == stage}
    last = max((report.step for report in ledger.records(SftReport) if report.stage == stage), default=None)
    if step not in made and (end is None or step != str(last)):
        ranges = f"{stage}:{next(iter(made))} to {stage}:{list(made)[-1]}" if made else f"{stage} without a step"
        raise LedgerError(f"{stage} published no policy after step {step}", got=f"{ledger.root.name}:{stage}:{step}",
                          why="a policy stage publishes one after each of its steps, other stages when they end",
                          fix=f"give {ranges}")
    found = made.get(step)
    return None if end is not None and found in (None, end.ended) else found


def _load(ledger: Ledger, end: StageEnd, kept: Mapping[str, StageEnd], recipe: ResolvedRecipe) -> Policy:
    """The weights that a stage ended with: its checkpoint, or that of the earlier stage whose policy it only used."""
    holder = end if end.checkpoint is not None else next((one for one in kept.values() if one.ended == end.ended), None)
    if holder is None:
        return load_policy(recipe.settings.model)
    return read_policy(ledger.root / str(holder.checkpoint), source=f"{recipe.name}:{holder.stage}")


def training(ledger: Ledger, version: PolicyVersion) -> Training:
    """What a run had spent on a policy when it published it; evaluations do not count, seconds are since the run began."""
    generated = trained = attempts = updates = 0
    began = 0.0
    for event in ledger.events():
        began = began or event.time
        if event.kind not in ("Dispatch", "StepReport", "Batch", "SftReport", "PolicyVersion"):
            continue
        record = event.record()
        match record:
            case Dispatch() if not record.scope.startswith("eval/"):
                attempts += len(record.tasks) * record.samples
            case StepReport():
                generated += int(record.metrics.get("rollout/tokens", 0.0))
            case Batch():
                trained, updates = trained + record.action_tokens, updates + 1
            case SftReport():
                trained, updates = trained + record.tokens, updates + 1
            case PolicyVersion() if record.id == version.id:
                return Training(tokens_generated=generated, tokens_trained=trained, attempts=attempts, updates=updates,
                                seconds=event.time - began)
            case _:
                pass
    raise LedgerError("this run did not publish the policy", got=version.id[:30], why="its record is not in the log")


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The plain values of a document by dotted path; what only the machine is asked for (threads) is left out."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        yield path, list(value)
    elif path != "run.threads":
        yield path, value
