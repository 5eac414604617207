"""The proof of an environment: trials of every kind, about this image and this judge."""

import dataclasses

from rollbook.environments import single_turn_image
from rollbook.orchestration import proof
from rollbook.orchestration.proof import prove
from rollbook.records import Budget, Message, Task, content_id
from rollbook.records.recipe import RewardSettings
from rollbook.rewards import MagistralJudge, package_versions

REWARD = RewardSettings(composition="magistral", format_reward=0.1, correct_reward=0.9, length_penalty=0.1, length_max=64,
                        length_cache=16, language_reward=None, verify_seconds=5.0, verify_workers=1)
TRAIN = tuple(Task(raw="RawTask:1", family="f", prompt=(Message(role="user", content=f"{n} =", origin="raw"),), reference=str(n),
                   canonical=str(n), predicate="p", initial_state="prompt", tools=(), budget=Budget(max_tokens=8),
                   termination=("end_of_turn",)) for n in range(10))


def proved(monkeypatch, change=lambda condition, found: found):
    """A proof, with what came out under the conditions changed on the way."""
    real = proof.rescore
    monkeypatch.setattr(proof, "rescore", lambda *request: {name: change(name, found) for name, found in real(*request).items()})
    with MagistralJudge(REWARD) as judge:
        image = single_turn_image(verifier=judge.stamp, dependencies=package_versions())
        return image, judge, prove(image, judge, REWARD, TRAIN)


def test_a_sound_environment_is_proved_by_trials_of_every_kind_that_agree(monkeypatch):
    image, judge, made = proved(monkeypatch)
    assert {trial.kind for trial in made.trials} == {"build", "reset", "clock", "network", "packages"}
    assert all(trial.first == trial.second for trial in made.trials)
    assert (made.environment, made.judge) == (content_id(image), judge.digest)
    assert made.verdicts == {"right": 8, "wrong": 8, "gated": 8}
    assert image.digest in {trial.first for trial in made.trials if trial.kind == "build"}
    assert min(trial.items for trial in made.trials if trial.kind != "build") >= 12


def test_what_changes_under_a_condition_stands_in_its_trials_and_in_no_other(monkeypatch):
    def unsteady(condition, found):
        return dataclasses.replace(found, verdicts="other", symbolic="other") if condition == "network" else found

    _, _, made = proved(monkeypatch, unsteady)
    assert [trial.kind for trial in made.trials if trial.first != trial.second] == ["network", "network"]
