"""What a run kept of abilities that it did not train: suites of tasks, asked of the policies before and after its stages.

Every suite is a frozen protocol and every policy's answers to it an evaluation folder of its own below RUN/abilities, as
`rollbook eval` makes them: resumable, audited, compared pair by pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollbook.evaluation.differences import ComparisonRefused
from rollbook.evaluation.heldout import tasks_hash
from rollbook.evaluation.protocols import Bundle, ProtocolRefused, reward_name
from rollbook.ledger import Ledger
from rollbook.ledger.layout import write_durably
from rollbook.models.load import Policy
from rollbook.orchestration.answering import check_fits
from rollbook.orchestration.evaluating import evaluate_into
from rollbook.orchestration.judges import default_judging
from rollbook.orchestration.session import Progress
from rollbook.orchestration.sides import compare
from rollbook.orchestration.subjects import Subject, subject
from rollbook.records import (
    Abilities,
    AbilityChange,
    Aggregation,
    EvaluationProtocol,
    LedgerError,
    PolicyVersion,
    StageEnd,
    canonical,
    content_id,
    encode,
)
from rollbook.records.graph import START
from rollbook.records.recipe import SamplingSettings
from rollbook.records.suites import Ability
from rollbook.rollouts.solve import SCAFFOLD
from rollbook.tasks.abilities import ability_tasks, reward_of

FOLDER = "abilities"
CHANGES = "changes.json"
GREEDY = SamplingSettings(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suites:
    """Which suites are asked, how many tasks each, of how long answers, drawn with which seed."""

    abilities: Sequence[Ability]
    tasks: int
    max_tokens: int
    seed: int


def measure(run: Path, suites: Suites, progress: Progress, *, stages: Sequence[str] = (), dtype: str = "auto") -> Abilities:
    """The changes over the stages of a run that moved its policy (or those named) and over the whole run; written down in
    RUN/abilities. What is there already is not asked again. A suite that does not fit the model is left out, with the reason."""
    asked, genesis = _stages(run, stages)
    changes: list[AbilityChange] = []
    left_out: dict[str, str] = {}
    for ability in suites.abilities:
        folders: dict[str, Path] = {}
        try:
            for name in dict.fromkeys(place for pair in asked for place in pair):
                folders[name] = _asked(run, ability, suites, _subject(run, name), (progress, dtype))
            changes += [change(ability, folders, pair) for pair in asked]
        except (ProtocolRefused, ComparisonRefused) as error:
            left_out[ability] = f"{error.what}: {error.got}"
    made = Abilities(run=genesis, changes=tuple(changes), left_out=left_out)
    write_durably(run / FOLDER / CHANGES, canonical(encode(made)))
    return made


def suite(ability: Ability, suites: Suites, policy: Policy) -> Bundle:
    """The frozen protocol of a suite, in the template of a policy."""
    raws, tasks = ability_tasks(ability, count=suites.tasks, seed=suites.seed, max_tokens=suites.max_tokens)
    reward = reward_of(ability)
    used = default_judging(reward, {}, None)
    try:
        protocol = EvaluationProtocol(
            name=ability, tasks=tasks_hash(tasks), task_count=len(tasks), environment=content_id(used.image),
            verifier=used.judge.digest, reward=reward, template=policy.tokenizer.template_digest, system_prompt="",
            scaffold=SCAFFOLD, tools=(), sampling=GREEDY, seed=suites.seed, trials=1, max_tokens=suites.max_tokens, max_turns=1,
            max_seconds=None, aggregation=Aggregation(rule="mean", k=1, selector=None), extraction=reward_name(reward),
            in_family=False)
    finally:
        used.judge.close()
    return Bundle(protocol=protocol, tasks=tasks, raws=raws)


def _asked(run: Path, ability: Ability, suites: Suites, who: Subject, how: tuple[Progress, str]) -> Path:
    """The folder of a finished evaluation of one suite."""
    assert isinstance(who.policy, Policy)
    bundle = suite(ability, suites, who.policy)
    check_fits(bundle, who.policy)
    folder = place(run, ability, bundle, str(who.stage))
    folder.parent.mkdir(parents=True, exist_ok=True)
    progress, dtype = how
    evaluate_into(folder, bundle, who, progress, dtype=dtype)
    return folder


def place(run: Path, ability: str, bundle: Bundle, name: str) -> Path:
    """The folder of one policy's answers to a suite."""
    return run / FOLDER / f"{ability}-{bundle.protocol.id.rpartition(':')[2][:12]}" / name


def _subject(run: Path, stage: str) -> Subject:
    def rebuild(path: Path, version: object) -> Policy:
        raise LedgerError("only policies that a stage ended with are asked", got=f"{path.name}:{stage}")
    return subject(f"{run}:{stage}", rebuild=rebuild)


def _stages(run: Path, wanted: Sequence[str]) -> tuple[tuple[tuple[str, str], ...], str]:
    """Pairs (before, after) of stages: each that moved the policy against what it began with, then the whole run."""
    with Ledger.open(run, write=False) as ledger:
        pairs, genesis = moves(ledger), ledger.genesis
    after = dict.fromkeys(name for _, name in pairs)
    if strange := sorted(set(wanted) - set(after)):
        raise LedgerError("no finished stage of this run that moved its policy has this name", got=", ".join(strange),
                          fix=f"one of {', '.join(after) or 'none: nothing was trained yet'}")
    if not pairs:
        raise LedgerError("no stage of this run has moved its policy", got=run.name, why="there is no change to measure",
                          fix="give a run whose first training stage has ended")
    named = tuple(next(pair for pair in pairs if pair[1] == name) for name in after if name in wanted)
    return (named or pairs), genesis


def moves(ledger: Ledger) -> tuple[tuple[str, str], ...]:
    """Pairs (before, after) of stages: each that ended with other weights than it began with, then the whole run."""
    weights = {version.id: version.weights for version in ledger.records(PolicyVersion)}
    moved = [end for end in ledger.records(StageEnd) if weights[end.started] != weights[end.ended]]
    left: Mapping[str, str] = {weights[end.ended]: end.stage for end in moved}
    pairs = [(left.get(weights[end.started], START), end.stage) for end in moved]
    whole = [(START, moved[-1].stage)] if moved and (START, moved[-1].stage) not in pairs else []
    return (*pairs, *whole)


def change(ability: str, folders: Mapping[str, Path], pair: tuple[str, str]) -> AbilityChange:
    """An ability before and after, from the two folders of a pair of stages."""
    made, _, _ = compare(folders[pair[0]], folders[pair[1]], policy_as_one=True)
    return AbilityChange(ability=ability, before=pair[0], after=pair[1], share_before=made.whole.before,
                         share_after=made.whole.after, gain=made.whole.gain, p_value=made.whole.p_value, claim=made.whole.claim)


