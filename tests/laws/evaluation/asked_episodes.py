"""Protocols of calculator episodes, an endpoint that solves them, and a progress that says nothing."""

import functools
import json

import pytest
import yaml
from chat_endpoint import answer, serving
from eval_samples import bundle

from rollbook.environments import load_definition
from rollbook.evaluation import protocols
from rollbook.evaluation.protocols import Bundle, reward_name
from rollbook.ledger import environment_manifest
from rollbook.orchestration import evaluating, grids
from rollbook.orchestration.evaluating import measured
from rollbook.orchestration.subjects import Subject
from rollbook.orchestration.surroundings import spec_of
from rollbook.records.recipe import EnvironmentReward, EnvironmentSettings
from rollbook.rollouts.endpoint import Endpoint

WORLD = EnvironmentSettings(name="calculator", definition="rollbook.environments.calculator:Calculator",
                            parameters={"terms": 2, "tool": "calc"}, tools=(), dialect="hermes", reasoning="keep", announce=True,
                            max_turns=4)
GRADED = EnvironmentReward(format_reward=0.1, correct_reward=0.9)


MANIFEST = functools.cache(environment_manifest)        # what this program is takes a second to find out


class Quiet:
    def note(self, text): ...

    def step(self, number, metrics): ...

    def stage(self, *words): ...


def called(*arguments, name="calc", identity="abc", **more):
    """A turn that calls a tool once for each of these arguments."""
    calls = [{"id": f"{identity}{place}", "type": "function", "function": {"name": name, "arguments": one}}
             for place, one in enumerate(arguments)]
    return answer(None, finish="tool_calls", tool_calls=calls, **more)


def solver(body, number):
    """Calls the tool once, then says what it said."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return answer(f"It is {last['content']}.", read=30, sampled=5)
    return called(json.dumps({"expression": last["content"].removesuffix(" =")}), read=20, sampled=8)


def episodes(count, **changes):
    """A protocol of so many sums, two attempts at each, as freezing measures it."""
    made = load_definition(spec_of(WORLD, 64)).tasks(count=count, seed=1)
    found = measured(GRADED, {}, WORLD, 64)
    held = {"world": WORLD, "context": 4096, "reward": GRADED, "verifier": found.verifier, "trials": 2, "max_turns": 4,
            "environment": found.environment, "scaffold": found.scaffold, "tools": ("calc",), "system_prompt": "",
            "extraction": reward_name(GRADED)} | changes
    plain = bundle(tasks=made.tasks, **held)
    return Bundle(protocol=plain.protocol, tasks=plain.tasks, raws=made.raw)


def served(url, **changes):
    """Whoever answers at this address, as `rollbook eval` takes it."""
    where = Endpoint(url=url, model="m", key_variable=None, workers=2, seconds=5.0)
    return Subject(**({"policy": where, "name": "m at here", "run": None, "stage": None, "version": None, "weights": None,
                       "recipe": None, "training": None} | changes))


def made_grid(folder):
    """A grid of two policies under two budgets: one of them knows nothing, and a short budget is too short for the tool."""
    protocols.write(episodes(4), folder / "p.protocol.json")
    told = {name: {"url": f"http://{name}", "model": "m"} for name in ("before", "after")}
    document = {"protocol": "p.protocol.json", "policies": told,
                "factors": {"budget": {"whole": {}, "short": {"max_tokens": 8}}}}
    (folder / "grid.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    with pytest.MonkeyPatch.context() as patched, serving(lambda body, n: answer("no", read=9, sampled=2)) as (dull, _), \
            serving(solver) as (bright, _):
        for module in (grids, evaluating):
            patched.setattr(module, "environment_manifest", MANIFEST)

        def resolve(told, base):
            return served({"http://before": dull, "http://after": bright}[told["url"]], name=told["url"])
        grids.run(grids.plan(grids.read(folder / "grid.yaml"), resolve), folder / "out", resolve, Quiet(), dtype="float32")
    return folder / "out"
