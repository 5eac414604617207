"""What recipe and seed decide: each detector against the records of a clean run, one of them changed on its way to it."""

import dataclasses

import pytest
from faulty import reread
from light import clean_rows, clean_run

from rollbook.audit.detectors.acquisition import AcquisitionDetector
from rollbook.audit.detectors.admission import AdmissionDetector
from rollbook.audit.detectors.cold_start import ColdStartDetector
from rollbook.audit.detectors.environment import EnvironmentDetector
from rollbook.audit.detectors.evaluation import EvaluationDetector
from rollbook.audit.detectors.request import RequestDetector
from rollbook.audit.detectors.splits import SplitsDetector
from rollbook.audit.detectors.update import UpdateDetector
from rollbook.records import (
    Comparison,
    Demonstration,
    Dispatch,
    EnvironmentImage,
    EvalReport,
    RawTask,
    ResolvedRecipe,
    SamplingEnvelope,
    Selection,
    SftReport,
    StepReport,
)


def seen(warm, detector, **changes):
    """The row of one detector; changes: record=, row= or step=, as `reread` takes them."""
    return reread(clean_run(warm), detector(), **changes)


def changed(kind, change, *, only=lambda one: True):
    """A change of the records of one kind; None leaves one out."""
    return {"record": lambda run, one: change(one) if isinstance(one, kind) and only(one) else one}


def replaced(kind, *, only=lambda one: True, **fields):
    """Other values in the fields of the records of one kind: name=function of the old value."""
    def change(one):
        return dataclasses.replace(one, **{name: made(getattr(one, name)) for name, made in fields.items()})
    return changed(kind, change, only=only)


def other_seed(settings):
    return dataclasses.replace(settings, tasks=dataclasses.replace(settings.tasks, seed=settings.tasks.seed + 1))


def of_step(one):
    return one.scope.startswith("rl/")


CASES = [
    (AdmissionDetector, replaced(Dispatch, only=of_step, tasks=lambda tasks: tasks[::-1]), "seeded order"),
    (AdmissionDetector, replaced(Dispatch, only=lambda one: one.scope == "select", tasks=lambda tasks: tasks[::-1]),
     "the same tasks in another order"),
    (AdmissionDetector, replaced(Dispatch, only=of_step, samples=lambda samples: samples - 1), "the recipe says 4 at each of 4"),
    (AdmissionDetector, replaced(Dispatch, only=of_step, scope=lambda scope: scope.replace("/0000", "/0010")), "is due"),
    (AdmissionDetector, replaced(Selection, kept=lambda kept: kept[1:]), "left out"),
    (AdmissionDetector, replaced(Selection, samples=lambda count: count + 1), "samples"),
    (AcquisitionDetector, changed(RawTask, lambda one: None, only=lambda one: one.lineage["index"].endswith("7")),
     "not on record"),
    (SplitsDetector, replaced(ResolvedRecipe, settings=other_seed), "recipe's seed splits"),
    (EnvironmentDetector, replaced(EnvironmentImage, network=lambda _: "open"), "network"),
    (EnvironmentDetector, replaced(EnvironmentImage, dependencies=lambda held: dict(list(held.items())[1:])),
     "names none of them"),
    (ColdStartDetector, replaced(SftReport, demonstrations=lambda shown: shown[::-1]), "trained"),
    (ColdStartDetector, replaced(SftReport, step=lambda number: number + 1), "comes where number"),
    (ColdStartDetector, changed(Demonstration, lambda one: None, only=lambda one: one.token_ids[-3] % 2), "demonstrations"),
    (RequestDetector, replaced(SamplingEnvelope, stop=lambda _: ("}",)), "stop"),
    (RequestDetector, replaced(SamplingEnvelope, max_seconds=lambda _: 9.0), "max_seconds"),
    (UpdateDetector, changed(StepReport, lambda one: None, only=lambda one: one.step == 2), "the recipe says 2"),
    (UpdateDetector, replaced(StepReport, step=lambda number: number + 1), "is due"),
    (EvaluationDetector, changed(Comparison, lambda one: None), "compared with nothing"),
    (EvaluationDetector, changed(EvalReport, lambda one: None, only=lambda one: one.stage == "start_eval"), "without a report"),
    (EvaluationDetector, replaced(Comparison, p_value=lambda value: 0.01), "p-value"),
    (EvaluationDetector, replaced(EvalReport, accuracy=lambda held: dataclasses.replace(held, level=0.5)), "accuracy.level"),
]


@pytest.mark.parametrize(("detector", "changes", "words"), CASES, ids=[f"{one.__name__} {words}" for one, _, words in CASES])
def test_a_departure_from_the_recipe_is_named(warm, detector, changes, words):
    row = seen(warm, detector, **changes)
    assert row.result == "fail", row
    assert words in row.evidence, row


def test_a_batch_of_unsurprising_tokens_was_drawn_colder_than_it_says(warm):
    def colder(step):
        return dataclasses.replace(step, given={**step.given, "behavior": step.given["behavior"] * 0.01},
                                   found={**step.found, "entropy": step.found["entropy"] + 1.0})
    row = seen(warm, RequestDetector, step=colder)
    assert row.result == "fail" and "drawn colder" in row.evidence


def test_what_generators_draw_is_drawn_again_and_otherwise_excused_by_other_code(warm, monkeypatch):
    from rollbook.audit import plan
    assert "raw tasks drawn again" in clean_rows(warm)[1].evidence
    other = plan.environment_manifest()
    monkeypatch.setattr(plan, "environment_manifest", lambda: {**other, "code": {**other["code"], "source": "another"}})
    for detector in (AcquisitionDetector, SplitsDetector):
        row = seen(warm, detector, **replaced(ResolvedRecipe, settings=other_seed))
        assert row.result == "pass" and "the code here is not that of the run" in row.evidence, row
