"""A reward model that one stage trains is what a later policy stage is rewarded by, and the run passes its audit."""

import dataclasses

from click.testing import CliRunner
from small_stages import ADAM, LABELS, SAMPLED, SFT, pipeline, run

from rollbook.audit.passage import audit_run
from rollbook.cli import main
from rollbook.ledger import Ledger
from rollbook.orchestration.watching import watched
from rollbook.records import Agreement, Scored
from rollbook.records import recipe as r
from rollbook.records.ready_made import NamedReward

RM = r.RewardModel(policy="sft", data={"labels": 1.0}, loss="ranked", head_layers=1, steps=2, batch=4, max_batch_tokens=512,
                   optimizer=ADAM)
RL = r.PolicyGradient(
    policy="sft", tasks="train", steps=5, prompts=3, per_task=2, groups=3, max_waves=1, minibatches=1, max_policy_age=0,
    sampling=SAMPLED, optimizer=ADAM, max_batch_tokens=512, probe=0, probe_every=0, checkpoint_every=1, filter="none",
    reward="preference", objective={"kind": "DrGrpo", "low": 0.2, "high": 0.2, "credit": {"kind": "GroupCentered"}})
REWARD = NamedReward(composition="instructgpt", measures={"preference": "model:rm"}, numbers={"demonstration_mean": 0.0},
                     verify_seconds=5.0, verify_workers=1)


def test_the_number_of_the_reward_model_is_the_reward_and_the_audit_finds_nothing(tmp_path):
    made = pipeline(sft=SFT, labels=LABELS, rm=RM, rl=RL)
    made = dataclasses.replace(made, settings=dataclasses.replace(made.settings, rewards={"preference": REWARD}))
    out = run(made, tmp_path / "run")
    with Ledger.open(out, write=False) as ledger:
        vectors = [verdict.vector for _, verdict, _ in ledger.read_traces("rl/000001") if isinstance(verdict, Scored)]
    assert vectors and all(one.total == one.value("terminal") == one.value("preference") for one in vectors)
    assert not [(row.name, row.record, row.evidence) for row in audit_run(out).rows if row.result == "fail"]
    _is_calibrated_as_its_stage_measured_it(out)
    _is_watched_by_what_its_own_reward_says_of_the_answers(out)


def _is_calibrated_as_its_stage_measured_it(out):
    """The report of the reward model on what was kept apart counts the pairs and agreements that the stage recorded."""
    with Ledger.open(out, write=False) as ledger:
        [measured] = ledger.records(Agreement)
    said = CliRunner().invoke(main, ["rewards", "calibration", str(out)])
    share = f"{measured.pairs} pairs, accuracy {measured.with_labels / measured.pairs:.1%}"
    assert said.exit_code == 0 and share in said.output and "the reward model of stage rm" in said.output, said.output
    wrong = CliRunner().invoke(main, ["rewards", "calibration", str(out), "--stage", "rl"])
    assert wrong.exit_code == 2 and "--stage rm" in wrong.output


def _is_watched_by_what_its_own_reward_says_of_the_answers(out):
    """The proxy is the reward model's; gold, which its reward has not, is judged again, and says which answers are right."""
    seen = watched(out, None, None)
    assert (seen.stage, seen.gold) == ("rl", "own-reward") and [one.step for one in seen.moments] == [1, 5]
    with Ledger.open(out, write=False) as ledger:
        totals = [verdict.vector.total for _, verdict, _ in ledger.read_traces("rl/000005") if isinstance(verdict, Scored)]
    assert abs(seen.moments[1].proxy - sum(totals) / len(totals)) < 1e-9 and all(0 <= one.gold <= 1 for one in seen.moments)
    said = CliRunner().invoke(main, ["rewards", "watch", str(out)])
    assert "gold is own-reward" in said.output and "step    5" in said.output, said.output
    wrong = CliRunner().invoke(main, ["rewards", "watch", str(out), "--gold", "eval/probe_accuracy"])
    assert wrong.exit_code == 2 and "2 of them with KL and reward, 0 with eval/probe_accuracy too" in wrong.output
