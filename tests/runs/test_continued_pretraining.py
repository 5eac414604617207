"""Continued pre-training: documents without a template, packed so that none sees another."""

import dataclasses

import pytest
import torch
from small_stages import SFT, pipeline, run

from rollbook.audit.ownership import NotRendered, as_text
from rollbook.audit.passage import audit_run
from rollbook.audit.replay import replay_run
from rollbook.ledger import Ledger
from rollbook.models.layout import pack
from rollbook.models.load import load_policy
from rollbook.models.logprobs import action_logprobs
from rollbook.recipes import validate
from rollbook.records import Demonstration, Message, RecipeError, problems
from rollbook.tasks.fim import MIDDLE, restored
from rollbook.training.trees import demonstration_tree

CPT = dataclasses.replace(SFT, form="text", steps=6, fim=0.5)
STAGES = {"cpt": CPT, "sft": dataclasses.replace(SFT, policy="cpt", steps=4)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(pipeline(**STAGES), tmp_path_factory.mktemp("cpt") / "run")


def test_documents_pass_the_audit_and_are_computed_again_bit_for_bit(whole):
    rows = audit_run(whole).rows
    assert not [(row.name, row.record, row.evidence) for row in rows if row.result == "fail"]
    assert "demonstrations of cpt written again" in next(row.evidence for row in rows if row.name == "cold start")
    report = replay_run(whole)
    assert report.same_bits and [one.stage for one in report.stages] == ["cpt", "sft"]


def test_every_token_of_a_document_is_learnt_and_none_is_a_templates(whole):
    with Ledger.open(whole, write=False) as ledger:
        one = next(ledger.table_records(next(event for event in ledger.events("RecordTable")
                                             if event.body["name"] == "cpt/demonstrations")))
    tokenizer = load_policy(pipeline(**STAGES).settings.model).tokenizer
    assert [(span.owner, span.length) for span in one.owners] == [("template", 1), ("policy", len(one.token_ids) - 1)]
    assert tokenizer.decode(one.token_ids[1:-1]) == one.messages[0].content
    assert " =\n<think>" in restored(one.messages[0].content)
    with pytest.raises(NotRendered):
        as_text((Message(role="assistant", content="another"),), one.token_ids, tokenizer)


def test_packed_documents_do_not_see_each_other(whole):
    with Ledger.open(whole, write=False) as ledger:
        shown = list(ledger.records(Demonstration))[:3]
    decoder = load_policy(pipeline(**STAGES).settings.model).decoder
    with torch.no_grad():
        together, *alone = (action_logprobs(decoder, pack([demonstration_tree(one) for one in some]), temperature=1.0,
                                            dtype=torch.float32).logp_T for some in (shown, *([one] for one in shown)))
    assert torch.allclose(together, torch.cat(alone), atol=1e-5)


def test_a_share_of_the_documents_has_its_middle_at_the_end_and_says_the_same(whole):
    with Ledger.open(whole, write=False) as ledger:
        shown = [one.messages[0].content for event in ledger.events("RecordTable") if event.body["name"] == "cpt/demonstrations"
                 for one in ledger.table_records(event)]
    moved = [text for text in shown if MIDDLE in text]
    assert 0.3 < len(moved) / len(shown) < 0.7 and not any(MIDDLE in restored(text) for text in shown)
    found = problems.Problems()
    validate.check(pipeline(cpt=dataclasses.replace(SFT, fim=0.5)).settings, found)
    with pytest.raises(RecipeError, match=r"cpt\.fim is for"):
        found.raise_any("this recipe")


def test_conversations_are_no_documents():
    found = problems.Problems()
    validate.check(pipeline(cpt=dataclasses.replace(CPT, general_share=0.5)).settings, found)
    with pytest.raises(RecipeError, match="form = text"):
        found.raise_any("this recipe")
