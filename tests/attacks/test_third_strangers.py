"""Faults by a third reader of the specification, aimed at fields that no detector had looked at. Run by `make faults`."""

import dataclasses
import json

import pytest
from attacked import assert_caught
from light import attack
from small_runs import Quiet

from rollbook.ledger import Ledger
from rollbook.orchestration import publish, session
from rollbook.orchestration import run as producer
from rollbook.orchestration import step as stepping
from rollbook.orchestration.run import run_recipe
from rollbook.recipes import load, resolve
from rollbook.records import Batch, Scored, SplitManifest
from rollbook.rewards import MagistralJudge
from rollbook.rollouts import episodes

pytestmark = pytest.mark.soak
ACQUIRE, APPEND, JUDGE, SAVE, PROBE = (producer.acquire, Ledger.append, MagistralJudge.judge, session.save_checkpoint,
                                       publish.Publisher._probe)
READ, TRACE = episodes.read_turn, episodes.Playing._trace
BRIEF = ("stages.rl.steps=1", "stages.rl.probe=0", "stages.rl.probe_every=0")
IN_ENVIRONMENT = (
    "model.layers=2", "model.hidden=64", "model.heads=4", "model.kv_heads=2", "model.intermediate=96", "tasks.train=48",
    "tasks.heldout=8", "stages.cold_start.steps=12", "stages.cold_start.batch=8", "stages.cold_start.traces.direct=0.0",
    "stages.cold_start.optimizer.warmup_steps=2", "stages.rl.steps=1", "stages.rl.prompts=3", "stages.rl.per_task=2",
    "stages.rl.groups=2", "stages.rl.max_waves=1", "stages.rl.optimizer.warmup_steps=0", "stages.rl.probe=4", "run.threads=1")


def fields(of, **values):
    """Records of one kind get other values on their way into the log; whatever names them by their id follows."""
    def changed(record):
        return dataclasses.replace(record, **values) if isinstance(record, of) else record
    return changed


def appended(changed):
    return (Ledger, "append", lambda self, record, **noted: APPEND(self, changed(record), **noted))


# stage 1 ------------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=1, injection="U: tasks of another seed, one of them dated a day later, so that none can be drawn again")
def test_tasks_that_cannot_be_drawn_again(monkeypatch, warm, tmp_path):
    def other(settings, *, acquired_at):
        found = ACQUIRE(dataclasses.replace(settings, seed=settings.seed + 1), acquired_at=acquired_at)
        last = ACQUIRE(dataclasses.replace(settings, seed=settings.seed + 1), acquired_at="2026-12-01")
        return dataclasses.replace(found, raw=(*found.raw[:-1], last.raw[-1]), tasks=(*found.tasks[:-1], last.tasks[-1]))
    run = attack(monkeypatch, warm, tmp_path / "run", (producer, "acquire", other), overrides=BRIEF)
    assert_caught(run, 1, record="RawTask", evidence="")


