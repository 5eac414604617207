"""Another judge grades the very same answers: nothing is asked again, and answers of anything else are refused."""


import pytest
import yaml
from asked_episodes import MANIFEST, Quiet, episodes, served, solver
from chat_endpoint import answer, serving

from rollbook.evaluation import protocols
from rollbook.ledger import Ledger
from rollbook.orchestration import evaluating, grids
from rollbook.orchestration.evaluating import evaluate_into
from rollbook.orchestration.grid_sides import grid_result
from rollbook.orchestration.sides import compare
from rollbook.orchestration.varying import vary
from rollbook.records import RollbookError


@pytest.fixture(autouse=True)
def one_manifest(monkeypatch):
    for module in (grids, evaluating):
        monkeypatch.setattr(module, "environment_manifest", MANIFEST)


def evaluated(folder, made, url, **more):
    return evaluate_into(folder, made, served(url), Quiet(), dtype="float32", **more)


def traces(folder):
    return [(trace, verdict) for trace, verdict, _ in Ledger.open(folder, write=False).read_traces()]


def moody(body, number):
    """An endpoint that does not answer alike twice."""
    return solver(body, number) if number % 3 else answer("7")


def test_another_judge_grades_the_answers_that_are_there_and_asks_nobody(tmp_path):
    made = episodes(3)
    other = vary(made, {"reward.format_reward": 0.0}, name="small")
    with serving(moody) as (url, calls):
        first = evaluated(tmp_path / "a", made, url)
        asked = len(calls)
        second = evaluated(tmp_path / "b", other, url, answers=tmp_path / "a")
        assert len(calls) == asked and (first.spend, first.outcomes) == (second.spend, second.outcomes)
    assert [trace for trace, _ in traces(tmp_path / "a")] == [trace for trace, _ in traces(tmp_path / "b")]
    rewards = [[verdict.vector.total for _, verdict in traces(tmp_path / name)] for name in "ab"]
    assert rewards[0] != rewards[1]
    held = Ledger.open(tmp_path / "b", write=False)
    assert held.manifest["answers"] == Ledger.open(tmp_path / "a", write=False).genesis and held.verify().fault is None
    compared, _, _ = compare(tmp_path / "a", tmp_path / "b", policy_as_one=False)
    assert compared.changed.name == "reward.format_reward" and "both judge the very same answers" in compared.notes


def test_answers_of_another_protocol_policy_or_of_half_an_evaluation_are_refused(tmp_path):
    made = episodes(2)
    with serving(solver) as (url, _):
        evaluated(tmp_path / "a", made, url)
        for changes, name, words in (({"world.max_turns": 2}, "small", "another protocol"),
                                     ({"reward.format_reward": 0.0}, "other", "another protocol")):
            with pytest.raises(RollbookError, match=words):
                evaluated(tmp_path / "b", vary(made, changes, name=name), url, answers=tmp_path / "a")
        other = vary(made, {"reward.format_reward": 0.0}, name="small")
        with pytest.raises(RollbookError, match="another policy's"):
            evaluate_into(tmp_path / "b", other, served(url, name="n at here"), Quiet(), dtype="float32", answers=tmp_path / "a")
        with Ledger.create(tmp_path / "half", {}) as half:
            half.append(made.protocol)
        with pytest.raises(RollbookError, match="no answers to take"):
            evaluated(tmp_path / "b", other, url, answers=tmp_path / "half")
        evaluated(tmp_path / "b", other, url, answers=tmp_path / "a")
        with pytest.raises(RollbookError, match="answers differ"):
            evaluated(tmp_path / "b", other, url)
    assert {folder.name for folder in tmp_path.iterdir()} == {"a", "b", "half"}


def test_cells_of_a_grid_that_differ_in_their_judge_or_aggregation_judge_the_same_answers(tmp_path):
    made = episodes(3)
    protocols.write(made, tmp_path / "p.protocol.json")
    with serving(moody) as (url, calls):
        document = {"protocol": "p.protocol.json", "policies": {"it": {"url": url, "model": "m"}},
                    "factors": {"judge": {"frozen": {}, "plain": {"reward.format_reward": 0.0}},
                                "rule": {"mean": {}, "best": {"aggregation": "pass@2"}}},
                    "except": [{"judge": "plain", "rule": "best"}]}
        (tmp_path / "grid.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        planned = grids.plan(grids.read(tmp_path / "grid.yaml"), lambda told, base: served(told["url"]))
        grids.run(planned, tmp_path / "out", lambda told, base: served(told["url"]), Quiet(), dtype="float32")
        asked = len(calls)
    assert asked <= 3 * 2 * 2                       # three tasks, two attempts, at most two turns, once
    result = grid_result(tmp_path / "out")
    assert len(result.cells) == 3 and len({cell.answers for _, cell in result.cells}) == 1
    judge = next(one for one in result.effects if one.factor == "judge")
    assert judge.gain.gain.estimate == 0.0 and judge.gain.claim == "none"       # what is right does not hang on this part
