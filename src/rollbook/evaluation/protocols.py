"""Protocol bundles as files: frozen, hashed, and registered so that no run trains on their tasks.

A file holds the protocol, its tasks and the raw tasks these were made from, and the id over all three. Whatever is edited after
that makes the file refuse to load.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.evaluation.heldout import tasks_hash
from rollbook.records import (
    Aggregation,
    CodecError,
    Decontamination,
    EvaluationProtocol,
    RawTask,
    RecordError,
    RollbookError,
    Task,
    canonical,
    decode,
    digest,
    encode,
)
from rollbook.records.composition import ComposedReward
from rollbook.records.ready_made import NamedReward
from rollbook.records.recipe import EnvironmentReward, Reward, RewardSettings
from rollbook.tasks import Likeness, Side, decontaminate

FORMAT = 1
SUFFIX = ".protocol.json"
KEYS = {"format", "id", "protocol", "tasks", "raws"}


class ProtocolRefused(RollbookError):
    """A protocol file that cannot be used, or that does not fit what it is used on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A protocol with the tasks it hashes and where these come from."""

    protocol: EvaluationProtocol
    tasks: tuple[Task, ...]
    raws: tuple[RawTask, ...]

    def __post_init__(self) -> None:
        if tasks_hash(self.tasks) != self.protocol.tasks or len(self.tasks) != self.protocol.task_count:
            raise ProtocolRefused("the tasks are not those that the protocol names",
                                  got=f"{len(self.tasks)} tasks, hash {tasks_hash(self.tasks)[:12]}",
                                  why=f"it names {self.protocol.task_count} with hash {self.protocol.tasks[:12]}",
                                  fix="freeze the protocol again, under another name")
        if len({task.id for task in self.tasks}) != len(self.tasks):
            raise ProtocolRefused("a protocol asks every task once", got="a task that stands twice", why="it would count twice")

    @property
    def id(self) -> str:
        """The hash over everything the file holds."""
        return digest(canonical([encode(self.protocol), [encode(task) for task in self.tasks],
                                 [encode(raw) for raw in self.raws]]))

    @property
    def side(self) -> Side:
        """As decontamination takes it."""
        return Side(tasks=self.tasks, raws=self.raws)


def parse_aggregation(text: str) -> Aggregation:
    """`mean`, `pass@4`, `majority@8` or `best@8:SELECTOR` (a component of the reward).

    Example: parse_aggregation("pass@4") -> Aggregation(rule="pass", k=4, selector=None)
    """
    rule, _, rest = text.partition("@")
    number, _, selector = rest.partition(":")
    if rule == "mean" and not rest:
        return Aggregation(rule="mean", k=1, selector=None)
    if rule in ("pass", "majority", "best") and number.isascii() and number.isdigit():
        return Aggregation(rule=rule, k=int(number), selector=selector or None)     # type: ignore[arg-type]
    raise RecordError("no aggregation has this form", got=repr(text), fix="write mean, pass@4, majority@8 or best@8:COMPONENT")


def check_name(name: str) -> None:
    """Refuses a name that attempts and tables of an evaluation could not be named after."""
    if not re.fullmatch(r"[A-Za-z0-9_.=-]+", name) or set(name) == {"."}:
        raise ProtocolRefused("the name of a protocol must be letters, digits, _ . = and -", got=repr(name)[:80],
                              why="the files of its evaluations are named after it", fix="--name NAME, or another file name")


def write(bundle: Bundle, path: Path) -> Path:
    """Writes the file, whole or not at all; refuses to overwrite a protocol with another one."""
    check_name(bundle.protocol.name)
    if path.exists():
        if load(path).id == bundle.id:
            return path
        raise ProtocolRefused("a frozen protocol is never overwritten", got=f"{path} holds another one",
                              why="results refer to it by its hash", fix="choose another name")
    document = {"format": FORMAT, "id": bundle.id, "protocol": encode(bundle.protocol),
                "tasks": [encode(task) for task in bundle.tasks], "raws": [encode(raw) for raw in bundle.raws]}
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(json.dumps(document, ensure_ascii=False, indent=1, sort_keys=True).encode("utf-8", "surrogatepass"))
            file.flush()
            os.fsync(file.fileno())
        os.chmod(part, 0o644)
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
    return path


def load(path: Path) -> Bundle:
    """The protocol of a file, verified against the id it was frozen with."""
    try:
        document: Any = json.loads(path.read_bytes().decode("utf-8", "surrogatepass"))
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ProtocolRefused(f"{path} is no protocol file", got=f"{type(error).__name__}: {error}"[:160],
                              fix="give a file that `rollbook protocol freeze` wrote") from error
    if not isinstance(document, dict) or set(document) != KEYS or document["format"] != FORMAT:
        raise ProtocolRefused(f"{path} is no protocol file of this version", got=_keys(document),
                              fix="give a file that `rollbook protocol freeze` wrote")
    try:
        tasks = tuple(decode(Task, item, f"tasks[{at}]") for at, item in enumerate(document["tasks"]))
        raws = tuple(decode(RawTask, item, f"raws[{at}]") for at, item in enumerate(document["raws"]))
        bundle = Bundle(protocol=decode(EvaluationProtocol, document["protocol"], "protocol"), tasks=tasks, raws=raws)
    except (CodecError, RecordError, TypeError, ProtocolRefused) as error:
        raise _edited(path, str(error).splitlines()[0]) from error
    if bundle.id != document["id"]:
        raise _edited(path, f"hash {bundle.id[:16]} for {str(document['id'])[:16]}")
    return bundle


def _edited(path: Path, got: str) -> ProtocolRefused:
    return ProtocolRefused(f"the protocol {path.name} was changed after it was frozen", got=got,
                           why="results under it would no longer be comparable",
                           fix="restore the file, or freeze a new protocol under another name")


def _keys(document: Any) -> str:
    return ", ".join(sorted(map(str, document)))[:120] if isinstance(document, dict) else type(document).__name__


def registry() -> Path:
    """Where registered protocols lie: ROLLBOOK_PROTOCOLS, else the user's data directory."""
    own = os.environ.get("ROLLBOOK_PROTOCOLS")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "rollbook" / "protocols"


