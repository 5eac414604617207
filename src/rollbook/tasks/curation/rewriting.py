"""Stages that write: multiple choice to statements by a chat model with a judge, and general data mixed in."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rollbook.records import ChatModel, Message, Question, Unrated
from rollbook.records.sandbox import Language
from rollbook.tasks.curation.filters import Filtered, Helpers
from rollbook.tasks.curation.rows import Candidate, read_candidates
from rollbook.tasks.errors import TaskError

REWRITE = """Rewrite this multiple-choice problem as a problem that asks for its answer directly.
Keep every number, condition and symbol. Do not mention options or letters. Do not give the answer.
Reply with the problem alone.

{problem}

Options:
{options}"""
JUDGE = """Here is a multiple-choice problem and a version of it without options.

Original:
{problem}

Options:
{options}

Version:
{version}

Can the version be answered without seeing the options, does it ask for the same thing with the same numbers, and does it not
give the answer away? Reply yes or no."""
NO_STATEMENT = re.compile(r"\b(?:all|none|both|neither|either|two|any) of (?:the )?(?:above|these|them)\b|"
                          r"\bcannot be determined\b|^\s*(?:both|neither)\b", re.IGNORECASE)
AMONG = re.compile(r"\bwhich (?:one )?of (?:the following|these)\b", re.IGNORECASE)
MEASURED = ("scores", "traces")     # beside grades, what was measured of a row as it was
NUMBERS = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceToStatement:
    """Rewrites multiple-choice rows as statement rows whose reference is the right option's text; a judge must accept each one.

    Rows whose right option only means something beside the others are rejected. Grades, scores and traces of the choice go: they
    say nothing of the statement.
    """

    max_tokens: int = 512

    def apply(self, rows: Sequence[Candidate], helpers: Helpers) -> Filtered:
        chat: ChatModel = helpers.need("chat", "ChoiceToStatement")     # type: ignore[assignment]
        fit = {row.number: right for row in rows if row.kind == "choice" and isinstance(right := right_option(row), int)}
        asked = [row for row in rows if row.number in fit]
        said = chat.answer([_question("rewrite", row, REWRITE) for row in asked], max_tokens=self.max_tokens)
        _answering(said, "rewriting")
        versions = dict(zip((row.number for row in asked), said, strict=True))
        judged = [row for row in asked if isinstance(versions[row.number], str) and not _lost(row, str(versions[row.number]))]
        opinions = chat.answer([_question("judge", row, JUDGE, version=str(versions[row.number]).strip()) for row in judged],
                               max_tokens=4)
        _answering(opinions, "judging")
        opinion = dict(zip((row.number for row in judged), opinions, strict=True))
        done = Filtered(kept=[])
        for row in rows:
            fate = self._fate(row, fit, versions, opinion)
            if isinstance(fate, str):
                done.rejected[row.number] = fate
            else:
                done.changed["rewritten as a statement"] += fate is not row
                done.kept.append(fate)
        return done

    def _fate(self, row: Candidate, fit: dict[int, int], versions: dict[int, str | Unrated],
              opinion: dict[int, str | Unrated]) -> Candidate | str:
        if row.kind != "choice":
            return row
        if row.number not in fit:
            return str(right_option(row))
        version = versions[row.number]
        if isinstance(version, Unrated):
            return f"rewriting: {version.code}"
        if row.number not in opinion:
            return _lost(row, version)
        answer = opinion[row.number]
        if isinstance(answer, Unrated):
            return f"judging: {answer.code}"
        word = answer.strip().strip(".!").casefold()
        if word not in ("yes", "no"):
            return "the judge answered nonsense"
        if word == "no":
            return "the judge refused the statement"
        more = {key: value for key, value in row.more.items() if key not in ("options", *MEASURED)}
        right = str(row.more["options"][fit[row.number]]).strip()
        return replace(row, kind="math", problem=version.strip(), reference=right, grades={},
                       more={**more, "rewritten_from": row.problem})


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLanguages:
    """Asks for code rows that read standard input and print in each of `languages`, one row for each (2506.10910 section 4).

    `ask` maps a language to the sentence that is put behind the problem. Such rows share their lineage, so that no split parts
    them; solutions, grades, scores and traces stay with the row of their own language. Rows with a function to call are left as
    they are.
    """

    ask: Mapping[Language, str]

    def apply(self, rows: Sequence[Candidate], helpers: Helpers) -> Filtered:
        if not self.ask:
            raise TaskError("CodeLanguages.ask names no language", got="none", fix="ask: {python: .., cpp: ..}")
        done = Filtered(kept=[])
        after = max((row.number for row in rows), default=0)
        for row in rows:
            if row.kind != "code" or row.more.get("function"):
                done.kept.append(row)
                continue
            for place, (language, sentence) in enumerate(self.ask.items()):
                after += place > 0
                done.added += place > 0
                done.changed[f"asked for in {language}"] += 1
                done.kept.append(_in(row, language, sentence, row.number if not place else after))
        return done


def _in(row: Candidate, language: Language, sentence: str, number: int) -> Candidate:
    own = (row.more.get("language") or "python") == language
    more = {key: value for key, value in row.more.items() if own or key not in ("solutions", *MEASURED)}
    family = row.lineage.get("parent") or row.digest().hex()
    return replace(row, number=number, problem=f"{row.problem.rstrip()}\n\n{sentence}", lineage={**row.lineage, "parent": family},
                   grades=row.grades if own else {}, more={**more, "language": language})


@dataclass(frozen=True, slots=True, kw_only=True)
class MixGeneral:
    """Adds rows of a file of general data until they are `share` of all; each at most once, chosen by `seed`."""

    file: str
    share: float
    seed: int

    def apply(self, rows: Sequence[Candidate], helpers: Helpers) -> Filtered:
        if not 0 < self.share < 1:
            raise TaskError("MixGeneral.share lies between 0 and 1", got=str(self.share))
        unread: Counter[str] = Counter()
        held = list(read_candidates([helpers.folder / self.file], unread))
        wanted = round(self.share / (1 - self.share) * len(rows))
        if wanted > len(held):
            raise TaskError(f"{self.file} has too few rows for a share of {self.share:g}", got=f"{len(held)} of {wanted}",
                            fix="give more general data, or a smaller share")
        last = max((row.number for row in rows), default=0)
        chosen = random.Random(f"general/{self.seed}").sample(held, wanted)
        added = [replace(row, number=last + place, kind="general") for place, row in enumerate(chosen, 1)]
        return Filtered(kept=[*rows, *added], added=len(added), notes={"general rows": len(added)} | {
            f"unreadable: {why}": count for why, count in sorted(unread.items())})


def right_option(row: Candidate) -> int | str:
    """The place of the right option, or why the row cannot be a statement."""
    options = [str(one) for one in row.more.get("options") or ()]
    letter = (row.reference or "").strip().strip("().").upper()
    place = ord(letter) - ord("A") if len(letter) == 1 else -1
    if not 0 <= place < len(options):
        return "no right option"
    if NO_STATEMENT.search(options[place]):
        return "the right option refers to others"
    return "asks which of the options" if AMONG.search(row.problem) else place


def _lost(row: Candidate, version: str) -> str:
    """What a rewriting lacks or still has, empty where nothing: it says nothing, lost a number, shows lettered options."""
    if not version.strip():
        return "rewriting said nothing"
    if Counter(NUMBERS.findall(row.problem)) - Counter(NUMBERS.findall(version)):
        return "rewriting lost a number"
    return "rewriting kept the options" if re.search(r"(?:^|\n)\s*\(?[A-E][.)]\s", version) else ""


def _answering(said: Sequence[str | Unrated], what: str) -> None:
    """TaskError where a model that was asked answered nothing at all: the rows are not to blame, the stage is to run again."""
    lost = Counter(one.code for one in said if isinstance(one, Unrated))
    if said and lost.total() == len(said) and set(lost) <= {"unavailable", "timeout"}:
        raise TaskError(f"the chat model answered none of {len(said)} questions ({what})",
                        got=", ".join(f"{code} {count}" for code, count in sorted(lost.items())),
                        why="all rows would be rejected, and stay so", fix="see that it can be reached, and run again")


def _question(key: str, row: Candidate, template: str, **more: str) -> Question:
    options = "\n".join(f"{chr(ord('A') + place)}. {option}" for place, option in enumerate(row.more.get("options") or ()))
    parts = {"problem": row.problem, "options": options, **more}
    text = re.sub(r"\{(\w+)\}", lambda match: parts.get(match[1], match[0]), template)
    return Question(key=f"{key}/{row.number}", messages=(Message(role="user", content=text, origin="program"),))
