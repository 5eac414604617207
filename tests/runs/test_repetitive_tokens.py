"""Continued pre-training in which what repeats carries no loss: recorded, computed again, audited."""

import dataclasses

import pytest
import torch
from faulty import reread
from small_stages import SFT, pipeline, run

from rollbook.audit.detectors.cold_start import ColdStartDetector
from rollbook.audit.passage import audit_run
from rollbook.audit.replay import replay_run
from rollbook.experience import repeats
from rollbook.ledger import Ledger
from rollbook.orchestration.stages import supervised
from rollbook.records import Demonstration, SftReport, content_id
from rollbook.records.recipe import Repeats

RULE = Repeats(period=8, copies=1, span=2)          # a byte that came up to eight before carries no loss
CPT = dataclasses.replace(SFT, form="text", steps=3, batch=8, repeats=RULE)
STAGES = {"cpt": CPT, "sft": dataclasses.replace(SFT, policy="cpt", steps=2, batch=8)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(pipeline(**STAGES), tmp_path_factory.mktemp("repeats") / "run")


def cold_start(out):
    return next(row for row in audit_run(out).rows if row.name == "cold start")


def test_a_stage_says_how_many_tokens_carried_no_loss_and_replays_bit_for_bit(whole):
    with Ledger.open(whole, write=False) as ledger:
        reports = list(ledger.records(SftReport))
        shown = {content_id(one): one for one in ledger.records(Demonstration)}
    for report in reports[:3]:
        due = sum(sum(repeats.repeated(shown[one], RULE)) for one in report.demonstrations)
        whole_turns = sum(len(shown[one].token_ids) - 1 for one in report.demonstrations)
        assert report.repeated == due > 0 and report.tokens == whole_turns - due
    assert [one.repeated for one in reports[3:]] == [None, None]
    assert replay_run(whole).same_bits


def test_the_audit_passes_and_names_them(whole):
    row = cold_start(whole)
    assert row.result == "pass" and "tokens carry no loss, for repeating" in row.evidence, row


@pytest.mark.parametrize(("field", "words"), [
    ("tokens", "the policy's turns have"), ("repeated", "left out for repeating, the recipe")])
def test_a_step_that_counts_otherwise_is_caught(whole, field, words):
    def off(_, one):
        counted = isinstance(one, SftReport) and one.repeated
        return dataclasses.replace(one, **{field: getattr(one, field) + 1}) if counted else one
    row = reread(whole, ColdStartDetector(), record=off)
    assert row.result == "fail" and words in row.evidence, row


def test_a_token_that_repeats_and_weighs_something_is_caught_where_the_counts_are_right(tmp_path, monkeypatch):
    real = supervised.sft_tensors

    def weighed(ledger, batch, weight_T):
        return real(ledger, batch, weight_T + torch.tensor(sum((repeats.repeated(one, RULE) for one in batch), ())) * 1e-3)
    monkeypatch.setattr(supervised, "sft_tensors", weighed)
    out = run(pipeline(cpt=dataclasses.replace(CPT, steps=1)), tmp_path / "run")
    row = cold_start(out)
    assert row.result == "fail" and "repeats what stands before it and weighs 0.001" in row.evidence, row
