"""The local web application: one process, bound to loopback, behind a token; starlette and uvicorn are imported here only."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import secrets
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.records import RollbookError
from rollbook.report.lineage_svg import STYLE
from rollbook.view.address import NAME, WITH_NAME, Address
from rollbook.view.browse import NotFound
from rollbook.view.held import HeldRun, log_size
from rollbook.view.pages import REPORT, STATIC, Site, environment, page
from rollbook.view.shown import Shown, held_runs

COOKIE = "rollbook-view"
LONGEST = 8192          # characters of an address
ASSETS = {"report.css": (REPORT / "style.css", "text/css"), "view.css": (STATIC / "view.css", "text/css"),
          "view.js": (STATIC / "view.js", "text/javascript")}
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'self' 'sha256-{_STYLE_HASH}'; style-src-attr 'unsafe-inline'; "
                               "script-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; "
                               "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin"}


class ViewUnavailable(RollbookError):
    """The packages that serve pages are not installed, or the address cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Who may come in: the token (None: everybody) and the names that the server answers to (None: any)."""

    token: str | None
    hosts: frozenset[str] | None

    def opens(self, offered: str | None) -> bool:
        return self.token is None or (offered is not None and hmac.compare_digest(offered.encode(), self.token.encode()))

    def answers_to(self, host: str) -> bool:
        """Whether a request's Host header names this server; another name is a page that tries to reach in."""
        if self.hosts is None:
            return True
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        return name.casefold() in self.hosts


def application(runs: Shown, door: Door) -> Any:
    """The ASGI application over these runs and grids."""
    starlette = _starlette()
    site = Site(runs=runs, link=lambda address: address.url, asset=lambda name: f"/static/{name}", served=True)
    made = environment(site)

    def respond(request: Any) -> Any:
        refused = _admitted(starlette, request, door)
        if refused is not None:
            return refused
        return _routed(starlette, request, (site, made))

    route = starlette["Route"]("/{path:path}", respond, methods=["GET", "HEAD"])
    return starlette["Starlette"](routes=[route])


def _admitted(starlette: Mapping[str, Any], request: Any, door: Door) -> Any | None:
    """None for who may come in; the token in an address is moved into a cookie and out of sight."""
    if not door.answers_to(request.headers.get("host", "")):
        return starlette["PlainTextResponse"]("this server answers to its own address only", 421, HEADERS)
    if len(str(request.url)) > LONGEST:
        return starlette["PlainTextResponse"]("the address is too long", 414, HEADERS)
    offered = request.query_params.get("token")
    if offered is not None and door.token is not None and door.opens(offered):
        rest = "&".join(part for part in request.url.query.split("&") if not part.startswith("token="))
        answer = starlette["RedirectResponse"](request.url.path + (f"?{rest}" if rest else ""), 303, HEADERS)
        answer.set_cookie(_cookie(request), door.token, httponly=True, samesite="strict", path="/")
        return answer
    if not door.opens(request.cookies.get(_cookie(request)) or offered):
        return starlette["PlainTextResponse"]("open the address that `rollbook view` printed: it carries a token", 401, HEADERS)
    return None


def _cookie(request: Any) -> str:
    """Cookies do not know ports: two viewers must not take each other's."""
    return f"{COOKIE}-{request.url.port or 80}"


def _routed(starlette: Mapping[str, Any], request: Any, shown: tuple[Site, Any]) -> Any:
    site, made = shown
    path = request.url.path
    if path.startswith("/static/"):
        return _asset(starlette, path.removeprefix("/static/"))
    if path == "/live":
        for key in site.runs.grids:             # their cells are runs from the moment they are begun
            with contextlib.suppress(RollbookError):
                site.runs.refresh(key)
        return starlette["JSONResponse"]({key: log_size(run.root)[1] for key, run in [*site.runs.items()]}, headers=HEADERS)
    try:
        return starlette["HTMLResponse"](page(site, made, parse(path, dict(request.query_params))), headers=HEADERS)
    except RollbookError as error:
        code = 404 if isinstance(error, NotFound) else 500
        title = "Not found" if code == 404 else "This run cannot be read"
        document = made.get_template("refused.html").render(title=title, said=str(error), run=None, page="runs",
                                                            address=Address(page="runs"))
        return starlette["HTMLResponse"](document, code, HEADERS)
    except Exception as error:          # damage that nobody foresaw must not take the other pages away
        said = f"This page could not be drawn: {type(error).__name__}: {error}"
        document = made.get_template("refused.html").render(title="Not drawn", said=said[:400], run=None, page="runs",
                                                            address=Address(page="runs"))
        return starlette["HTMLResponse"](document, 500, HEADERS)


