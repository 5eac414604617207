"""Curation at size, and how many planted faults it finds.

    python benchmarks/curation.py speed [--tasks 200000] [--out FOLDER]
    python benchmarks/curation.py faults [--tasks 4000]

`speed` writes generated word problems, curates them through every stage that needs no model but the embedding, and prints minutes
and the largest memory seen. `faults` plants faults of each kind and prints how many were found and how many sound rows were
suspected; a fault is found when a stage that looks for its kind rejects or corrects the row.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from rollbook.cli_curate import show
from rollbook.orchestration.curation import helpers, run_curation
from rollbook.tasks.curation import Candidate, Helpers
from rollbook.tasks.curation.consensus import CodeConsensus
from rollbook.tasks.curation.filters import Decontaminate, ExactDuplicates, NearDuplicates, NgramDuplicates
from rollbook.tasks.curation.grading import MajorityDisagrees
from rollbook.tasks.curation.pipeline import Pipeline
from rollbook.tasks.curation.units import Split, crossings, units

MINUTES, GIB = 25.0, 2.0
WHO = "Tom Ana Lee Maria Jonas Priya Omar Greta Hugo Mei Sofia Karim Elena Paul Nina Viktor".split()
THING = ("apples books coins stamps pencils marbles tickets shells cards bottles tiles ribbons badges lamps bricks jars plates "
         "candles ropes boxes").split()
PLACE = ("the market", "the library", "a fair", "the harbour", "his uncle's barn", "a small museum", "the old station",
         "a school",
         "the flower shop", "a mountain hut")
STORY = (("{who} has {a} {thing} and receives {b} more from {place}. How many {thing} are there now?", lambda a, b: a + b),
         ("At {place}, {who} counts {a} {thing} in the morning, of which {b} are sold by noon. How many {thing} remain?",
          lambda a, b: a - b),
         ("Every one of {b} shelves at {place} holds {a} {thing}, says {who}. How many {thing} do the shelves hold together?",
          lambda a, b: a * b),
         ("{who} packs {a} {thing} for {place} and then packs twice as many again plus {b}. How many {thing} were packed in all?", lambda a, b: 3 * a + b),
         ("{who} wants {a} {thing} from {place} but each of {b} friends asks for one too. How many {thing} must be bought?", lambda a, b: a + b),
         ("Of {a} {thing} kept at {place}, {who} gives away {b} on Monday and as many on Tuesday. How many {thing} are left?", lambda a, b: a - 2 * b),
         ("{who} lines up {a} rows of {b} {thing} at {place} and removes one whole row. How many {thing} stay in line?", lambda a, b: (a - 1) * b),
         ("A crate at {place} weighs {a} kilograms and holds {thing}; {who} adds {b} kilograms. What is the weight in kilograms?", lambda a, b: a + b))
TAILS = ("", " Give a whole number.", " Nothing else was lost or found that day.", " Assume that nobody made a mistake while counting.")


def problems(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Distinct word problems with true references and the grades of a grader that is right more often than not."""
    rng = random.Random(seed)
    seen = set()
    while len(seen) < count:
        text, answer = rng.choice(STORY)
        a, b = rng.randint(20, 9999), rng.randint(2, 999)
        problem = text.format(who=rng.choice(WHO), thing=rng.choice(THING), place=rng.choice(PLACE), a=a, b=b) + rng.choice(TAILS)
        if problem in seen:
            continue
        seen.add(problem)
        yield {"problem": problem, "reference": str(answer(a, b)), "kind": "math", "grades": {"g": grade(rng, answer(a, b))}}


def grade(rng: random.Random, answer: int) -> dict[str, Any]:
    """Eight answers: mostly right ones; the wrong ones differ from each other, as mistakes do."""
    rate = rng.uniform(0.3, 0.95)
    answers = [str(answer) if rng.random() < rate else str(answer + rng.randint(1, 60)) for _ in range(8)]
    return {"answers": answers, "passed": [one == str(answer) for one in answers]}


