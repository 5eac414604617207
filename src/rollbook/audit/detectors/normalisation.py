"""Stage 2: normalisation. Does the policy see the raw task, the whole raw task and nothing of its answer?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction

from rollbook.audit.detector import Detector, Row
from rollbook.audit.index import RunIndex, learns_text
from rollbook.audit.plan import excuse
from rollbook.audit.prompts import Renderer, contained, tokenizer_faults
from rollbook.audit.sources import foreign
from rollbook.records import Demonstration, Message, RawTask, SamplingEnvelope, Task, TokenizerFile
from rollbook.tasks.fim import restored
from rollbook.tasks.generators import GENERATORS
from rollbook.tasks.surface import derived, shows
from rollbook.tasks.survival import Templates, changes
from rollbook.tasks.units import expression_of

RENDERED = 4096     # tasks whose prompt is always rendered again; of later ones every 16th, by its hash
COMPUTED, SINGLE_TURN = "math.equivalent", "single_turn"        # how numbers are judged; the environment without tools
FORMATTER = "mend the formatter; what was trained on these prompts learned another problem, or the answer"


class NormalisationDetector(Detector):
    """Compares every prompt with its raw task, and the ids that were sampled from with the prompt as it renders."""

    stage, name = 2, "normalisation"
    absent = "the run holds no task"

    def __init__(self) -> None:
        super().__init__()
        self.templates = Templates()
        self.recipe_texts: dict[tuple[str, ...], str] = {}
        self.prompts: dict[str, int] = {}       # task -> hash of the ids its attempts start with
        self.renderer: Renderer | None = None
        self.rendered = self.harmless = 0
        self.kinds: Counter[str] = Counter()
        self.foreign: set[str] = set()
        self.outside = 0

    def record(self, run: RunIndex, identity: str, record: object) -> None:
        match record:
            case Task() | RawTask() if foreign(run):
                self.foreign.add(identity)
            case RawTask():
                self.templates.add(record)
            case TokenizerFile():
                self._tokenizer(run, identity, record)
            case SamplingEnvelope() if run.tokenizer_file is not None and record.template != run.tokenizer_file.template:
                self.fail(identity, f"it samples with the template {record.template[:12]}, the run keeps "
                          f"{run.tokenizer_file.template[:12]}", "render every prompt with the recorded template")
            case Demonstration():
                self._demonstration(run, identity, record)
            case _:
                pass

    def row(self, run: RunIndex, row: Row) -> None:
        task = run.tasks.get(row.trace.task)
        if task is None:
            if run.recipe is not None:
                self.fail(row.id, f"the contract of {row.trace.task} is not on record", "record every task before it is tried")
            return
        if row.trace.episode is not None and row.trace.episode.agent:       # it words its conversations as it likes
            self.outside += 1
            return
        segments = row.trace.segments
        found = hash(segments[0].token_ids)
        known = self.prompts.get(row.trace.task)
        if known is None:
            self.prompts[row.trace.task] = found
            if len(self.prompts) <= RENDERED or row.trace.task.endswith("0"):
                self._render(row, task)
        elif known != found:
            self.fail(row.id, f"an attempt at {row.trace.task} starts with other prompt ids than the first attempt at it",
                      "render every attempt's prompt from the task alone")
        owners = {segment.owner for segment in segments[1:]} - {"policy"}
        if row.trace.episode is not None:       # its own words between turns are held against the record in stage 7
            owners &= {"tool"}
        if owners and not task.tools:
            self.fail(row.id, f"the policy was shown tokens of {min(owners)} after the prompt, and the task permits no tool",
                      "show what the task's contract names, nothing else")

    def finish(self, run: RunIndex) -> None:
        if self.outside:
            self.note(f"{self.outside} attempts of an outside agent, whose prompts are its own and were not rendered again")
        for identity, task in run.tasks.items():
            if identity in self.foreign and identity not in run.sides:
                continue
            self.checked()
            for what, remedy in self._faults(run, task):
                self.kinds[what.partition(":")[0]] += 1
                self.fail(identity, what, remedy)
        self._recipe(run)
        self._made_again(run)
        if self.prompts and self.renderer is None and run.recipe is not None:
            self.fail("TokenizerFile", f"prompts of {len(self.prompts)} tasks were sampled from, and the run keeps no tokenizer "
                      "to render them again", "record the tokenizer and its template before the first attempt")
        elif self.prompts and self.renderer is None:
            self.note("the run keeps no tokenizer: prompts were not rendered again")
        elif self.prompts:
            self.note(f"prompts of {self.rendered} of {len(self.prompts)} attempted tasks rendered again and read back")
        for source in self.templates.seen:
            if words := self.templates.shared(source):
                self.note(f"prompts may leave out what every raw task of {source} says: {', '.join(sorted(words))}")
        if self.harmless:
            self.note(f"{self.harmless} raw tasks show their own answer")
        if len(self.kinds) > 1:
            self.note(", ".join(f"{kind} {count}" for kind, count in self.kinds.most_common()))

    def _tokenizer(self, run: RunIndex, identity: str, record: TokenizerFile) -> None:
        tokenizer = run.tokenizer
        if tokenizer is not None:
            self.renderer = Renderer(tokenizer)
            for fault in tokenizer_faults(record, tokenizer):
                self.fail(identity, fault, "store the tokenizer that the run speaks with")

    def _render(self, row: Row, task: Task) -> None:
        if self.renderer is None:
            return
        self.rendered += 1
        ids = row.trace.segments[0].token_ids
        expected = self.renderer.ids(task)
        if ids != expected and row.trace.episode is not None:
            if not contained(task.prompt, self.renderer.tokenizer.decode(ids)):
                self.fail(row.id, f"the prompt of {row.trace.task} does not hold its messages",
                          "render the prompt from the task's messages")
        elif ids != expected:
            shown = self.renderer.tokenizer.decode(ids)
            self.fail(row.id, f"the prompt of {row.trace.task} was sent as {shown[-80:]!r} ({len(ids)} ids), its messages render "
                      f"to {len(expected)} ids", "render the prompt from the task's messages")
        elif (lost := self.renderer.lost(task.prompt, ids)) is not None:
            self.fail(row.id, f"the template changes the prompt of {row.trace.task}: {lost}", "mend the chat template")

    def _demonstration(self, run: RunIndex, identity: str, shown: Demonstration) -> None:
        """Demonstrations show a task as its attempts do."""
        spoken = next((place for place, message in enumerate(shown.messages) if message.role == "assistant"), None)
        prompt = shown.messages[:spoken]
        task = run.tasks.get(shown.task)
        adds = run.recipe is not None and run.recipe.settings.environment is not None
        same = task is None or prompt == task.prompt or (adds and contained(task.prompt, _text(prompt)))
        if task is not None and learns_text(run):
            same = restored(shown.messages[-1].content).startswith(f"{task.prompt[-1].content}\n")
        if task is not None and not same:
            self.fail(identity, f"it shows {shown.task} as {_text(prompt)[-80:]!r}, the task's prompt is "
                      f"{_text(task.prompt)[-80:]!r}", "demonstrate the prompt that will be asked")
        if any(message.origin == "unstated" for message in shown.messages):
            self.fail(identity, "a message does not state what it was made from", "give every message its origin")

    def _faults(self, run: RunIndex, task: Task) -> Iterator[tuple[str, str]]:
        """What is wrong with one task: (evidence, remedy)."""
        raw = run.raws.get(task.raw)
        if raw is None:
            yield f"parent missing: {task.raw} is not on record", "record every raw task before its contract"
            return
        if not (task.predicate.strip() and task.initial_state.strip() and task.termination and task.budget.max_tokens > 0):
            yield "contract incomplete: it lacks a predicate, an initial state, a budget or an end", "complete the contract"
        yield from self._contract(run, task, raw)
        origins = Counter(message.origin for message in task.prompt)
        if origins["unstated"] or not origins["raw"]:
            yield (f"origin missing: {origins['unstated']} of {len(task.prompt)} messages do not state what they were made from, "
                   f"{origins['raw']} come from the raw task", "give every message its origin")
        self.recipe_texts.setdefault(tuple(m.content for m in task.prompt if m.origin == "recipe"), task.id)
        shown = "\n".join(message.content for message in task.prompt if message.origin != "recipe")
        for form in derived(task.reference, shown, raw.content):
            yield f"answer shown: the prompt has the reference {form}: {shown[-80:]!r}", FORMATTER
        for change in changes(task, raw, self.templates.shared(raw.source)):
            yield f"{change.kind}: {change.detail[:120]!r} between {raw.content[-80:]!r} and {shown[-80:]!r}", FORMATTER
        self.harmless += shows(task.reference, raw.content)
        if raw.lineage.get("generator") in GENERATORS and not _agrees(task, raw):
            yield f"reference wrong: {task.reference!r} is not the value of {raw.content[-80:]!r}", FORMATTER

    def _contract(self, run: RunIndex, task: Task, raw: RawTask) -> Iterator[tuple[str, str]]:
        """Budget, tools and predicate that neither the recipe nor the raw task gives."""
        if run.recipe is None or run.recipe.settings.environment is not None or raw.lineage.get("generator") not in GENERATORS:
            return
        if task.budget.max_tokens != run.recipe.settings.tasks.max_tokens:
            yield (f"budget differs: the contract allows {task.budget.max_tokens} tokens, the recipe "
                   f"{run.recipe.settings.tasks.max_tokens}", "give every task the recipe's budget")
        if task.predicate != COMPUTED:
            yield (f"predicate differs: {task.predicate!r} decides about a computed number, not {COMPUTED!r}",
                   "judge a number by its value")
        if task.tools and run.images and all(image.name == SINGLE_TURN for image in run.images.values()):
            yield (f"tools differ: {', '.join(task.tools)} permitted, and no environment of the run has tools",
                   "permit what the environment offers")

    def _made_again(self, run: RunIndex) -> None:
        """Every contract is, field for field, the one that the recipe makes of its raw task."""
        due = run.generated
        if isinstance(due, str) or excuse(run.ledger.manifest) is not None:
            return
        for identity in run.sides:
            task = run.tasks[identity]
            wanted = due.contracts.get(task.raw)
            unlike = [] if wanted is None else [name for name in Task.__slots__ if getattr(task, name) != getattr(wanted, name)]
            if unlike and wanted is not None:
                one = unlike[0]
                self.fail(identity, f"contract differs: {', '.join(unlike)} of the task are not what the recipe makes of its raw "
                          f"task: {one} is {getattr(task, one)!r}, due is {getattr(wanted, one)!r}"[:300], FORMATTER)

    def _recipe(self, run: RunIndex) -> None:
        """What comes from the recipe is its own text, the same for every task: it cannot depend on an answer."""
        if len(self.recipe_texts) > 1:
            one, other = list(self.recipe_texts.items())[:2]
            self.fail(other[1], f"recipe text differs: {len(self.recipe_texts)} texts stand in prompts as the recipe's, such as "
                      f"{_joined(one[0])[-60:]!r} and {_joined(other[0])[-60:]!r}", FORMATTER)
        if run.recipe is None:
            return
        if run.recipe.settings.environment is not None:
            for text in filter(None, self.recipe_texts):
                self.note(f"the environment's own text stands before every task: {_joined(text)[:60]!r}")
            return
        own = run.recipe.settings.tasks.system_prompt
        for text, task in self.recipe_texts.items():
            if text != ((own,) if own else ()):
                self.fail(task, f"recipe text differs: {_joined(text)[-60:]!r} stands in the prompt, the recipe says "
                          f"{own[-60:]!r}", FORMATTER)


def _agrees(task: Task, raw: RawTask) -> bool:
    found = expression_of(raw.content)
    try:
        return found is None or Fraction(task.reference) == found.value
    except (ValueError, ZeroDivisionError):
        return False


def _text(messages: Sequence[Message]) -> str:
    return " / ".join(message.content for message in messages)


def _joined(text: Sequence[str]) -> str:
    return " / ".join(text)
