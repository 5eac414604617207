"""`rollbook evidence rerun`: a claim tried again here, by a plan that is fixed before its first run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rollbook.experiments.definition import Definition
    from rollbook.experiments.verdict import Verdict

WORDS = {"confirmed": "green", "not confirmed at this scale": "red", "inconclusive": "yellow"}


@click.command("rerun")
@click.argument("claim", required=False)
@click.option("--out", type=click.Path(path_type=Path), help="Where plan, runs and result go. Default: experiments/NAME.")
@click.option("--runs", "most", type=click.IntRange(0), help="Make at most so many runs now; 0 only commits the plan.")
@click.option("--record", is_flag=True, help="Put the result into the claims of this installation as an R claim.")
def rerun(claim: str | None, out: Path | None, most: int | None, record: bool) -> None:
    """Try CLAIM again: a claim's id, the name of an experiment or a YAML file. Without it the experiments are listed.

    The plan (hypothesis, levels, budget, metric, decision rule, every resolved recipe by its hash) is written before the first
    run and never changed. Runs that are over are kept; call the command again to go on.
    """
    from rollbook.experiments import definition, queue
    from rollbook.experiments.verdict import judge

    if claim is None:
        _list()
        return
    found = definition.load(claim)
    place = out or Path("experiments") / found.name
    plan = queue.commit(place, found)
    click.echo(f"{found.name}: {found.hypothesis}\n  plan {plan[:16]}, {place / 'plan.json'}")
    done = queue.work(place, found, queue.start_process, most=most, say=click.echo)
    outcomes = list(queue.finished(place, found))
    click.echo(f"{len(outcomes)} of {len(found.runs)} runs are over"
               + ("" if done else f"; about {found.minutes_per_run * (len(found.runs) - len(outcomes)):.0f} minutes are left"))
    if not done or len(outcomes) < len(found.runs):
        return
    verdict = judge(found, outcomes)
    result = queue.document(found, outcomes, verdict, plan)
    _write(place, result)
    _show(found, verdict)
    if record:
        from rollbook.experiments.record import keep

        click.echo(f"recorded: {keep(result)}")


def _list() -> None:
    from rollbook.experiments import definition

    for name in definition.names():
        found = definition.load(name)
        minutes = found.minutes_per_run * len(found.runs)
        state = f"not yet: {'; '.join(found.needs)}" if found.needs else f"{len(found.runs)} runs, about {minutes:.0f} minutes"
        click.echo(f"{name}: {found.claim}\n  {found.hypothesis}\n  {state}")
        for absent in found.absent:
            click.echo(f"  left out, {absent}")


def _write(place: Path, result: Mapping[str, Any]) -> None:
    from rollbook.experiments.record import claims_text
    from rollbook.ledger.layout import write_durably

    write_durably(place / "result.json", json.dumps(result, indent=1, ensure_ascii=False, sort_keys=True).encode())
    write_durably(place / "claim.yaml", claims_text([result]).encode())


def _show(found: Definition, verdict: Verdict) -> None:
    """The levels with what they spent, the effect and the verdict, with every denominator."""
    click.echo(f"{found.metric}: interquartile mean over seeds with its 95% interval; what was spent is a mean per run")
    width = max(map(len, verdict.levels))
    for name, level in verdict.levels.items():
        iqm = level.iqm
        shown = f"{iqm.estimate:.4f} ({iqm.low:.4f} to {iqm.high:.4f})" if iqm else "no score"
        gone = f", {len(level.diverged)} diverged" if level.diverged else ""
        spent = ", ".join(f"{what} {value:,.0f}" for what, value in level.spent.items())
        click.echo(f"  {name:<{width}}  {shown}, {len(level.scores)} seeds{gone}\n  {'':<{width}}  {spent}")
    if verdict.effect is not None:
        effect = verdict.effect
        click.echo(f"{found.treatment} less {found.baseline}: {effect.estimate:+.4f}, 95% interval {effect.low:+.4f} to "
                   f"{effect.high:+.4f} ({effect.method}, {effect.count} pairs)")
    click.echo(f"{click.style(verdict.word, fg=WORDS[verdict.word], bold=True)}: {verdict.why}")
