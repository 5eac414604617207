"""What an audit has read so far, as detectors look it up: small records by id, and the trajectories of recent steps."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from rollbook.ledger import Ledger
from rollbook.models.tokenizer import ChatTokenizer
from rollbook.records import (
    Composition,
    EnvironmentImage,
    EvalReport,
    HostRun,
    HostTask,
    PolicyVersion,
    ProtocolBundle,
    RawTask,
    ResolvedRecipe,
    RunEnd,
    SamplingEnvelope,
    SplitManifest,
    Task,
    TokenizerFile,
    Trace,
    Verdict,
)

RECENT_TOKENS = 4_000_000       # trajectories kept in memory for the batches that follow them, by their tokens: about half a GiB


@dataclass(slots=True)
class Recent:
    """The latest trajectories by id; older ones leave when there are more tokens than `RECENT_TOKENS`."""

    held: OrderedDict[str, tuple[Trace, Verdict | None]] = field(default_factory=OrderedDict)
    tokens: int = 0

    def add(self, identity: str, trace: Trace, verdict: Verdict | None) -> None:
        self.held[identity] = (trace, verdict)
        self.tokens += sum(len(segment.token_ids) for segment in trace.segments)
        while self.tokens > RECENT_TOKENS and len(self.held) > 1:
            _, (gone, _) = self.held.popitem(last=False)
            self.tokens -= sum(len(segment.token_ids) for segment in gone.segments)

    def get(self, identity: str) -> tuple[Trace, Verdict | None] | None:
        return self.held.get(identity)


class RunIndex:
    """`table` is the name of the trace or record table being read, `seq` the number of the event.

    `sides` maps a task id to the table it stands in (train or heldout). Versions are by publication index.
    """

    def __init__(self, ledger: Ledger):
        self.ledger = ledger
        self.seq = 0
        self.position = ""
        self.table: str | None = None
        self.complete = False
        self.recipe: ResolvedRecipe | None = None
        self.split: SplitManifest | None = None
        self.tokenizer_file: TokenizerFile | None = None
        self.raws: dict[str, RawTask] = {}
        self.tasks: dict[str, Task] = {}
        self.sides: dict[str, Literal["train", "heldout"]] = {}
        self.images: dict[str, EnvironmentImage] = {}
        self.envelopes: dict[str, SamplingEnvelope] = {}
        self.compositions: dict[str, Composition] = {}
        self.protocols: dict[str, ProtocolBundle] = {}
        self.reports: dict[str, EvalReport] = {}
        self.versions: dict[int, PolicyVersion] = {}
        self.version_ids: dict[str, int] = {}
        self.recent = Recent()
        self.host: HostRun | None = None
        self.host_tasks: dict[str, HostTask] = {}

    @cached_property
    def tokenizer(self) -> ChatTokenizer | None:
        """The run's own tokenizer, read from its artifacts; None where the run did not keep it."""
        if self.tokenizer_file is None:
            return None
        return ChatTokenizer.from_document(self.ledger.get(self.tokenizer_file.blob))

    def take(self, identity: str, record: object) -> None:
        """Files a record under its id, where detectors will look for it."""
        match record:
            case ResolvedRecipe():
                self.recipe = record
            case RawTask():
                self.raws[identity] = record
            case Task():
                self.tasks[identity] = record
                if self.table in ("tasks/train", "tasks/heldout"):
                    self.sides[identity] = "train" if self.table == "tasks/train" else "heldout"
            case HostRun():
                self.host = record
            case HostTask():
                self.host_tasks[identity] = record
            case SplitManifest():
                self.split = record
            case EnvironmentImage():
                self.images[identity] = record
            case TokenizerFile():
                self.tokenizer_file = record
            case SamplingEnvelope():
                self.envelopes[identity] = record
            case Composition():
                self.compositions[record.digest] = record
            case ProtocolBundle():
                self.protocols[identity] = record
            case EvalReport():
                self.reports[identity] = record
            case PolicyVersion():
                self.versions[record.index] = record
                self.version_ids[identity] = record.index
            case RunEnd():
                self.complete = record.status == "completed"
            case _:
                pass