def speed(count: int, out: Path) -> None:
    """The whole pipeline on `count` tasks."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "raw.jsonl").open("w") as file:
        for row in problems(count, 1):
            file.write(json.dumps(row) + "\n")
    with (out / "eval.jsonl").open("w") as file:
        for row in problems(1000, 2):
            file.write(json.dumps(row) + "\n")
    (out / "curation.yaml").write_text(
        "schema: rollbook.curation/1\nname: bench\ninput: [raw.jsonl]\nstages:\n"
        "  - {kind: Completeness}\n  - {kind: Verifiability}\n  - {kind: ExactDuplicates}\n  - {kind: NgramDuplicates}\n"
        "  - {kind: NearDuplicates}\n  - {kind: Decontaminate, protocols: {held: eval.jsonl}}\n"
        "  - {kind: PassRate, grader: g, low: 1, high: 8, of: 8}\n  - {kind: MajorityDisagrees, grader: g}\n"
        "  - {kind: SemanticClusters, cosine: 0.97}\n  - {kind: Split, heldout: 1000, seed: 1}\n")
    began = time.monotonic()
    try:
        run_curation(out / "curation.yaml", out / "set", show)
    finally:
        minutes = (time.monotonic() - began) / 60
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        print(f"{count} tasks: {minutes:.1f} minutes (target {MINUTES:g}), {own:.2f} GiB in this process and {workers:.2f} in the "
              f"largest worker (target {GIB:g})")


def rows_of(documents: list[dict[str, Any]]) -> list[Candidate]:
    return [Candidate(number=number, problem=one["problem"], reference=one["reference"], kind=one.get("kind", "math"),
                      grades=one.get("grades", {}), lineage=one.get("lineage", {}), more=one.get("more", {}))
            for number, one in enumerate(documents, 1)]


def duplicates(base: list[dict[str, Any]], rng: random.Random) -> list[dict[str, Any]]:
    """Copies in another case, with other punctuation and spaces, with a word put in or exchanged."""
    made = []
    for one in rng.sample(base, len(base) // 10):
        text = one["problem"]
        way = rng.randrange(4)
        words = text.split(" ")
        if way == 0:
            text = text.upper()
        elif way == 1:
            text = text.replace(".", " .").replace("  ", " ") + "  "
        elif way == 2:
            text = text + " Please."
        else:
            place = next(i for i, word in enumerate(words) if word in ("has", "counts", "packs", "wants", "holds", "lines", "says",
                                                                       "gives", "keeps", "kept", "weighs", "Monday", "there", "the"))
            text = " ".join([*words[:place], words[place] + "," if rng.random() < 0.5 else words[place].upper(), *words[place + 1:]])
        made.append({**one, "problem": text})
    return made


def leaks(items: list[dict[str, Any]], rng: random.Random) -> list[dict[str, Any]]:
    """Evaluation items as they are, in capitals, with a sentence before or after, and inside a longer task."""
    made = []
    for one in items:
        text = one["problem"]
        made.append({**one, "problem": rng.choice((text, text.upper(), f"Read carefully. {text}", f"{text} Explain every step.",
                                                   f"First think about 3 other things. {text} Then write 2 sentences about it."))})
    return made


SOLUTIONS = ("print(sum(map(int, input().split())))", "a = input().split()\nprint(sum(int(x) for x in a))",
             "total = 0\nfor x in input().split():\n    total += int(x)\nprint(total)", "print(eval('+'.join(input().split())))")


def code_rows(count: int, wrong: int, rng: random.Random) -> list[Candidate]:
    """Sums with four right solutions; `wrong` of the rows have one expected output that is not the sum."""
    found = []
    for number in range(count):
        tests = []
        for _ in range(4):
            values = [rng.randint(0, 99) for _ in range(3)]
            tests.append({"input": " ".join(map(str, values)) + "\n", "output": f"{sum(values)}\n"})
        if number < wrong:
            tests[rng.randrange(4)]["output"] = f"{rng.randint(1000, 2000)}\n"
        found.append(Candidate(number=number, problem=f"Add the {number} numbers", reference=None, kind="code",
                               more={"tests": tests, "solutions": list(SOLUTIONS)}))
    return found


def faults(count: int) -> bool:
    """Plants, looks, prints the table; whether every kind is found and nothing sound is suspected too often."""
    rng = random.Random(7)
    base = list(problems(count, 3))
    folder = Path(tempfile.mkdtemp())
    with helpers(Pipeline(name="faults", input=(), stages=(CodeConsensus(),), graders={}), folder, folder) as made:
        results = [("duplicated tasks", *_duplicated(base, made, rng)), ("leaked evaluation items", *_leaked(base, folder, made, rng)),
                   ("wrong references", *_wrong_references(base, made, rng)), ("wrong tests", *_wrong_tests(made, rng)),
                   ("siblings across splits", *_siblings(base, made, rng))]
    print(f"{'fault':<26}{'planted':>8}{'found':>8}{'share':>9}{'sound':>8}{'suspected':>11}{'share':>9}")
    fine = True
    for name, planted, found, sound, suspected in results:
        print(f"{name:<26}{planted:>8}{found:>8}{found / planted:>9.2%}{sound:>8}{suspected:>11}{suspected / sound:>9.2%}")
        fine &= found / planted >= 0.98 and suspected / sound < 0.02
    return fine


Counted = tuple[int, int, int, int]


def _duplicated(base: list[dict[str, Any]], made: Helpers, rng: random.Random) -> Counted:
    planted = duplicates(base, rng)
    rows = rows_of([*base, *planted])
    gone: set[int] = set()
    for stage in (ExactDuplicates(), NgramDuplicates(), NearDuplicates()):
        done = stage.apply(rows, made)
        gone |= set(done.rejected)
        rows = done.kept
    return len(planted), sum(number > len(base) for number in gone), len(base), sum(number <= len(base) for number in gone)


def _leaked(base: list[dict[str, Any]], folder: Path, made: Helpers, rng: random.Random) -> Counted:
    items = list(problems(len(base) // 10, 4))
    (folder / "eval.jsonl").write_text("".join(json.dumps(one) + "\n" for one in items))
    planted = leaks(items, rng)
    done = Decontaminate(protocols={"held": "eval.jsonl"}).apply(rows_of([*base, *planted]), made)
    return (len(planted), sum(number > len(base) for number in done.rejected), len(base),
            sum(number <= len(base) for number in done.rejected))


def _wrong_references(base: list[dict[str, Any]], made: Helpers, rng: random.Random) -> Counted:
    """References that are not the answer, on problems that the grader solves at least six times of eight."""
    known = [one for one in base if sum(one["grades"]["g"]["passed"]) >= 6]
    rows = rows_of([{**one, "reference": str(int(one["reference"]) + rng.randint(1, 9))} if place < len(known) // 5 else one
                    for place, one in enumerate(known)])
    rejected = MajorityDisagrees(grader="g").apply(rows, made).rejected
    planted = len(known) // 5
    return planted, sum(number <= planted for number in rejected), len(known) - planted, sum(n > planted for n in rejected)


def _wrong_tests(made: Helpers, rng: random.Random) -> Counted:
    rows = code_rows(60, 20, rng)
    done = CodeConsensus().apply(rows, made)
    kept = {row.number: row for row in done.kept}
    mended = [row.number not in kept or kept[row.number].more["tests"] != row.more["tests"] for row in rows]
    return 20, sum(mended[:20]), 40, sum(mended[20:])


def _siblings(base: list[dict[str, Any]], made: Helpers, rng: random.Random) -> Counted:
    """A sound split, then held-out rows replaced by siblings of training rows: another number in the text, or the same parent."""
    rows = [replace(row, lineage={"parent": f"p{row.number}"}) for row in rows_of(base[:1500])]
    split = Split(heldout=300, seed=1).apply(rows, made).kept
    train = [row for row in split if row.more["side"] == "train"]
    planted, spoiled = 0, []
    for row in split:
        if row.more["side"] == "heldout" and planted < 100:
            planted += 1
            other = rng.choice(train)
            text = other.problem if planted % 2 else row.problem
            digits = "".join(str((int(c) + 1) % 10) if c.isdigit() else c for c in text) if planted % 2 else text
            spoiled.append(replace(row, problem=digits, lineage=row.lineage if planted % 2 else other.lineage))
        else:
            spoiled.append(row)
    numbers = set(crossings(spoiled))
    wrong = {one.number for one, was in zip(spoiled, split, strict=True) if one is not was}
    unit = dict(zip((row.number for row in split), units(spoiled), strict=True))
    drawn_in = {unit[number] for number in wrong}          # a sound row in the unit of a planted one does stand on both sides now
    sound = [row.number for row in split if row.more["side"] == "heldout" and unit[row.number] not in drawn_in]
    return planted, len(numbers & wrong), max(len(sound), 1), len(numbers & set(sound))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "faults"))
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.what == "speed":
        speed(given.tasks or 200_000, given.out or Path(tempfile.mkdtemp()))
    elif not faults(given.tasks or 4000):
        raise click.ClickException("a kind of fault is found too rarely, or sound rows are suspected too often")


if __name__ == "__main__":
    main()
