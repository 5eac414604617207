"""A trial that an environment's image allows may not be left out of its proof."""

from types import SimpleNamespace

import pytest

from rollbook.audit.detectors.environment import EnvironmentDetector
from rollbook.records import EnvironmentImage, EnvironmentProof, Trial

RUN = SimpleNamespace(complete=False, recipe=None, ledger=SimpleNamespace(manifest={}), envelopes={}, table="")


def failures(network: str, *left_out: str) -> list[str]:
    found = {"build": "image", "reset": "v", "clock": "v", "network": "v", "packages": "v"}
    trials = [Trial(kind=kind, changed=kind, first=hashed, second=hashed, items=12)
              for kind, hashed in found.items() if kind not in left_out]
    trials.append(Trial(kind="build", changed="judge", first="judge", second="judge", items=1))
    detector = EnvironmentDetector()
    detector.record(RUN, "image", EnvironmentImage(name="far", digest="image", dependencies={"x": "1"}, network=network,
                                                   credentials="none", reset="seeded", hidden_tests=None))
    detector.record(RUN, "proof", EnvironmentProof(environment="image", judge="judge", trials=tuple(trials),
                                                   verdicts={"right": 8, "wrong": 8},
                                                   unproved=dict.fromkeys(left_out, "not tried")))
    detector.finish(RUN)
    return [str(failure) for failure in detector.failures]


def test_an_environment_behind_a_connection_may_leave_out_the_refused_connection_and_nothing_else():
    assert failures("open") == failures("open", "network") == failures("loopback", "network") == []
    assert any("the trial of clock was left out" in one for one in failures("open", "clock"))


@pytest.mark.parametrize("trial", ["clock", "network", "packages"])
def test_an_environment_without_a_network_leaves_out_no_trial(trial):
    assert any(f"the trial of {trial} was left out" in one for one in failures("none", trial))
