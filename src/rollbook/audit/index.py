"""What an audit has read so far, as detectors look it up: small records by id, and the trajectories of recent steps."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from rollbook.audit.plan import Generated, generated
from rollbook.ledger import Ledger
from rollbook.ledger.bundle import AFTERWARDS
from rollbook.ledger.kinds import HOUSEKEEPING
from rollbook.models.tokenizer import ChatTokenizer
from rollbook.records import (
    Composition,
    CuratedSet,
    CurationStage,
    EnvironmentImage,
    EvalReport,
    HostRun,
    HostTask,
    LedgerError,
    PolicyVersion,
    ProtocolBundle,
    RawTask,
    ResolvedRecipe,
    RunEnd,
    SamplingEnvelope,
    Selection,
    SplitManifest,
    Task,
    TokenizerFile,
    Trace,
    Verdict,
)
from rollbook.records.recipe import PolicyGradient, Sft
from rollbook.tasks import TaskError
from rollbook.tasks.curated import rows_in

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
        self.curated: CuratedSet | None = None
        self.curation: dict[str, CurationStage] = {}    # the stages that made the curated set
        self.split: SplitManifest | None = None
        self.tokenizer_file: TokenizerFile | None = None
        self.raws: dict[str, RawTask] = {}
        self.own: dict[str, RawTask] = {}               # the raw tasks of the run itself, not those of protected protocols
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
        self.selections: dict[str, Selection] = {}
        self.contradictions: list[str] = []

    @cached_property
    def tokenizer(self) -> ChatTokenizer | None:
        """The run's own tokenizer, read from its artifacts; None where the run did not keep it."""
        if self.tokenizer_file is None:
            return None
        return ChatTokenizer.from_document(self.ledger.get(self.tokenizer_file.blob))

    @cached_property
    def generated(self) -> Generated | str:
        """The recipe's tasks generated again, or why they cannot be; not before every raw task was read."""
        return generated(self.recipe, self.own, self.kept_set)

    @property
    def kept_set(self) -> tuple[CuratedSet, bytes] | None:
        """The run's curated set with its rows; None where none is on record, or its rows are gone or others."""
        if self.curated is None:
            return None
        try:
            return self.curated, self.ledger.get(self.curated.tasks)
        except LedgerError:
            return None

    @cached_property
    def weights(self) -> Mapping[str, int]:
        """How often one pass draws a training task, where its row of the curated set weighs more than one; by the rows alone."""
        if self.kept_set is None:
            return {}
        try:
            rows = {str(row.number): row.more.get("weight", 1) for row in rows_in(self.kept_set[1])}
        except TaskError:
            return {}
        found = {task: rows.get(self.raws[self.tasks[task].raw].lineage.get("row", ""), 1) for task in self.train
                 if self.tasks[task].raw in self.raws}
        return {task: weight for task, weight in found.items() if weight > 1}

    @property
    def train(self) -> tuple[str, ...]:
        """The tasks of the training side in their order."""
        return tuple(task for task, side in self.sides.items() if side == "train")

    @property
    def heldout(self) -> tuple[str, ...]:
        """The tasks of the held-out side in their order."""
        return tuple(task for task, side in self.sides.items() if side == "heldout")

    def learnt(self, scope: str, trace: Trace) -> Trace:
        """A trajectory as a batch of this scope holds it: its own, or all after the prompt, or with its subagents."""
        stage = self.policy_stage(scope)
        if stage is not None and stage.subagents_learn:
            return trace.with_subagents()
        return trace.as_if_written() if stage is not None and stage.observation_loss else trace

    def policy_stage(self, scope: str) -> PolicyGradient | None:
        """The stage of a scope or table of a policy stage's own attempts; None of anything else, its probes too."""
        name, _, rest = scope.partition("/")
        stage = self.recipe.settings.stages.get(name) if self.recipe is not None else None
        return stage if isinstance(stage, PolicyGradient) and not rest.startswith("probe") else None

    def take(self, identity: str, record: object) -> None:
        """Files a record under its id, where detectors will look for it."""
        if self.complete and self.recipe is not None and type(record).__name__ not in AFTERWARDS | HOUSEKEEPING:
            self.contradictions.append(f"{identity} was recorded after the run had ended")
        match record:
            case ResolvedRecipe():
                self._recipe(identity, record)
            case RawTask():
                self.raws[identity] = record
                if self.table == "tasks/raw":
                    self.own[identity] = record
            case Task():
                self.tasks[identity] = record
                if self.table in ("tasks/train", "tasks/heldout"):
                    self.sides[identity] = "train" if self.table == "tasks/train" else "heldout"
            case HostRun() if self.recipe is not None:
                self.contradictions.append(f"{identity} calls this a run of {record.host}, and a recipe is on record")
            case HostRun():
                self.host = record
            case HostTask():
                self.host_tasks[identity] = record
            case SplitManifest():
                self.split = record
            case CurationStage() | CuratedSet():
                self._curation(identity, record)
            case EnvironmentImage():
                self.images[identity] = record
            case TokenizerFile():
                if self.tokenizer_file not in (None, record):
                    self.contradictions.append(f"{identity} is a second tokenizer or template")
                self.tokenizer_file = self.tokenizer_file or record
            case SamplingEnvelope():
                self.envelopes[identity] = record
            case Composition():
                if self.compositions.setdefault(record.digest, record) != record:
                    self.contradictions.append(f"{identity} gives the judge {record.digest[:12]} other parts than before")
            case ProtocolBundle():
                self.protocols[identity] = record
            case EvalReport():
                self.reports[identity] = record
            case PolicyVersion():
                self.versions[record.index] = record
                self.version_ids[identity] = record.index
            case Selection():
                self.selections[record.stage] = record
            case RunEnd():
                self.complete = record.status == "completed"
            case _:
                pass

    def _curation(self, identity: str, record: CurationStage | CuratedSet) -> None:
        if isinstance(record, CurationStage):
            self.curation[identity] = record
            return
        if self.curated not in (None, record):
            self.contradictions.append(f"{identity} is a second curated set")
        self.curated = self.curated or record

    def _recipe(self, identity: str, record: ResolvedRecipe) -> None:
        """The first recipe is the run's: everything is compared with it. It must be the one that the manifest names."""
        named = self.ledger.manifest.get("recipe")
        if self.recipe is not None or self.host is not None:
            self.contradictions.append(f"{identity} is a second recipe" if self.host is None else
                                       f"{identity} is a recipe, and the run is said to be of {self.host.host}")
            return
        self.recipe = record
        if named is not None and named != identity:
            self.contradictions.append(f"{identity} is not the recipe that the manifest names, {str(named)[:40]}")


def learns_text(run: RunIndex) -> bool:
    """Whether the table being read is of a stage that learns documents without a template."""
    stage = run.recipe.settings.stages.get((run.table or "").partition("/")[0]) if run.recipe is not None else None
    return isinstance(stage, Sft) and stage.form == "text"
