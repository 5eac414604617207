"""Faults of every stage by a second reader of the specification, none like those before. Run by `make faults`."""

import dataclasses

import pytest
import torch
from attacked import assert_caught
from gate_runs import NOW, WISH, lax, redrafted
from light import attack

from rollbook.evaluation import heldout
from rollbook.experience import batches
from rollbook.ledger import Ledger
from rollbook.orchestration import judges, recording, session
from rollbook.orchestration import run as producer
from rollbook.orchestration import step as stepping
from rollbook.orchestration.permission import decide
from rollbook.orchestration.publish import Publisher
from rollbook.orchestration.stages import evaluation, policy_gradient, supervised
from rollbook.records import (
    Decontamination,
    EnvironmentImage,
    Scored,
    SftReport,
    StepReport,
)
from rollbook.rewards import MagistralJudge
from rollbook.rollouts.engines import rows
from rollbook.rollouts.solve import Rollouts
from rollbook.tasks import decontamination
from rollbook.training.optimizer import Optimizer

pytestmark = pytest.mark.soak
ACQUIRE, APPEND, IMAGE, SPLIT, SOLVE, JUDGE, CREDITED, SAVE, PROBED, HASHED = (
    producer.acquire, Ledger.append, judges.single_turn_image, producer.split, Rollouts.solve, MagistralJudge.judge,
    batches.credited, session.save_checkpoint, policy_gradient._probe, rows.sampled_hash)
BRIEF = ("stages.rl.steps=1", "stages.rl.probe=0", "stages.rl.probe_every=0")


def appended(change):
    """An `append` that puts another record in the place of the one it is given: change(record) -> record."""
    return (Ledger, "append", lambda self, record, **noted: APPEND(self, change(record), **noted))


def reported(**measures):
    """Step reports whose metrics are others, and agree with nothing but themselves."""
    def change(record):
        if not isinstance(record, StepReport):
            return record
        return dataclasses.replace(record, metrics={**record.metrics, **{name.replace("__", "/"): value(record.metrics)
                                                                         for name, value in measures.items()}})
    return appended(change)


def contracts(**changes):
    """An `acquire` whose contracts have other values in these fields."""
    def call(settings, *, acquired_at):
        found = ACQUIRE(settings, acquired_at=acquired_at)
        return dataclasses.replace(found, tasks=tuple(dataclasses.replace(one, **changes) for one in found.tasks))
    return (producer, "acquire", call)


# stage 1 ------------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=1, injection="T: the protected side of the comparison is its first half")
def test_half_of_the_protected_tasks(monkeypatch, warm, tmp_path):
    def half(train, protected, **more):
        count = len(protected.tasks) // 2
        return decontamination.decontaminate(train, dataclasses.replace(protected, tasks=protected.tasks[:count],
                                                                        raws=protected.raws[:count]), **more)
    run = attack(monkeypatch, warm, tmp_path / "run", (producer, "decontaminate", half), overrides=BRIEF)
    assert_caught(run, 1, record="Decontamination", evidence="which are not the tables of the run")


@pytest.mark.fault(stage=1, injection="T: the comparison skips n-grams and says that they do not apply")
def test_a_method_that_was_skipped(monkeypatch, warm, tmp_path):
    def change(record):
        return dataclasses.replace(record, skipped={**record.skipped, "exact": "the sources differ"}) \
            if isinstance(record, Decontamination) and record.protocol == "heldout" else record
    run = attack(monkeypatch, warm, tmp_path / "run", appended(change), overrides=BRIEF)
    assert_caught(run, 1, record="Decontamination", evidence="skipped")


# stage 2 ------------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=2, injection="T: contracts let an attempt end where the recipe's do not")
def test_another_end_of_an_attempt(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", contracts(termination=("end_of_turn", "length", "gave_up")),
                 overrides=BRIEF)
    assert_caught(run, 2, record="Task", evidence="termination")


