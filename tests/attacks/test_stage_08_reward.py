"""Stage 8: a scalar must not hide which part was exploited or missing."""

import dataclasses

import pytest
from attacked import assert_caught, rows
from faulty import clean_run, faulty

from rollbook.evaluation.statistics import wilson
from rollbook.experience.admission import Group
from rollbook.orchestration import measures, stages
from rollbook.records import Experience, Scored, Unscored
from rollbook.rewards import judge as judging
from rollbook.rewards import magistral
from rollbook.rewards.judge import MagistralJudge
from rollbook.rollouts.solve import Rollouts

SHORT = ("tasks.heldout=8", "stages.select.candidates=8", "stages.rl.probe_every=0")


@pytest.fixture(scope="module")
def clean(warm, tmp_path_factory):
    return clean_run(warm, tmp_path_factory)


def regraded(change):
    """`graded_vector` with its result changed."""
    real = judging.graded_vector
    return lambda **given: change(real(**given))


def rejudged(change):
    """`MagistralJudge.judge` with each verdict changed by its place, trace and itself."""
    real = MagistralJudge.judge

    def judged(self, traces, tasks):
        verdicts = real(self, traces, tasks)
        return [change(self, place, trace, verdict) for place, (trace, verdict) in enumerate(zip(traces, verdicts, strict=True))]
    return judged


def test_honest_rewards_pass_and_show_every_part(clean):
    row = rows(clean)[8]
    assert row.result == "pass", row
    for words in ("total mean", "format mean", "correctness mean", "length mean", "never computed: language_consistency",
                  "judged again", "the means of 2 step reports"):
        assert words in row.evidence
    assert "could not be judged again" not in row.evidence and "nothing was judged again" not in row.evidence


@pytest.mark.fault(stage=8, injection="a bonus that is no part of the composition is added to the scalar")
def test_a_hidden_bonus_is_caught(warm, tmp_path, monkeypatch):
    bonus = regraded(lambda vector: dataclasses.replace(vector, total=vector.total + 0.05))
    run = faulty(monkeypatch, warm, tmp_path / "run", (judging, "graded_vector", bonus), overrides=SHORT)
    assert_caught(run, 8, record="Trace", evidence="compose to")


@pytest.mark.fault(stage=8, injection="the length penalty is summed into the scalar and left out of the vector")
def test_a_part_that_is_summed_and_not_shown_is_caught(warm, tmp_path, monkeypatch):
    def without_length(vector):
        return dataclasses.replace(vector, components=tuple(part for part in vector.components if part.name != "length"))

    run = faulty(monkeypatch, warm, tmp_path / "run", (judging, "graded_vector", regraded(without_length)), overrides=SHORT)
    assert_caught(run, 8, record="Trace", evidence="length is neither computed nor named as absent")


@pytest.mark.fault(stage=8, injection="a lenient verifier takes any answer that shares a digit with the reference")
def test_a_lenient_verifier_is_caught(warm, tmp_path, monkeypatch):
    run = faulty(monkeypatch, warm, tmp_path / "run",
                 (judging, "compare", lambda answer, reference: bool(set(answer) & set(reference))), overrides=SHORT)
    assert_caught(run, 8, record="Trace", evidence="component correctness is 0.9 on record")


@pytest.mark.fault(stage=8, injection="a verifier that crashes is recorded as a failed gate with reward zero")
def test_a_crash_that_became_a_zero_is_caught(warm, tmp_path, monkeypatch):
    def crashed(judge, place, trace, verdict):
        if place % 2 and isinstance(verdict, Scored) and verdict.vector.total > 0:
            gate = magistral.FormatResult(passed=False, reason="no_box")
            return Scored(trace=trace.id, vector=magistral.gated_vector(gate, judge.stamps, judge.digest))
        return verdict

    run = faulty(monkeypatch, warm, tmp_path / "run", (MagistralJudge, "judge", rejudged(crashed)), overrides=SHORT)
    assert_caught(run, 8, record="Trace", evidence="component format is 0 on record")


@pytest.mark.fault(stage=8, injection="wrong answers are left unscored, so that means rise and nothing is a zero")
def test_wrong_answers_that_go_unscored_are_caught(warm, tmp_path, monkeypatch):
    def forgiving(judge, place, trace, verdict):
        evaluated = trace.attempt.startswith("eval/") and place % 2
        if evaluated and isinstance(verdict, Scored) and verdict.vector.value("correctness") == 0.0:
            return Unscored(trace=trace.id, verifier=judge.stamps.correctness, code="timeout", detail="killed after 2.0 s")
        return verdict

    run = faulty(monkeypatch, warm, tmp_path / "run", (MagistralJudge, "judge", rejudged(forgiving)), overrides=SHORT)
    assert_caught(run, 8, record="Trace", evidence="it was left unscored (timeout")


def last_fails():
    """A trace builder in whose hands the last training attempt at every task fails, for which no verdict is due."""
    real = Rollouts.trace

    def failing(self, *given):
        made = real(self, *given)
        fails = made.attempt.startswith("rl/") and made.attempt.endswith("/3")
        return dataclasses.replace(made, stop_reason="failed") if fails else made
    return failing


