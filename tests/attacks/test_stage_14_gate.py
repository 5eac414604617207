"""Stage 14: offline success mistaken for permission."""

import base64
import dataclasses
import functools
import hashlib
import json
import shutil
import sys
from datetime import UTC, datetime, timedelta

import pytest
from attacked import assert_caught, attacked, rows
from click.testing import CliRunner
from gate_runs import NOW, WISH, lax, redrafted, wish

from rollbook.cli import main
from rollbook.evaluation.gate import document, undecided
from rollbook.evaluation.signing import GateRefused, new_key, sign
from rollbook.ledger import Ledger
from rollbook.orchestration import permission, run
from rollbook.orchestration.permission import Finished, decide
from rollbook.records import GateDecision, Incident


def test_an_undecided_run_claims_no_permission(finished):
    row = rows(finished)[14]
    assert row.result == "not_applicable" and "undecided" in row.evidence, row


def test_an_honest_permission_passes_and_shows_what_it_rests_on(copy, key):
    decide(copy, WISH, private_key=key, now=NOW)
    row = rows(copy)[14]
    assert row.result == "pass", row
    for said in ("heldout 0.5625 >= 0.5", "serve-internal", "2027-03-01", "signed with key", "canary"):
        assert said in row.evidence


def test_a_refusal_is_no_permission_and_no_failure(copy, key):
    decide(copy, wish(decision="refuse", thresholds={"heldout": 0.99}, owners={}), private_key=key, now=NOW)
    row = rows(copy)[14]
    assert row.result == "pass" and "refused" in row.evidence, row


