"""Training tasks compared with protected ones: what counts as the same, what does not."""

import dataclasses
import random

import pytest

from rollbook.records import Budget, Message, RawTask, Task, content_id
from rollbook.tasks import Likeness, Side, decontaminate, ids_hash
from rollbook.tasks.decontamination import near_duplicates, told_by_start

USUAL = Likeness(ngram=13, jaccard=0.8, boilerplate=0.05)
WORDS = [f"{first}{second}" for first in ("ka", "lo", "mi", "nu", "re", "so") for second in ("ban", "dor", "fel", "gim", "hut")]


def side(*texts: str, lineage=None, origin="raw") -> Side:
    source = "a book" if lineage is None else "reasoning-gym 1 chain_sum"
    raws = tuple(RawTask(source=source, licence="x", acquired_at="2026-11-29", content=text, language="en", domain="d",
                         sensitive=(), lineage=lineage or {}) for text in texts)
    tasks = tuple(Task(raw=content_id(raw), family="f", prompt=(Message(role="user", content=raw.content, origin=origin),),
                       reference="1", canonical=raw.content, predicate="p", initial_state="prompt", tools=(),
                       budget=Budget(max_tokens=8), termination=("end_of_turn",)) for raw in raws)
    return Side(tasks=tasks, raws=raws)


def prose(seed: int, words: int = 30) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def methods(train: Side, protected: Side, likeness: Likeness = USUAL) -> dict[tuple[int, int], set[str]]:
    """Which methods found which pair of places."""
    found: dict[tuple[int, int], set[str]] = {}
    ids = [[task.id for task in one.tasks] for one in (train, protected)]
    for overlap in decontaminate(train, protected, protocol="p", likeness=likeness).found:
        found.setdefault((ids[0].index(overlap.train), ids[1].index(overlap.protected)), set()).add(overlap.method)
    return found


def test_the_same_text_in_other_typography_is_found_by_every_method():
    text = prose(1)
    changed = text.upper().replace(" ", "  ").replace("A", "\uff21")
    assert methods(side(prose(2), changed), side(text, prose(3))) == {(1, 0): {"exact", "ngram", "minhash"}}


def test_a_shared_run_of_thirteen_words_is_found_and_one_of_twelve_is_not():
    run = prose(1, 13)
    twelve = " ".join(run.split()[:12])
    protected = side(f"{prose(4)} {run} {prose(5)}")
    assert methods(side(f"{prose(6)} here {run} ends {prose(7)}"), protected) == {(0, 0): {"ngram"}}
    assert methods(side(f"{prose(6)} here {twelve} ends {prose(7)}"), protected) == {}


def test_a_text_with_a_few_words_changed_is_a_near_duplicate_and_one_with_many_is_not():
    words = prose(1, 100).split()
    few = [*words[:25], "other", *words[26:75], "words", *words[76:]]
    many = [word if index % 5 else "other" for index, word in enumerate(words)]
    assert "minhash" in methods(side(" ".join(few)), side(" ".join(words)))[0, 0]
    assert methods(side(" ".join(many)), side(" ".join(words))) == {}


def test_the_score_of_a_near_duplicate_is_the_jaccard_index_of_its_word_triples():
    words = prose(1, 60).split()
    other = [*words[:-1], "other"]
    triples = [{tuple(text[i:i + 3]) for i in range(58)} for text in (words, other)]
    [(one, two, score)] = near_duplicates([" ".join(other)], [" ".join(words)], USUAL)
    assert (one, two) == (0, 0)
    assert score == pytest.approx(len(triples[0] & triples[1]) / len(triples[0] | triples[1]))


def test_a_copy_inside_a_common_template_is_found():
    opening = prose(9, 20)
    sides = [[f"{opening} {prose(100 * half + index, 20)}" for index in range(60)] for half in (1, 2)]
    copied = sides[1][7].removeprefix(opening)
    found = methods(side(*sides[0][:-1], f"{opening} Please: {copied}"), side(*sides[1]))
    assert set(found) == {(59, 7)} and "ngram" in found[59, 7]