@pytest.mark.fault(stage=8, injection="attempts without a verdict enter their groups with a reward of zero")
def test_an_unscored_attempt_that_trains_as_zero_is_caught(warm, tmp_path, monkeypatch):
    def zeros(self):
        gate = magistral.FormatResult(passed=False, reason="no_box")
        made = MagistralJudge(SETTINGS["reward"])
        return tuple(Experience(trace=trace, verdict=verdict if isinstance(verdict, Scored) else Scored(
            trace=trace.id, vector=magistral.gated_vector(gate, made.stamps, made.digest)))
            for trace, verdict in zip(self.traces, self.verdicts, strict=True))

    real = MagistralJudge.__init__

    def remembered(self, settings):
        SETTINGS["reward"] = settings
        real(self, settings)

    run = faulty(monkeypatch, warm, tmp_path / "run", (MagistralJudge, "__init__", remembered),
                 (Group, "scored", property(zeros)), (Rollouts, "trace", last_fails()), overrides=SHORT)
    assert_caught(run, 8, record="Batch", evidence="trains without a verdict (not_finished)")


SETTINGS = {}


@pytest.mark.fault(stage=8, injection="an evaluation counts attempts without a verdict as wrong answers")
def test_an_unscored_attempt_that_counts_as_wrong_is_caught(warm, tmp_path, monkeypatch):
    real, build = stages.evaluation.evaluate, Rollouts.trace

    def failing(self, *given):
        made = build(self, *given)
        lost = made.attempt.startswith("eval/") and int(made.task[-1], 16) % 2
        return dataclasses.replace(made, stop_reason="failed") if lost else made

    def strict(protocol, policy, *, stage):
        done = real(protocol, policy, stage=stage)
        outcomes = {task: value or 0.0 for task, value in done.report.outcomes.items()}
        accuracy = wilson(sum(outcomes.values()), len(outcomes))
        return dataclasses.replace(done, report=dataclasses.replace(done.report, outcomes=outcomes, accuracy=accuracy))

    run = faulty(monkeypatch, warm, tmp_path / "run", (stages.evaluation, "evaluate", strict), (Rollouts, "trace", failing),
                 overrides=("stages.rl.steps=1", "stages.rl.probe_every=0", "stages.select.candidates=8"))
    assert_caught(run, 8, record="EvalReport", evidence="as 0.0, its verdicts give None")


@pytest.mark.fault(stage=8, injection="the reported mean reward leaves out the attempts that earned nothing")
def test_a_mean_over_the_successes_is_caught(warm, tmp_path, monkeypatch):
    real = measures.reward_metrics

    def proud(verdicts):
        return real([one for one in verdicts if isinstance(one, Scored) and one.vector.total > 0.0])

    run = faulty(monkeypatch, warm, tmp_path / "run", (measures, "reward_metrics", proud), overrides=SHORT)
    assert_caught(run, 8, record="StepReport", evidence="reward/")


@pytest.mark.fault(stage=8, injection="the composition counts the format twice, in its record and in every scalar")
def test_a_composition_of_other_weights_is_caught(warm, tmp_path, monkeypatch):
    real = judging.composition

    def doubled(digest):
        made = real(digest)
        return dataclasses.replace(made, parts={**made.parts, "format": 2.0})

    def counted(vector):
        return dataclasses.replace(vector, total=vector.total + (vector.value("format") or 0.0))

    run = faulty(monkeypatch, warm, tmp_path / "run", (judging, "composition", doubled),
                 (judging, "graded_vector", regraded(counted)), overrides=SHORT)
    assert_caught(run, 8, record="Trace", evidence="this code's composition gives")


@pytest.mark.fault(stage=8, injection="from the middle of the run on another verifier decides correctness")
def test_a_verifier_that_changes_during_the_run_is_caught(warm, tmp_path, monkeypatch):
    def swapped(judge, place, trace, verdict):
        if not trace.attempt.startswith("rl/") or not isinstance(verdict, Scored):
            return verdict
        parts = tuple(dataclasses.replace(part, verifier=dataclasses.replace(part.verifier, version="2", digest="0" * 64))
                      if part.name == "correctness" else part for part in verdict.vector.components)
        return dataclasses.replace(verdict, vector=dataclasses.replace(verdict.vector, components=parts))

    run = faulty(monkeypatch, warm, tmp_path / "run", (MagistralJudge, "judge", rejudged(swapped)), overrides=SHORT)
    assert_caught(run, 8, record="Trace", evidence="correctness was judged by math/2")


@pytest.mark.fault(stage=8, injection="the judge pays other amounts than the recipe; its digest is honest")
def test_amounts_that_are_not_the_recipes_are_caught(warm, tmp_path, monkeypatch):
    real = MagistralJudge.__init__

    def generous(self, settings):
        real(self, dataclasses.replace(settings, format_reward=0.5))

    run = faulty(monkeypatch, warm, tmp_path / "run", (MagistralJudge, "__init__", generous), overrides=SHORT)
    assert_caught(run, 8, record="Trace", evidence="format is 0.5, the recipe gives 0 or 0.1")