def _asset(starlette: Mapping[str, Any], name: str) -> Any:
    if name not in ASSETS:
        return starlette["PlainTextResponse"]("not found", 404, HEADERS)
    file, kind = ASSETS[name]
    return starlette["Response"](file.read_bytes(), media_type=kind, headers=HEADERS)


def parse(path: str, asked: Mapping[str, str]) -> Address:
    """The address of a request; NotFound for none of ours."""
    parts = path.strip("/").split("/", 3)
    held = {key: value for key, value in asked.items() if key != "token"}
    if parts == [""]:
        return Address(page="runs")
    if parts == ["compare"]:
        return Address(page="compare", asked=held)
    if parts == ["grid"] and NAME in held:
        name = held.pop(NAME)
        return Address(page="grid", name=name, asked=held)
    plain = ("overview", "trajectories", "lineage", "evidence", "audit")
    if parts[0] == "run" and len(parts) == 2:
        return Address(page="overview", run=parts[1], asked=held)
    if parts[0] == "run" and len(parts) == 3 and parts[2] in plain:
        return Address(page=parts[2], run=parts[1], asked=held)     # type: ignore[arg-type]
    if parts[0] == "run" and len(parts) == 3 and parts[2] in WITH_NAME and NAME in held:
        name = held.pop(NAME)
        return Address(page=parts[2], run=parts[1], name=name, asked=held)      # type: ignore[arg-type]
    raise NotFound(f"no page has the address {path[:120]!r}")


def serve(folders: Sequence[Path], *, host: str, port: int, token: bool, tell: Any) -> None:
    """Serves until it is stopped; `tell` is given the address once the port is ours."""
    runs = held_runs(folders)
    uvicorn = _uvicorn()
    listening = _listen(host, port)
    bound = listening.getsockname()[1]
    local = host in ("127.0.0.1", "localhost", "::1")
    door = Door(token=secrets.token_urlsafe(24) if token else None,
                hosts=frozenset({"127.0.0.1", "localhost", "[::1]"}) if local else None)
    shown = f"[{host}]" if ":" in host else host
    threading.Thread(target=_warm, args=(list(runs.values()),), daemon=True).start()
    tell(f"http://{shown}:{bound}/" + (f"?token={door.token}" if door.token else ""))
    config = uvicorn.Config(application(runs, door), log_level="warning", access_log=False, server_header=False)
    uvicorn.Server(config).run(sockets=[listening])


def _warm(runs: Sequence[HeldRun]) -> None:
    """Reads the runs while the browser opens; what cannot be read says so on its own page."""
    for run in runs:
        with contextlib.suppress(Exception):
            run.refresh()
    for run in runs:
        with contextlib.suppress(Exception):
            rows = run.rows
            rows.warm()
            rows.keep(run.facts.ledger.genesis)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(64)
        return found
    except OSError as error:
        raise ViewUnavailable(f"cannot listen on {host}, port {port}", got=str(error),
                              why="another program has it, or the address is not of this machine",
                              fix="choose another with --port, or leave it out") from error


def _starlette() -> Mapping[str, Any]:
    try:
        from starlette.applications import Starlette
        from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
        from starlette.routing import Route
    except ImportError as error:
        raise _missing(error) from error
    return {"Starlette": Starlette, "Route": Route, "HTMLResponse": HTMLResponse, "JSONResponse": JSONResponse,
            "PlainTextResponse": PlainTextResponse, "RedirectResponse": RedirectResponse, "Response": Response}


def _uvicorn() -> Any:
    try:
        import uvicorn
    except ImportError as error:
        raise _missing(error) from error
    return uvicorn


def _missing(error: ImportError) -> ViewUnavailable:
    return ViewUnavailable("`rollbook view` needs starlette and uvicorn", got=str(error), why="they are an optional dependency",
                           fix="pip install 'rollbook[view]'; `rollbook report RUN --site FOLDER` needs neither")
