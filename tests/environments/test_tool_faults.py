"""Faults in tools are drawn from the seed, come at their rates, are told as data, and are recorded."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence

import pytest
from playing import Played, play

from rollbook.environments import load_definition, open_services
from rollbook.environments.builtin.common import call
from rollbook.environments.builtin.world import WorldQuestions
from rollbook.environments.faults import Faulty, Rates
from rollbook.environments.wrapping import Inner
from rollbook.records import Action, EnvironmentFault, EnvironmentSpec, EpisodeBudget, Services, Task

WORLD = Inner(definition="rollbook.environments.builtin.world:WorldQuestions", parameters={"themes": ["trade"]})
TASK = WorldQuestions(themes=("trade",)).tasks(count=1, seed=3).tasks[0]
MANY = call("query", sql="SELECT id, name FROM ships ORDER BY id")


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with open_services() as opened:
        yield opened


def under(services: Services, actions: Sequence[Action], *, seed: int = 0, task: Task = TASK, **rates: float | bool) -> Played:
    return play(Faulty(inner=WORLD, rates={"query": Rates(**rates)}, seed=seed), task, actions,
                services)      # type: ignore[arg-type]


def kinds(played: Played) -> list[str]:
    return [fault["kind"] for fault in played.state.facts["faults"]]


def test_without_rates_nothing_is_different(services: Services) -> None:
    plain = play(WorldQuestions(themes=("trade",)), TASK, (MANY, MANY), services)
    assert under(services, (MANY, MANY)).observations == plain.observations


def test_errors_come_at_their_rate_and_the_call_is_not_made(services: Services) -> None:
    played = under(services, (MANY,) * 300, error=0.3)
    assert kinds(played) == ["error"] * len(kinds(played)) and 60 <= len(kinds(played)) <= 120
    wrong = [reply for observation in played.observations for reply in observation.replies if reply.error]
    assert len(wrong) == len(kinds(played)) and all(reply.error == "injected" for reply in wrong)
    assert played.state.facts["calls"] == 300 - len(wrong)


def test_the_same_seed_draws_the_same_faults_and_another_others(services: Services) -> None:
    rates = {"error": 0.2, "latency": 0.3, "partial": 0.3, "page": 0.3, "drift": 0.5}
    one, again, other = (under(services, (MANY,) * 20, seed=seed, **rates) for seed in (1, 1, 2))
    assert one.observations == again.observations and one.state == again.state
    assert one.state.facts["faults"] != other.state.facts["faults"]


def test_a_long_result_comes_page_by_page_and_nothing_is_lost(services: Services) -> None:
    whole = under(services, (MANY,)).texts()[0].split("\n")
    actions, seen = [MANY], list[str]()
    for _ in range(20):
        page = under(services, actions, page=1.0, page_lines=10).texts()[-1].split("\n")
        seen += [line for line in page if not line.endswith("]")]
        if not page[-1].endswith("]"):
            break
        actions.append(call("next_page", cursor=page[-1].split()[-1].rstrip("]")))
    assert seen == whole and len(actions) == -(-len(whole) // 10)
    assert "no such cursor" in under(services, (call("next_page", cursor="c9"),), page=1.0).texts()[0]


def test_partial_results_miss_lines_and_say_so_or_not(services: Services) -> None:
    whole = under(services, (MANY,)).texts()[0].split("\n")
    told, silent = (under(services, (MANY,), partial=1.0, partial_told=say).texts()[0].split("\n") for say in (True, False))
    assert "incomplete" in told[-1] and told[:-1] == silent and 1 < len(silent) < len(whole) and set(silent) < set(whole)


def test_calls_from_a_drawn_one_on_fail_with_their_batch(services: Services) -> None:
    calls = tuple(dataclasses.replace(MANY.calls[0], id=f"c{number}") for number in range(4))
    played = under(services, (Action(calls=calls),), batch=1.0)
    errors = [reply.error for reply in played.observations[1].replies]
    failed = errors.count("injected")
    assert 1 <= failed <= 3 and errors == [None] * (4 - failed) + ["injected"] * failed
    assert [reply.call for reply in played.observations[1].replies] == [f"c{number}" for number in range(4)]
    assert kinds(under(services, (MANY,), batch=1.0)) == []


def test_a_latency_is_recorded_and_beyond_the_time_the_result_is_lost(services: Services) -> None:
    played = under(services, (MANY,) * 100, latency=1.0, latency_s=5.0, timeout_s=5.0)
    assert 20 <= kinds(played).count("timeout") <= 55 and kinds(played).count("latency") + kinds(played).count("timeout") == 100
    assert played.state.facts["calls"] == 100          # they were made


def test_results_change_their_form_once_and_for_good(services: Services) -> None:
    texts = under(services, (MANY,) * 12, drift=1.0, drift_within=10).texts()
    changed = [text.startswith("{") for text in texts]
    assert changed == sorted(changed) and changed[-1]
    assert json.loads(texts[-1])["items"] == under(services, (MANY,)).texts()[0].split("\n")


def test_stale_data_is_what_a_call_gave_first(services: Services) -> None:
    inner = Inner(definition="test_tool_faults:Counting")
    played = play(Faulty(inner=inner, rates={"*": Rates(stale=1.0)}), TASK, (call("count"),) * 3, services)
    assert played.texts() == ["1", "1", "1"] and kinds(played) == ["stale", "stale"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Counting(WorldQuestions):
    """A tool that counts its calls."""

    def build(self, *, services: Services, seed: int):         # type: ignore[no-untyped-def]
        from rollbook.environments.builtin.common import Tool, ToolEpisode, schema

        @dataclasses.dataclass(slots=True)
        class Episode(ToolEpisode):
            async def reset(self, task: Task):                 # type: ignore[no-untyped-def]
                self.offered = {"count": Tool(schema=schema("count", "Counts."), run=lambda given: str(self.calls))}
                return await ToolEpisode.reset(self, task)

        return Episode()


def test_the_grade_is_the_inner_environments_and_tells_how_many_faults_there_were(services: Services) -> None:
    definition = Faulty(inner=WORLD, rates={"*": Rates(error=1.0)})
    gold = definition.solutions(TASK).gold[0]
    played = play(definition, TASK, gold, services)
    assert played.accuracy == 1.0 and played.grade.parts["faults"] == 1.0          # type: ignore[union-attr]


def test_a_snapshot_holds_the_faults_that_are_to_come(services: Services) -> None:
    import asyncio
    definition = Faulty(inner=WORLD, rates={"*": Rates(error=0.3, page=0.5, drift=0.5, stale=0.5)}, seed=4)

    async def run() -> None:
        one, other = (definition.build(services=services, seed=0) for _ in range(2))
        await one.reset(TASK)
        for _ in range(5):
            await one.act(MANY)
        held = one.snapshot()
        await other.reset(TASK)
        other.restore(held)
        for _ in range(10):
            assert await one.act(MANY) == await other.act(MANY)
        assert one.state() == other.state()
        await one.close()
        await other.close()

    asyncio.run(run())


def test_a_wrapped_environment_is_data_and_its_image_changes_with_what_is_in_it() -> None:
    def spec(rate: float, hops: int) -> EnvironmentSpec:
        inner = {"definition": WORLD.definition, "parameters": {"least_hops": hops}}
        return EnvironmentSpec(name="faulty", definition="rollbook.environments.faults:Faulty",
                               budget=EpisodeBudget(max_tokens=9, max_turns=9),
                               parameters={"inner": inner, "rates": {"query": {"error": rate}}})

    images = [load_definition(spec(rate, hops)).image() for rate, hops in ((0.1, 1), (0.1, 1), (0.2, 1), (0.1, 2))]
    assert images[0] == images[1] and len({image.digest for image in images}) == 3


def test_rates_that_are_none_and_tools_that_are_not_there_are_refused(services: Services) -> None:
    with pytest.raises(EnvironmentFault, match="probability"):
        Rates(error=1.5)
    with pytest.raises(EnvironmentFault, match="positive"):
        Rates(page_lines=0)
    with pytest.raises(EnvironmentFault, match="nosuch"):
        play(Faulty(inner=WORLD, rates={"nosuch": Rates()}), TASK, (), services)
