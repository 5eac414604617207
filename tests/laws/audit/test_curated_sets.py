"""The audit of a run's curated set: whatever is missing, exchanged or does not close is found."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from rollbook.audit.curated import curated_faults
from rollbook.records import CuratedSet, CurationStage, content_id
from rollbook.records.recipe import TaskSettings
from rollbook.tasks.curated import rows_in
from rollbook.tasks.curation.rows import rows_hash

DATA = b'{"kind":"math","problem":"4 + 3 =","reference":"7","side":"train"}\n'
AFTER = rows_hash(row.digest() for row in rows_in(DATA))


def stage(number, before, after, went_in, came_out):
    return CurationStage(number=number, kind="Completeness", settings="s", before=before, after=after, count_in=went_in,
                         count_out=came_out, rejected={"empty problem": went_in - came_out}, added=0, changed={}, notes={})


STAGES = (stage(1, "a", "b", 3, 2), stage(2, "b", AFTER, 2, 1))
MADE = CuratedSet(name="sums", tasks="9c" * 32, rows=1, sides={"train": 1}, stages=tuple(map(content_id, STAGES)), sources={},
                  unread={}, pipeline="p")
TASKS = TaskSettings(train=1, heldout=0, seed=1, system_prompt="", max_tokens=8, curated="tasks/sums", curated_hash=MADE.tasks)


def faults(**changed):
    stages = changed.pop("stages", STAGES)
    held = {"recipe": SimpleNamespace(settings=SimpleNamespace(tasks=TASKS)), "curated": MADE, "kept_set": (MADE, DATA),
            "generated": object(), "curation": {content_id(one): one for one in stages}} | changed
    return [evidence for evidence, _ in curated_faults(SimpleNamespace(**held))]


def test_a_set_that_is_kept_and_accounted_for_has_no_fault_nor_has_a_run_without_one():
    assert faults() == []
    assert faults(recipe=SimpleNamespace(settings=SimpleNamespace(tasks=replace(TASKS, curated=None))), curated=None) == []
    assert faults(recipe=None) == []


@pytest.mark.parametrize(("changed", "said"), [
    ({"curated": None}, "none is on record"),
    ({"curated": replace(MADE, tasks="00" * 32)}, "has the hash 000000000000"),
    ({"kept_set": None}, "are not kept with the run"),
    ({"generated": "the curated set does not give the recipe's tasks"}, "does not give the recipe's tasks"),
    ({"stages": STAGES[:1]}, "1 of the 2 stages of the curated set are not on record"),
    ({"kept_set": (MADE, DATA.replace(b"7", b"8"))}, "not those which its last stage left"),
    ({"kept_set": (MADE, DATA + DATA)}, "not those which its last stage left"),
    ({"kept_set": (MADE, b"{\n")}, "cannot be read"),
    ({"recipe": SimpleNamespace(settings=SimpleNamespace(tasks=replace(TASKS, curated=None)))}, "the recipe names none"),
])
def test_what_is_missing_or_exchanged_is_said(changed, said):
    assert any(said in fault for fault in faults(**changed))


def test_stages_that_do_not_join_are_said():
    torn = (STAGES[0], replace(STAGES[1], before="c"))
    made = replace(MADE, stages=tuple(map(content_id, torn)))
    assert any("did not begin with the rows" in fault for fault in faults(stages=torn, curated=made))