# stage 3 ------------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=3, injection="U: the manifest calls its split unit a repository, where it is a problem")
def test_a_unit_of_another_kind(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", appended(fields(SplitManifest, unit="repository")), overrides=BRIEF)
    assert_caught(run, 3, record="SplitManifest", evidence="repository")


# stage 7 ------------------------------------------------------------------------------------------------------------------------

def in_environment(monkeypatch, out, *patches):
    """A short run in an environment under (owner, name, replacement) patches; its folder."""
    with monkeypatch.context() as m:
        for owner, name, replacement in patches:
            m.setattr(owner, name, replacement)
        assert run_recipe(resolve(load("tool-calculator"), "tiny", IN_ENVIRONMENT), out, Quiet()) == 0
    return out


@pytest.mark.fault(stage=7, injection="U: the harness mends what the policy says before the environment hears it")
def test_an_action_that_was_mended(monkeypatch, tmp_path):
    def mended(spoken, tools, **more):
        read = READ(spoken, tools, **more)
        calls = tuple(dataclasses.replace(call, arguments={name: f"0+{value}" for name, value in call.arguments.items()})
                      for call in read.action.calls)
        return dataclasses.replace(read, action=dataclasses.replace(read.action, calls=calls, text=f"{read.action.text} 7"))
    run = in_environment(monkeypatch, tmp_path / "run", (episodes, "read_turn", mended))
    assert_caught(run, 7, record="Trace", evidence="the environment was")


@pytest.mark.fault(stage=7, injection="U: an episode is filed under another last answer than it gave")
def test_an_episode_under_another_answer(monkeypatch, tmp_path):
    run = in_environment(monkeypatch, tmp_path / "run",
                         (episodes.Playing, "_trace", lambda self, *how: dataclasses.replace(TRACE(self, *how), text="7")))
    assert_caught(run, 7, record="Trace", evidence="its text is not what its ids spell")


# stage 8 ------------------------------------------------------------------------------------------------------------------------

def judged(change):
    """A judge whose vectors are changed: change(vector) -> vector."""
    def call(self, traces, tasks):
        return [dataclasses.replace(one, vector=change(one.vector)) if isinstance(one, Scored) else one
                for one in JUDGE(self, traces, tasks)]
    return (MagistralJudge, "judge", call)


@pytest.mark.fault(stage=8, injection="U: a rule that is sure of itself is recorded as doubting")
def test_a_confidence_of_its_own(monkeypatch, warm, tmp_path):
    def change(vector):
        return dataclasses.replace(vector, components=tuple(dataclasses.replace(c, confidence=0.5) for c in vector.components))
    run = attack(monkeypatch, warm, tmp_path / "run", judged(change), overrides=BRIEF)
    assert_caught(run, 8, record="Trace", evidence="confidence")


@pytest.mark.fault(stage=8, injection="U: parts that a failed gate left out are said to have had no verifier")
def test_a_reason_that_is_another(monkeypatch, warm, tmp_path):
    def change(vector):
        return dataclasses.replace(vector, absent=tuple(dataclasses.replace(one, reason="the verifier was unavailable")
                                                        for one in vector.absent))
    run = attack(monkeypatch, warm, tmp_path / "run", judged(change), overrides=BRIEF)
    assert_caught(run, 8, record="Trace", evidence="unavailable")


# stage 11 -----------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("values", "words"), [
    pytest.param({"compute_dtype": "bfloat16"}, "bfloat16", id="dtype", marks=pytest.mark.fault(
        stage=11, injection="U: batches of single precision are recorded as bfloat16, for which every limit is wider")),
    pytest.param({"deterministic": False}, "deterministic", id="deterministic", marks=pytest.mark.fault(
        stage=11, injection="U: batches excuse themselves from being replayed")),
])
def test_conditions_of_an_update_that_were_others(monkeypatch, warm, tmp_path, values, words):
    real = stepping.batch_record
    run = attack(monkeypatch, warm, tmp_path / "run",
                 (stepping, "batch_record", lambda *given, **named: fields(Batch, **values)(real(*given, **named))),
                 overrides=(*BRIEF, "run.dtype=float32"))
    assert_caught(run, 11, record="Batch", evidence=words)


# stage 12 -----------------------------------------------------------------------------------------------------------------------

@pytest.mark.fault(stage=12, injection="U: the probe of weights in single precision calls itself bfloat16, whose limit is wider")
def test_a_probe_of_another_precision(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run",
                 (publish.Publisher, "_probe", lambda self: dataclasses.replace(PROBE(self), dtype="bfloat16")),
                 overrides=(*BRIEF, "run.dtype=float32"))
    assert_caught(run, 12, record="PolicyVersion", evidence="bfloat16")


@pytest.mark.fault(stage=12, injection="U: the probe is of one token, the surest one")
def test_a_probe_of_one_token(monkeypatch, warm, tmp_path):
    run = attack(monkeypatch, warm, tmp_path / "run", (publish, "PROBE_TOKENS", 1), overrides=BRIEF)
    assert_caught(run, 12, record="PolicyVersion", evidence="1 token")


def spoilt(change):
    """A checkpoint whose files are changed when it is written: change(folder)."""
    def save(folder, decoder, tokenizer):
        SAVE(folder, decoder, tokenizer)
        change(folder)
    return (session, "save_checkpoint", save)


def rewritten(name, **values):
    def change(folder):
        document = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(document | values))
    return change


@pytest.mark.parametrize(("change", "words"), [
    pytest.param(rewritten("tokenizer_config.json", chat_template="{{ messages[0]['content'] }}"), "template", id="template",
                 marks=pytest.mark.fault(stage=12, injection="U: checkpoints are saved with another chat template")),
    pytest.param(rewritten("config.json", rms_norm_eps=0.125), "config.json", id="architecture",
                 marks=pytest.mark.fault(stage=12, injection="U: checkpoints are saved under another constant of their norms")),
    pytest.param(rewritten("generation_config.json", eos_token_id=[0]), "generation_config.json", id="stop",
                 marks=pytest.mark.fault(stage=12, injection="U: checkpoints name another end of turn")),
])
def test_a_checkpoint_that_loads_as_another_model(monkeypatch, warm, tmp_path, change, words):
    run = attack(monkeypatch, warm, tmp_path / "run", spoilt(change), overrides=BRIEF)
    assert_caught(run, 12, record="StageEnd", evidence=words)
