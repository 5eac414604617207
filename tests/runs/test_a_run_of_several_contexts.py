"""A run whose attempts are compacted, split and delegated: every context that counts is trained, and what is not one is found."""

import dataclasses

import pytest
from safetensors.torch import load as load_tensors
from small_runs import Quiet
from test_a_run_in_an_environment import SMALL, failed, ran

from rollbook.audit.detectors import events
from rollbook.audit.passage import audit_run
from rollbook.audit.replay import replay_run
from rollbook.ledger import Ledger
from rollbook.orchestration import step
from rollbook.orchestration.run import run_recipe
from rollbook.recipes import load, resolve
from rollbook.records import Batch, RecipeError, ToolCall, Trace
from rollbook.records.recipe import Pretrained
from rollbook.rollouts import episodes
from rollbook.rollouts.answering import Read
from rollbook.rollouts.contexts import Context
from rollbook.rollouts.episodes import Playing

PATIENT = ("environment.definition=patient:Patient", "stages.rl.filter=none", "stages.rl.max_waves=1", "environment.max_turns=4",
           "tasks.max_tokens=48", "environment.turn_tokens=16", "stages.rl.probe_every=0", "tasks.train=24", "tasks.heldout=4",
           "stages.cold_start.traces.gold=0.0", "stages.cold_start.traces.direct=1.0")
COMPACTED = (*PATIENT, "environment.compaction=summary", "environment.compact_at=40", "environment.summary_tokens=8")
DELEGATED = (*PATIENT, "environment.subagents=2", "environment.subagent_tokens=6", "stages.rl.subagents_learn=true")


def held(run):
    """Trajectories of the stage by id, and of each batch the names of its sequences with its tensors."""
    with Ledger.open(run, write=False) as ledger:
        traces = {identity: trace for event in ledger.events("TraceTable") if event.body["name"].startswith("rl/")
                  for identity, (trace, _, _) in ledger.rows(event)}
        return traces, [(batch.traces, load_tensors(ledger.get(batch.tensors))) for batch in ledger.records(Batch)]


def check_trained(run, learnt=lambda trace: trace):
    """Every context's own ids are trained, in one sequence with one advantage; returns the kinds of contexts that were."""
    traces, batches = held(run)
    kinds = set()
    for names, given in batches:
        for place, name in enumerate(names):
            trace, mine = learnt(traces[name]), given["seq"] == place
            wanted = [token for one in trace.contexts() for segment in one.policy_segments for token in segment.token_ids]
            assert given["token_ids"][mine].tolist() == wanted
            assert len(set(given["advantage"][mine].tolist())) == 1
            kinds |= {part.kind for part in trace.parts if len(trace.contexts()) == len(trace.parts) + 1}
    return kinds


@pytest.fixture(scope="module")
def answering(tmp_path_factory):
    """A tiny model that has learnt to answer and to end its turn, in a context that holds a summary's instruction."""
    out = tmp_path_factory.mktemp("answering") / "run"
    ran(out, *PATIENT, "stages.cold_start.steps=60", "stages.rl.prompts=1", "stages.rl.groups=1", "model.context=448")
    return out / "checkpoints" / "cold_start"


@pytest.fixture
def made(answering, tmp_path):
    """A short run that starts from it."""
    return lambda *overrides: begun(answering, tmp_path / "run", overrides)


def begun(answering, out, overrides):
    recipe = resolve(load("tool-calculator"), "tiny", merged(overrides))
    settings = dataclasses.replace(recipe.settings, model=Pretrained(path=str(answering), context=448))
    assert run_recipe(dataclasses.replace(recipe, settings=settings), out, Quiet()) == 0
    return out


def merged(overrides):
    short = {"stages.cold_start.steps": "1", "stages.cold_start.optimizer.warmup_steps": "0"}
    given = dict(one.split("=", 1) for one in SMALL) | short | dict(one.split("=", 1) for one in overrides)
    return tuple(f"{name}={value}" for name, value in given.items())


@pytest.fixture(scope="module")
def compacted(answering, tmp_path_factory):
    return begun(answering, tmp_path_factory.mktemp("contexts") / "run", COMPACTED)


def test_every_context_of_an_attempt_is_trained_with_its_own_ids_and_the_attempts_advantage(compacted):
    assert check_trained(compacted) == {"compacted"}