def register(bundle: Bundle) -> Path:
    """Puts a protocol into the registry, under its name and hash."""
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in bundle.protocol.name)
    return write(bundle, registry() / f"{name}-{bundle.id[:12]}{SUFFIX}")


def registered() -> Iterator[Bundle]:
    """Every protocol in the registry, by file name; a damaged one refuses, it is not passed over."""
    folder = registry()
    for path in sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else ():
        yield load(path)


def protect(train: Side, bundles: Iterable[Bundle], *, likeness: Likeness) -> list[Decontamination]:
    """Training tasks compared with every protocol; refuses when one of them stands in a protocol, or nearly does."""
    made = [decontaminate(train, bundle.side, protocol=f"{bundle.protocol.name}/{bundle.id[:12]}", likeness=likeness)
            for bundle in bundles]
    found = [(one.protocol, overlap) for one in made for overlap in one.found]
    if found:
        name, first = found[0]
        count = len({overlap.train for _, overlap in found})
        raise ProtocolRefused(f"{count} training tasks stand in registered evaluation protocols",
                              got=f"{first.train[:20]} is {first.protected[:20]} of {name} ({first.method}, {first.score:.2f})",
                              why="a policy that was trained on a protocol's tasks can no longer be evaluated under it",
                              fix="--set tasks.seed=... for other tasks, or take the protocol out of the registry")
    return made


def differing(one: EvaluationProtocol, other: EvaluationProtocol) -> tuple[str, ...]:
    """Dotted names of the fields in which two protocols differ; the name of the protocol is none of them. A record of another
    kind differs as a whole."""
    return tuple(_differing(encode(one), encode(other), ""))


def _differing(one: Any, other: Any, path: str) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict) and one.get("kind") == other.get("kind"):
        for key in sorted({*one, *other} - {"kind"}):
            if path or key != "name":
                yield from _differing(one.get(key), other.get(key), f"{path}.{key}" if path else key)
    elif one != other or isinstance(one, bool) != isinstance(other, bool):
        yield path


def system_prompt(tasks: Sequence[Task]) -> str:
    """What the recipe says to the policy before the task; refuses tasks that are told different things."""
    told = {"\n".join(message.content for message in task.prompt if message.origin == "recipe") for task in tasks}
    if len(told) != 1:
        raise ProtocolRefused("a protocol tells every task the same", got=f"{len(told)} different system prompts",
                              fix="make one protocol of each")
    return told.pop()


def reward_name(reward: Reward) -> str:
    """How an answer is read from a response."""
    match reward:
        case RewardSettings():
            return f"{reward.composition}: the last box after the closing tag"
        case EnvironmentReward():
            return "environment: the state that an episode ends with"
        case NamedReward() | ComposedReward():
            return f"{type(reward).__name__} {digest(canonical(encode(reward)))[:12]}: as each of its parts reads it"
