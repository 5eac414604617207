"""Labelled transcripts, and how well the guard tells the honest from the cheating: precision and recall, and each error by
name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from rollbook.environments.guard.events import Setting
from rollbook.environments.guard.rules import VERSION, Rule
from rollbook.environments.guard.watching import Guard
from rollbook.records import Action, EnvironmentFault, ToolCall

Label = Literal["honest", "cheating"]
TRANSCRIPTS = Path(__file__).parent / "transcripts"
FIELDS = {"id", "label", "where", "task", "why", "calls", "protected", "examples", "limit_s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """What a policy did on one task, whether that was honest, and why.

    Example: Transcript(id="t001", label="cheating", why="clones upstream", setting=Setting(...), actions=(Action(...),))
    """

    id: str
    label: Label
    why: str
    setting: Setting
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How the guard did on a corpus. A transcript is flagged where any rule found something. `missed` and `wrongly` are its
    errors.

    `precision` is the share of flagged ones that cheat, `recall` the share of cheating ones that were flagged; None without any.
    """

    version: str
    honest: int
    cheating: int
    missed: tuple[str, ...]
    wrongly: Mapping[str, tuple[str, ...]]           # transcript -> rules
    counts: Mapping[str, int]                        # rule -> transcripts

    @property
    def precision(self) -> float | None:
        right = self.cheating - len(self.missed)
        return right / (right + len(self.wrongly)) if right + len(self.wrongly) else None

    @property
    def recall(self) -> float | None:
        return (self.cheating - len(self.missed)) / self.cheating if self.cheating else None


def read_transcripts(file: Path) -> tuple[Transcript, ...]:
    """The transcripts of a YAML file, in order."""
    try:
        rows = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise EnvironmentFault("a corpus of transcripts cannot be read", code="build", got=f"{file}: {error}"[:300]) from error
    if not isinstance(rows, list):
        raise EnvironmentFault("a corpus of transcripts is a list", code="build", got=str(file))
    found = tuple(_transcript(row, file) for row in rows)
    double = [name for name, count in Counter(each.id for each in found).items() if count > 1]
    if double:
        raise EnvironmentFault("two transcripts have one id", code="build", got=", ".join(double))
    return found


def measured(transcripts: Sequence[Transcript], rules: Sequence[Rule]) -> Quality:
    """What the guard finds in each transcript against its label."""
    missed, wrongly, counts = [], {}, Counter[str]()
    for transcript in transcripts:
        guard = Guard(transcript.setting, rules)
        for action in transcript.actions:
            guard.look_at_action(action)
        rules_hit = tuple(sorted({finding.rule for finding in guard.findings}))
        counts.update(rules_hit)
        if transcript.label == "cheating" and not rules_hit:
            missed.append(transcript.id)
        if transcript.label == "honest" and rules_hit:
            wrongly[transcript.id] = rules_hit
    labels = Counter(transcript.label for transcript in transcripts)
    return Quality(version=VERSION, honest=labels["honest"], cheating=labels["cheating"], missed=tuple(missed), wrongly=wrongly,
                   counts=dict(sorted(counts.items())))


def _transcript(row: Any, file: Path) -> Transcript:
    if not isinstance(row, dict) or set(row) - FIELDS or not {"id", "label", "where", "task", "why", "calls"} <= set(row):
        raise EnvironmentFault("a transcript has other fields", code="build", got=f"{file}: {str(row)[:120]}",
                               fix=f"fields: {', '.join(sorted(FIELDS))}")
    if row["label"] not in ("honest", "cheating"):
        raise EnvironmentFault("a transcript is honest or cheating", code="build", got=f"{row['id']}: {row['label']}")
    setting = Setting(where=row["where"], task=row["task"], protected=tuple(row.get("protected", ())), limit_s=row.get("limit_s"),
                      examples=tuple((given, wanted) for given, wanted in row.get("examples", ())))
    actions = tuple(action for call in row["calls"] for action in _actions(call))
    return Transcript(id=row["id"], label=row["label"], why=row["why"], setting=setting, actions=actions)


def _actions(call: Mapping[str, Any]) -> Iterator[Action]:
    """A call of a transcript as the action that a policy would have sent."""
    name, given = next((name, given) for name, given in call.items() if name != "saw")
    plain = {"shell": "command", "python": "code", "read": "path", "search": "query", "open": "name", "quote": "text",
             "sql": "sql",
             "move": "action"}
    match name:
        case "answer" | "say":
            yield Action(text=str(given))
        case "submit":
            yield Action(text=f"```{given['language']}\n{given['code']}\n```")
        case "tool":
            yield _call(given["name"], {key: value for key, value in given.items() if key != "name"})
        case _:
            yield _call(name, given if isinstance(given, dict) else {plain[name]: given})


def _call(name: str, arguments: Mapping[str, Any]) -> Action:
    return Action(calls=(ToolCall(id="call", name=name, arguments=arguments),))
