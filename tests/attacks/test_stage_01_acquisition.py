"""Stage 1: evaluation items that leak into training."""

import dataclasses

import pytest
from attacked import assert_caught, rows
from short_runs import begun, clean_run, short

from rollbook.ledger import Ledger
from rollbook.orchestration import run as producer
from rollbook.orchestration import stages
from rollbook.records import Decontamination
from rollbook.tasks import Likeness, acquire, split
from rollbook.tasks.splits import _manifest


@pytest.fixture(scope="module")
def clean(warm):
    return clean_run(warm)


def leaking(tasks, **sizes):
    """A split that puts a held-out problem among the training tasks, as a task of its own with a split unit of its own."""
    sides = split(tasks, **sizes)
    stray = dataclasses.replace(sides.heldout[0], canonical=f"{sides.heldout[0].canonical}/again")
    train = (*sides.train[1:], stray)
    return dataclasses.replace(sides, train=train, manifest=_manifest(train, sides.heldout))


def foreign(session, count):
    """Tasks that stand in no table of the run, though its judge knows them."""
    settings = dataclasses.replace(session.settings.tasks, seed=99, train=20 * count, heldout=0)
    taken = {task.canonical for task in session.tasks.values()}
    new = tuple(task for task in acquire(settings, acquired_at=producer.ACQUIRED_AT).tasks if task.canonical not in taken)
    session.tasks.update({task.id: task for task in new})
    return new[:count]


def test_honest_sides_pass_and_say_what_was_compared(clean):
    row = rows(clean)[1]
    assert row.result == "pass", row
    assert "procedural" in row.evidence and int(row.evidence.split()[0]) >= 64


@pytest.mark.fault(stage=1, injection="a held-out problem among the training tasks; the comparison finds it and the run goes on")
def test_a_known_overlap_is_caught(warm, tmp_path, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr(producer, "split", leaking)
        run = begun(warm, tmp_path / "run")
    assert_caught(run, 1, record="Task", evidence="and is recorded")


@pytest.mark.fault(stage=1, injection="a held-out problem among the training tasks, and a comparison that reports nothing")
def test_an_overlap_that_the_record_denies_is_caught(warm, tmp_path, monkeypatch):
    real = producer.decontaminate
    with monkeypatch.context() as m:
        m.setattr(producer, "split", leaking)
        m.setattr(producer, "decontaminate", lambda *sides, **settings: dataclasses.replace(real(*sides, **settings), found=()))
        run = begun(warm, tmp_path / "run")
    assert_caught(run, 1, record="Task", evidence="does not say so")


@pytest.mark.fault(stage=1, injection="only the first half of the training tasks is compared")
def test_a_comparison_of_half_the_tasks_is_caught(warm, tmp_path, monkeypatch):
    real = producer.decontaminate

    def half(train, heldout, **settings):
        count = len(train.tasks) // 2
        return real(dataclasses.replace(train, tasks=train.tasks[:count], raws=train.raws[:count]), heldout, **settings)

    with monkeypatch.context() as m:
        m.setattr(producer, "decontaminate", half)
        run = begun(warm, tmp_path / "run")
    assert_caught(run, 1, record="Decontamination", evidence="32 training")


@pytest.mark.fault(stage=1, injection="policy training on tasks that stand in no table")
def test_training_on_tasks_that_were_never_compared_is_caught(warm, tmp_path, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr(stages.policy_gradient, "pool", lambda session, stage: foreign(session, 8))
        run = short(warm, tmp_path / "run")
    assert_caught(run, 1, record="Trace", evidence="never compared")


@pytest.mark.fault(stage=1, injection="the last evaluation uses a benchmark that no training task was compared with")
def test_an_evaluation_on_tasks_that_were_never_compared_is_caught(warm, tmp_path, monkeypatch):
    real = stages.evaluation.protocol_of

    def another(session, sampling, tasks, named, **more):
        late = "rl" in session.versions and named[0] == "heldout"
        return real(session, sampling, foreign(session, 12), ("benchmark", *named[1:]), **more) if late else real(
            session, sampling, tasks, named, **more)

    with monkeypatch.context() as m:
        m.setattr(stages.evaluation, "protocol_of", another)
        m.setattr(stages.evaluation, "compare", lambda before, after, *, changed: before)
        m.setattr(stages.evaluation, "run", evaluate_alone(stages.evaluation.run))
        run = short(warm, tmp_path / "run")
    assert_caught(run, 1, record="ProtocolBundle", evidence="12 of its 12 tasks were never compared")


def evaluate_alone(real):
    """Evaluation without a comparison: reports of two protocols have none."""
    return lambda session, name, stage: real(session, name, dataclasses.replace(stage, compare_to=None))


@pytest.mark.fault(stage=1, injection="thresholds so lax that a copied paragraph passes")
def test_thresholds_that_find_nothing_are_caught(warm, tmp_path, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr(producer, "LIKENESS", Likeness(ngram=60, jaccard=0.99, boilerplate=0.0))
        run = begun(warm, tmp_path / "run")
    assert_caught(run, 1, record="Decontamination", evidence="thresholds of 60 words")


@pytest.mark.fault(stage=1, injection="held-out problems among the general prompts of the cold start")
def test_a_held_out_problem_among_general_prompts_is_caught(warm, tmp_path, monkeypatch):
    real = stages.supervised.written

    def general(session, name, stage):
        asked = tuple(task.prompt[-1].content for task in session.sides.heldout[:4])
        with monkeypatch.context() as inner:
            inner.setattr(stages.supervised, "GENERAL_PROMPTS", asked)
            return real(session, name, stage)

    with monkeypatch.context() as m:
        m.setattr(stages.supervised, "written", general)
        run = short(warm, tmp_path / "run", "stages.cold_start.general_share=0.25")
    assert_caught(run, 1, record="Demonstration", evidence="shows the evaluation task Task:")


@pytest.mark.fault(stage=1, injection="nothing is compared at all")
def test_a_run_without_a_comparison_is_caught(warm, tmp_path, monkeypatch):
    real = Ledger.append
    with monkeypatch.context() as m:
        m.setattr(Ledger, "append", lambda self, record, **noted: "" if isinstance(record, Decontamination) else
                  real(self, record, **noted))
        run = short(warm, tmp_path / "run")
    assert_caught(run, 1, record="Decontamination", evidence="nothing was compared")
