"""The runs of an experiment: planned and committed first, then made one after another; an interrupted queue goes on.

    OUT/plan.json      the definition, the resolved recipe of every run by its hash, and the hash of all that; never written twice
    OUT/runs/LEVEL-seedN/    one run folder each
    OUT/result.json    the verdict, with effect, budgets and the hash of every run
    OUT/claim.yaml     the same as an R claim
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollbook.evidence.errors import EvidenceError
from rollbook.experiments import runs
from rollbook.experiments.definition import Definition
from rollbook.experiments.runs import Outcome
from rollbook.ledger.layout import refusing, write_durably
from rollbook.recipes import load, resolve
from rollbook.records import ResolvedRecipe, canonical, content_id, digest, encode

Start = Callable[[Sequence[str], Path], int]     # arguments of `rollbook`, a file for its output -> exit code
PLAN = "rollbook.experiment-plan/1"
DIVERGED = 3


def recipe(definition: Definition, level: str, seed: int) -> ResolvedRecipe:
    """The resolved recipe of one run."""
    name = definition.levels[level].recipe or definition.recipe
    return resolve(load(name), definition.scale, assignments(definition.overrides(level, seed)))


def assignments(settings: Mapping[str, Any]) -> list[str]:
    """Settings as `--set` takes them: YAML flow, which JSON is."""
    return [f"{path}={json.dumps(value)}" for path, value in settings.items()]


def plan(definition: Definition) -> dict[str, Any]:
    """What is committed before the first run: the whole definition and every resolved recipe by its hash."""
    if definition.needs:
        raise EvidenceError(f"experiment {definition.name} cannot be run yet", got="; ".join(definition.needs),
                            why="a level that is not what its name says would be another experiment", fix="build it, then run it")
    body = {"schema": PLAN, "definition": encode(definition),
            "recipes": {f"{level}-seed{seed}": content_id(recipe(definition, level, seed)) for level, seed in definition.runs}}
    return {**body, "hash": digest(canonical(body))}


def commit(out: Path, definition: Definition) -> str:
    """Writes the plan, or checks that it is the one that was written; its hash."""
    made, file = plan(definition), out / "plan.json"
    if not file.exists():
        if (out / "runs").exists():
            raise EvidenceError(f"{out} has runs and no plan", got=str(out / "runs"),
                                why="runs that came before their rule decide nothing", fix="choose another folder")
        with refusing(f"the plan could not be written to {out}"):
            out.mkdir(parents=True, exist_ok=True)
            write_durably(file, json.dumps(made, indent=1, ensure_ascii=False).encode())
        return str(made["hash"])
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EvidenceError(f"{file} is damaged", got=str(error), fix="restore it, or choose another folder") from None
    if held != made:
        changed = [key for key in {*held, *made} if held.get(key) != made.get(key) and key != "hash"]
        raise EvidenceError(f"{file} is another plan", got=f"differs in {', '.join(sorted(changed))}",
                            why="hypothesis, metric and rule are fixed before the runs", fix="choose another folder with --out")
    return str(made["hash"])


def folder(out: Path, level: str, seed: int) -> Path:
    """Where a run is."""
    return out / "runs" / f"{level}-seed{seed}"


def finished(out: Path, definition: Definition) -> Iterator[Outcome]:
    """The outcomes of every run that is over, each checked to be the run that was planned."""
    for level, seed in definition.runs:
        place = folder(out, level, seed)
        if not (place / "manifest.json").exists() or (held := runs.outcome(place, definition, level, seed)) is None:
            continue
        wanted = content_id(recipe(definition, level, seed))
        if held.recipe != wanted:
            raise EvidenceError(f"{place} is not the run that was planned", got=held.recipe, why=f"the plan has {wanted}",
                                fix="move it away; the queue makes it again")
        yield held


def work(out: Path, definition: Definition, start: Start, *, most: int | None = None, say: Callable[[str], None]) -> bool:
    """Makes the runs that are missing, at most `most` of them; whether all are over."""
    done = {(one.level, one.seed) for one in finished(out, definition)}
    left = [run for run in definition.runs if run not in done]
    for index, (level, seed) in enumerate(left[:most]):
        place = folder(out, level, seed)
        begun = (place / "manifest.json").exists()
        say(f"{level} seed {seed}: {'goes on' if begun else 'starts'} ({len(done) + index + 1} of {len(definition.runs)})")
        code = start(_words(definition, place, level, seed, begun=begun), place.with_suffix(".log"))
        if code not in (0, DIVERGED):
            raise EvidenceError(f"the run {place.name} stopped", got=f"exit code {code}", why=f"see {place.with_suffix('.log')}",
                                fix="mend what stopped it and call the same command again; finished runs are kept")
    return len(left) <= (len(left) if most is None else most)


def _words(definition: Definition, place: Path, level: str, seed: int, *, begun: bool) -> list[str]:
    if begun:
        return ["resume", str(place)]
    sets = [word for one in assignments(definition.overrides(level, seed)) for word in ("--set", one)]
    name = definition.levels[level].recipe or definition.recipe
    return ["run", name, "--scale", definition.scale, *sets, "--out", str(place)]


def start_process(words: Sequence[str], log: Path) -> int:
    """Runs `rollbook` in a process of its own; its output goes to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.run([sys.executable, "-c", "from rollbook.cli import main; main()", *words], stdout=output,
                              stderr=subprocess.STDOUT, env=dict(os.environ), check=False).returncode


def document(definition: Definition, outcomes: Sequence[Outcome], verdict: Any, plan_hash: str) -> dict[str, Any]:
    """The result as it is kept: the verdict, and each run by its hash without its answers by task."""
    return {"schema": "rollbook.experiment-result/1", "name": definition.name, "claim": definition.claim, "plan": plan_hash,
            "hypothesis": definition.hypothesis, "factor": definition.factor, "baseline": definition.baseline,
            "treatment": definition.treatment, "left_out": list(definition.absent), "metric": definition.metric,
            "scale": definition.scale, "verdict": encode(verdict),
            "runs": [{key: item for key, item in dataclasses.asdict(one).items() if key != "outcomes"} for one in outcomes]}
