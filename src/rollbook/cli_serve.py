"""`rollbook serve`: a model behind an OpenAI-compatible address on this machine."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("model")
@click.option("--port", default=0, show_default=True, help="Port on 127.0.0.1; 0 takes a free one.")
@click.option("--token", envvar="ROLLBOOK_TOKEN", help="Bearer token; made and printed where none is given.")
@click.option("--dialect", default="hermes", show_default=True, type=click.Choice(["hermes", "llama3", "mistral", "fenced"]))
@click.option("--max-tokens", default=512, show_default=True, help="Tokens of one answer at most.")
@click.option("--fixed-sampling", is_flag=True, help="The server's sampling holds, whatever a request says.")
@click.option("--record", type=click.Path(path_type=Path), help="File that gets exact ids, log-probs and versions a call.")
def serve(model: str, port: int, token: str | None, dialect: str, max_tokens: int, fixed_sampling: bool,
          record: Path | None) -> None:
    """Serve MODEL, a folder, a hub name or a built-in name: chat, completions, tools, streaming. Ends with Ctrl-C."""
    import importlib.util
    import time

    from rollbook.records.errors import ModelError

    absent = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if absent:
        raise ModelError("serving needs packages that are not installed", got=", ".join(absent),
                         fix="pip install 'rollbook[serve]'")
    from rollbook.records.recipe import SamplingSettings
    from rollbook.serve.loaded import gateway_of
    from rollbook.serve.running import CallLog, serving

    log = CallLog(record) if record is not None else None
    sampling = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0)
    gateway = gateway_of(model, dialect, sampling, max_tokens=max_tokens, fixed=fixed_sampling, told=log)
    with serving(gateway, port=port, token=token, model=model) as served:
        click.echo(f"base url  {served.address}/v1")
        click.echo(f"  for an attempt of its own  {served.base_url('NAME')}\ntoken     {served.token}")
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            click.echo("stopped")
    if log is not None:
        log.close()