@pytest.mark.fault(stage=2, injection="T: contracts name another constructor of their first state")
def test_another_initial_state(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", contracts(initial_state="prompt_with_history"), overrides=BRIEF)
    assert_caught(run, 2, record="Task", evidence="initial_state")


# stage 3 ------------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=3, injection="T: the held-out side stands from easy to hard: its first tasks, the probe, are easy")
def test_an_easy_probe(monkeypatch, warm, tmp_path):
    def easy(tasks, **sizes):
        found = SPLIT(tasks, **sizes)
        return dataclasses.replace(found, heldout=tuple(sorted(found.heldout, key=lambda task: abs(int(task.reference)))))
    run = attack(monkeypatch, warm, tmp_path / "run", (producer, "split", easy), overrides=BRIEF)
    assert_caught(run, 3, record="Task", evidence="the order of the heldout side")


@pytest.mark.fault(stage=3, injection="T: a hard held-out task changes places with an easy training task")
def test_two_tasks_that_change_places(monkeypatch, warm, tmp_path):
    def swapped(tasks, **sizes):
        found = SPLIT(tasks, **sizes)
        train, held = list(found.train), list(found.heldout)
        easy = min(range(len(train)), key=lambda at: abs(int(train[at].reference)))
        hard = max(range(len(held)), key=lambda at: abs(int(held[at].reference)))
        train[easy], held[hard] = held[hard], train[easy]
        return dataclasses.replace(found, train=tuple(train), heldout=tuple(held))
    run = attack(monkeypatch, warm, tmp_path / "run", (producer, "split", swapped), overrides=BRIEF)
    assert_caught(run, 3, record="")


# stage 4 ------------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("changes", [
    pytest.param({"credentials": "scoped"}, id="credentials", marks=pytest.mark.fault(
        stage=4, injection="T: the image grants credentials that a single turn does not need")),
    pytest.param({"reset": "snapshot", "hidden_tests": "ab" * 32}, id="reset", marks=pytest.mark.fault(
        stage=4, injection="T: the image names a reset and hidden tests that a single turn does not have")),
])
def test_an_image_of_something_else(monkeypatch, warm, tmp_path, changes):
    def image(**given) -> EnvironmentImage:
        return dataclasses.replace(IMAGE(**given), **changes)
    run = attack(monkeypatch, warm, tmp_path / "run", (judges, "single_turn_image", image), overrides=BRIEF)
    assert_caught(run, 4, record="EnvironmentImage", evidence="not those of a single turn")


# stage 5 ------------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=5, injection="T: later tokens of a turn weigh more than earlier ones")
def test_weights_that_rise(monkeypatch, warm, tmp_path):
    def rising(ledger, batch, weight_T):
        ramp_T = torch.linspace(0.5, 1.5, weight_T.numel())
        return recording.sft_tensors(ledger, batch, weight_T * ramp_T)
    run = attack(monkeypatch, warm, tmp_path / "run", (supervised, "sft_tensors", rising), overrides=BRIEF)
    assert_caught(run, 5, record="SftReport", evidence="do not weigh")


@pytest.mark.fault(stage=5, injection="T: a step counts the prompts' tokens among those it trained")
def test_tokens_that_were_not_trained(monkeypatch, warm, tmp_path):
    def change(record):
        return dataclasses.replace(record, tokens=record.tokens * 2) if isinstance(record, SftReport) else record
    run = attack(monkeypatch, warm, tmp_path / "run", appended(change), overrides=BRIEF)
    assert_caught(run, 5, record="SftReport", evidence="trained tokens")


# stage 6 ------------------------------------------------------------------------------------------------------------------------

def envelopes(**changes):
    real = Rollouts.envelope
    return (Rollouts, "envelope", lambda self, weights: dataclasses.replace(real(self, weights), **changes))


