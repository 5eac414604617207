"""`rollbook protocol`, `rollbook eval`, `rollbook compare`: frozen protocols, results under them, and what a gain is of."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from rollbook.records.errors import RollbookError, Stopped

FILE = click.Path(path_type=Path)


@click.group()
def protocol() -> None:
    """Freeze, register and read evaluation protocols."""


@protocol.command("freeze")
@click.argument("run_folder", metavar="RUN", type=FILE)
@click.argument("out", metavar="FILE", type=FILE)
@click.option("--stage", help="Which evaluation of RUN. Default: the last.")
@click.option("--name", help="Name of the protocol. Default: the file's.")
@click.option("--trials", type=click.IntRange(min=1), help="Attempts at each task. Default: the stage's.")
@click.option("--aggregate", default="mean", show_default=True, help="mean, pass@4, majority@8, best@8:logp.")
@click.option("--register", "registered", is_flag=True, help="Also protect its tasks from every later training run.")
def freeze_command(run_folder: Path, out: Path, stage: str | None, name: str | None, trials: int | None, aggregate: str,
                   registered: bool) -> None:
    """Write the protocol of an evaluation of RUN, with its tasks, to FILE. It is never changed after that."""
    from rollbook.cli_output import check_existing_run

    check_existing_run(run_folder)
    from rollbook.evaluation import protocols
    from rollbook.orchestration.evaluating import freeze

    said = name or out.name.removesuffix(protocols.SUFFIX).removesuffix(".json")
    made = freeze(run_folder, stage, name=said, trials=trials, aggregation=protocols.parse_aggregation(aggregate))
    click.echo(f"{protocols.write(made, out)}: {_told(made.protocol)}, hash {made.id[:16]}")
    if registered:
        click.echo(f"registered: {protocols.register(made)}")


@protocol.command("vary")
@click.argument("file", metavar="FILE", type=FILE)
@click.argument("out", metavar="OUT", type=FILE)
@click.option("--set", "changes", multiple=True, required=True, metavar="NAME=VALUE",
              help="e.g. max_tokens=32, sampling.top_p=0.9, world.dialect=llama3, world.no_tools=true, reward.format_reward=0. "
                   "Repeatable.")
@click.option("--name", help="Name of the protocol. Default: the file's.")
def vary_command(file: Path, out: Path, changes: tuple[str, ...], name: str | None) -> None:
    """Write the protocol of FILE with some values changed to OUT: another budget, harness, set of tools or judge."""
    from rollbook.evaluation import protocols
    from rollbook.orchestration.varying import vary

    told = dict(change.partition("=")[::2] for change in changes)
    said = name or out.name.removesuffix(protocols.SUFFIX).removesuffix(".json")
    made = vary(protocols.load(file), told, name=said)
    click.echo(f"{protocols.write(made, out)}: {_told(made.protocol)}, hash {made.id[:16]}")


@protocol.command("register")
@click.argument("file", metavar="FILE", type=FILE)
def register_command(file: Path) -> None:
    """Protect the tasks of a protocol from every later training run of this user."""
    from rollbook.evaluation import protocols

    click.echo(f"registered: {protocols.register(protocols.load(file))}")


@protocol.command("show")
@click.argument("file", metavar="FILE", type=FILE)
def show_command(file: Path) -> None:
    """What a protocol fixes; refuses a file that was changed after it was frozen."""
    from rollbook.cli_output import table
    from rollbook.evaluation import protocols
    from rollbook.records import encode

    bundle = protocols.load(file)
    rows = [(name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            for name, value in encode(bundle.protocol).items() if name != "kind"]
    click.echo(f"{_told(bundle.protocol)}, hash {bundle.id}")
    table("Fixed", ("what", "value"), [(name, " ".join(value.split())[:160]) for name, value in rows])


@protocol.command("list")
def list_command() -> None:
    """The registered protocols."""
    from rollbook.cli_output import table
    from rollbook.evaluation import protocols

    rows = [(one.protocol.name, one.id[:16], _told(one.protocol)) for one in protocols.registered()]
    if not rows:
        click.echo(f"no protocol is registered in {protocols.registry()}")
    table("Registered protocols", ("name", "hash", "what"), rows)


def _told(made: Any) -> str:
    return f"{made.task_count} tasks, {made.trials} trial{'s' if made.trials > 1 else ''}, {made.aggregation}"


@click.command("eval")
@click.argument("file", metavar="PROTOCOL", type=FILE)
@click.option("--policy", "policy", required=True, metavar="RUN[:STAGE[:STEP]]|PATH|NAME|URL",
              help="Whose answers; a URL is an endpoint that speaks chat completions, e.g. http://127.0.0.1:8000/v1.")
@click.option("--out", type=FILE, help="Folder of the evaluation, continued if it is there. Default: evals/PROTOCOL-POLICY.")
@click.option("--dtype", default="auto", show_default=True, help="Precision of the computation: auto, float32, bfloat16.")
@click.option("--answers", type=FILE, metavar="FOLDER",
              help="Judge the answers of this finished evaluation of the policy instead of asking again; only judge, reward and "
                   "aggregation may differ.")
@click.option("--model", default="", help="An endpoint's model. Default: the only one that it lists.")
@click.option("--key-variable", metavar="NAME", help="Environment variable with an endpoint's key. Default: no key is sent.")
@click.option("--workers", default=8, show_default=True, type=click.IntRange(1, 256), help="Calls to an endpoint at a time.")
@click.option("--seconds", default=120.0, show_default=True, type=click.FloatRange(0.1), help="Longest silence of an endpoint.")
def evaluate(file: Path, policy: str, out: Path | None, dtype: str, answers: Path | None, **of_endpoint: Any) -> None:
    """Evaluate a policy under a frozen PROTOCOL. Interrupted, the same command goes on where it stopped."""
    from rollbook.cli_output import check_existing_run
    from rollbook.cli_progress import live_progress
    from rollbook.evaluation.protocols import load
    from rollbook.orchestration.evaluating import evaluate_into

    if answers is not None:
        check_existing_run(answers)
    bundle = load(file)
    chosen = _subject(bundle, policy, of_endpoint)
    folder = out or Path("evals") / f"{bundle.protocol.name}-{_file_name(chosen.name)}"
    try:
        with live_progress() as progress:
            result = evaluate_into(folder, bundle, chosen, progress, dtype=dtype, answers=answers)
    except (KeyboardInterrupt, Stopped):
        raise Stopped("stopped", why="every finished part is kept" if os.path.lexists(folder) else "nothing was written",
                      fix="go on with the same command") from None
    from rollbook.view.held import keep_columns

    keep_columns(folder)
    click.echo(_result(result, bundle.protocol))
    click.echo(f"trajectories: {folder}")


def _subject(bundle: Any, policy: str, of_endpoint: Mapping[str, Any]) -> Any:
    """Whose answers: an endpoint's, or those of weights that can be loaded or computed again."""
    from rollbook.audit.replay import weights_of
    from rollbook.cli_progress import live_progress
    from rollbook.orchestration.evaluating import check_first
    from rollbook.orchestration.subjects import endpoint_subject, subject

    if policy.startswith(("http://", "https://")):
        return endpoint_subject(policy, **of_endpoint)
    if of_endpoint["model"] or of_endpoint["key_variable"]:
        raise RollbookError("--model and --key-variable are of an endpoint", got=policy, fix="give --policy http://HOST:PORT/v1")
    with live_progress() as progress:
        def rebuild(path: Path, version: Any) -> Any:
            check_first(bundle, path)           # what takes minutes is not begun where its result would be refused
            return weights_of(path, version, progress)

        return subject(policy, rebuild=rebuild)


