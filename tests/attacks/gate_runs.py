"""A finished run whose last policy is better than the one before and worse than the start, and what is decided about it."""

import dataclasses
import shutil
from datetime import UTC, datetime

import pytest
from attacked import attacked

from rollbook.evaluation.signing import new_key
from rollbook.orchestration import permission, stages
from rollbook.orchestration.permission import Wish
from rollbook.records import Scored

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
RIGHT = {"start_eval": 12, "cold_eval": 6, "final_eval": 9}      # of 16: these tests do not hang on what a tiny model learns


EVALUATE = stages.evaluation.evaluate


def scripted(change):
    """An `evaluate` whose verdicts are scripted: change(verdict, whether the script calls it right) -> verdict."""
    def evaluated(protocol, policy, *, stage):
        right = {task.id for task in protocol.tasks[:RIGHT[stage]]}

        class Scripted:
            def judge(self, traces, tasks):
                return [change(v, trace.task in right) if isinstance(v, Scored) else v
                        for trace, v in zip(traces, protocol.judge.judge(traces, tasks), strict=True)]

        return EVALUATE(dataclasses.replace(protocol, judge=Scripted()), policy, stage=stage)
    return evaluated


@pytest.fixture(scope="session")
def finished(warm, tmp_path_factory):
    """The run; the policy of its first RL step was never evaluated."""
    with pytest.MonkeyPatch.context() as m:
        m.setattr(stages.evaluation, "evaluate", scripted(lambda verdict, right: dataclasses.replace(
            verdict, vector=dataclasses.replace(verdict.vector, accuracy=float(right)))))
        return attacked(warm, tmp_path_factory.mktemp("finished") / "run", "stages.rl.probe_every=0")


@pytest.fixture(scope="session")
def key(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    private, public = new_key()
    (folder / "gate.key").write_bytes(private)
    (folder / "gate.pub").write_bytes(public)
    return folder / "gate.key"


@pytest.fixture
def copy(finished, tmp_path):
    """The finished run as often as a test wants to decide about it."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


WISH = Wish(decision="allow", stage=None, thresholds={"heldout": 0.5}, owners={"add_sub": "maria"}, limits=("serve-internal",),
            canary="1% of traffic for a day", rollback="cold_start", incidents="maria@example.org", expires="2027-03-01")


def wish(**changes):
    return dataclasses.replace(WISH, **changes)


def lax(m):
    """Whoever decides does not look at the rules."""
    m.setattr(permission, "breaches", lambda decision, ground: [])


def redrafted(m, change):
    """What is drafted is changed before it is signed: the record and the signature agree."""
    real = permission.draft
    m.setattr(permission, "draft", lambda *given: change(real(*given)))