@pytest.mark.fault(stage=6, injection="T: every attempt may take five turns, where the recipe knows one")
def test_turns_nobody_asked_for(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", envelopes(max_turns=5), overrides=BRIEF)
    assert_caught(run, 6, record="SamplingEnvelope", evidence="max_turns")


@pytest.mark.fault(stage=6, injection="T: the last evaluation runs under a later version of the scaffold")
def test_another_scaffold_for_one_side(monkeypatch, warm, tmp_path):
    real, said, last = Rollouts.envelope, evaluation.evaluated, []

    def evaluated(session, name, *given):
        last[:] = [name]
        return said(session, name, *given)

    def envelope(self, weights):
        made = real(self, weights)
        return dataclasses.replace(made, scaffold="single_turn/2") if last == ["final_eval"] else made
    run = attack(monkeypatch, warm, tmp_path / "run", (evaluation, "evaluated", evaluated), (Rollouts, "envelope", envelope),
                 overrides=BRIEF)
    assert_caught(run, 6, record="Comparison", evidence="scaffold")


# stage 7 ------------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=7, injection="T: the engine hashes the first tokens of a turn alone")
def test_a_hash_of_a_prefix(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run",
                 (rows, "sampled_hash", lambda ids, logps, versions: HASHED(ids[:4], logps[:4], versions[:4])), overrides=BRIEF)
    assert_caught(run, 7, record="Trace", evidence="is not what the engine sampled")


@pytest.mark.fault(stage=7, injection="T: a prompt's last token counts as the policy's first")
def test_a_prompt_that_leaks_into_the_answer(monkeypatch, warm, tmp_path):
    def moved(self, tasks, per_task, *, scope, envelope):
        found = []
        for trace in SOLVE(self, tasks, per_task, scope=scope, envelope=envelope):
            first, second, *rest = trace.segments
            moved = (dataclasses.replace(first, token_ids=first.token_ids[:-1]),
                     dataclasses.replace(second, token_ids=(first.token_ids[-1], *second.token_ids),
                                         logps=(-0.25, *second.logps)))
            found.append(dataclasses.replace(trace, segments=(*moved, *rest)))
        return found if scope.startswith("rl/") else SOLVE(self, tasks, per_task, scope=scope, envelope=envelope)
    run = attack(monkeypatch, warm, tmp_path / "run", (Rollouts, "solve", moved), overrides=BRIEF)
    assert_caught(run, 7, record="Trace", evidence="")


# stage 8 ------------------------------------------------------------------------------------------------------------------------

def judged(change):
    """A judge whose vectors are changed: change(vector) -> vector."""
    def call(self, traces, tasks):
        return [dataclasses.replace(one, vector=change(one.vector)) if isinstance(one, Scored) else one
                for one in JUDGE(self, traces, tasks)]
    return (MagistralJudge, "judge", call)


@pytest.mark.fault(stage=8, injection="T: wrong answers lose the component that shows them wrong, totals stay")
def test_a_component_that_is_left_out(monkeypatch, warm, tmp_path):
    def change(vector):
        if vector.accuracy != 0.0:
            return vector
        return dataclasses.replace(vector, components=tuple(c for c in vector.components if c.name != "correctness"))
    run = attack(monkeypatch, warm, tmp_path / "run", judged(change), overrides=BRIEF)
    assert_caught(run, 8, record="Trace", evidence="correctness")


@pytest.mark.fault(stage=8, injection="T: accuracy follows another verifier than the one that is paid for")
def test_an_accuracy_of_its_own(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", judged(lambda vector: dataclasses.replace(vector, accuracy=1.0)),
                 overrides=BRIEF)
    assert_caught(run, 8, record="Trace", evidence="accuracy")


# stage 9 ------------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=9, injection="T: the reported share of answers that were cut is a smaller one")
def test_a_truncation_rate_that_is_made_up(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run",
                 reported(rollout__truncated_rate=lambda m: m["rollout/truncated_rate"] / 2 - 0.01), overrides=BRIEF)
    assert_caught(run, 9, record="StepReport", evidence="rollout/truncated_rate")


@pytest.mark.fault(stage=9, injection="T: a step reports the groups with a signal among those it kept, not among those it issued")
def test_an_informative_rate_over_what_was_kept(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", reported(admission__informative_rate=lambda m: 1.5), overrides=BRIEF)
    assert_caught(run, 9, record="StepReport", evidence="admission/informative_rate")


# stage 10 -----------------------------------------------------------------------------------------------------------------------

def credited(change):
    def call(parts, objective, scope, **more):
        return tuple(change(one) for one in CREDITED(parts, objective, scope, **more))
    return (stepping, "credited", call)


@pytest.mark.fault(stage=10, injection="T: the record of credit names rewards between 0 and 1, advantages are of the real ones")
def test_rewards_that_are_rescaled_on_record(monkeypatch, warm, tmp_path):
    def change(credit):
        low, high = min(credit.reward), max(credit.reward)
        return dataclasses.replace(credit, reward=tuple((r - low) / max(high - low, 1e-9) * 0.5 for r in credit.reward))
    run = attack(monkeypatch, warm, tmp_path / "run", credited(change), overrides=BRIEF)
    assert_caught(run, 10, record="Credit", evidence="")


@pytest.mark.fault(stage=10, injection="T: credit says that it is discounted, and is not")
def test_a_discount_that_was_not_taken(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", credited(lambda credit: dataclasses.replace(credit, gamma=0.99)),
                 overrides=BRIEF)
    assert_caught(run, 10, record="Credit", evidence="gamma")


# stage 11 -----------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("name", "value"), [
    pytest.param("update__clip_fraction", lambda m: m["update/clip_fraction"] + 0.01, id="clipped", marks=pytest.mark.fault(
        stage=11, injection="T: a step reports another clip fraction than its updates had")),
    pytest.param("policy__entropy_nats", lambda m: m["policy/entropy_nats"] * 1.2, id="entropy", marks=pytest.mark.fault(
        stage=11, injection="T: a step reports more entropy than the policy has left")),
    pytest.param("update__grad_norm", lambda m: min(m["update/grad_norm"], 1e-3), id="norm", marks=pytest.mark.fault(
        stage=11, injection="T: a step reports the gradient norm after it was clipped")),
])
def test_numbers_of_updates_that_were_others(monkeypatch, warm, tmp_path, name, value):
    run = attack(monkeypatch, warm, tmp_path / "run", reported(**{name: value}), overrides=BRIEF)
    assert_caught(run, 11, record="StepReport", evidence=name.replace("__", "/"))


