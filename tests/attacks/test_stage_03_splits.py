"""Stage 3: problems that stand on both sides of the split."""

import dataclasses

import pytest
from attacked import assert_caught, rows
from short_runs import begun, clean_run, short

from rollbook.orchestration import run as producer
from rollbook.orchestration import stages
from rollbook.records import content_id
from rollbook.tasks import generators, split, splits

TASKS = producer._tasks


@pytest.fixture(scope="module")
def clean(warm):
    return clean_run(warm)


def test_an_honest_split_passes_and_says_that_it_is_in_family(clean):
    row = rows(clean)[3]
    assert row.result == "pass", row
    assert "in-family" in row.evidence and int(row.evidence.split()[0]) > 80


@pytest.mark.fault(stage=3, injection="the split unit is the text of the question, so that commuted forms cross")
def test_a_split_by_wording_is_caught(warm, tmp_path, monkeypatch):
    real = generators.parse

    def worded(text):
        found = real(text)
        return dataclasses.replace(found, canonical=found.text)

    with monkeypatch.context() as m:
        m.setattr(generators, "parse", worded)
        run = begun(warm, tmp_path / "run")
    assert_caught(run, 3, record="Task", evidence="and the raw task says 'sum:")


def with_sibling(settings, kept=None):
    """The sides with the commuted form of a held-out sum on the training side, and a manifest that counts it as another unit."""
    acquired, sides = TASKS(settings, kept)
    held = next(task for task in sides.heldout if "+" in task.prompt[-1].content and task.reference.isdigit())
    one, other = held.prompt[-1].content.removesuffix(" =").split(" + ")
    asked = next(raw for raw in acquired.raw if content_id(raw) == held.raw)
    raw = dataclasses.replace(asked, content=asked.content.replace(f"{one} + {other}", f"{other} + {one}"),
                              lineage={**asked.lineage, "index": "99999"})
    prompt = (*held.prompt[:-1], dataclasses.replace(held.prompt[-1], content=f"{other} + {one} ="))
    train = (*sides.train[1:], dataclasses.replace(held, raw=content_id(raw), prompt=prompt))
    manifest = splits._manifest(train[:-1], sides.heldout)
    units = {task.canonical for task in train}
    manifest = dataclasses.replace(manifest, counts={**manifest.counts, "train": (len(train), len(units))},
                                   units={**manifest.units, "train": splits.units_digest(units)})
    return (dataclasses.replace(acquired, raw=(*acquired.raw, raw)),
            dataclasses.replace(sides, train=train, manifest=manifest))


@pytest.mark.fault(stage=3, injection="the commuted form of a held-out sum on the training side, hidden from the overlap count")
def test_a_sibling_across_the_split_is_caught_though_the_manifest_says_none(warm, tmp_path, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr(producer, "_tasks", with_sibling)
        run = begun(warm, tmp_path / "run")
    assert_caught(run, 3, record="Task", evidence="it shares the split unit 'sum:")


@pytest.mark.fault(stage=3, injection="the manifest and every report deny that both sides come from one generator")
def test_an_in_family_evaluation_that_is_not_declared_is_caught(warm, tmp_path, monkeypatch):
    def denying(tasks, **sizes):
        sides = split(tasks, **sizes)
        return dataclasses.replace(sides, manifest=dataclasses.replace(sides.manifest, in_family=False))

    with monkeypatch.context() as m:
        m.setattr(producer, "split", denying)
        run = begun(warm, tmp_path / "run")
    assert_caught(run, 3, record="SplitManifest", evidence="in_family is False")


@pytest.mark.fault(stage=3, injection="policy training draws from the held-out side")
def test_training_on_the_held_out_side_is_caught(warm, tmp_path, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr(stages.policy_gradient, "pool", lambda session, stage: session.sides.heldout)
        run = short(warm, tmp_path / "run")
    assert_caught(run, 3, record="Trace", evidence="was sampled for training and stands in tasks/heldout")


@pytest.mark.fault(stage=3, injection="the cold start demonstrates held-out problems")
def test_demonstrations_of_held_out_problems_are_caught(warm, tmp_path, monkeypatch):
    real = stages.supervised.written

    def swapped(session, name, stage):
        sides = session.sides
        session.sides = dataclasses.replace(sides, train=sides.heldout)
        try:
            return real(session, name, stage)
        finally:
            session.sides = sides

    with monkeypatch.context() as m:
        m.setattr(stages.supervised, "written", swapped)
        run = short(warm, tmp_path / "run")
    assert_caught(run, 3, record="Demonstration", evidence="was demonstrated and stands in tasks/heldout")


@pytest.mark.fault(stage=3, injection="the last evaluation asks training problems and calls them held-out")
def test_an_evaluation_on_training_problems_is_caught(warm, tmp_path, monkeypatch):
    real = stages.evaluation.protocol_of

    def easy(session, sampling, tasks, named, **more):
        return real(session, sampling, session.sides.train[:len(tasks)], named, **more)

    with monkeypatch.context() as m:
        m.setattr(stages.evaluation, "protocol_of", easy)
        run = short(warm, tmp_path / "run")
    assert_caught(run, 3, record="Trace", evidence="was sampled for evaluation and stands in tasks/train")


@pytest.mark.fault(stage=3, injection="the manifest is that of another draw of tasks")
def test_a_manifest_of_other_tasks_is_caught(warm, tmp_path, monkeypatch):
    def stale(tasks, **sizes):
        return dataclasses.replace(split(tasks, **sizes), manifest=split(tasks, **{**sizes, "seed": 5}).manifest)

    with monkeypatch.context() as m:
        m.setattr(producer, "split", stale)
        run = begun(warm, tmp_path / "run")
    assert_caught(run, 3, record="SplitManifest", evidence="side")
