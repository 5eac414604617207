"""Which policy came from which, and the whole descent of a run: data, stages, policies, evaluations and what was concluded."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rollbook.ledger.chain import Event
from rollbook.ledger.kinds import RecordTable
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.scopes import stage_of
from rollbook.records import (
    Comparison,
    Dispatch,
    EvalReport,
    GateDecision,
    LedgerError,
    PolicyVersion,
    ProtocolBundle,
    RecipeError,
    ResolvedRecipe,
    RunEnd,
    Selection,
    StageEnd,
    content_id,
)
from rollbook.records.graph import START, begins, order
from rollbook.records.recipe import PolicyGradient

NodeKind = Literal["dataset", "stage", "policy", "evaluation", "comparison", "gate"]
READ = frozenset(cls.__name__ for cls in (Comparison, Dispatch, EvalReport, GateDecision, PolicyVersion, ProtocolBundle,
                                          RecordTable, ResolvedRecipe, RunEnd, Selection, StageEnd))
PROBLEMS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A thing of the run. `lines` say what it is, `id` is its record's id or hash (None where it has none), `stage` the stage
    that made it, or that it is.

    Example: Node(key="policy:rl", kind="policy", name="v2 to v31", lines=("30 versions",), id="PolicyVersion:9c..", stage="rl")
    """

    key: str
    kind: NodeKind
    name: str
    lines: tuple[str, ...]
    id: str | None
    stage: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """`target` was made from or with `source`; both are keys of nodes."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The descent of a run's policies. `stages` are in order; `problems` name what the records leave without an origin."""

    run: str
    title: str
    state: str
    stages: tuple[str, ...]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    problems: tuple[str, ...]

    def node(self, key: str) -> Node:
        return next(node for node in self.nodes if node.key == key)

    def into(self, key: str) -> list[Node]:
        """What a node was made from."""
        return [self.node(edge.source) for edge in self.edges if edge.target == key]

    def out_of(self, key: str) -> list[Node]:
        """What was made from a node."""
        return [self.node(edge.target) for edge in self.edges if edge.source == key]


def lineage(ledger: Ledger) -> list[tuple[str, str]]:
    """(parent, child) ids of the published policies in order of publication; LedgerError for a parent that is not in the run."""
    known: set[str] = set()
    edges = []
    for version in ledger.records(PolicyVersion):
        child = content_id(version)
        if version.parent is not None:
            if version.parent not in known:
                raise LedgerError(f"policy {child} has a parent that the run does not hold", got=version.parent,
                                  why="a policy comes from one that was published before it")
            edges.append((version.parent, child))
        known.add(child)
    return edges


def run_lineage(path: str | Path) -> Lineage:
    """The descent of the run in this folder, as far as it has come. LedgerError where the log or a table is broken."""
    ledger = Ledger.open(path, write=False)
    facts = _Facts(ledger)
    for event in ledger.events():
        if event.kind in READ:
            facts.take(event)
    return _Graph(facts).result(ledger.root.name, str(ledger.manifest.get("name", "")))


@dataclass(slots=True)
class _Facts:
    """The records that a lineage is made of."""

    ledger: Ledger
    recipe: ResolvedRecipe | None = None
    end: RunEnd | None = None
    tables: list[tuple[RecordTable, Event]] = field(default_factory=list)
    versions: dict[str, PolicyVersion] = field(default_factory=dict)
    ends: dict[str, StageEnd] = field(default_factory=dict)
    reports: dict[str, EvalReport] = field(default_factory=dict)
    protocols: dict[str, ProtocolBundle] = field(default_factory=dict)
    comparisons: list[tuple[str, Comparison]] = field(default_factory=list)
    selections: dict[str, tuple[str, Selection]] = field(default_factory=dict)
    gates: list[tuple[str, GateDecision]] = field(default_factory=list)
    issued: dict[str, set[str]] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        record = event.record()
        match record:
            case ResolvedRecipe():
                self.recipe = record
            case RunEnd():
                self.end = record
            case RecordTable():
                self.tables.append((record, event))
            case PolicyVersion():
                self.versions[event.id] = record
            case StageEnd():
                self.ends[record.stage] = record
            case EvalReport():
                self.reports[event.id] = record
            case ProtocolBundle():
                self.protocols[event.id] = record
            case Comparison():
                self.comparisons.append((event.id, record))
            case Selection():
                self.selections[record.stage] = (event.id, record)
            case GateDecision():
                self.gates.append((event.id, record))
            case Dispatch():
                self.issued.setdefault(record.scope.split("/")[0], set()).update(record.tasks)