# stage 12 -----------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=12, injection="T: what consumers must hold is hashed once and named at every publication")
def test_a_published_hash_that_stands_still(monkeypatch, warm, tmp_path):
    def same(self, index):
        self.engine.load(self.decoder, index)
        self._taken, self.expected = {"embedded-0": "5e" * 32}, "5e" * 32
        return self.expected
    run = attack(monkeypatch, warm, tmp_path / "run", (Publisher, "load", same), overrides=BRIEF)
    assert_caught(run, 12, record="PolicyVersion", evidence="is published under the hash of version")


@pytest.mark.fault(stage=12, injection="T: the optimizer's state is hashed before the step and named after it")
def test_an_optimizer_state_that_stands_still(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", (Optimizer, "digest", lambda self: "0d" * 32),
                 overrides=("stages.rl.probe=0", "stages.rl.probe_every=0"))
    assert_caught(run, 12, record="PolicyVersion", evidence="names the optimizer state of")


@pytest.mark.fault(stage=12, injection="T: the checkpoint of a stage holds other weights than its last version")
def test_a_checkpoint_of_other_weights(monkeypatch, warm, tmp_path):
    def other(folder, decoder, tokenizer):
        if folder.name != "rl":
            return SAVE(folder, decoder, tokenizer)
        first = next(iter(decoder.parameters()))
        kept = first.detach().clone()
        with torch.no_grad():
            first.mul_(1.001)
        SAVE(folder, decoder, tokenizer)
        with torch.no_grad():
            first.copy_(kept)
        return None
    run = attack(monkeypatch, warm, tmp_path / "run", (session, "save_checkpoint", other), overrides=BRIEF)
    assert_caught(run, 12, record="StageEnd", evidence="holds weights")


# stage 13 -----------------------------------------------------------------------------------------------------------------------

THREE = ("stages.rl.steps=3", "stages.rl.probe=4", "stages.rl.probe_every=1")


@pytest.mark.fault(stage=13, injection="T: a point of the curve that fell is left out")
def test_a_probe_that_is_left_out(monkeypatch, warm, tmp_path):
    def some(session, name, stage, version, number):
        return 0.0 if number == 2 else PROBED(session, name, stage, version, number)
    run = attack(monkeypatch, warm, tmp_path / "run", (policy_gradient, "_probe", some), overrides=THREE)
    assert_caught(run, 13, record="StageEnd", evidence="no probe is on record")


@pytest.mark.fault(stage=13, injection="T: the curve shows the best policy so far instead of the present one")
def test_a_probe_of_an_earlier_policy(monkeypatch, warm, tmp_path):
    first = []

    def best(session, name, stage, version, number):
        first.append(version)
        return PROBED(session, name, stage, first[0], number)
    run = attack(monkeypatch, warm, tmp_path / "run", (policy_gradient, "_probe", best), overrides=THREE)
    assert_caught(run, 13, record="EvalReport", evidence="")


@pytest.mark.fault(stage=13, injection="T: accuracy is reported with an interval of half the confidence")
def test_a_narrow_interval(monkeypatch, warm, tmp_path):
    real = heldout.wilson
    run = attack(monkeypatch, warm, tmp_path / "run",
                 (heldout, "wilson", lambda passed, count, **more: real(passed, count, level=0.5)), overrides=BRIEF)
    assert_caught(run, 13, record="EvalReport", evidence="accuracy")


# stage 14 -----------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=14, injection="T: the way back from a policy is the policy itself")
def test_a_way_back_to_where_one_stands(copy, key, monkeypatch):
    with monkeypatch.context() as m:
        lax(m)
        redrafted(m, lambda decision: dataclasses.replace(decision, rollback=decision.weights))
        decide(copy, WISH, private_key=key, now=NOW)
    assert_caught(copy, 14, record="GateDecision", evidence="rollback is the policy itself")


@pytest.mark.fault(stage=14, injection="T: a threshold of nothing is met by everything")
def test_a_threshold_of_nothing(copy, key, monkeypatch):
    with monkeypatch.context() as m:
        lax(m)
        redrafted(m, lambda decision: dataclasses.replace(decision, thresholds={"heldout": 0.0}))
        decide(copy, WISH, private_key=key, now=NOW)
    assert_caught(copy, 14, record="GateDecision", evidence="decides nothing")
