"""`rollbook rewards`: whether a scorer can be believed, and whether a policy has outgrown the reward it is trained on."""

from __future__ import annotations

from pathlib import Path

import click

from rollbook.records.errors import RollbookError

KL, PROXY, GOLD = "update/kl_to_start_nats", "reward/total_mean", "reward/accuracy"


@click.group()
def rewards() -> None:
    """Look at rewards: calibration of a scorer, over-optimisation of a run."""


@rewards.command("calibration")
@click.argument("pairs", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--scale", default=1.0, show_default=True, help="Probability is sigma(scale * margin).")
def show_calibration(pairs: Path, scale: float) -> None:
    """Reliability curve, length bias and accuracy per source of labelled PAIRS.

    One JSON object a line: {"margin": score of the first minus the second, "first_better": true, "lengths": [120, 80],
    "source": "maths"}. Rows that cannot be read are counted by their reason.
    """
    from rollbook.rewards.calibration import calibration, read_compared

    rows, unread = read_compared(pairs)
    if unread:
        click.echo("unreadable rows: " + ", ".join(f"{why} {count}" for why, count in sorted(unread.items())))
    found = calibration(rows, scale=scale)
    click.echo(f"{found.pairs} pairs, accuracy {found.accuracy:.1%}, calibration error {found.error:.3f}, "
               f"Brier {found.brier:.3f}")
    for one in found.curve:
        click.echo(f"  says {one.confidence:6.1%}  is {one.right:6.1%} ({one.low:.1%} to {one.high:.1%})  {one.count} pairs")
    if found.length_bias is not None:
        click.echo(f"the longer response: preferred by the scorer in {found.longer_scored:.1%}, by the labels in "
                   f"{found.longer_labelled:.1%}; bias {100 * found.length_bias:+.1f} points")
    for name, (count, share, low, high) in found.by_source.items():
        click.echo(f"  {name or 'no source'}: {share:.1%} of {count} ({low:.1%} to {high:.1%})")


@rewards.command("watch")
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--stage", help="The policy stage. Default: the last one with steps.")
@click.option("--gold", default=GOLD, show_default=True, help="Metric that is meant; eval/probe_accuracy where it is recorded.")
@click.option("--tolerance", default=0.02, show_default=True, help="Loss of gold that is called over-optimisation.")
@click.pass_context
def show_watch(ctx: click.Context, run_folder: Path, stage: str | None, gold: str, tolerance: float) -> None:
    """Gold against proxy as the KL grows in RUN. Exits 1 where gold fell while the reward still rose."""
    from rollbook.cli_output import check_existing_run
    from rollbook.ledger import Ledger
    from rollbook.records import StepReport
    from rollbook.rewards.calibration import Moment, watch

    check_existing_run(run_folder)
    with Ledger.open(run_folder, write=False) as ledger:
        reports = list(ledger.records(StepReport))
    name = stage if stage is not None else reports[-1].stage if reports else ""
    steps = [(one.step, {**one.metrics, **one.observed}) for one in reports if one.stage == name]
    moments = [Moment(step=step, kl_nats=metrics[KL], proxy=metrics[PROXY], gold=metrics[gold])
               for step, metrics in steps if {KL, PROXY, gold} <= metrics.keys()]
    if len(moments) < 2:
        raise RollbookError("too few steps with KL, reward and gold to watch", got=f"{len(moments)} of {len(steps)} steps",
                            fix=f"choose another --stage, or another --gold than {gold}")
    found = watch(moments, tolerance=tolerance)
    for one in moments:
        click.echo(f"step {one.step:4d}  KL {one.kl_nats:8.4f}  reward {one.proxy:8.4f}  {gold} {one.gold:8.4f}")
    fitted = "" if found.alpha is None else f"; gold ~ d ({found.alpha:.3g} - {found.beta:.3g} d), d = sqrt(KL)"
    click.echo(f"peak at step {found.peak.step}, KL {found.peak.kl_nats:.4f}; since then gold {-found.gold_lost:+.4f}, reward "
               f"{found.proxy_won:+.4f}{fitted}")
    click.echo("over-optimised" if found.over_optimised else "no over-optimisation seen")
    ctx.exit(1 if found.over_optimised else 0)
