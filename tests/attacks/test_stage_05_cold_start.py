"""Stage 5: tokens that the policy never wrote must not be imitated."""

import dataclasses
import importlib

import pytest
import torch
from attacked import assert_caught, assert_found, rows
from faulty import clean_run, faulty

from rollbook.ledger import Ledger
from rollbook.orchestration import stages
from rollbook.records import Demonstration, Message, Span
from rollbook.training import sft
from rollbook.training.trees import demonstration_tree

# what stage 5 needs of a run: two supervised steps and nothing after them that takes time
SHORT = ("stages.rl.steps=1", "stages.select.candidates=4", "tasks.heldout=4", "stages.rl.probe=1")


@pytest.fixture(scope="module")
def clean(warm, tmp_path_factory):
    return clean_run(warm, tmp_path_factory)


def demonstrated(observed_as, *, lead=0):
    """A producer of demonstrations with a tool turn: call, observation, answer; the observation's owner as given."""
    def made(session, task, asked, written):
        body, author = written
        tokenizer = session.policy.tokenizer
        stop = min(tokenizer.stop_ids)
        if stop not in body:
            body = (*body, stop)
        call = (*tokenizer.encode("<calc>"), stop)
        answer = tokenizer.decode(body)
        messages = (*asked, Message(role="assistant", content="<calc>", origin="program"),
                    Message(role="tool", content="12 OK", origin="tool"), Message(role="assistant", content=answer))
        prompt = tokenizer.prompt(asked)
        between = tokenizer.encode(tokenizer.render(messages[:-1], generation_prompt=True)
                                   [len(tokenizer.render(asked, generation_prompt=True) + "<calc><|im_end|>"):])
        spans = (Span(owner="user", length=len(prompt)), Span(owner="policy", length=len(call)),
                 Span(owner=observed_as, length=len(between)), Span(owner="policy", length=len(body)))
        return Demonstration(task=task, messages=messages, token_ids=(*prompt, *call, *between, *body), owners=spans,
                             tokenizer=tokenizer.digest, template=tokenizer.template_digest, author=author,
                             validation="correct by construction" if author.startswith("program") else "none")
    return made


def test_a_cold_start_on_its_own_words_passes(clean):
    row = rows(clean)[5]
    assert row.result == "pass", row
    assert "32 demonstrations, all trained" in row.evidence and "program:" in row.evidence


def test_a_tool_turn_that_is_masked_passes(warm, tmp_path, monkeypatch):
    run = faulty(monkeypatch, warm, tmp_path / "run", (stages.supervised, "demonstration", demonstrated("tool")), overrides=SHORT)
    assert rows(run)[5].result == "pass", rows(run)[5]


@pytest.mark.fault(stage=5, injection="a tool's observation is labelled and trained as the policy's own words")
def test_an_observation_that_trains_is_caught(warm, tmp_path, monkeypatch):
    run = faulty(monkeypatch, warm, tmp_path / "run", (stages.supervised, "demonstration", demonstrated("policy")),
                 overrides=SHORT)
    assert_caught(run, 5, record="Demonstration", evidence="is the tool's by the roles of the messages and the policy's by")


@pytest.mark.fault(stage=5, injection="the owners are right, the learner weighs the tool's observation all the same")
def test_a_learner_that_ignores_the_owners_is_caught(warm, tmp_path, monkeypatch):
    def everything(demonstration):
        tree = demonstration_tree(demonstration)
        return dataclasses.replace(tree, actions=tuple((True,) * len(acts) for acts in tree.actions))

    run = faulty(monkeypatch, warm, tmp_path / "run", (stages.supervised, "demonstration", demonstrated("tool")),
                 (sft, "demonstration_tree", everything), overrides=SHORT)
    assert_caught(run, 5, record="SftReport", evidence="tool text")


