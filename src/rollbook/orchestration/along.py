"""What a run keeps of abilities that it does not train, asked while it trains: regressions stand beside gains as they come.

Every answer is in an evaluation folder below RUN/abilities, the very one that `rollbook abilities RUN` would make afterwards; the
run's own log names its result and the weights that answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rollbook.ledger.layout import write_durably
from rollbook.models.load import Policy
from rollbook.orchestration.abilities import CHANGES, FOLDER, Suites, change, moves, place, suite
from rollbook.orchestration.answering import check_fits
from rollbook.orchestration.evaluating import evaluate_into
from rollbook.orchestration.session import Session
from rollbook.orchestration.subjects import Subject, leaves, training
from rollbook.records import (
    Abilities,
    AbilityChange,
    AbilityReport,
    EnvironmentProof,
    PolicyVersion,
    RecipeError,
    RollbookError,
    canonical,
    content_id,
    encode,
)
from rollbook.records.graph import START
from rollbook.records.problems import Problems
from rollbook.records.recipe import Settings
from rollbook.records.suites import Ability, SuiteSettings


class Silent:
    """Progress of an evaluation inside a run, which has a progress of its own."""

    def stage(self, name: str, index: int, total: int, steps: int) -> None: ...

    def step(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def note(self, text: str) -> None: ...


def check_suites(settings: Settings, policy: Policy) -> None:
    """Refuses suites that do not fit the model, all at once."""
    asked, problems = settings.suites, Problems()
    if asked is None:
        return
    for ability in asked.abilities:
        try:
            check_fits(suite(ability, suites_of(asked), policy), policy)
        except RollbookError as error:
            problems.add(RecipeError(f"suites.abilities: {ability} cannot be asked: {error.what}", got=error.got, why=error.why,
                                     fix="lower suites.max_tokens or suites.tasks, or leave the suite out"))
    problems.raise_any("the suites that are asked along the run")


def suites_of(asked: SuiteSettings) -> Suites:
    return Suites(abilities=asked.abilities, tasks=asked.tasks, max_tokens=asked.max_tokens, seed=asked.seed)


class Along:
    """Asks the suites of one run. Nothing of the run depends on what is answered."""

    def __init__(self, session: Session, asked: SuiteSettings):
        self.session, self.asked = session, asked
        self.suites = suites_of(asked)
        self.proven: dict[str, EnvironmentProof] = {}
        self._known: dict[tuple[str, str, str], AbilityChange] = {}

    def begin(self) -> None:
        """The policy before the first stage, where it was not asked yet."""
        if not any(one.stage == START for one in self._reports()):
            self.ask(START, None, self.session.take(START))

    def due(self, step: int, steps: int) -> bool:
        """Whether the suites are asked after this step; after the last one the stage's end asks them."""
        return bool(self.asked.every) and step % self.asked.every == 0 and step < steps

    def ask(self, stage: str, step: int | None, version: PolicyVersion | None) -> None:
        """Asks the weights that the decoder holds; `version` None where they are not published."""
        session = self.session
        recipe, root = session.recipe, session.root
        name = stage if step is None else f"{stage}:{step}"
        policy = session.policy if stage == START else replace(session.policy, source=f"{recipe.name}:{stage}")
        who = Subject(policy=policy, name=f"{recipe.name}:{name}", run=session.ledger.genesis, stage=name,
                      version=None if version is None else version.id, weights=None if version is None else version.weights,
                      recipe=dict(leaves(encode(session.settings))), folder=None if stage == START else root,
                      training=None if version is None else training(session.ledger, version))
        for ability in self.asked.abilities:
            bundle = suite(ability, self.suites, policy)
            folder = place(root, ability, bundle, stage if step is None else f"{stage}@{step:06d}")
            folder.parent.mkdir(parents=True, exist_ok=True)
            result = evaluate_into(folder, bundle, who, Silent(), dtype=session.dtype, proven=self.proven)
            session.ledger.append(AbilityReport(stage=stage, step=step, ability=ability, protocol=result.protocol,
                                                result=content_id(result), weights=str(result.weights), value=result.value))

    def told(self, stage: str | None = None) -> None:
        """Writes down the changes over all stages that have ended, and tells those over `stage`."""
        changes = self.changes()
        if changes:
            made = Abilities(run=self.session.ledger.genesis, changes=changes, left_out={})
            write_durably(self.session.root / FOLDER / CHANGES, canonical(encode(made)))
        told = next((pair for pair in moves(self.session.ledger) if pair[1] == stage), None)
        for one in changes:
            if (one.before, one.after) == told:
                gain = one.gain
                self.session.progress.note(
                    f"{stage}: {one.ability} {one.share_before:.1%} -> {one.share_after:.1%} ({100 * gain.estimate:+.1f} points, "
                    f"{100 * gain.low:+.1f} to {100 * gain.high:+.1f}){', a REGRESSION' if one.claim == 'loss' else ''}")

    def changes(self) -> tuple[AbilityChange, ...]:
        """Over every stage that moved the policy against what it began with, and over the whole run."""
        pairs = moves(self.session.ledger)
        return tuple(self._change(ability, pair) for ability in self.asked.abilities for pair in pairs)

    def _change(self, ability: Ability, pair: tuple[str, str]) -> AbilityChange:
        """Compared once: what a stage ended with does not change."""
        if (key := (ability, *pair)) not in self._known:
            self._known[key] = change(ability, {name: self._folder(ability, name) for name in pair}, pair)
        return self._known[key]

    def _folder(self, ability: Ability, stage: str) -> Path:
        return place(self.session.root, ability, suite(ability, self.suites, self.session.policy), stage)

    def _reports(self) -> list[AbilityReport]:
        return list(self.session.ledger.records(AbilityReport))
