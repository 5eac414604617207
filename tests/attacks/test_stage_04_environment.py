"""Stage 4: verdicts that depend on packages, web pages, the clock, or on how often one asks."""

import dataclasses

import faulty_judges
import pytest
from attacked import assert_caught, rows
from short_runs import begun, clean_run, short

from rollbook.environments import single_turn
from rollbook.orchestration import judges, proof, stages
from rollbook.orchestration import run as producer


@pytest.fixture(scope="module")
def clean(warm):
    return clean_run(warm)


def judged_by(judge, warm, out, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr(judges, "MagistralJudge", judge)
        return begun(warm, out)


def test_an_honest_environment_passes_with_a_proof_of_every_kind(clean):
    row = rows(clean)[4]
    assert row.result == "pass", row
    assert int(row.evidence.split()[0]) >= 12 and "unproved" not in row.evidence


@pytest.mark.fault(stage=4, injection="a verifier that reads the clock")
def test_a_verifier_that_reads_the_clock_is_caught(warm, tmp_path, monkeypatch):
    run = judged_by(faulty_judges.ClockJudge, warm, tmp_path / "run", monkeypatch)
    assert_caught(run, 4, record="EnvironmentProof", evidence="clock")


@pytest.mark.fault(stage=4, injection="a verifier that needs the network")
def test_a_verifier_that_needs_the_network_is_caught(warm, tmp_path, monkeypatch):
    run = judged_by(faulty_judges.NetworkJudge, warm, tmp_path / "run", monkeypatch)
    assert_caught(run, 4, record="EnvironmentProof", evidence="network")


@pytest.mark.fault(stage=4, injection="a verifier that asks which package index is set")
def test_a_verifier_that_depends_on_the_package_index_is_caught(warm, tmp_path, monkeypatch):
    run = judged_by(faulty_judges.IndexJudge, warm, tmp_path / "run", monkeypatch)
    assert_caught(run, 4, record="EnvironmentProof", evidence="packages")


@pytest.mark.fault(stage=4, injection="verdicts salted by the process that judges")
def test_verdicts_with_a_salt_of_the_process_are_caught(warm, tmp_path, monkeypatch):
    run = judged_by(faulty_judges.SaltedJudge, warm, tmp_path / "run", monkeypatch)
    assert_caught(run, 4, record="EnvironmentProof", evidence="a fresh judge")


@pytest.mark.fault(stage=4, injection="a judge that grows lenient with the number of texts it has seen")
def test_a_judge_that_remembers_is_caught(warm, tmp_path, monkeypatch):
    run = judged_by(faulty_judges.TiredJudge, warm, tmp_path / "run", monkeypatch)
    assert_caught(run, 4, record="EnvironmentProof", evidence="in reverse order")


@pytest.mark.fault(stage=4, injection="another judge takes over after the proof")
def test_a_judge_that_was_not_proved_is_caught(warm, tmp_path, monkeypatch):
    real = stages.policy_gradient.run

    def replaced(session, name, stage, state):
        honest, session.judge = session.judge, faulty_judges.GenerousJudge(session.settings.reward)
        real(session, name, stage, state)
        session.judge = honest

    with monkeypatch.context() as m:
        m.setattr(stages.policy_gradient, "run", replaced)
        run = short(warm, tmp_path / "run")
    assert_caught(run, 4, record="Trace", evidence="which no proof covers")


@pytest.mark.fault(stage=4, injection="the image's digest leaves its packages out")
def test_a_digest_that_ignores_its_packages_is_caught(warm, tmp_path, monkeypatch):
    real = single_turn.single_turn_image

    def loose(*, verifier, dependencies):
        return dataclasses.replace(real(verifier=verifier, dependencies=dependencies),
                                   digest=real(verifier=verifier, dependencies={}).digest)

    with monkeypatch.context() as m:
        m.setattr(judges, "single_turn_image", loose)
        m.setattr(proof, "single_turn_image", loose)
        run = begun(warm, tmp_path / "run")
    assert_caught(run, 4, record="EnvironmentImage", evidence="does not follow from its dependencies")


@pytest.mark.fault(stage=4, injection="verdicts by another sympy than the image names")
def test_an_image_with_other_packages_than_the_manifest_is_caught(warm, tmp_path, monkeypatch):
    versions = {**judges.package_versions(), "sympy": "1.12"}
    with monkeypatch.context() as m:
        m.setattr(judges, "package_versions", lambda: versions)
        m.setattr(proof, "package_versions", lambda: versions)
        run = begun(warm, tmp_path / "run")
    assert_caught(run, 4, record="EnvironmentImage", evidence="sympy 1.12")


@pytest.mark.fault(stage=4, injection="a proof over empty texts, which any judge passes")
def test_a_proof_that_no_judge_could_fail_is_caught(warm, tmp_path, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr(proof, "proof_items", lambda train, count: [(task, "") for task in train[:count] for _ in range(3)])
        run = begun(warm, tmp_path / "run")
    assert_caught(run, 4, record="EnvironmentProof", evidence="was left out")


@pytest.mark.fault(stage=4, injection="a proof over empty texts that claims to have tried the clock all the same")
def test_a_proof_over_texts_that_tell_no_judge_from_none_is_caught(warm, tmp_path, monkeypatch):
    real = producer.prove
    with monkeypatch.context() as m:
        m.setattr(proof, "proof_items", lambda train, count: [(task, "") for task in train[:count] for _ in range(3)])
        m.setattr(producer, "prove", lambda *parts: dataclasses.replace(real(*parts), unproved={}))
        run = begun(warm, tmp_path / "run")
    assert_caught(run, 4, record="EnvironmentProof", evidence="gated 24")


@pytest.mark.fault(stage=4, injection="the trial without a network is left out")
def test_a_proof_without_one_kind_of_trial_is_caught(warm, tmp_path, monkeypatch):
    real = producer.prove

    def shorter(*parts):
        full = real(*parts)
        return dataclasses.replace(full, trials=tuple(trial for trial in full.trials if trial.kind != "network"))

    with monkeypatch.context() as m:
        m.setattr(producer, "prove", shorter)
        run = begun(warm, tmp_path / "run")
    assert_caught(run, 4, record="EnvironmentProof", evidence="no trial of the kind network")
