"""Stage 5: cold start. Nothing is imitated but what the policy itself would have said."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from safetensors.numpy import load

from rollbook.audit.collected import RENDER as AGAIN
from rollbook.audit.collected import CollectedRows
from rollbook.audit.copied import REMEDY, TABLE, copied_faults, is_copied, times_shown
from rollbook.audit.detector import Detector
from rollbook.audit.elements import due_order
from rollbook.audit.index import RunIndex, learns_text
from rollbook.audit.ownership import NotRendered, Owned, as_text, owned
from rollbook.audit.plan import excuse
from rollbook.audit.schedule import pool
from rollbook.experience.repeats import repeated
from rollbook.records import Collected, Demonstration, Ranking, SftReport
from rollbook.records.recipe import Repeats, Sft
from rollbook.rewards import format_gate
from rollbook.rewards.boxes import last_box
from rollbook.rewards.numbers import compare
from rollbook.tasks import TaskError, demonstrations, document
from rollbook.tasks.fim import restored
from rollbook.tasks.splits import apportion

WRITTEN = 50_000               # demonstrations of a stage, up to which they are written again
WEIGHT_TOLERANCE = 1e-6        # relative: weights are float32
RENDER = "render demonstrations from their messages and label each token by the role that wrote it"
ZERO = "give loss weight to the policy's own turns only"


@dataclass(frozen=True, slots=True)
class Known:
    """What is kept of a demonstration: a hash of its tokens, their number, whose they are, and what each rule of the recipe's
    stages leaves out of the loss for repeating, as packed bits."""

    ids: bytes
    length: int
    owned: Owned
    repeated: Mapping[Repeats, bytes]

    def trained(self, rule: Repeats | None) -> np.ndarray:
        """True for the policy's tokens that carry loss under this rule."""
        own = mask(self.owned, self.length)
        if rule is None:
            return own
        left = np.unpackbits(np.frombuffer(self.repeated[rule], dtype=np.uint8), count=self.length)
        return own & ~left.astype(bool)


