"""What in an environment's source could make an observation or a grade depend on something that changes by itself."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.records import EnvironmentImage

SOURCES = {
    "the clock": {"time.time", "time.time_ns", "time.monotonic", "datetime.now", "datetime.utcnow", "datetime.today",
                  "date.today",
                  "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.date.today", "time.localtime", "time.gmtime"},
    "unseeded chance": {"random.random", "random.randint", "random.choice", "random.shuffle", "random.sample", "random.uniform",
                        "os.urandom", "secrets.token_hex", "secrets.choice", "uuid.uuid4", "uuid.uuid1"},
    "the network": {"requests.get", "requests.post", "urllib.request.urlopen", "socket.socket", "socket.create_connection",
                    "httpx.get", "httpx.AsyncClient", "httpx.Client"},
    "the host": {"os.getcwd", "os.environ", "os.getenv", "socket.gethostname", "platform.node", "Path.home", "os.listdir",
                 "glob.glob", "os.getpid", "id"},
    "the order of a set": {"hash"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A place in the source that reads something mutable.

    Example: Suspect(line=12, what="time.time", depends_on="the clock")
    """

    line: int
    what: str
    depends_on: str


def suspects(definition: Any) -> tuple[Suspect, ...]:
    """Every such place in the module of the definition. Limit: what it imports is not read, and a name may be used harmlessly."""
    file = inspect.getsourcefile(type(definition))
    return tuple(_found(ast.parse(Path(file).read_text(encoding="utf-8")))) if file else ()


def _found(tree: ast.AST) -> Iterator[Suspect]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Call, ast.Attribute)):
            name = _dotted(node.func if isinstance(node, ast.Call) else node)
            for kind, names in SOURCES.items():
                if name in names and (isinstance(node, ast.Call) or name == "os.environ"):
                    yield Suspect(line=node.lineno, what=name, depends_on=kind)


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def depends(image: EnvironmentImage) -> tuple[str, ...]:
    """What the image itself says that can change: an open network, credentials, packages without a version."""
    told = []
    if image.network != "none":
        told.append(f"its network is {image.network}: what it answers may change")
    if image.credentials != "none":
        told.append("it uses credentials: what they open may change")
    told += [f"{name} has no version" for name, version in image.dependencies.items() if not version]
    return tuple(told)