def test_what_many_tasks_of_both_sides_share_is_their_template_and_no_overlap():
    opening = prose(9, 20)
    sides = [side(*(f"{opening} {prose(100 * half + index, 16)}" for index in range(60))) for half in (1, 2)]
    assert methods(*sides) == {}
    assert methods(*sides, dataclasses.replace(USUAL, boilerplate=1.0)) != {}


def test_what_comes_from_the_recipe_does_not_count():
    one, other = side("add 1"), side("take 2")
    recipe = Message(role="system", content=prose(1, 40), origin="recipe")
    with_prompt = [dataclasses.replace(half, tasks=tuple(dataclasses.replace(task, prompt=(recipe, *task.prompt))
                                                         for task in half.tasks)) for half in (one, other)]
    assert methods(*with_prompt) == {}


LINEAGE = {"generator": "chain_sum", "seed": "1", "index": "0"}


def test_likeness_is_skipped_with_a_reason_only_between_two_procedural_sides():
    sums, others = side("Add 1 + 2 =", lineage=LINEAGE), side("Add 1 + 3 =", lineage={**LINEAGE, "index": "1"})
    both = decontaminate(sums, others, protocol="p", likeness=USUAL)
    assert set(both.skipped) == {"ngram", "minhash"} and all(both.skipped.values())
    assert decontaminate(sums, side("Add 1 + 3 ="), protocol="p", likeness=USUAL).skipped == {}
    assert methods(sums, side("Add 1 + 2 =", lineage={**LINEAGE, "index": "1"})) == {(0, 0): {"exact"}}


@pytest.mark.parametrize("lineage", [{"generator": "chain_sum"}, {**LINEAGE, "generator": "sudoku"},
                                     {**LINEAGE, "generator": "products"}])
def test_a_lineage_that_does_not_hold_is_not_procedural(lineage):
    assert not side("Add 1 + 2 =", lineage=lineage).procedural
    assert not side("A long story", lineage=LINEAGE).procedural


def test_the_record_names_both_sides_their_order_and_the_thresholds():
    train, protected = side(prose(1), prose(2)), side(prose(3))
    found = decontaminate(train, protected, protocol="held", likeness=USUAL)
    assert (found.protocol, found.train_count, found.protected_count) == ("held", 2, 1)
    assert found.train == ids_hash([task.id for task in train.tasks]) != ids_hash([task.id for task in train.tasks[::-1]])
    assert (found.ngram, found.jaccard, found.boilerplate) == (13, 0.8, 0.05)
    assert found == decontaminate(train, protected, protocol="held", likeness=USUAL)


def test_likeness_is_skipped_where_all_tasks_have_one_text_and_each_a_start_of_its_own_and_nowhere_else():
    def started(made: Side, *starts: str) -> Side:
        pairs = zip(made.tasks, starts, strict=True)
        return Side(tasks=tuple(dataclasses.replace(task, initial_state=start) for task, start in pairs), raws=made.raws)
    train, protected = started(side("Guess it.", "Guess it."), "seed 0", "seed 1"), started(side("Guess it."), "seed 2")
    found = decontaminate(train, protected, protocol="heldout", likeness=USUAL)
    assert found.found == () and set(found.skipped) == {"exact", "ngram", "minhash"}
    for text, start in (("Guess it.", "seed 1"), ("Guess it.", ""), ("Guess that, please.", "seed 2")):
        other = started(side(text), start)
        assert not told_by_start([task.prompt for task in (*train.tasks, *other.tasks)],
                                 [task.initial_state for task in (*train.tasks, *other.tasks)])
    assert decontaminate(train, started(side("Guess it."), "seed 1"), protocol="heldout", likeness=USUAL).found