class ColdStartDetector(Detector):
    """Ownership is derived again from roles by rendering; the tensors that a supervised step used are held against it."""

    stage, name = 5, "cold start"
    absent = "no stage imitates demonstrations"

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, Known | None] = {}
        self.authors: Counter[str] = Counter()
        self.trained: set[str] = set()
        self.steps: Counter[str] = Counter()
        self.spelled = 0
        self.files = CollectedRows()
        self.left = 0                               # tokens without loss for repeating, over all steps
        self.general: Counter[str] = Counter()
        self.texts: dict[str, list[tuple[str, int]]] = {}       # stage -> demonstrations of tasks, hash of task and text
        self.copied: list[str] = []                 # traces of the curated set, in the order of their table
        self.shown: dict[str, list[str]] = {}       # stage -> its demonstrations in the order of their table
        self.order: dict[str, list[str]] = {}       # stage that learns from others -> all that it shows, in order

    def record(self, run: RunIndex, identity: str, record: object) -> None:
        if isinstance(record, Demonstration | Ranking):
            self.files.seen(run, identity, record)
        if isinstance(record, Collected):
            self.checked()
            for evidence in self.files.collected(run, record):
                self.fail(identity, evidence, AGAIN)
        if isinstance(record, Demonstration):
            self.checked()
            self.authors[f"{record.author} ({record.validation})"] += 1
            self.shown.setdefault((run.table or "").partition("/")[0], []).extend([identity] * times_shown(run, record))
            if run.table == TABLE:
                self.copied.append(identity)
            self.general[(run.table or "").partition("/")[0]] += record.task not in run.tasks
            if record.task in run.tasks:
                spoken = hash((record.task, record.messages[-1].content))
                self.texts.setdefault((run.table or "").partition("/")[0], []).append((identity, spoken))
            self._stated(run, identity, record)
            self.known[identity] = self._owned(run, identity, record)
        elif isinstance(record, SftReport):
            self.checked()
            self.steps[record.stage] += 1
            self._trained(run, identity, record)
            self._in_turn(run, identity, record)

    def finish(self, run: RunIndex) -> None:
        if run.recipe is not None and run.complete:
            for name, stage in run.recipe.settings.stages.items():
                if isinstance(stage, Sft) and self.steps[name] != stage.steps:
                    self.fail(f"stage {name}", f"{self.steps[name]} supervised steps are on record, the recipe asks for "
                              f"{stage.steps}", "record every supervised step with its tensors")
        if self.copied:
            self._copied(run)
        for evidence in self.files.missing(run):
            self.fail("run", evidence, AGAIN)
        if self.known:
            unused = len(self.known) - len(self.trained)
            self.note(f"{len(self.known)} demonstrations, {unused} of them not trained" if unused else
                      f"{len(self.known)} demonstrations, all trained")
            self.note("authors: " + ", ".join(f"{name} {count}" for name, count in sorted(self.authors.items())))
        if self.left:
            self.note(f"{self.left} tokens carry no loss, for repeating what stands before them")
        if self.spelled:
            self.note(f"{self.spelled} demonstrations spell their prompt in other tokens than the tokenizer's")

    def _copied(self, run: RunIndex) -> None:
        """The traces of the curated set that the run imitates are those of its rows."""
        faults = list(copied_faults(run, self.copied))
        if not faults:
            self.note(f"{len(self.copied)} traces of the curated set made again")
        elif (why := excuse(run.ledger.manifest)) is not None:
            self.note(f"{faults[0][1]}: {why}")
        else:
            for identity, evidence in faults:
                self.fail(identity, evidence, REMEDY)

    def _in_turn(self, run: RunIndex, identity: str, report: SftReport) -> None:
        """Every demonstration trains once, in the order of its table, as many at a time as the recipe says."""
        stage = run.recipe.settings.stages.get(report.stage) if run.recipe is not None else None
        if not isinstance(stage, Sft):
            return
        number, shown = self.steps[report.stage], self.shown.get(report.stage, [])
        if report.step != number:
            self.fail(identity, f"step {report.step} of {report.stage} comes where number {number} is due",
                      "record every supervised step, in turn")
        if stage.data:
            self._from_stages(run, identity, report, stage)
            return
        due = shown[(number - 1) * stage.batch:number * stage.batch]
        if list(report.demonstrations) != due:
            self.fail(identity, f"step {number} of {report.stage} trained {len(report.demonstrations)} demonstrations that are "
                      f"not the {len(due)} that are due: {len(set(due) - set(report.demonstrations))} of them left out",
                      "train each demonstration once, in the order of the table")
        if number == 1:
            self._mixture(run, identity, report.stage, stage)
            self._written(run, report.stage, stage)

    def _from_stages(self, run: RunIndex, identity: str, report: SftReport, stage: Sft) -> None:
        """A stage that learns from others shows its own demonstrations and passes over theirs, in the order of the seed."""
        if report.stage not in self.order:
            self.order[report.stage] = self._mixed(run, report.stage, stage)
            self._written(run, report.stage, stage)
        due = self.order[report.stage][(report.step - 1) * stage.batch:report.step * stage.batch]
        if list(report.demonstrations) != due:
            left, strange = set(due) - set(report.demonstrations), set(report.demonstrations) - set(due)
            self.fail(identity, f"step {report.step} of {report.stage} trained {len(report.demonstrations)} demonstrations that "
                      f"are not the {len(due)} that are due ({len(left)} left out, {len(strange)} not due)",
                      "train on the recipe's data, in the order of its seed")

    def _mixed(self, run: RunIndex, name: str, stage: Sft) -> list[str]:
        """All that a stage with `data` shows, step after step."""
        seed = run.recipe.settings.run.seed if run.recipe is not None else 0
        own, total = self.shown.get(name, []), stage.steps * stage.batch
        pools = {source: self.shown.get(source, []) for source in stage.data}
        shown = [*own, *due_order(pools, stage.data, total - len(own), seed)]
        random.Random(seed).shuffle(shown)
        return shown

    def _mixture(self, run: RunIndex, identity: str, name: str, stage: Sft) -> None:
        """As many demonstrations as the steps take, and the recipe's share of general ones among them."""
        total, general = stage.steps * stage.batch, round(stage.steps * stage.batch * stage.general_share)
        found = self.general[name]
        if len(self.shown.get(name, [])) != total or found != general:
            self.fail(identity, f"{name} shows {len(self.shown.get(name, []))} demonstrations, {found} of them general; the "
                      f"recipe asks for {total}, {general} of them general", "write the demonstrations that the recipe asks for")

    def _written(self, run: RunIndex, name: str, stage: Sft) -> None:
        """The demonstrations of tasks are those that the recipe's programs write, text for text."""
        recipe = run.recipe
        count = by_programs(stage)
        tasks = [run.tasks[task] for task in pool(run, stage.tasks)]
        if recipe is None or recipe.settings.environment is not None or not tasks or not stage.traces or count > WRITTEN:
            return
        try:
            made = demonstrations(tasks, count=count, seed=recipe.settings.run.seed, mixture=stage.traces)
        except TaskError as error:
            return self.note(f"the demonstrations of {name} were not written again: {error.what}")
        seed = recipe.settings.run.seed
        due = Counter(hash((one.task.id, document(one, fim=stage.fim, seed=seed) if stage.form == "text" else one.text))
                      for one in made)
        off = [identity for identity, text in self.texts.pop(name, []) if not _taken(due, text)]
        if not off:
            return self.note(f"{count} demonstrations of {name} written again")
        if (why := excuse(run.ledger.manifest)) is not None:
            return self.note(f"written again, {len(off)} demonstrations of {name} come out otherwise: {why}")
        return self.fail(off[0], f"{len(off)} of {count} demonstrations of {name} are not what the recipe's programs write for "
                         "these tasks", "show what the recipe's programs write, or name another author in the recipe")

    def _stated(self, run: RunIndex, identity: str, record: Demonstration) -> None:
        """Author and validation are there, and a validated answer is right where it can be compared."""
        for name in ("author", "validation"):
            if not getattr(record, name).strip():
                self.fail(identity, f"the demonstration states no {name}", f"record the {name} of every demonstration")
        if run.sides.get(record.task) == "heldout":
            self.fail(identity, f"it demonstrates {record.task}, which is held out", "demonstrate training tasks only")
        task = run.tasks.get(record.task)
        if task is None or record.validation == "none" or task.predicate != "math.equivalent":
            return
        said = record.messages[-1].content
        answer = (last_box(said) if is_copied(record) else
                  format_gate(restored(said).partition("\n")[2] if learns_text(run) else said)).answer
        if answer is None or compare(answer, task.reference) is False:
            self.fail(identity, f"validation says {record.validation!r}, but the demonstrated answer is {answer!r} "
                      f"and the reference {task.reference!r}", "validate demonstrations against the reference before they train")

    def _owned(self, run: RunIndex, identity: str, record: Demonstration) -> Known | None:
        """Ownership from the roles, held against `owners`; None where it cannot be derived."""
        tokenizer = run.tokenizer
        if tokenizer is None:
            self.fail(identity, "the run kept no tokenizer, so that ownership cannot be derived again",
                      "record the TokenizerFile before the first demonstration")
            return None
        for name, stated, own in (("tokenizer", record.tokenizer, tokenizer.digest),
                                  ("template", record.template, tokenizer.template_digest)):
            if stated != own:
                self.fail(identity, f"it was rendered with {name} {stated[:12]}, the run's is {own[:12]}",
                          "render demonstrations with the tokenizer and template that the policy is prompted with")
        try:
            found = (as_text if learns_text(run) else owned)(record.messages, record.token_ids, tokenizer)
        except NotRendered as error:
            self.fail(identity, f"the tokens are not the rendered messages: {error}", RENDER)
            return None
        self.spelled += not found.reencoded
        wanted, stated_T = mask(found, len(record.token_ids)), stated_mask(record)
        wrong = np.flatnonzero(wanted != stated_T)
        if len(wrong):
            at = int(wrong[0])
            whose = f"the {found.role_at(at)}'s" if not wanted[at] else "the policy's"
            said = "the policy's" if stated_T[at] else "somebody else's"
            text = tokenizer.token_text(record.token_ids[at])
            self.fail(identity, f"{len(wrong)} tokens have the wrong owner: token {at} ({text!r}) is {whose} by the roles of the "
                      f"messages and {said} by `owners`", RENDER)
        left = {rule: np.packbits(repeated(record, rule)).tobytes() for rule in _rules(run)}
        return Known(hashed(np.array(record.token_ids, dtype=np.int32)), len(record.token_ids), found, left)

    def _trained(self, run: RunIndex, identity: str, report: SftReport) -> None:
        missing = [one for one in report.demonstrations if one not in self.known]
        if missing:
            self.fail(identity, f"step {report.step} of {report.stage} trained {len(missing)} demonstrations that are not on "
                      f"record, first {missing[0]}", "record every demonstration before it trains")
            return
        self.trained.update(report.demonstrations)
        known = [self.known[one] for one in report.demonstrations]
        if any(one is None for one in known):
            return                                  # the demonstration has failed already
        given = load(run.ledger.get(report.tensors))
        stage = run.recipe.settings.stages.get(report.stage) if run.recipe is not None else None
        rule = stage.repeats if isinstance(stage, Sft) else None
        self._tensors(identity, report, ([one for one in known if one is not None], rule), given)

    def _tensors(self, identity: str, report: SftReport, shown: tuple[list[Known], Repeats | None],
                 given: dict[str, np.ndarray]) -> None:
        known, rule = shown
        if not {"token_ids", "length", "weight"} <= set(given):
            self.fail(identity, f"the tensors of the step lack token_ids, length or weight: {', '.join(sorted(given))}",
                      "store what the learner saw and the weight of every token")
            return
        lengths = [one.length for one in known]
        ids, weight = given["token_ids"].astype(np.int32), given["weight"]
        if given["length"].tolist() != lengths or len(ids) != sum(lengths) or len(weight) != len(ids):
            self.fail(identity, f"{len(ids)} tokens with {len(weight)} weights in {len(given['length'])} sequences were trained, "
                      f"the demonstrations have {sum(lengths)} in {len(lengths)}", "train what is recorded, whole")
            return
        policy = sum(int(one.trained(rule).sum()) for one in known)
        left = None if rule is None else sum(int(one.trained(None).sum()) for one in known) - policy
        if report.tokens != policy:
            self.fail(identity, f"the step reports {report.tokens} trained tokens, the policy's turns have {policy}",
                      "count the policy's own tokens")
        if report.repeated != left:
            self.fail(identity, f"the step reports {report.repeated} tokens left out for repeating, the recipe's rule leaves out "
                      f"{left}", "leave out what the recipe's rule says, and count it")
        self.left += left or 0
        start = 0
        for name, one in zip(report.demonstrations, known, strict=True):
            here = slice(start, start + one.length)
            start += one.length
            if hashed(ids[here]) != one.ids:
                self.fail(identity, f"the tokens that were trained are not those of {name}", "train the recorded tokens")
            elif not self._weights(identity, name, (one, rule), (weight[here], policy)):
                return

    def _weights(self, identity: str, name: str, shown: tuple[Known, Repeats | None], given: tuple[np.ndarray, int]) -> bool:
        """Zero outside the policy's turns and where they only repeat, one share of the mean inside them."""
        (one, rule), (weight, policy) = shown, given
        own = one.trained(rule)
        outside = np.flatnonzero((weight != 0) & ~own)
        if len(outside):
            at = int(outside[0])
            if mask(one.owned, one.length)[at]:
                self.fail(identity, f"{len(outside)} tokens that carry no loss have a weight: token {at} of {name} repeats what "
                          f"stands before it and weighs {weight[at]:.3g}", "leave out what the recipe's rule says")
                return False
            self.fail(identity, f"{len(outside)} tokens outside the policy's turns carry loss weight: token {at} of {name}, "
                      f"{one.owned.role_at(at)} text, weight {weight[at]:.3g}", ZERO)
            return False
        inside = np.flatnonzero(own & ~(np.abs(weight * policy - 1) <= WEIGHT_TOLERANCE))
        if len(inside):
            at = int(inside[0])
            self.fail(identity, f"{len(inside)} of the policy's tokens do not weigh 1/{policy}: token {at} of {name} weighs "
                      f"{weight[at]:.3g}", "average over the policy's tokens of the whole batch")
            return False
        return True


