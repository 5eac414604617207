"""A full GRPO step of Rollbook, everything recorded: dispatch, sampling, verdicts, admission, credit, update, hashes, publication."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from common import prompt_ids, serve, settings

from rollbook.experience.admission import AdmissionRule
from rollbook.ledger import Ledger
from rollbook.models.load import read_policy
from rollbook.models.runtime import keep_memory
from rollbook.objectives.settings import from_settings
from rollbook.orchestration.publish import Publisher
from rollbook.orchestration.step import PolicyRun, StepSettings, Waves, step
from rollbook.records import Budget, Component, Message, RewardVector, Scored, Task, VerifierStamp
from rollbook.records.recipe import OptimizerSettings, SamplingSettings
from rollbook.rollouts.engines.embedded import EmbeddedEngine
from rollbook.rollouts.solve import Rollouts
from rollbook.training.optimizer import Optimizer
from rollbook.training.policy import PolicyLearner

STAMP = VerifierStamp(name="hash", version="1", digest="00" * 32)
given = settings()
torch.set_num_threads(given["threads"])
torch.set_flush_denormal(True)
keep_memory()
policy = read_policy(Path(given["model"]), source="benchmark")


class Prompts:
    """The tokenizer, with prompts of exactly the length that is asked for."""

    def __init__(self) -> None:
        self.template_digest = policy.tokenizer.template_digest

    def prompt(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        return tuple(prompt_ids(lambda t: list(policy.tokenizer.encode(t)), int(messages[0].content), given["prompt"]))

    def decode(self, token_ids: Any) -> str:
        return str(policy.tokenizer.decode(token_ids))


class Judge:
    """A reward out of a hash of the answer: it costs nothing and varies within every group."""

    def judge(self, traces: list[Any], tasks: Any) -> list[Scored]:
        return [self._one(trace) for trace in traces]

    def _one(self, trace: Any) -> Scored:
        value = hashlib.sha256(trace.text.encode()).digest()[0] / 255
        vector = RewardVector(components=(Component(name="correctness", value=value, verifier=STAMP),), absent=(), composition="hash/1",
                              composition_digest="00" * 32, total=value, accuracy=value)
        return Scored(trace=trace.id, vector=vector)


def task(number: int) -> Task:
    return Task(raw=f"raw:{number}", family="text", prompt=(Message(role="user", content=str(number), origin="program"),),
                reference="", canonical=str(number), predicate="hash", initial_state="prompt", tools=(),
                budget=Budget(max_tokens=given["new"]), termination=("length",))


def run(folder: Path) -> Any:
    ledger = Ledger.create(folder / "run", {})
    engine = EmbeddedEngine(stop_ids=frozenset(), dtype=torch.bfloat16)
    tasks = [task(number) for number in range(256)]
    adam = OptimizerSettings(learning_rate=1e-6, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, warmup_steps=0, schedule="constant",
                             max_grad_norm=1.0)
    learner = PolicyLearner(policy.decoder, Optimizer(policy.decoder.parameters(), adam, 1000), dtype=torch.bfloat16, temperature=1.0)
    publisher = Publisher(ledger, policy.decoder, engine, next_index=0, probe=Prompts().prompt(tasks[0].prompt))
    version = publisher.publish("start", None, (), optimizer=None)
    objective = from_settings({"kind": "Grpo", "low": 0.2, "high": 0.2, "beta": 0.0,
                               "credit": {"kind": "GroupNormalized", "eps": 1e-4, "ddof": 1}})
    sampling = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0)
    sizes = StepSettings(prompts=given["prompts"], per_task=given["group"], groups=given["prompts"], max_waves=1, minibatches=1,
                         max_batch_tokens=given.get("max_batch_tokens", 4096), max_length=given["new"])
    return version, PolicyRun(
        stage="rl", ledger=ledger, rollouts=Rollouts(sampler=engine, tokenizer=Prompts(), sampling=sampling, seed=1,
                                                     max_tokens=given["new"]),
        judge=Judge(), learner=learner, publisher=publisher, objective=objective,
        admission=AdmissionRule(least=2, drop_uniform=True), settings=sizes, tasks={one.id: one for one in tasks})


folder = Path(tempfile.mkdtemp())
version, made = run(folder)
source = Waves(tasks=cycle(made.tasks.values()))


def round_(number: int) -> dict[str, Any]:
    global version
    version, report = step(made, source, version, number + 1)
    return {"tokens": int(report.metrics["rollout/tokens"]), "rollout_s": report.observed["time/rollout_s"],
            "update_s": report.observed["time/update_s"]}


try:
    serve(round_)
finally:
    shutil.rmtree(folder, ignore_errors=True)
