"""`rollbook serve`: a model behind an OpenAI-compatible address on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

LOOK_S = 30.0       # between two looks at whether a permission still holds


@click.command()
@click.argument("model")
@click.option("--port", default=0, show_default=True, help="Port on 127.0.0.1; 0 takes a free one.")
@click.option("--token", envvar="ROLLBOOK_TOKEN", help="Bearer token; made and printed where none is given.")
@click.option("--dialect", default="hermes", show_default=True, type=click.Choice(["hermes", "llama3", "mistral", "fenced"]))
@click.option("--max-tokens", default=512, show_default=True, help="Tokens of one answer at most.")
@click.option("--keep", default=64, show_default=True, type=click.IntRange(min=1),
              help="Conversations held for calls that go on from them; the one that was quiet longest is closed first.")
@click.option("--fixed-sampling", is_flag=True, help="The server's sampling holds, whatever a request says.")
@click.option("--record", type=click.Path(path_type=Path), help="File that gets exact ids, log-probs and versions a call.")
@click.option("--require-gate", "gate_key", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="PUBLIC_KEY",
              help="Serve nothing but what a signed decision permits; MODEL is then RUN or RUN:STAGE.")
@click.option("--for", "wanted", multiple=True, metavar="AUTHORITY",
              help="What it is served for, which the permission must reach; needed with --require-gate. Repeatable.")
def serve(model: str, port: int, token: str | None, gate_key: Path | None, wanted: tuple[str, ...], **said: Any) -> None:
    """Serve MODEL, a folder, a hub name or a built-in name: chat, completions, tools, streaming. Ends with Ctrl-C."""
    import importlib.util
    import time

    from rollbook.records.errors import ModelError

    absent = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if absent:
        raise ModelError("serving needs packages that are not installed", got=", ".join(absent),
                         fix="pip install 'rollbook[serve]'")
    from rollbook.records.recipe import SamplingSettings
    from rollbook.serve.loaded import gateway_of, gateway_over
    from rollbook.serve.running import CallLog, serving

    if wanted and gate_key is None:
        raise ModelError("--for asks for a permission", got=", ".join(wanted), why="without --require-gate nothing is checked",
                         fix="give --require-gate PUBLIC_KEY")
    permitted = None if gate_key is None else Permitted(model, gate_key, wanted)
    log = CallLog(said["record"]) if said["record"] is not None else None
    sampling = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0)
    how: Any = {"max_tokens": said["max_tokens"], "fixed": said["fixed_sampling"], "keep": said["keep"], "told": log}
    gateway = (gateway_of(model, said["dialect"], sampling, **how) if permitted is None
               else gateway_over(permitted.policy, said["dialect"], sampling, **how))
    with serving(gateway, port=port, token=token, model=model) as served:
        click.echo(f"base url  {served.address}/v1")
        click.echo(f"  for an attempt of its own  {served.base_url('NAME')}\ntoken     {served.token}")
        try:
            while True:
                time.sleep(LOOK_S)
                if permitted is not None:
                    permitted.look_again()          # raises once it has ended or was taken back: nothing is served after that
        except KeyboardInterrupt:
            early = gateway.closed_early
            click.echo("stopped" + (f"; {early} conversations were closed early, to hold {gateway.keep}" if early else ""))
    if log is not None:
        log.close()


class Permitted:
    """The policy of RUN[:STAGE] that a signed decision permits now, for what is wanted, with these very weights."""

    def __init__(self, model: str, key: Path, wanted: tuple[str, ...]):
        from datetime import UTC, datetime

        from rollbook.cli_output import check_existing_run
        from rollbook.orchestration.permission import check, load_policy

        run, _, stage = (model, "", "") if Path(model).is_dir() else model.rpartition(":")
        self.run, self.stage, self.key, self.wanted = Path(run or model), stage or None, key.read_bytes(), wanted
        check_existing_run(self.run)
        self.policy = load_policy(self.run, self.stage, require_gate=True, key=self.key, wanted=wanted)
        self.decision = check(self.run, self.stage, key=self.key, now=datetime.now(UTC), wanted=wanted)

    def look_again(self) -> None:
        """Refuses where it no longer holds."""
        from datetime import UTC, datetime

        from rollbook.orchestration.permission import renewed

        self.decision = renewed(self.run, self.stage, self.decision, key=self.key, now=datetime.now(UTC), wanted=self.wanted)