def test_its_audit_is_clean_deep_too_and_its_updates_come_out_again(compacted):
    assert failed(compacted) == {}
    rows = {row.stage: row for row in audit_run(compacted, sample=4).rows}
    assert not [row for row in rows.values() if row.result == "fail"]
    assert "several contexts" in rows[7].evidence and "computed again" in rows[7].evidence
    assert replay_run(compacted).same_bits


def delegating(monkeypatch):
    """The first turn of every attempt, whatever it says, becomes two calls of a subagent: so small a model makes none itself."""
    def read(spoken, tools, *, turn, ids, decode):
        asked = tuple(ToolCall(id=f"call_{turn}_{n}", name="delegate", arguments={"task": f"part {n}"})
                      for n in range(0 if turn else 2))
        return dataclasses.replace(real(spoken, tools, turn=turn, ids=ids, decode=decode), **(
            {"action": episodes.Action(calls=asked), "order": tuple(one.id for one in asked), "misfits": ()} if asked else {}))
    real = episodes.read_turn
    assert Read
    monkeypatch.setattr(episodes, "read_turn", read)


def test_subagents_are_trained_with_the_advantage_of_the_attempt_that_called_them(made, monkeypatch):
    with monkeypatch.context() as patch:
        delegating(patch)
        run = made(*DELEGATED)
    assert check_trained(run, Trace.with_subagents) == {"subagent"}
    assert failed(run).keys() == {7} and "was told" in failed(run)[7]       # its calls stand in no tokens, which is found
    monkeypatch.setattr(events, "misread", lambda trace, tokenizer: "")
    assert failed(run) == {} and replay_run(run).same_bits


@pytest.mark.soak
@pytest.mark.parametrize("setting", ["environment.reasoning=split", "environment.reasoning=strip"])
def test_split_and_stripped_reasoning_can_be_trained(made, setting):
    run = made(*PATIENT, setting)
    assert failed(run) == {}


@pytest.mark.fault(stage=7, injection="only the context that an attempt ended in is packed, the others are left out unseen")
def test_a_batch_of_the_last_contexts_alone_is_caught(made, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Trace, "learnt_parts", property(lambda self: (0,)))
        run = made(*COMPACTED)
    assert {7, 10} <= failed(run).keys()


@pytest.mark.fault(stage=7, injection="a compacted context goes on with another summary than the policy wrote")
def test_a_summary_that_the_policy_did_not_write_is_caught(made, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(episodes, "SUMMARY", "What happened before: all went well. {}")
        run = made(*COMPACTED)
    assert "never said" in failed(run)[7]


@pytest.mark.soak
@pytest.mark.fault(stage=7, injection="the contexts of an attempt do not say which they came from")
def test_contexts_without_their_parents_are_caught(made, monkeypatch):
    real = Context.part
    with monkeypatch.context() as patch:
        patch.setattr(Context, "part", lambda self, parent: real(self, 7))
        run = made(*COMPACTED)
    assert "contexts come from" in failed(run)[7]


@pytest.mark.soak
@pytest.mark.fault(stage=7, injection="a subagent's report is rewritten before the policy reads it")
def test_a_report_that_the_subagent_did_not_write_is_caught(made, monkeypatch):
    real = Playing._reported

    def rewritten(self, call, own, done):
        return dataclasses.replace(real(self, call, own, done), content="all done")
    with monkeypatch.context() as patch:
        delegating(patch)
        patch.setattr(Playing, "_reported", rewritten)
        run = made(*DELEGATED)
    assert "told to have said" in failed(run)[7]


@pytest.mark.fault(stage=10, injection="the contexts before the last of an attempt are given another advantage")
def test_an_advantage_that_stops_at_a_compaction_is_caught(made, monkeypatch):
    real = step.pack

    def last_alone(part, credit, objective, **sizes):
        made = real(part, credit, objective, **sizes)
        advantage_T, at = made.advantage_T.clone(), 0
        for member in made.members:
            before = member.trace.learnt_count - member.trace.action_count
            advantage_T[at:at + before] -= 1.0
            at += member.trace.learnt_count
        return dataclasses.replace(made, advantage_T=advantage_T)
    with monkeypatch.context() as patch:
        patch.setattr(step, "pack", last_alone)
        run = made(*COMPACTED)
    assert "another advantage" in failed(run)[10]


def test_subagents_learn_only_where_there_are_some(made):
    with pytest.raises(RecipeError, match="subagents"):
        made("stages.rl.subagents_learn=true")
