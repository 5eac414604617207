"""One difference planted between two real evaluations, many times over: is it named, and it alone?

python benchmarks/planted_differences.py [--out FOLDER]: trains three small models (single turns twice, with one recipe value
apart, and episodes), freezes what they were evaluated under, and evaluates one policy under each protocol that differs from it in
one value, under another precision, another program and another version of a package; all through the command line. Prints a row
for each with what `rollbook compare` calls the difference, then how many pairs of planted evaluations, two things apart, are
refused with both names. Exits 1 where one is missed. About three minutes on one core.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner
from safetensors.torch import load_file, save_file

import rollbook
from rollbook.cli import main

LITTLE = ("run.threads=1", "model.layers=2", "model.hidden=64", "model.intermediate=96", "model.heads=4", "model.kv_heads=2",
          "tasks.train=64", "tasks.heldout=8", "stages.cold_start.steps=4", "stages.cold_start.batch=8",
          "stages.cold_start.optimizer.warmup_steps=0", "stages.rl.steps=1", "stages.rl.prompts=4", "stages.rl.per_task=4",
          "stages.rl.groups=2", "stages.rl.max_waves=2", "stages.rl.probe=0", "stages.rl.probe_every=0",
          "stages.rl.optimizer.warmup_steps=0")
TURNS = (*LITTLE, "tasks.max_tokens=32", "reward.length_max=32", "reward.length_cache=8", "reward.verify_workers=1",
         "stages.select.candidates=16", "stages.select.low=0", "stages.select.high=4",
         "stages.rl.filter=none")
EPISODES = (*LITTLE, "model.context=640", "environment.dialect=hermes", "environment.announce=true")
JUDGE = ("{kind: ComposedReward, name: plain, gates: [], accuracy: right, parts: {right: {measure: math, passed: 1.0}}, "
         "shaping: {}, verify_seconds: 2.0, verify_workers: 1}")
IN_TURNS = {"sampling.temperature": "0.7", "sampling.top_p": "0.9", "sampling.top_k": "20", "sampling.min_p": "0.05",
            "seed": "12", "trials": "4", "max_tokens": "16", "aggregation": "pass@2", "system_prompt": "Answer.",
            "reward.format_reward": "0.2", "reward.length_max": "16", "reward": JUDGE}
IN_EPISODES = {"world.max_turns": "2", "world.turn_tokens": "16", "world.max_calls": "1", "world.max_seconds": "9.5",
               "world.dialect": "llama3", "world.reasoning": "strip", "world.announce": "false", "world.no_tools": "true",
               "world.call_seconds": "5.0", "context": "600"}


@dataclass(frozen=True, slots=True)
class Planted:
    """An evaluation that differs from `base` in one thing, and the names under which that may be told."""

    name: str
    folder: Path
    base: Path


def said(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(one) for one in arguments])
    if result.exit_code:
        raise SystemExit(f"rollbook {' '.join(map(str, arguments))}: {result.output}{result.exception or ''}")
    return result.output


def run(recipe: str, out: Path, settings: tuple[str, ...]) -> Path:
    if not out.exists():
        said("run", recipe, "--scale", "tiny", "--out", out, *(word for one in settings for word in ("--set", one)))
    return out


def varied(folder: Path, run: Path, base: Path, frozen: Path, values: dict[str, str]) -> list[Planted]:
    made = []
    for name, value in values.items():
        file = folder / f"{base.name}-{name}.json"
        said("protocol", "vary", frozen, file, "--set", f"{name}={value}", "--name", "held")
        out = folder / f"{base.name}-{name}"
        said("eval", file, "--policy", f"{run}:cold_start", "--out", out)
        made.append(Planted(name, out, base))
    return made


def elsewhere(path: Path, *arguments: object) -> None:
    """The command in a process of its own that finds `path` first."""
    place = os.pathsep.join([str(path), str(Path(rollbook.__file__).parents[1])])
    subprocess.run([sys.executable, "-m", "rollbook", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL,
                   env=os.environ | {"PYTHONPATH": place})


def touched(model: Path, out: Path) -> Path:
    """A copy of a model folder in which one weight is another."""
    shutil.copytree(model, out, dirs_exist_ok=True)
    held = load_file(out / "model.safetensors")
    held[min(held)].view(-1)[0] += 1.0
    save_file(held, out / "model.safetensors", metadata={"format": "pt"})
    return out


def around(folder: Path, run: Path, base: Path, frozen: Path) -> list[Planted]:
    """Another precision, a program with one more line, another version of a package, one weight of the policy changed."""
    program, package = folder / "program", folder / "package"
    if not program.exists():
        shutil.copytree(Path(rollbook.__file__).parent, program / "rollbook", ignore=shutil.ignore_patterns("__pycache__"))
        with (program / "rollbook/evaluation/intervals.py").open("a") as file:
            file.write("\n# one more line\n")
    (package / "transformers-5.99.dist-info").mkdir(parents=True, exist_ok=True)
    (package / "transformers-5.99.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 5.99\n")
    asked = ("eval", frozen, "--policy", f"{run}:cold_start", "--out")
    said(*asked, folder / "precision", "--dtype", "float32")
    elsewhere(program, *asked, folder / "code")
    elsewhere(package, *asked, folder / "package.transformers")
    said("eval", frozen, "--policy", touched(run / "checkpoints/cold_start", folder / "touched"), "--out", folder / "policy")
    return [Planted(name, folder / name, base) for name in ("precision", "code", "package.transformers", "policy")]


def named(one: Path, other: Path) -> tuple[int, tuple[str, ...]]:
    """Exit code of `rollbook compare` and the names of what differs in what it says."""
    result = CliRunner().invoke(main, ["compare", str(one), str(other)])
    told = " ".join(result.output.split("\n  why")[0].split()) if result.exit_code else result.output.split("\n", 1)[0]
    return result.exit_code, tuple(re.findall(r"([a-z_]+(?:\.[a-z_]+)*) \((?:(?!; [a-z_.]+ \().)*? against ", told))


def apart(one: Planted, other: Planted) -> bool:
    """Two things: not both of the policy, and neither a part of the other, as a number is of a whole reward."""
    names = one.name.replace("recipe", "policy"), other.name.replace("recipe", "policy")
    return one.base == other.base and not any(a == b or a.startswith(f"{b}.") for a, b in (names, names[::-1]))


def measure(folder: Path) -> int:
    missed, planted = 0, plant(folder)
    for one in planted:
        code, names = named(one.base, one.folder)
        fine = code == 0 and names == (one.name,)
        missed += not fine
        print(f"{'ok  ' if fine else 'MISS'} {one.name:32} {', '.join(names) or f'exit {code}'}", flush=True)
    print(f"{len(planted) - missed} of {len(planted)} planted differences named, each alone")
    pairs = [(one, other) for one, other in itertools.combinations(planted, 2) if apart(one, other)]
    refused = 0
    for one, other in pairs:
        code, names = named(one.folder, other.folder)
        fine = code == 1 and set(names) == {one.name, other.name}
        refused += fine
        if not fine:
            print(f"MISS {one.name} and {other.name}: exit {code}, {', '.join(names)}", flush=True)
    print(f"{refused} of {len(pairs)} pairs of them refused with both names")
    return missed + len(pairs) - refused


def plant(folder: Path) -> list[Planted]:
    turns = run("magistral-small", folder / "turns", TURNS)
    other = run("magistral-small", folder / "other", (*TURNS[:-1], TURNS[-1], "stages.cold_start.optimizer.weight_decay=0.5"))
    played = run("tool-calculator", folder / "played", EPISODES)
    made: list[Planted] = []
    for which, values in ((turns, IN_TURNS), (played, IN_EPISODES)):
        frozen, base = folder / f"{which.name}.json", folder / f"base-{which.name}"
        said("protocol", "freeze", which, frozen, "--trials", 2, "--name", "held")
        said("eval", frozen, "--policy", f"{which}:cold_start", "--out", base)
        made += varied(folder, which, base, frozen, values)
    frozen, base = folder / "turns.json", folder / "base-turns"
    made += around(folder, turns, base, frozen)
    said("eval", frozen, "--policy", f"{other}:cold_start", "--out", folder / "recipe")
    return [*made, Planted("recipe.stages.cold_start.optimizer.weight_decay", folder / "recipe", base)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="Keep the evaluations here, and go on with what is there. Default: none.")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(measure(out or Path(scratch)) > 0)
