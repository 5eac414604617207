"""Suites asked along a run: each that is due is on record, of the weights it names, with the result that its folder holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rollbook.audit.index import RunIndex
from rollbook.ledger import Ledger
from rollbook.records import AbilityReport, EvaluationResult, LedgerError, SftReport, StageEnd, StepReport, content_id
from rollbook.records.graph import START
from rollbook.records.recipe import PolicyGradient, Sft

FOLDER = "abilities"


class Along:
    """Reads a run's log in order; what it yields is what is wrong."""

    def __init__(self) -> None:
        self.asked: dict[tuple[str, int | None], list[str]] = defaultdict(list)
        self.steps: dict[str, int] = {}
        self.unseen: list[str] = []                 # reports whose evaluation folder is not here

    def step(self, record: StepReport | SftReport) -> None:
        self.steps[record.stage] = record.step

    def report(self, run: RunIndex, report: AbilityReport) -> Iterator[str]:
        """A report names the weights of its moment, and the result that its folder holds."""
        suites = run.recipe.settings.suites if run.recipe is not None else None
        name = report.stage if report.step is None else f"{report.stage} step {report.step}"
        if suites is None or report.ability not in suites.abilities:
            yield f"{name}: the recipe asks no {report.ability} along the run"
            return
        if report.ability in self.asked[report.stage, report.step]:
            yield f"{name}: {report.ability} is reported a second time"
        self.asked[report.stage, report.step].append(report.ability)
        if report.step is not None and self.steps.get(report.stage) != report.step:
            yield f"{name}: reported after step {self.steps.get(report.stage)}"
        latest = run.versions.get(max(run.versions, default=-1))
        unpublished = report.step is not None and isinstance(run.recipe and run.recipe.settings.stages.get(report.stage), Sft)
        if not unpublished and (latest is None or latest.weights != report.weights):
            yield f"{name}: {report.ability} was answered by weights {report.weights[:12]}, not by those that were published last"
        yield from self._folder(run, report, name)

    def _folder(self, run: RunIndex, report: AbilityReport, name: str) -> Iterator[str]:
        protocol = report.protocol.rpartition(":")[2][:12]
        place = report.stage if report.step is None else f"{report.stage}@{report.step:06d}"
        folder = run.ledger.root / FOLDER / f"{report.ability}-{protocol}" / place
        if not (folder / "manifest.json").is_file():
            self.unseen.append(f"{report.ability} of {name}")
            return
        try:
            with Ledger.open(folder, write=False) as ledger:
                held = next(iter(ledger.records(EvaluationResult)), None)
        except LedgerError as error:
            yield f"{name}: the answers to {report.ability} cannot be read: {error.what}"
            return
        if held is None or (content_id(held), held.weights, held.protocol) != (report.result, report.weights, report.protocol):
            yield f"{name}: the folder of {report.ability} holds another result than the one reported"
        elif held.value != report.value:
            yield f"{name}: {report.ability} is reported with {report.value.estimate}, its folder says {held.value.estimate}"

    def ended(self, run: RunIndex, end: StageEnd) -> Iterator[str]:
        """A stage that moved the policy was asked at every point that the recipe names, whatever came out."""
        suites = run.recipe.settings.suites if run.recipe is not None else None
        if suites is None or run.recipe is None or end.started == end.ended:
            return
        stage = run.recipe.settings.stages.get(end.stage)
        steps = stage.steps if isinstance(stage, Sft | PolicyGradient) else 0
        within = range(suites.every, steps, suites.every) if suites.every else ()
        due: list[tuple[str, int | None]] = [(START, None), *((end.stage, step) for step in within), (end.stage, None)]
        for stage_name, step in due:
            if missing := sorted(set(suites.abilities) - set(self.asked[stage_name, step])):
                yield f"{stage_name}{'' if step is None else f' step {step}'}: {', '.join(missing)} was never asked"
