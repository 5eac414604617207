"""`rollbook rewards`: whether a scorer can be believed, and whether a policy has outgrown the reward it is trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rollbook.orchestration.calibrating import Labelled
    from rollbook.records import Unrated
    from rollbook.rewards.calibration import Calibration
    from rollbook.rewards.judges import Preferred


@click.group()
def rewards() -> None:
    """Look at rewards: calibration of a scorer, over-optimisation of a run."""


@rewards.command("calibration")
@click.argument("pairs", metavar="PAIRS", type=click.Path(path_type=Path, exists=True))
@click.option("--stage", help="The reward-model stage of a run. Default: the last one.")
@click.option("--scale", default=1.0, show_default=True, help="Probability is sigma(scale * margin).")
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Also draw it into this file.")
def show_calibration(pairs: Path, stage: str | None, scale: float, svg: Path | None) -> None:
    """Reliability curve, length bias and accuracy per source of labelled PAIRS: a file, or a run with a reward model.

    Of a run, its reward model scores the rankings that were kept apart from it. A file has one JSON object a line: {"margin":
    score of the first minus the second, "first_better": true, "lengths": [120, 80], "source": "maths"}. Rows that cannot be read
    are counted by their reason.
    """
    from rollbook.rewards.calibration import calibration, read_compared

    if pairs.is_dir():
        from rollbook.cli_output import check_existing_run
        from rollbook.orchestration.calibrating import compared_by_model

        check_existing_run(pairs)
        name, rows = compared_by_model(pairs, stage)
        title = f"the reward model of stage {name} on the pairs kept apart from it"
        click.echo(title)
    else:
        rows, unread = read_compared(pairs)
        title = pairs.name
        show_unread(unread)
    found = calibration(rows, scale=scale)
    show_report(found)
    if svg is not None:
        draw(found, title, svg)


def draw(found: Calibration, title: str, file: Path) -> None:
    """Writes the picture of a calibration."""
    from rollbook.ledger.layout import refusing
    from rollbook.report.reliability import reliability_svg

    with refusing(f"{file} could not be written"):
        file.write_text(reliability_svg(found, title), encoding="utf-8")
    click.echo(f"drawn: {file}", err=True)


def show_unread(unread: Mapping[str, int]) -> None:
    """How many rows could not be read, by reason."""
    if unread:
        click.echo("unreadable rows: " + ", ".join(f"{why} {count}" for why, count in sorted(unread.items())))


def show_report(found: Calibration) -> None:
    """A calibration in lines."""
    click.echo(f"{found.pairs} pairs, accuracy {found.accuracy:.1%}, calibration error {found.error:.3f}, "
               f"Brier {found.brier:.3f}")
    for one in found.curve:
        click.echo(f"  says {one.confidence:6.1%}  is {one.right:6.1%} ({one.low:.1%} to {one.high:.1%})  {one.count} pairs")
    if found.length_bias is not None:
        click.echo(f"the longer response: preferred by the scorer in {found.longer_scored:.1%}, by the labels in "
                   f"{found.longer_labelled:.1%}; bias {100 * found.length_bias:+.1f} points")
    for name, (count, share, low, high) in found.by_source.items():
        click.echo(f"  {name or 'no source'}: {share:.1%} of {count} ({low:.1%} to {high:.1%})")


@rewards.command("judge")
@click.argument("pairs", metavar="PAIRS", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--model", required=True, help="A local model, or the name that the server knows it by.")
@click.option("--server", help="An OpenAI-compatible server, such as http://localhost:8000/v1; its key from OPENAI_API_KEY.")
@click.option("--method", type=click.Choice(["logprobs", "text"]), default="logprobs", show_default=True)
@click.option("--context", default=2048, show_default=True, type=click.IntRange(min=1),
              help="Tokens of a local model's context.")
@click.option("--out", type=click.Path(path_type=Path), help="Writes every pair's verdict with the judge's stamp, one a line.")
@click.pass_context
def show_judge(ctx: click.Context, pairs: Path, model: str, server: str | None, method: str, context: int,
               out: Path | None) -> None:
    """How far a pairwise judge can be believed on labelled PAIRS: agreement with the labels, position bias, calibration.

    One JSON object a line: {"task": .., "one": a response, "other": another, "better": "one" or "other", "reference": ..,
    "source": ..}. Both orders are asked. Exits 1 where no pair has a verdict.
    """
    from rollbook.orchestration.calibrating import judged, read_labelled, told
    from rollbook.orchestration.judges import chat_model
    from rollbook.rewards.judges import PairwiseJudge

    rows, unread = read_labelled(pairs)
    show_unread(unread)
    judge = PairwiseJudge(chat_model(model, server, context), method=method)  # type: ignore[arg-type]
    found = judged(judge, rows)
    if out is not None:
        out.write_bytes(told(judge.stamp, rows, found))
    ctx.exit(0 if show_judged(rows, found, probabilities=method == "logprobs") else 1)


def show_judged(rows: Sequence[Labelled], found: Sequence[Preferred | Unrated], *, probabilities: bool) -> bool:
    """What a judge made of labelled pairs, in lines; whether it decided any of them."""
    from rollbook.orchestration.calibrating import compared, verdict
    from rollbook.records import Unrated
    from rollbook.rewards.calibration import calibration
    from rollbook.rewards.judges import Preferred, agreement, position_bias

    verdicts = [verdict(one) for one in found]
    lost = Counter(one.code for one in verdicts if isinstance(one, Unrated))
    if lost:
        click.echo("no verdict: " + ", ".join(f"{code} {count}" for code, count in sorted(lost.items())))
    known = [(row, one) for row, one in zip(rows, found, strict=True) if isinstance(one, Preferred)]
    if lost.total() < len(verdicts):
        held = agreement(verdicts, [row.better for row in rows])
        click.echo(f"agreement with the labels {held.share:.1%} of {held.count} ({held.low:.1%} to {held.high:.1%}), kappa "
                   + ("unknown: one label alone" if held.kappa is None else f"{held.kappa:.2f}"))
    if known:
        bias = position_bias(found)
        click.echo(f"the first place wins {bias.first_share:.1%} of {2 * bias.count} questions; the two orders contradict in "
                   f"{bias.contradicting:.1%} of the pairs (sign test p = {bias.p_value:.3g})")
    if known and probabilities:
        show_report(calibration([compared(row, one) for row, one in known]))
    return lost.total() < len(verdicts)


@rewards.command("watch")
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--stage", help="The policy stage. Default: the last one with steps.")
@click.option("--gold", help="What is meant: reward/accuracy, eval/probe_accuracy or another metric of the steps; or own-reward, "
              "the answers judged again by the own reward. Default: reward/accuracy; own-reward where the reward has none.")
@click.option("--tolerance", default=0.02, show_default=True, help="Loss of gold that is called over-optimisation.")
@click.pass_context
def show_watch(ctx: click.Context, run_folder: Path, stage: str | None, gold: str | None, tolerance: float) -> None:
    """Gold against proxy as the KL grows in RUN. Exits 1 where gold fell while the reward still rose."""
    from rollbook.cli_output import check_existing_run
    from rollbook.orchestration.watching import watched
    from rollbook.rewards.calibration import watch

    check_existing_run(run_folder)
    seen = watched(run_folder, stage, gold)
    moments, gold = seen.moments, seen.gold
    found = watch(moments, tolerance=tolerance)
    click.echo(f"stage {seen.stage}; gold is {gold}")
    for one in moments:
        click.echo(f"step {one.step:4d}  KL {one.kl_nats:8.4f}  reward {one.proxy:8.4f}  {gold} {one.gold:8.4f}")
    fitted = "" if found.alpha is None else f"; gold ~ d ({found.alpha:.3g} - {found.beta:.3g} d), d = sqrt(KL)"
    click.echo(f"peak at step {found.peak.step}, KL {found.peak.kl_nats:.4f}; since then gold {-found.gold_lost:+.4f}, reward "
               f"{found.proxy_won:+.4f}{fitted}")
    blind = ("gold never moved" if len({one.gold for one in moments}) == 1 else
             f"gold was never above the tolerance of {tolerance:g}") + ": over-optimisation could not have been seen"
    click.echo("over-optimised" if found.over_optimised else "no over-optimisation seen" if found.visible else blind)
    ctx.exit(1 if found.over_optimised else 0)
