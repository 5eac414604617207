"""`rollbook selftest`: does the engine sample from what the trainer scores?"""

from __future__ import annotations

import dataclasses
import json

import click


@click.command()
@click.argument("model")
@click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16"]), default="auto", show_default=True,
              help="Compute precision that is tested besides float32.")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.pass_context
def selftest(ctx: click.Context, model: str, dtype: str, device: str, as_json: bool) -> None:
    """Compare engine and trainer on MODEL (built-in name, folder or hub name). Exits 1 when they drift apart.

    Full distributions over the vocabulary at every sampled position: as loaded, after an update that moves every weight, and
    over steps at learning rate 0 with prompts kept between calls.
    """
    from rollbook.orchestration.selftest import TOLERANCES, selftest

    rows = selftest(model, dtype=dtype, device=device, told=lambda note: click.echo(note, err=True))
    limits = {str(one).removeprefix("torch."): dataclasses.asdict(limit) for one, limit in TOLERANCES.items()}
    agree = not any(row.problem for row in rows)
    if as_json:
        tested = {row.dtype for row in rows}
        click.echo(json.dumps({"model": model, "agree": agree, "rows": [dataclasses.asdict(row) for row in rows],
                               "tolerances": {name: limit for name, limit in limits.items() if name in tested}}, indent=1))
        ctx.exit(0 if agree else 1)
    click.echo(f"{'':10}{'':26}version  positions  max |Δlogp|  sampled    mean KL    max KL     kept prompts")
    for row in rows:
        word = click.style("DRIFT", fg="red", bold=True) if row.problem else click.style("agree", fg="green")
        click.echo(f"{row.dtype:10}{row.moment:26}{row.version:<9}{row.positions:<11}{row.max_any_logp:<13.2e}"
                   f"{row.max_sampled_logp:<11.2e}{row.mean_kl:<11.2e}{row.max_kl:<11.2e}{row.kept_prompts:<14}{word}")
    for name in dict.fromkeys(row.dtype for row in rows):
        click.echo(f"allowed in {name}: " + ", ".join(f"{key} {value:g}" for key, value in limits[name].items()) + " nats")
    for row in rows:
        if row.problem:
            click.echo(f"{row.dtype}, {row.moment}: {row.problem}")
    ctx.exit(0 if agree else 1)