@pytest.mark.fault(stage=14, injection="the run ends with an `allow` that nobody signed")
def test_a_run_that_allows_itself_is_caught(warm, tmp_path, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr(run, "undecided", lambda policy: dataclasses.replace(undecided(policy), decision="allow"))
        folder = attacked(warm, tmp_path / "run")
    assert_caught(folder, 14, record="GateDecision")


@pytest.mark.fault(stage=14, injection="a complete `allow` is recorded without a signature")
def test_a_permission_without_a_signature_is_caught(copy, key, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr(permission, "signed", lambda ledger, decision, *rest: decision)
        decide(copy, WISH, private_key=key, now=NOW)
    assert_caught(copy, 14, record="GateDecision", evidence="not signed")


@pytest.mark.fault(stage=14, injection="the decision is signed for the weights of another policy")
def test_a_permission_for_other_weights_is_caught(copy, key, monkeypatch):
    with monkeypatch.context() as m:
        lax(m)
        with Ledger.open(copy, write=False) as ledger:
            other = permission.finished(ledger).version("cold_start").weights
        redrafted(m, lambda decision: dataclasses.replace(decision, weights=other))
        decide(copy, WISH, private_key=key, now=NOW)
    assert_caught(copy, 14, record="GateDecision", evidence="names weights")


@pytest.mark.fault(stage=14, injection="the signed file hashes are those of another stage's checkpoint")
def test_a_permission_over_the_files_of_another_checkpoint_is_caught(copy, key, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr(permission, "_checked_files", lambda folder, policy: permission.policy_files(folder.parent / "cold_start"))
        decide(copy, WISH, private_key=key, now=NOW)
    assert_caught(copy, 14, record="GateDecision", evidence="not those that were decided about")


@pytest.mark.fault(stage=14, injection="another checkpoint lies under the policy's name when it is decided about")
def test_a_permission_over_exchanged_weights_is_caught(copy, key, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr(permission, "_checked_files", lambda folder, policy: permission.policy_files(folder))
        shutil.copy(copy / "checkpoints/cold_start/model.safetensors", copy / "checkpoints/rl/model.safetensors")
        decide(copy, WISH, private_key=key, now=NOW)
    assert_caught(copy, 14, record="GateDecision", evidence="hold weights")


@pytest.mark.fault(stage=14, injection="the permission had expired when it was given")
def test_a_permission_that_had_expired_is_caught(copy, key, monkeypatch):
    with monkeypatch.context() as m:
        lax(m)
        decide(copy, wish(expires="2026-11-01"), private_key=key, now=NOW)
    assert_caught(copy, 14, record="GateDecision", evidence="before it was decided")


@pytest.mark.fault(stage=14, injection="a permission without an end")
def test_a_permission_without_an_end_is_caught(copy, key, monkeypatch):
    with monkeypatch.context() as m:
        lax(m)
        decide(copy, wish(expires=None), private_key=key, now=NOW)
    assert_caught(copy, 14, record="GateDecision", evidence="expires never")


@pytest.mark.fault(stage=14, injection="thresholds are claimed to be met that the policy's evaluation does not reach")
def test_a_threshold_that_was_not_met_is_caught(copy, key, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr("rollbook.evaluation.gate.measure", lambda name, reports, ground, **how: 1.0)
        decide(copy, wish(thresholds={"heldout": 0.7}), private_key=key, now=NOW)
    assert_caught(copy, 14, record="GateDecision", evidence="heldout is 0.7; the evaluations of this policy give 0.5625")


@pytest.mark.fault(stage=14, injection="the thresholds are met by the evaluation of another policy")
def test_a_policy_that_was_never_evaluated_is_caught(copy, key, monkeypatch):
    real = Finished.version

    def between(held, stage):
        last = real(held, stage)
        return held.ground.versions[last.parent] if stage is None else last

    with monkeypatch.context() as m:
        lax(m)
        with Ledger.open(copy, write=False) as ledger:
            held = permission.finished(ledger)
        reports = tuple(permission.evaluations(held.version(None).id, held.version(None).weights, held.ground.reports))
        files = permission.policy_files(copy / "checkpoints" / "rl")
        m.setattr(Finished, "version", between)
        redrafted(m, lambda decision: dataclasses.replace(decision, reports=reports, files=files))
        decide(copy, WISH, private_key=key, now=NOW)
    assert_caught(copy, 14, record="GateDecision", evidence="never evaluated")


@pytest.mark.fault(stage=14, injection="the decision leaves out an evaluation of its policy")
def test_a_decision_that_does_not_name_its_evaluations_is_caught(copy, key, monkeypatch):
    with monkeypatch.context() as m:
        lax(m)
        redrafted(m, lambda decision: dataclasses.replace(decision, reports=()))
        decide(copy, WISH, private_key=key, now=NOW)
    assert_caught(copy, 14, record="GateDecision", evidence="rests on 0 reports; the run holds 1")


@pytest.mark.fault(stage=14, injection="a family got worse and nobody answers for it")
def test_a_regression_without_an_owner_is_caught(copy, key, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr("rollbook.evaluation.gate.regressions", lambda policy, ground: {})
        decide(copy, wish(owners={}), private_key=key, now=NOW)
    assert_caught(copy, 14, record="GateDecision", evidence="add_sub got worse, 0.7500 to 0.5625")


@pytest.mark.fault(stage=14, injection="the rollback names weights that no policy of the run has")
def test_a_rollback_to_an_unknown_policy_is_caught(copy, key, monkeypatch):
    with monkeypatch.context() as m:
        lax(m)
        decide(copy, wish(rollback="ab" * 32), private_key=key, now=NOW)
    assert_caught(copy, 14, record="GateDecision", evidence="rollback")


@pytest.mark.fault(stage=14, injection="the signature of another decision by the same key is reused")
def test_a_reused_signature_is_caught(copy, key, monkeypatch):
    refusal = decide(copy, wish(decision="refuse"), private_key=key, now=NOW)
    with monkeypatch.context() as m:
        m.setattr(permission, "sign", lambda covered, private_key, checkpoint: sign(document(refusal), private_key, checkpoint))
        decide(copy, WISH, private_key=key, now=NOW)
    assert_caught(copy, 14, record="GateDecision", evidence="another document")


@pytest.mark.fault(stage=14, injection="authority is widened after the signature was made")
def test_a_permission_widened_after_signing_is_caught(copy, key, monkeypatch):
    real = permission.signed
    with monkeypatch.context() as m:
        m.setattr(permission, "signed", lambda *given: dataclasses.replace(real(*given), authority_limits=("deploy",)))
        decide(copy, WISH, private_key=key, now=NOW)
    assert_caught(copy, 14, record="GateDecision", evidence="another document")


@pytest.mark.fault(stage=14, injection="the public key on record is not the one that signed")
def test_a_signature_by_another_key_is_caught(copy, key, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr(permission, "public_key", lambda private_key: new_key()[1])
        decide(copy, WISH, private_key=key, now=NOW)
    assert_caught(copy, 14, record="GateDecision", evidence="does not hold")


@pytest.mark.fault(stage=14, injection="a permission that was taken back is put on record again")
def test_an_old_permission_put_on_record_again_is_caught(copy, key):
    allowed = decide(copy, WISH, private_key=key, now=NOW)
    decide(copy, wish(decision="refuse"), private_key=key, now=NOW.replace(hour=13))
    with Ledger.open(copy) as ledger:
        ledger.append(allowed)
    assert_caught(copy, 14, record="GateDecision", evidence="again")


@pytest.mark.fault(stage=14, injection="a permission for anything, with no canary")
@pytest.mark.parametrize(("changes", "evidence"), [
    ({"limits": ()}, "authority"), ({"canary": " "}, "canary"), ({"thresholds": {}}, "no threshold"),
    ({"thresholds": {"heldout": 0.0}}, "decides nothing")])
def test_a_permission_that_leaves_something_unsaid_is_caught(copy, key, monkeypatch, changes, evidence):
    with monkeypatch.context() as m:
        lax(m)
        decide(copy, wish(**changes), private_key=key, now=NOW)
    assert_caught(copy, 14, record="GateDecision", evidence=evidence)


def test_without_the_signing_package_a_permission_fails_with_what_to_install(copy, key, monkeypatch):
    decide(copy, WISH, private_key=key, now=NOW)
    for name in [name for name in sys.modules if name.split(".")[0] == "model_signing"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "model_signing", None)
    row = rows(copy)[14]
    assert row.result == "fail" and "not installed" in row.evidence and "pip install" in row.remedy, row


def test_a_copy_without_its_checkpoints_still_passes_and_says_so(copy, key):
    decide(copy, WISH, private_key=key, now=NOW)
    shutil.rmtree(copy / "checkpoints")
    row = rows(copy)[14]
    assert row.result == "pass" and "not here to be compared" in row.evidence, row


def command(*words):
    return CliRunner().invoke(main, ["gate", *map(str, words)])


def test_the_commands_make_a_key_decide_and_check(copy, tmp_path):
    keys = tmp_path / "keys"
    assert command("key", keys).exit_code == 0
    private, public = keys / "gate.key", keys / "gate.pub"
    assert private.stat().st_mode & 0o077 == 0
    assert command("check", copy, "--key", public).exit_code == 1
    allow = ("decide", copy, "--allow", "--key", private, "--threshold", "heldout=0.5", "--limit", "serve-internal",
             "--canary", "1%", "--rollback", "cold_start", "--expires", "2099-01-01")
    refused = command(*allow)
    assert refused.exit_code == 1 and "add_sub got worse" in refused.output and "--owner add_sub=NAME" in refused.output
    done = command(*allow, "--owner", "add_sub=maria")
    assert done.exit_code == 0, done.output
    assert command("check", copy, "--key", public, "--for", "serve-internal").exit_code == 0
    beyond = command("check", copy, "--key", public, "--for", "deploy")
    assert beyond.exit_code == 1 and "limited to serve-internal" in beyond.output
    assert command("check", copy, "--key", public, "--stage", "cold_start").exit_code == 1
    command("key", tmp_path / "others")
    assert command("check", copy, "--key", tmp_path / "others" / "gate.pub").exit_code == 1
    weights = copy / "checkpoints" / "rl" / "model.safetensors"
    kept = weights.read_bytes()
    weights.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    assert command("check", copy, "--key", public).exit_code == 1
    assert command(*allow, "--owner", "add_sub=maria").exit_code == 2          # the checkpoint is not what was published
    weights.write_bytes(kept)
    assert command("decide", copy, "--refuse", "--key", private).exit_code == 0
    taken_back = command("check", copy, "--key", public)
    assert taken_back.exit_code == 1 and "refuse" in taken_back.output


def test_an_older_permission_put_on_record_again_does_not_permit(copy, key):
    allowed = decide(copy, WISH, private_key=key, now=NOW)
    decide(copy, wish(decision="refuse"), private_key=key, now=NOW.replace(hour=13))
    with Ledger.open(copy) as ledger:
        ledger.append(allowed)
        assert [one.decision for one in ledger.records(GateDecision)] == ["undecided", "allow", "refuse", "allow"]
    with pytest.raises(permission.GateRefused, match="no permission"):
        permission.check(copy, None, key=key.with_name("gate.pub").read_bytes(), now=NOW.replace(hour=14), wanted=())


def test_words_that_are_no_decision_are_refused(copy, key, tmp_path):
    (tmp_path / "text").write_text("no key")
    for words, said in (((), "neither"), (("--allow", "--threshold", "heldout"), "NAME=VALUE"),
                        (("--allow", "--threshold", "a=b"), "number"), (("--refuse", "--stage", "nowhere"), "no stage"),
                        (("--refuse", "--expires", "soon"), "time")):
        refused = command("decide", copy, "--key", key, *words)
        assert refused.exit_code == 2 and said in refused.output, refused.output
    unusable = command("decide", copy, "--key", tmp_path / "text", "--refuse")
    assert unusable.exit_code == 2 and "private key" in unusable.output
    wrong = command("check", copy, "--key", key)                               # the private key where the public one belongs
    assert wrong.exit_code != 0 and key.read_text().splitlines()[1] not in wrong.output


def test_the_statement_names_the_decision_and_every_file_of_the_checkpoint(copy, key):
    made = decide(copy, WISH, private_key=key, now=NOW)
    bundle = json.loads(Ledger.open(copy, write=False).get(made.signature))
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    named = {item["name"]: item["digest"] for item in statement["predicate"]["resources"]}
    assert statement["_type"].startswith("https://in-toto.io/Statement/")
    assert {name.removeprefix("checkpoint/"): value for name, value in named.items() if name != "decision.json"} == made.files
    assert named["decision.json"] == hashlib.sha256(document(made)).hexdigest() and len(made.files) >= 3


def test_a_rollback_takes_the_permission_back_and_says_what_to_use(copy, key):
    public = key.with_suffix(".pub").read_bytes()
    made = decide(copy, WISH, private_key=key, now=NOW)
    later = NOW + timedelta(hours=1)
    told = {"what": "answers in the wrong language", "severity": "major", "reporter": "maria", "action": "none"}
    permission.report_incident(copy, None, told, now=later, private_key=None)
    assert permission.check(copy, None, key=public, now=later, wanted=()) == made
    with pytest.raises(GateRefused, match="no key"):
        permission.report_incident(copy, None, {**told, "action": "rollback"}, now=later, private_key=None)
    done = permission.report_incident(copy, None, {**told, "action": "rollback"}, now=later, private_key=key)
    assert (done.stage, done.rollback) == ("cold_start", made.rollback)
    with pytest.raises(GateRefused, match="no permission"):
        permission.check(copy, None, key=public, now=later, wanted=())
    with pytest.raises(GateRefused, match="no permission stands"):
        permission.report_incident(copy, None, {**told, "action": "rollback"}, now=later, private_key=key)
    assert rows(copy)[11].result == "pass"          # what is added after the end is no record out of its place


def test_an_incident_that_rolls_back_holds_even_where_the_refusal_after_it_is_missing(copy, key):
    public = key.with_suffix(".pub").read_bytes()
    made = decide(copy, WISH, private_key=key, now=NOW)
    with Ledger.open(copy) as ledger:
        ledger.append(Incident(weights=made.weights, what="leaks", severity="critical", reporter="maria", action="rollback",
                               reported="2026-11-29T13:00:00Z"))
    with pytest.raises(GateRefused, match="taken back"):
        permission.check(copy, None, key=public, now=NOW + timedelta(hours=2), wanted=())


def test_only_a_permitted_policy_is_loaded_where_the_gate_is_required(copy, key, monkeypatch):
    public = key.with_suffix(".pub").read_bytes()
    load = functools.partial(permission.load_policy, copy, require_gate=True, key=public, now=NOW)
    with pytest.raises(GateRefused, match="no permission"):
        load()
    decide(copy, WISH, private_key=key, now=NOW)
    assert load(wanted=("serve-internal",)).decoder is not None
    assert permission.load_policy(copy, "cold_start", require_gate=False).decoder is not None
    refusals = [("no permission", {"stage": "cold_start"}), ("must be named", {}),
                ("does not reach", {"wanted": ("serve-public",)}),
                ("has expired", {"now": datetime(2027, 3, 1, tzinfo=UTC)}), ("no key", {"key": None}),
                ("signature does not hold", {"key": new_key()[1]})]
    for words, changed in refusals:
        with pytest.raises(GateRefused, match=words):
            load(**changed)
    real = permission.read_policy

    def exchanged(folder, *, source):
        policy = real(folder, source=source)
        next(iter(policy.decoder.parameters())).data[0] += 1.0
        return policy

    monkeypatch.setattr(permission, "read_policy", exchanged)
    with pytest.raises(GateRefused, match="not the permitted ones"):
        load(wanted=("serve-internal",))


def test_a_permission_in_use_holds_until_its_end_a_refusal_or_an_incident(copy, key):
    public = key.with_suffix(".pub").read_bytes()
    made = decide(copy, WISH, private_key=key, now=NOW)
    again = functools.partial(permission.renewed, copy, None, made, key=public, wanted=("serve-internal",))
    assert again(now=NOW) == made
    with pytest.raises(GateRefused, match="has expired"):
        again(now=datetime(2027, 3, 1, tzinfo=UTC))
    newer = decide(copy, WISH, private_key=key, now=NOW + timedelta(hours=1))
    assert again(now=NOW + timedelta(hours=2)) == newer                      # another decision is checked as a whole
    with pytest.raises(GateRefused, match="signature does not hold"):
        again(now=NOW + timedelta(hours=2), key=new_key()[1])
    decide(copy, wish(decision="refuse"), private_key=key, now=NOW + timedelta(hours=3))
    with pytest.raises(GateRefused, match="no permission"):
        again(now=NOW + timedelta(hours=4))


def test_a_server_that_requires_the_gate_loads_nothing_else(copy, key, tmp_path, monkeypatch):
    public, loaded = str(key.with_suffix(".pub")), []
    monkeypatch.setattr("rollbook.serve.loaded.gateway_over", lambda policy, *rest, **how: loaded.append(policy) or 1 / 0)

    def served(*arguments):
        return CliRunner().invoke(main, ["serve", *arguments])

    assert "no permission" in served(str(copy), "--require-gate", public).output
    assert "not a run folder" in served(str(tmp_path), "--require-gate", public).output
    assert "asks for a permission" in served(str(copy), "--for", "serve-internal").output
    decide(copy, WISH, private_key=key, now=datetime.now(UTC) - timedelta(seconds=5))
    assert "does not reach" in served(f"{copy}:rl", "--require-gate", public, "--for", "serve-public").output
    assert "no permission" in served(f"{copy}:cold_start", "--require-gate", public).output
    assert not loaded
    assert isinstance(served(f"{copy}:rl", "--require-gate", public, "--for", "serve-internal").exception, ZeroDivisionError)
    assert len(loaded) == 1


def test_an_incident_is_reported_on_the_command_line(copy, key):
    decide(copy, WISH, private_key=key, now=datetime.now(UTC))
    done = CliRunner().invoke(main, ["gate", "incident", str(copy), "--what", "leaks", "--reporter", "maria", "--rollback",
                                     "--key", str(key)])
    assert done.exit_code == 0 and "go back to cold_start" in done.output, done.output
    after = CliRunner().invoke(main, ["gate", "check", str(copy), "--key", str(key.with_suffix(".pub"))])
    assert after.exit_code == 1 and "no permission" in after.output
