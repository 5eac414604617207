"""Faults of stages 1 to 5 by somebody who read the specification of the chain and not the code. Run by `make faults`."""

import dataclasses
import random

import pytest
from attacked import assert_caught
from light import attack
from short_runs import begun

from rollbook.ledger import Ledger
from rollbook.orchestration import judges, proof
from rollbook.orchestration import run as producer
from rollbook.orchestration.stages import supervised
from rollbook.records import (
    Decontamination,
    EnvironmentProof,
    Message,
    RunEnd,
    SplitManifest,
    content_id,
)
from rollbook.tasks import splits
from rollbook.tasks.demonstrations import Written

pytestmark = pytest.mark.soak
ACQUIRE, SPLIT, SHOWN, WRITE, APPEND, IMAGE, PROVE = (producer.acquire, producer.split, supervised.written,
                                                      supervised.demonstrations, Ledger.append, judges.single_turn_image,
                                                      producer.prove)
BRIEF = ("stages.rl.steps=1", "stages.rl.probe=0", "stages.rl.probe_every=0")


def held_back(kind):
    """An `append` that keeps records of this kind until the run is over."""
    kept = []

    def append(self, record, **noted):
        if isinstance(record, kind):
            kept.append(record)
            return content_id(record)
        if isinstance(record, RunEnd):
            for one in kept:
                APPEND(self, one)
        return APPEND(self, record, **noted)
    return (Ledger, "append", append)


def acquired(change):
    """An `acquire` whose raw tasks and contracts are changed together: change(pairs) -> pairs."""
    def call(settings, *, acquired_at):
        found = ACQUIRE(settings, acquired_at=acquired_at)
        pairs = change(list(zip(found.raw, found.tasks, strict=True)))
        return dataclasses.replace(found, raw=tuple(raw for raw, _ in pairs), tasks=tuple(task for _, task in pairs))
    return (producer, "acquire", call)


def contracts(**changes):
    """An `acquire` whose contracts have other fields; each change is a function of raw task and contract."""
    def change(pairs):
        return [(raw, dataclasses.replace(task, **{name: made(raw, task) for name, made in changes.items()}))
                for raw, task in pairs]
    return acquired(change)


def asked(words):
    """The prompt with other words of the user: words(raw, task, text) -> text."""
    return lambda raw, task: (*task.prompt[:-1], dataclasses.replace(task.prompt[-1], content=words(raw, task,
                                                                                                      task.prompt[-1].content)))


def sides(change):
    """A `split` whose sides are changed, with a manifest to match: change(train, heldout, tasks) -> (train, heldout)."""
    def call(tasks, **sizes):
        found = SPLIT(tasks, **sizes)
        train, heldout = change(list(found.train), list(found.heldout), list(tasks))
        return splits.Split(train=tuple(train), heldout=tuple(heldout), manifest=splits._manifest(train, heldout))
    return (producer, "split", call)


def size(task):
    return abs(int(task.reference)), task.id


# stage 1 ------------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=1, injection="S: three times as many tasks are drawn and the easy third is kept")
def test_only_easy_raw_tasks_are_kept(monkeypatch, warm, tmp_path):
    def easy(settings, *, acquired_at):
        wanted = len(ACQUIRE(settings, acquired_at=acquired_at).raw)
        found = ACQUIRE(dataclasses.replace(settings, train=3 * settings.train), acquired_at=acquired_at)
        pairs = sorted(zip(found.raw, found.tasks, strict=True), key=lambda pair: size(pair[1]))[:wanted]
        return dataclasses.replace(found, raw=tuple(r for r, _ in pairs), tasks=tuple(t for _, t in pairs))
    run = attack(monkeypatch, warm, tmp_path / "run", (producer, "acquire", easy), overrides=BRIEF)
    assert_caught(run, 1, record="RawTask", evidence="draw")


@pytest.mark.fault(stage=1, injection="S: raw tasks are put on record under a licence that permits more")
def test_a_kinder_licence(monkeypatch, warm, tmp_path):
    def change(pairs):
        raws = [dataclasses.replace(raw, licence="CC0-1.0") for raw, _ in pairs]
        return [(raw, dataclasses.replace(task, raw=content_id(raw))) for raw, (_, task) in zip(raws, pairs, strict=True)]
    run = attack(monkeypatch, warm, tmp_path / "run", acquired(change), overrides=BRIEF)
    assert_caught(run, 1, record="RawTask", evidence="were not drawn")