class _Graph:
    """Nodes and edges as they are found."""

    def __init__(self, facts: _Facts):
        self.facts = facts
        self.nodes: dict[str, Node] = {}
        self.edges: dict[tuple[str, str], None] = {}
        self.problems: list[str] = []
        self.table_of: dict[str, str] = {}          # task id -> the table it stands in
        self.sets: dict[str, str] = {}              # hash of an ordered task set -> the table it is the beginning of

    def result(self, run: str, name: str) -> Lineage:
        stages = self._stages()
        self._datasets()
        self._policies(stages)
        for stage in stages:
            self._stage(stage)
        self._evaluations(stages)
        self._conclusions()
        recipe, end = self.facts.recipe, self.facts.end
        title = f"{recipe.name}, scale {recipe.scale}, seed {recipe.settings.run.seed}" if recipe else name
        title += f"; {recipe.assumed}" if recipe and recipe.assumed else ""
        more = [f"and {len(self.problems) - PROBLEMS} more"] if len(self.problems) > PROBLEMS else []
        return Lineage(run=run, title=title, state=end.status if end else "in progress", stages=tuple(stages),
                       nodes=tuple(self.nodes.values()), edges=tuple(Edge(source=a, target=b) for a, b in self.edges),
                       problems=(*self.problems[:PROBLEMS], *more))

    def _stages(self) -> list[str]:
        """The recipe's stages in order; without a recipe those that the records name."""
        facts = self.facts
        if facts.recipe is not None:
            try:
                return list(order(facts.recipe.settings.stages, facts.recipe.settings.rewards))
            except RecipeError as error:
                self.problems.append(f"the recipe's stages have no order: {error.what}")
        found = [version.stage for version in facts.versions.values() if version.stage != START]
        return list(dict.fromkeys([*facts.ends, *found]))

    def _add(self, key: str, kind: NodeKind, name: str, about: tuple[Sequence[str], str | None, str | None]) -> str:
        lines, identity, stage = about
        self.nodes[key] = Node(key=key, kind=kind, name=name, lines=tuple(lines), id=identity, stage=stage)
        return key

    def _join(self, source: str | None, target: str) -> None:
        if source is not None and source in self.nodes:
            self.edges[source, target] = None

    def _datasets(self) -> None:
        counts = {protocol.task_count for protocol in self.facts.protocols.values()}
        raws: dict[str, str] = {}
        for table, event in self.facts.tables:
            name = table.name
            stage = name.partition("/")[0] if table.of == "Demonstration" else None
            shown = name.partition("/")[2] or name if stage else name
            key = self._add(f"table:{name}", "dataset", shown, ([f"{table.rows:,} × {table.of}"], table.root, stage))
            match table.of:
                case "RawTask":
                    raws |= dict.fromkeys((identity for identity, _ in self._rows(event)), key)
                case "Task":
                    self._task_table(key, event, counts, raws)
                case "Demonstration":
                    self._parents(key, Counter(self.table_of.get(str(body.get("task"))) for _, body in self._rows(event)), "task")

    def _task_table(self, key: str, event: Event, counts: set[int], raws: Mapping[str, str]) -> None:
        """Its origin among the raw tasks, and the hashes of its first n tasks by which protocols name their task sets."""
        parents: Counter[str | None] = Counter()
        hasher = hashlib.sha256(b"[")
        for number, (identity, body) in enumerate(self._rows(event), 1):
            self.table_of[identity] = key
            parents[raws.get(str(body.get("raw")))] += 1
            hasher.update((b"," if number > 1 else b"") + json.dumps(identity).encode())
            if number in counts:
                done = hasher.copy()
                done.update(b"]")
                self.sets[done.hexdigest()] = key
        self._parents(key, parents, "raw task" if raws else None)

    def _rows(self, event: Event) -> Iterator[tuple[str, Mapping[str, Any]]]:
        from rollbook.ledger.tables import read_bodies

        return read_bodies(self.facts.ledger.table_path(event), event.position)

    def _parents(self, key: str, parents: Mapping[str | None, int], needed: str | None) -> None:
        """Edges from the tables that rows come from; `needed` names what a row without an origin lacks, where that is a fault."""
        for parent in parents:
            self._join(parent, key)
        if needed == "raw task" and parents.get(None):
            self.problems.append(f"{parents[None]} rows of {self.nodes[key].name} name a {needed} that the run does not hold")

    def _policies(self, stages: Sequence[str]) -> None:
        """One node for the versions that each stage published, in order."""
        facts, known = self.facts, set()
        groups: dict[str, list[tuple[str, PolicyVersion]]] = {}
        for identity, version in facts.versions.items():
            if version.parent is not None and version.parent not in known:
                self.problems.append(f"version {version.index} ({identity[:22]}) has a parent that the run does not hold")
            known.add(identity)
            groups.setdefault(version.stage, []).append((identity, version))
        for stage, found in groups.items():
            first, last = found[0][1], found[-1][1]
            end = facts.ends.get(stage)
            name = f"v{first.index}" if len(found) == 1 else f"v{first.index} to v{last.index}"
            lines = [f"weights {last.weights[:12]}"]
            lines += [f"{len(found)} versions, {sum(v.updates for _, v in found)} updates"] if len(found) > 1 else []
            lines += [end.checkpoint] if end and end.checkpoint else ["the initial model"] if stage == START else []
            self._add(f"policy:{stage}", "policy", name, (lines, found[-1][0], stage))

    def _policy_key(self, identity: str) -> str | None:
        version = self.facts.versions.get(identity)
        return None if version is None else f"policy:{version.stage}"

    def _stage(self, stage: str) -> None:
        facts = self.facts
        end = facts.ends.get(stage)
        plan = facts.recipe.settings.stages.get(stage) if facts.recipe else None
        begun = stage in facts.issued or f"policy:{stage}" in self.nodes or f"table:{stage}/demonstrations" in self.nodes
        state = "complete" if end else "begun" if begun else "not begun"
        kind = type(plan).__name__ if plan is not None else end.kind if end else ""
        key = self._add(f"stage:{stage}", "stage", stage, ([line for line in (kind, "" if end else state) if line], None, stage))
        self._join(self._policy_key(end.started) if end else f"policy:{begins(plan)}" if plan is not None else None, key)
        if end and end.started not in facts.versions:
            self.problems.append(f"stage {stage} began with a policy that the run does not hold ({end.started[:22]})")
        for source in (stage, *(getattr(plan, "data", None) or ())):
            self._join(f"table:{source}/demonstrations", key)
        chosen = plan.tasks if isinstance(plan, PolicyGradient) and plan.tasks in facts.selections else None
        issued = facts.issued.get(stage, set())
        if chosen is not None:
            self._join(f"selection:{chosen}", key)
            outside = len(issued - set(facts.selections[chosen][1].kept))
            if outside:
                self.problems.append(f"stage {stage} issued {outside} tasks that selection {chosen} had not kept")
        else:
            for table in sorted({self.table_of.get(task, "") for task in issued}):
                self._join(table, key)
        if f"policy:{stage}" in self.nodes:
            self._join(key, f"policy:{stage}")
        if stage in facts.selections:
            identity, made = facts.selections[stage]
            lines = [f"kept {len(made.kept):,} of {len(made.pass_counts):,} tasks", f"{made.samples} samples each"]
            self._join(key, self._add(f"selection:{stage}", "dataset", f"selection of {stage}", (lines, identity, stage)))

    def _evaluations(self, stages: Sequence[str]) -> None:
        groups: dict[str, list[tuple[str, EvalReport]]] = {}
        for identity, report in self.facts.reports.items():
            groups.setdefault(stage_of(report.stage), []).append((identity, report))
        for name, found in groups.items():
            identity, report = found[-1]
            lines = [_share(report)] if len(found) == 1 else [f"{len(found)} times", f"last {_share(report)}"]
            lines += [f"{report.unscored} unscored"] if report.unscored else []
            lines += ["in-family"] if report.in_family else []
            key = self._add(f"evaluation:{name}", "evaluation", name, (lines, identity, name))
            own = f"stage:{name}" if name in stages else self._policy_key(report.policy)
            self._join(own, key)
            if own is None or own not in self.nodes:
                self.problems.append(f"evaluation {report.stage} is of a policy that the run does not hold "
                                     f"({report.policy[:22]})")
            protocol = self.facts.protocols.get(report.protocol)
            self._join(self.sets.get(protocol.tasks) if protocol else None, own if name in stages and own else key)

    def _conclusions(self) -> None:
        for number, (identity, made) in enumerate(self.facts.comparisons):
            sides = [self.facts.reports.get(side) for side in (made.before, made.after)]
            names = [stage_of(side.stage) if side else "a lost report" for side in sides]
            gain = made.gain
            lines = [f"over {names[0]}: {100 * gain.estimate:+.1f} points", f"{100 * gain.low:+.1f} to {100 * gain.high:+.1f}",
                     f"claim: {made.claim}", f"changed: {made.changed}"]
            key = self._add(f"comparison:{number}", "comparison", names[1], (lines, identity, names[1]))
            for side, name in zip(sides, names, strict=True):
                self._join(f"evaluation:{name}" if side else None, key)
            if None in sides:
                self.problems.append(f"comparison {identity[:20]} names a report that the run does not hold")
        for number, (identity, decision) in enumerate(self.facts.gates):
            signed = "signed" if decision.signature else "not signed"
            key = self._add(f"gate:{number}", "gate", f"gate: {decision.decision}", ([signed], identity, None))
            self._join(self._policy_key(decision.policy), key)


def _share(report: EvalReport) -> str:
    found = report.accuracy
    return f"{100 * found.estimate:.1f}% ({100 * found.low:.1f} to {100 * found.high:.1f}, n {found.count})"