@pytest.mark.fault(stage=5, injection="the mask starts early: the generation prompt counts as the policy's")
def test_a_mask_that_starts_early_is_caught(warm, tmp_path, monkeypatch):
    real = stages.supervised.demonstration

    def early(session, task, asked, written):
        made = real(session, task, asked, written)
        prompt, body = made.owners
        return dataclasses.replace(made, owners=(Span(owner="user", length=prompt.length - 2),
                                                 Span(owner="policy", length=body.length + 2)))

    run = faulty(monkeypatch, warm, tmp_path / "run", (stages.supervised, "demonstration", early), overrides=SHORT)
    assert_caught(run, 5, record="Demonstration", evidence="2 tokens have the wrong owner")


@pytest.mark.fault(stage=5, injection="the mean is taken per demonstration, so that short ones weigh more per token")
def test_weights_that_favour_short_demonstrations_are_caught(warm, tmp_path, monkeypatch):
    def per_sequence(tree):
        acts = torch.tensor((*(False for _ in tree.prompt), *tree.actions[0]), dtype=torch.float32)
        return acts / acts.sum() * 12.0

    run = faulty(monkeypatch, warm, tmp_path / "run", (sft, "_weights", per_sequence), overrides=SHORT)
    assert_caught(run, 5, record="SftReport", evidence="do not weigh 1/")


@pytest.mark.fault(stage=5, injection="the collator drops the end of every turn before it trains and reports what it trained")
def test_demonstrations_that_are_cut_before_they_train_are_caught(warm, tmp_path, monkeypatch):
    def cut(one):
        prompt, body = one.owners
        return dataclasses.replace(one, token_ids=one.token_ids[:-1],
                                   owners=(prompt, Span(owner="policy", length=body.length - 1)))

    update, stored = stages.supervised.sft_update, stages.supervised.sft_tensors

    def trained(decoder, optimizer, batch, **how):
        return update(decoder, optimizer, list(map(cut, batch)), **how)

    run = faulty(monkeypatch, warm, tmp_path / "run", (stages.supervised, "sft_update", trained),
                 (stages.supervised, "sft_tensors",
                  lambda ledger, batch, weight_T: stored(ledger, list(map(cut, batch)), weight_T)),
                 overrides=SHORT)
    assert_caught(run, 5, record="SftReport", evidence="train")


@pytest.mark.fault(stage=5, injection="prompts are written by hand instead of by the template whose digest is recorded")
def test_a_prompt_that_the_template_did_not_write_is_caught(warm, tmp_path, monkeypatch):
    real = stages.supervised.demonstration

    def plain(session, task, asked, written):
        made = real(session, task, asked, written)
        prompt = session.policy.tokenizer.encode(f"Question: {asked[-1].content}\nAnswer: ")
        body = made.token_ids[made.owners[0].length:]
        return dataclasses.replace(made, token_ids=prompt + body, owners=(Span(owner="user", length=len(prompt)), made.owners[1]))

    run = faulty(monkeypatch, warm, tmp_path / "run", (stages.supervised, "demonstration", plain), overrides=SHORT)
    assert_caught(run, 5, record="Demonstration", evidence="not what the template writes in front of message 1")


@pytest.mark.fault(stage=5, injection="half of what is trained is not in the table of demonstrations")
def test_a_demonstration_that_is_not_on_record_is_caught(warm, tmp_path, monkeypatch):
    real = Ledger.write_table

    def half(self, name, records):
        return real(self, name, records[:len(records) // 2] if name.endswith("demonstrations") else records)

    run = faulty(monkeypatch, warm, tmp_path / "run", (Ledger, "write_table", half), overrides=SHORT)
    assert_caught(run, 5, record="SftReport", evidence="shows 16 demonstrations, 0 of them general; the recipe asks for 32")
    assert_found(run, 5, record="SftReport", evidence="not on record")


@pytest.mark.fault(stage=5, injection="traces said to be correct by construction box a wrong answer")
def test_a_validation_that_is_not_true_is_caught(warm, tmp_path, monkeypatch):
    writer = importlib.import_module("rollbook.tasks.demonstrations")
    real = writer.write_trace

    def wrong(task, style, rng):
        return real(dataclasses.replace(task, reference=str(int(task.reference) + 1)), style, rng)

    run = faulty(monkeypatch, warm, tmp_path / "run", (writer, "write_trace", wrong), overrides=SHORT)
    assert_caught(run, 5, record="Demonstration", evidence="correct by construction")
