"""Stage 7: what was sampled, what was recorded and what was trained are the same tokens."""

import dataclasses

import pytest
import torch
from attacked import assert_caught, rows
from faulty import clean_run, faulty

from rollbook.orchestration import step
from rollbook.records import Message
from rollbook.rollouts import solve
from rollbook.rollouts.engines import rows as engine_rows
from rollbook.rollouts.solve import Rollouts

SHORT = ("tasks.heldout=8", "stages.select.candidates=8", "stages.rl.probe_every=0")


@pytest.fixture(scope="module")
def clean(warm, tmp_path_factory):
    return clean_run(warm, tmp_path_factory)


def test_tokens_that_stay_what_they_were_pass(clean):
    row = rows(clean)[7]
    assert row.result == "pass", row
    assert "batches compared with their trajectories" in row.evidence
    assert "no hash" not in row.evidence and "too far back" not in row.evidence


@pytest.mark.fault(stage=7, injection="the trace builder tokenises the text again and fits the log-probs to it")
def test_a_trajectory_rebuilt_from_its_text_is_caught(warm, tmp_path, monkeypatch):
    real = Rollouts.trace

    def rebuilt(self, task, group, answered, envelope):
        request, done = answered
        ids = self.tokenizer.encode(self.tokenizer.decode(done.token_ids))
        ids += done.token_ids[-1:] if done.stop_reason == "end_of_turn" else ()
        fitted = (*done.logps, *(done.logps[-1:] * len(ids)))[:len(ids)]
        done = dataclasses.replace(done, token_ids=ids, logps=fitted, versions=done.versions[:1] * len(ids))
        return real(self, task, group, (request, done), envelope)

    run = faulty(monkeypatch, warm, tmp_path / "run", (Rollouts, "trace", rebuilt))
    assert_caught(run, 7, record="Trace", evidence="is not what the engine sampled")


@pytest.mark.fault(stage=7, injection="the trace builder drops the engine's hashes together with the ids that it changes")
def test_a_trajectory_without_the_engines_hash_is_caught(warm, tmp_path, monkeypatch):
    real = Rollouts.trace

    def unhashed(self, task, group, answered, envelope):
        request, done = answered
        return real(self, task, group, (request, dataclasses.replace(done, sampled=None)), envelope)

    run = faulty(monkeypatch, warm, tmp_path / "run", (Rollouts, "trace", unhashed), overrides=SHORT)
    assert_caught(run, 7, record="Trace", evidence="no hash of what was sampled")


@pytest.mark.fault(stage=7, injection="the trainer's log-probs are recorded as those of sampling, in trajectories and batches")
def test_log_probs_that_are_not_the_engines_are_caught(warm, tmp_path, monkeypatch):
    real = Rollouts.trace

    def rescored(self, task, group, answered, envelope):
        request, done = answered
        moved = tuple(float(torch.tensor(value + 0.001, dtype=torch.float32)) for value in done.logps)
        return real(self, task, group, (request, dataclasses.replace(done, logps=moved)), envelope)

    run = faulty(monkeypatch, warm, tmp_path / "run", (Rollouts, "trace", rescored), overrides=SHORT)
    assert_caught(run, 7, record="Trace", evidence="log-probs and versions hash to")


def repacked(**changes):
    """A packer of batches whose tensors are changed by name."""
    real = step.pack

    def packed(*given, **sizes):
        made = real(*given, **sizes)
        return dataclasses.replace(made, **{name: change(made) for name, change in changes.items()})
    return packed


@pytest.mark.fault(stage=7, injection="the batch replaces every end of turn by another token")
def test_a_batch_of_other_tokens_is_caught(warm, tmp_path, monkeypatch):
    def ends(made):
        last = torch.cumsum(made.length_S, 0) - 1
        token_T = made.token_T.clone()
        token_T[last] = 1
        return token_T

    run = faulty(monkeypatch, warm, tmp_path / "run", (step, "pack", repacked(token_T=ends)), overrides=SHORT)
    assert_caught(run, 7, record="Batch", evidence="ids of Trace:")


@pytest.mark.fault(stage=7, injection="the batch takes recomputed log-probs for the behavior policy's")
def test_a_batch_with_other_behavior_log_probs_is_caught(warm, tmp_path, monkeypatch):
    run = faulty(monkeypatch, warm, tmp_path / "run", (step, "pack", repacked(behavior_T=lambda made: made.behavior_T * 0.999)),
                 overrides=SHORT)
    assert_caught(run, 7, record="Batch", evidence="log-probs at sampling of Trace:")


@pytest.mark.fault(stage=7, injection="the batch claims the newest policy version for tokens of an older one")
def test_a_batch_with_rejuvenated_tokens_is_caught(warm, tmp_path, monkeypatch):
    run = faulty(monkeypatch, warm, tmp_path / "run", (step, "pack", repacked(version_T=lambda made: made.version_T + 1)),
                 overrides=SHORT)
    assert_caught(run, 7, record="Batch", evidence="policy versions of Trace:")


@pytest.mark.fault(stage=7, injection="engine and trace builder agree on a version that is published only later")
def test_a_version_from_the_future_is_caught(warm, tmp_path, monkeypatch):
    hashed, cut = engine_rows.sampled_hash, solve.segments

    def later(completion):
        return cut(dataclasses.replace(completion, versions=tuple(one + 1 for one in completion.versions)))

    run = faulty(monkeypatch, warm, tmp_path / "run", (solve, "segments", later),
                 (engine_rows, "sampled_hash", lambda ids, logps, versions: hashed(ids, logps, [one + 1 for one in versions])),
                 overrides=SHORT)
    assert_caught(run, 7, record="Trace", evidence="not published before")


@pytest.mark.fault(stage=7, injection="the recorded text is tidied after sampling")
def test_a_text_that_was_tidied_is_caught(warm, tmp_path, monkeypatch):
    real = Rollouts.trace

    def tidied(self, *given):
        made = real(self, *given)
        return dataclasses.replace(made, text=" ".join(made.text.split()))

    run = faulty(monkeypatch, warm, tmp_path / "run", (Rollouts, "trace", tidied), overrides=SHORT)
    assert_caught(run, 7, record="Trace", evidence="its text is not what its ids spell")


@pytest.mark.fault(stage=7, injection="the policy is shown a hint that the task does not hold")
def test_a_prompt_that_is_not_the_tasks_is_caught(warm, tmp_path, monkeypatch):
    real = Rollouts.solve

    def hinted(self, tasks, per_task, *, scope, envelope):
        tokenizer = self.tokenizer

        class Hinting:
            def prompt(self, messages):
                return tokenizer.prompt((*messages[:-1], Message(role="user", content=messages[-1].content + " carefully")))

            def __getattr__(self, name):
                return getattr(tokenizer, name)

        return real(dataclasses.replace(self, tokenizer=Hinting()), tasks, per_task, scope=scope, envelope=envelope)

    run = faulty(monkeypatch, warm, tmp_path / "run", (Rollouts, "solve", hinted), overrides=SHORT)
    assert_caught(run, 7, record="Trace", evidence="is not the rendered prompt of")