def _file_name(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in text).strip("-.") or "policy"


def _result(result: Any, made: Any) -> str:
    value, spend, seconds = result.value, result.spend, result.observed.get("seconds", 0.0)
    lines = [f"{made.name}, {made.aggregation}: {100 * value.estimate:.1f}% ({100 * value.low:.1f} to {100 * value.high:.1f}, "
             f"{100 * value.level:.0f}% {value.method}) over {value.count} of {made.task_count} tasks"]
    lines += [f"  {family}: {100 * share:.1f}%" for family, share in result.by_family.items()]
    if result.unscored_attempts or result.unscored_tasks:
        lines.append(f"unscored: {result.unscored_attempts} attempts, {result.unscored_tasks} tasks without a value (in no mean)")
    if made.in_family:
        lines.append("the tasks are of the families that were trained on")
    lines.append(f"cost: {spend.tokens:,} tokens sampled, {spend.prompt_tokens:,} read, {spend.attempts:,} attempts, "
                 f"{seconds:,.1f} s")
    return "\n".join(lines)


@click.command("compare")
@click.argument("folders", metavar="BEFORE AFTER [MORE...] | GRID", nargs=-1, required=True, type=FILE)
@click.option("--policy-as-one", is_flag=True, help="Two policies are one difference, however differently they were made.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def compare(folders: tuple[Path, ...], policy_as_one: bool, as_json: bool) -> None:
    """Compare two evaluations that differ in exactly one thing; several make a grid. Exits 1 when more than one differs.

    GRID is the folder of `rollbook grid`.
    """
    from rollbook.cli_output import check_existing_run

    if len(folders) == 1 and (folders[0] / "grid.json").is_file():
        from rollbook.cli_grid import show

        show(folders[0], as_json=as_json)
        return
    if len(folders) < 2:
        raise RollbookError("a comparison is of two evaluations at least", got=str(len(folders)), fix="give another folder")
    for folder in folders:
        check_existing_run(folder)
    from rollbook.orchestration import sides

    if len(folders) > 2:
        _show_grid(sides.grid(folders, policy_as_one=policy_as_one), as_json)
        return
    made, before, after = sides.compare(*folders, policy_as_one=policy_as_one)
    _show(made, before, after, as_json)


def _show(made: Any, before: Any, after: Any, as_json: bool) -> None:
    from rollbook.cli_output import table
    from rollbook.evaluation.comparison import systems
    from rollbook.records import encode

    rows, verdict = systems(before.side, after.side)
    if as_json:
        spent = {"rows": [list(row) for row in rows], "verdict": verdict}
        click.echo(json.dumps({"comparison": encode(made), "spent": spent}, ensure_ascii=False))
        return
    click.echo(f"changed: {made.changed}\n{_line(made.whole)}")
    if made.left_out:
        click.echo(f"left out: {made.left_out} problems that one side could not score")
    for name, gains in made.tables.items():
        table(f"By {name} (p-values corrected, Holm)", GAINS, [_row(gain) for gain in gains])
    table("Spent", ("what", "before", "after"), rows)
    click.echo(verdict)
    _power(before.side, after.side)
    for note in made.notes:
        click.echo(f"note: {note}")


GAINS = ("part", "before", "after", "gain in points (95%)", "p", "problems", "claim")


def _row(gain: Any) -> tuple[str, ...]:
    p = "—" if gain.p_value is None else f"{gain.p_value:.3g}"
    one = gain.gain
    return (gain.of, f"{100 * gain.before:.1f}%", f"{100 * gain.after:.1f}%",
            f"{100 * one.estimate:+.1f} ({100 * one.low:+.1f} to {100 * one.high:+.1f})", p, str(one.count), gain.claim)


def _line(gain: Any) -> str:
    _, before, after, points, p, count, claim = _row(gain)
    return f"{claim}: {points} points, {before} to {after}, p {p}, {count} problems, {gain.gain.method}"


def _power(before: Any, after: Any) -> None:
    """What it would take to see two points, from the noise of these two."""
    from rollbook.evaluation.power import noise_of, tasks_needed

    held = [{name: [one.accuracy for one in attempts if one.accuracy is not None] for name, attempts in side.attempts.items()}
            for side in (before, after)]
    noise, trials = noise_of(*held), max(1, min(len(values) for values in held[0].values()))
    if noise.between + noise.within > 0:
        needed = {count: tasks_needed(noise, trials=count, gain=0.02) for count in sorted({trials, 4 * trials})}
        click.echo("to see 2 points 4 times in 5: " + ", or ".join(f"{tasks:,} tasks x {count} trials"
                                                                    for count, tasks in needed.items()))


def _show_grid(made: Any, as_json: bool) -> None:
    from rollbook.cli_output import table
    from rollbook.records import encode

    cells = [(cell.name, *(values.get(name, "as the others") for name in made.factors),
              f"{100 * cell.side.result.value.estimate:.1f}%") for cell, values in made.cells]
    if as_json:
        steps = [{"changed": encode(difference), "gain": encode(gain)} for difference, gain in made.steps]
        click.echo(json.dumps({"factors": list(made.factors), "cells": [list(cell) for cell in cells], "steps": steps}))
        return
    table("Cells", ("evaluation", *made.factors, "value"), cells)
    table("Steps along one factor (p-values corrected, Holm)", ("changed", *GAINS),
          [(difference.name, *_row(gain)) for difference, gain in made.steps])