def by_programs(stage: Sft) -> int:
    """How many demonstrations of a stage programs write: what is not general, or its share of the mixture beside `data`."""
    rest = stage.steps * stage.batch - round(stage.steps * stage.batch * stage.general_share)
    if not stage.data:
        return rest
    return apportion(rest, {"traces": sum(stage.traces.values()), "data": sum(stage.data.values())})["traces"]


def _taken(due: Counter[int], text: int) -> bool:
    """Whether this text is still due; takes it off."""
    due[text] -= 1
    return due[text] >= 0


def _rules(run: RunIndex) -> set[Repeats]:
    """The rules of the recipe's stages for what carries no loss."""
    stages = run.recipe.settings.stages.values() if run.recipe is not None else ()
    return {stage.repeats for stage in stages if isinstance(stage, Sft) and stage.repeats is not None}


def mask(found: Owned, length: int) -> np.ndarray:
    """True for the policy's tokens."""
    own = np.zeros(length, dtype=bool)
    for start, end in found.spans:
        own[start:end] = True
    return own


def stated_mask(record: Demonstration) -> np.ndarray:
    """True for the tokens that `owners` gives to the policy."""
    return np.repeat([span.owner == "policy" for span in record.owners], [span.length for span in record.owners])


def hashed(ids: np.ndarray) -> bytes:
    """128 bits over token ids as int32."""
    return hashlib.sha256(ids.tobytes()).digest()[:16]