@pytest.mark.fault(stage=1, injection="S: training and protected tasks are compared when the training is over")
def test_a_comparison_after_the_training(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", held_back(Decontamination), overrides=BRIEF)
    assert_caught(run, 1, record="Decontamination", evidence="after")


@pytest.mark.fault(stage=1, injection="S: a hard tenth of the raw tasks never reaches the record")
def test_hard_raw_tasks_that_vanish(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run",
                 acquired(lambda pairs: sorted(pairs, key=lambda pair: size(pair[1]))[:-len(pairs) // 16]), overrides=BRIEF)
    assert_caught(run, 1, record="RawTask", evidence="not on record")


@pytest.mark.fault(stage=1, injection="S: generated by the seed after the recipe's")
def test_tasks_of_another_seed(monkeypatch, warm, tmp_path):
    def other(settings, *, acquired_at):
        return ACQUIRE(dataclasses.replace(settings, seed=settings.seed + 1), acquired_at=acquired_at)
    run = attack(monkeypatch, warm, tmp_path / "run", (producer, "acquire", other), overrides=BRIEF)
    assert_caught(run, 1, record="RawTask", evidence="were not drawn")


# stage 2 ------------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=2, injection="S: the question says whether its answer is even")
def test_a_hint_at_the_parity(monkeypatch, warm, tmp_path):
    hint = asked(lambda raw, task, text: f"{text} (an {'odd' if int(task.reference) % 2 else 'even'} number)")
    monkeypatch.setattr(*contracts(prompt=hint))
    assert_caught(begun(warm, tmp_path / "run"), 2, record="Task")


@pytest.mark.fault(stage=2, injection="S: the question's last digit of the answer is hidden in its punctuation")
def test_a_hint_in_the_punctuation(monkeypatch, warm, tmp_path):
    hint = asked(lambda raw, task, text: text + "." * (int(task.reference) % 10))
    monkeypatch.setattr(*contracts(prompt=hint))
    assert_caught(begun(warm, tmp_path / "run"), 2, record="Task")


@pytest.mark.fault(stage=2, injection="S: hard tasks may be answered at twice the length")
def test_a_larger_budget_for_some(monkeypatch, warm, tmp_path):
    budget = contracts(budget=lambda raw, task: dataclasses.replace(task.budget, max_tokens=task.budget.max_tokens * (
        2 if size(task)[0] > 40 else 1)))
    run = attack(monkeypatch, warm, tmp_path / "run", budget, overrides=BRIEF)
    assert_caught(run, 2, record="Task", evidence="budget")


@pytest.mark.fault(stage=2, injection="S: the contract's predicate is satisfied by any number")
def test_a_lax_predicate(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", contracts(predicate=lambda raw, task: "math.is_number"), overrides=BRIEF)
    assert_caught(run, 2, record="Task", evidence="predicate")


@pytest.mark.fault(stage=2, injection="S: contracts permit a calculator that the raw task does not mention")
def test_a_tool_that_nobody_offered(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", contracts(tools=lambda raw, task: ("calculator",)), overrides=BRIEF)
    assert_caught(run, 2, record="Task", evidence="tools")


@pytest.mark.fault(stage=2, injection="S: the larger operand of every question is rounded, and the reference with it")
def test_an_easier_problem_under_the_same_raw_task(monkeypatch, warm, tmp_path):
    def rounded(raw, task, text):
        words = text.split()
        return " ".join([str(int(words[0]) // 10 * 10), *words[1:]]) if words[0].isdecimal() else text
    run = attack(monkeypatch, warm, tmp_path / "run", contracts(prompt=asked(rounded)), overrides=BRIEF)
    assert_caught(run, 2, record="Task")


@pytest.mark.fault(stage=2, injection="S: training prompts have a system text that held-out prompts lack")
def test_a_system_text_for_training_only(monkeypatch, warm, tmp_path):
    def told(train, heldout, tasks):
        system = Message(role="system", content="Add carefully.", origin="recipe")
        return [dataclasses.replace(task, prompt=(system, *task.prompt)) for task in train], heldout
    run = attack(monkeypatch, warm, tmp_path / "run", sides(told), overrides=BRIEF)
    assert_caught(run, 2, record="Task", evidence="recipe text differs")


# stage 3 ------------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=3, injection="S: the easiest problems are held out")
def test_an_easy_held_out_side(monkeypatch, warm, tmp_path):
    def easy(train, heldout, tasks):
        held = []
        for task in sorted(tasks, key=size):
            if len(held) < len(heldout) and task.canonical not in {one.canonical for one in held}:
                held.append(task)
        units = {one.canonical for one in held}
        return [task for task in tasks if task.canonical not in units][:len(train)], held
    run = attack(monkeypatch, warm, tmp_path / "run", sides(easy), overrides=BRIEF)
    assert_caught(run, 3, record="Task", evidence="not as the recipe's seed splits")


@pytest.mark.fault(stage=3, injection="S: the split is made by a seed that was tried and found lucky")
def test_a_lucky_split(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run",
                 (producer, "split", lambda tasks, *, seed, **sizes: SPLIT(tasks, seed=seed + 7, **sizes)), overrides=BRIEF)
    assert_caught(run, 3, record="Task", evidence="not as the recipe's seed splits")


@pytest.mark.fault(stage=3, injection="S: easy training tasks stand several times in their table")
def test_tasks_that_weigh_double(monkeypatch, warm, tmp_path):
    def doubled(train, heldout, tasks):
        easy = sorted(train, key=size)[:len(train) // 4]
        return [*train[:-len(easy)], *easy], heldout
    run = attack(monkeypatch, warm, tmp_path / "run", sides(doubled), overrides=BRIEF)
    assert_caught(run, 3, record="Task", evidence="times in tasks/train")


@pytest.mark.fault(stage=3, injection="S: a curriculum nobody declared: training tasks stand from easy to hard")
def test_a_sorted_training_side(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", sides(lambda train, heldout, tasks: (sorted(train, key=size), heldout)),
                 overrides=BRIEF)
    assert_caught(run, 3, record="Task", evidence="order of the train side")


@pytest.mark.fault(stage=3, injection="S: the manifest of the split is written when the run is over")
def test_a_manifest_after_the_fact(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", held_back(SplitManifest), overrides=BRIEF)
    assert_caught(run, 3, record="SplitManifest", evidence="was sampled")


@pytest.mark.fault(stage=3, injection="S: half of the training side is left out, the manifest counts what is left")
def test_a_smaller_training_side(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run",
                 sides(lambda train, heldout, tasks: (train[:len(train) // 2], heldout)), overrides=BRIEF)
    assert_caught(run, 3, record="Task", evidence="train side")


# stage 4 ------------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=4, injection="S: the environment is proved when the training is over")
def test_a_proof_after_the_fact(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", held_back(EnvironmentProof), overrides=BRIEF)
    assert_caught(run, 4, record="EnvironmentProof", evidence="had been judged")


def without_sympy(**given):
    return IMAGE(**{**given, "dependencies": {name: version for name, version in given["dependencies"].items()
                                              if name != "sympy"}})


@pytest.mark.fault(stage=4, injection="S: the image forgets the package that decides equality; digest and proof fit the rest")
def test_an_image_without_its_algebra(monkeypatch, warm, tmp_path):
    from attacked import attacked
    with monkeypatch.context() as m:
        m.setattr(judges, "single_turn_image", without_sympy)
        m.setattr(proof, "single_turn_image", without_sympy)
        run = attacked(warm, tmp_path / "run", *BRIEF)
    assert_caught(run, 4, record="EnvironmentImage", evidence="sympy")


@pytest.mark.fault(stage=4, injection="S: the trial with a shifted clock is excused for lack of time")
def test_a_trial_that_is_excused(monkeypatch, warm, tmp_path):
    def excused(found):
        return dataclasses.replace(found, trials=tuple(one for one in found.trials if one.kind != "clock"),
                                   unproved={"clock": "no time"})
    run = attack_proof(monkeypatch, warm, tmp_path / "run", excused)
    assert_caught(run, 4, record="EnvironmentProof", evidence="left out")


def attack_proof(monkeypatch, warm, out, change):
    """A run that stops before its first stage; its proof is changed before it is recorded."""
    monkeypatch.setattr(producer, "prove", lambda *given: change(PROVE(*given)))
    return begun(warm, out)


@pytest.mark.fault(stage=4, injection="S: the image opens its network though a single turn needs none")
def test_an_open_network(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run",
                 (judges, "single_turn_image", lambda **given: dataclasses.replace(IMAGE(**given), network="open")),
                 overrides=BRIEF)
    assert_caught(run, 4, record="EnvironmentImage", evidence="network")


@pytest.mark.fault(stage=4, injection="S: the trials cover one text, over and over")
def test_trials_of_one_text(monkeypatch, warm, tmp_path):
    def thin(found):
        return dataclasses.replace(found, trials=tuple(dataclasses.replace(one, items=1) for one in found.trials))
    run = attack_proof(monkeypatch, warm, tmp_path / "run", thin)
    assert_caught(run, 4, record="EnvironmentProof", evidence="fewer than")


@pytest.mark.fault(stage=4, injection="S: the proof is of another environment than the run's")
def test_a_proof_of_another_image(monkeypatch, warm, tmp_path):
    run = attack_proof(monkeypatch, warm, tmp_path / "run",
                       lambda found: dataclasses.replace(found, environment="EnvironmentImage:" + "0" * 64))
    assert_caught(run, 4, record="Environment")


# stage 5 ------------------------------------------------------------------------------------------------------------------------

class Favourite(list):
    """Demonstrations of which every batch is the first one."""

    def __getitem__(self, place):
        return list.__getitem__(self, slice(0, place.stop - place.start)) if isinstance(place, slice) else list.__getitem__(
            self, place)


@pytest.mark.fault(stage=5, injection="S: the first batch of demonstrations is trained again and again")
def test_a_favourite_batch(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run",
                 (supervised, "written", lambda *given: Favourite(SHOWN(*given))), overrides=BRIEF)
    assert_caught(run, 5, record="SftReport", evidence="left out")


@pytest.mark.fault(stage=5, injection="S: the general share of the recipe is never shown")
def test_a_missing_general_share(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run",
                 (supervised, "written", lambda session, name, stage: SHOWN(session, name, dataclasses.replace(
                     stage, general_share=0.0))), overrides=(*BRIEF, "stages.cold_start.general_share=0.25"))
    assert_caught(run, 5, record="SftReport", evidence="general")


def written(change):
    """Programs whose demonstrations are changed: change(tasks, made) -> made."""
    return (supervised, "demonstrations", lambda tasks, **given: change(tasks, list(WRITE(tasks, **given))))


@pytest.mark.fault(stage=5, injection="S: a teacher's words stand in for the program's, under the program's name")
def test_another_author(monkeypatch, warm, tmp_path):
    def teacher(tasks, made):
        return [Written(task, text.replace("<think>\n", "<think>\nLet me see. "), author) for task, text, author in made]
    run = attack(monkeypatch, warm, tmp_path / "run", written(teacher), overrides=BRIEF)
    assert_caught(run, 5, record="Demonstration", evidence="recipe's programs write")


@pytest.mark.fault(stage=5, injection="S: only easy tasks are demonstrated")
def test_easy_demonstrations(monkeypatch, warm, tmp_path):
    def easy(tasks, **given):
        return WRITE(sorted(tasks, key=size)[:len(tasks) // 3], **given)
    run = attack(monkeypatch, warm, tmp_path / "run", (supervised, "demonstrations", easy), overrides=BRIEF)
    assert_caught(run, 5, record="Demonstration", evidence="recipe's programs write")


@pytest.mark.fault(stage=5, injection="S: a demonstration recites held-out questions and their answers")
def test_a_recital_of_the_held_out_side(monkeypatch, warm, tmp_path):
    held = []

    def remembered(tasks, **sizes):
        found = SPLIT(tasks, **sizes)
        held[:] = [f"{task.prompt[-1].content} {task.reference}" for task in found.heldout]
        return found

    def recites(tasks, made):
        rng = random.Random(1)
        return [Written(task, text.replace("<think>\n", f"<think>\n{rng.choice(held)}\n"), author) for task, text, author in made]
    run = attack(monkeypatch, warm, tmp_path / "run", (producer, "split", remembered), written(recites), overrides=BRIEF)
    assert_caught(run, 5, record="Demonstration", evidence="recipe's programs write")


@pytest.mark.fault(stage=5, injection="S: wrong answers are demonstrated and called unvalidated")
def test_wrong_demonstrations_that_claim_nothing(monkeypatch, warm, tmp_path):
    made = supervised.demonstration

    def wrong(session, task, asked, written):
        found = made(session, task, asked, written)
        return dataclasses.replace(found, validation="none", author="a colleague")

    def off(tasks, made):
        return [Written(task, text.replace(f"boxed{{{task.reference}}}", f"boxed{{{int(task.reference) + 1}}}"), author)
                for task, text, author in made]
    run = attack(monkeypatch, warm, tmp_path / "run", (supervised, "demonstration", wrong), written(off), overrides=BRIEF)
    assert_caught(run, 5, record="Demonstration", evidence="recipe's programs write")


