"""`rollbook gate`: keys, decisions about a policy, and whether one permits what is wanted."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import click

from rollbook.records.errors import RollbookError

RUN = click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group()
def gate() -> None:
    """Decide whether a policy may be used, sign it, and check such decisions. Local keys, no network."""


@gate.command("key")
@click.argument("out_folder", metavar="OUT_DIR", type=click.Path(path_type=Path))
def gate_key(out_folder: Path) -> None:
    """Make a key pair: OUT_DIR/gate.key (yours alone) and OUT_DIR/gate.pub (for whoever checks)."""
    from rollbook.evaluation.signing import fingerprint, new_key

    private, public = new_key()
    out_folder.mkdir(parents=True, exist_ok=True)
    for name, data, mode in (("gate.key", private, 0o600), ("gate.pub", public, 0o644)):
        try:
            descriptor = os.open(out_folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            raise RollbookError("a key is never overwritten", got=f"{out_folder / name} exists",
                                why="what it signed could no longer be signed again", fix="choose another folder") from None
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    click.echo(f"{out_folder / 'gate.key'}: keep it to yourself\n{out_folder / 'gate.pub'}: fingerprint {fingerprint(public)}")


@gate.command("decide")
@RUN
@click.option("--allow", "decision", flag_value="allow", help="Permit the policy, if every rule is kept.")
@click.option("--refuse", "decision", flag_value="refuse", help="Refuse it; also takes an earlier permission back.")
@click.option("--key", "private_key", required=True, type=FILE, help="Private key that signs (see `gate key`).")
@click.option("--stage", help="Whose policy: the one this stage ended with. Default: the last stage.")
@click.option("--threshold", "thresholds", multiple=True, metavar="MEASURE=LEAST",
              help="heldout=0.4, heldout.low=0.35 (lower end of the interval) or heldout/gcd=0.3 (one family). Repeatable.")
@click.option("--owner", "owners", multiple=True, metavar="FAMILY=NAME",
              help="Who answers for a family that got worse. Repeatable.")
@click.option("--limit", "limits", multiple=True, metavar="AUTHORITY", help="What may be done with it, nothing else. Repeatable.")
@click.option("--canary", help="How it is first tried on little.")
@click.option("--rollback", metavar="STAGE|HASH", help="What to go back to.")
@click.option("--incidents", help="Where incidents with it are reported.")
@click.option("--expires", metavar="TIME", help="When the permission ends, e.g. 2027-03-01 (its first instant, UTC).")
def gate_decide(run_folder: Path, decision: Literal["allow", "refuse"] | None, private_key: Path, **said: Any) -> None:
    """Decide about a policy of RUN and record the signed decision in it. Exits 1 when it cannot be allowed."""
    from rollbook.cli_output import check_existing_run

    check_existing_run(run_folder)
    if decision is None:
        raise RollbookError("a decision must be made", got="neither --allow nor --refuse", fix="give one of them")
    from rollbook.evaluation.signing import fingerprint, public_key
    from rollbook.orchestration.permission import Wish, decide, named_values, numbers

    thresholds, owners = said.pop("thresholds"), said.pop("owners")
    wish = Wish(decision=decision, thresholds=numbers(thresholds, "--threshold"), owners=named_values(owners, "--owner"), **said)
    made = decide(run_folder, wish, private_key=private_key, now=datetime.now(UTC))
    until = f" until {made.expires}, limited to {', '.join(made.authority_limits)}" if decision == "allow" else ""
    click.echo(f"{made.decision}: {made.policy}, weights {made.weights[:16]}{until}\n"
               f"signed with key {fingerprint(public_key(private_key))}")


@gate.command("incident")
@RUN
@click.option("--stage", help="With whose policy. Default: the last stage's.")
@click.option("--what", required=True, help="What happened.")
@click.option("--reporter", required=True, help="Who reports it.")
@click.option("--severity", type=click.Choice(["minor", "major", "critical"]), default="minor", show_default=True)
@click.option("--rollback", is_flag=True, help="Also take the permission back; signed, so it needs --key.")
@click.option("--key", "private_key", type=FILE, help="Private key that signs the rollback.")
def gate_incident(run_folder: Path, stage: str | None, rollback: bool, private_key: Path | None, **said: str) -> None:
    """Record an incident with a policy of RUN; with --rollback nobody may load it from now on."""
    from rollbook.cli_output import check_existing_run

    check_existing_run(run_folder)
    from rollbook.orchestration.permission import report_incident

    told = {**said, "action": "rollback" if rollback else "none"}
    made = report_incident(run_folder, stage, told, now=datetime.now(UTC), private_key=private_key)
    click.echo(f"recorded against weights {made.incident.weights[:16]}: {made.incident.what}")
    if made.rollback is not None:
        click.echo(f"its permission is taken back; go back to {made.stage or 'the policy'} with weights {made.rollback[:16]}")


@gate.command("check")
@RUN
@click.option("--stage", help="Whose policy. Default: the last stage's.")
@click.option("--key", required=True, type=FILE, help="The public key that you trust.")
@click.option("--for", "wanted", multiple=True, metavar="AUTHORITY", help="What you want to do with it. Repeatable.")
def gate_check(run_folder: Path, stage: str | None, key: Path, wanted: tuple[str, ...]) -> None:
    """Whether the last decision about a policy of RUN permits its use, now and with its files as they are. Exits 1 if not."""
    from rollbook.cli_output import check_existing_run

    check_existing_run(run_folder)
    from rollbook.orchestration.permission import check

    made = check(run_folder, stage, key=key.read_bytes(), now=datetime.now(UTC), wanted=wanted)
    click.echo(f"allowed: {made.policy}, weights {made.weights[:16]}, until {made.expires}, "
               f"limited to {', '.join(made.authority_limits)}")
