"""A run of any size without a model: the real step, judge, credit, objective and ledger around a sampler that makes answers up.

Everything that a run records is recorded as in a real one; only tokens, log-probs and weights are invented. For measuring what
recording and auditing cost at a hundred thousand trajectories and more.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from rollbook.environments import single_turn_image
from rollbook.experience.admission import AdmissionRule
from rollbook.experience.batches import Packed, evaluate
from rollbook.ledger import Ledger, environment_manifest
from rollbook.models.tokenizer import ChatTokenizer, byte_tokenizer
from rollbook.objectives import total_loss
from rollbook.objectives.core import Objective
from rollbook.objectives.settings import from_settings
from rollbook.orchestration.proof import prove
from rollbook.orchestration.run import _tasks
from rollbook.orchestration.sourcing import LIKENESS
from rollbook.orchestration.session import TaskStream
from rollbook.orchestration.step import PolicyRun, StepSettings, Waves, step
from rollbook.recipes import load, resolve
from rollbook.records import (
    Acknowledgement,
    Completion,
    PolicyVersion,
    Probe,
    Request,
    ResolvedRecipe,
    StageEnd,
    Task,
    TokenizerFile,
    content_id,
    sampled_hash,
)
from rollbook.records.recipe import PolicyGradient
from rollbook.rewards import MagistralJudge, package_versions
from rollbook.rollouts.solve import Rollouts
from rollbook.tasks import Side, decontaminate
from rollbook.training.optimizer import Stepped
from rollbook.training.policy import Measurement

PER_TASK = 8


class Sampler:
    """Answers in the required form, right half of the time, with log-probs out of a hat."""

    def __init__(self, tokenizer: ChatTokenizer, answers: dict[tuple[int, ...], str], context: int):
        self.tokenizer, self.answers, self.context = tokenizer, answers, context
        self.version = 0
        self.rng = random.Random(1)

    def sample(self, requests: Sequence[Request]) -> list[Completion]:
        return [self._one(request) for request in requests]

    def _one(self, request: Request) -> Completion:
        right = self.answers[request.prompt_ids]
        answer = right if self.rng.random() < 0.5 else str(self.rng.randint(0, 99))
        text = f"<think>\n{'so ' * self.rng.randint(1, self.context)}{answer}\n</think>\n\\boxed{{{answer}}}"
        ids = (*self.tokenizer.encode(text), min(self.tokenizer.stop_ids))[:request.max_tokens]
        ended = ids[-1] in self.tokenizer.stop_ids
        logps = tuple(torch.empty(len(ids)).exponential_(3.0).neg_().tolist())
        versions = (self.version,) * len(ids)
        return Completion(key=request.key, token_ids=ids, logps=logps, versions=versions, latency_s=0.01 * len(ids),
                          stop_reason="end_of_turn" if ended else "length", sampled=sampled_hash(ids, logps, versions))


class Learner:
    """Has the objective's real loss and gradient by log-prob, and no weights."""

    dtype = torch.float32

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def score(self, packed: Packed, objective: Objective, *, next_up: bool = False) -> Packed:
        return packed

    def update(self, packed: Packed, objective: Objective, *, where: str) -> Measurement:
        first = self.optimizer.steps % 2 == 0                   # of a step's two minibatches: the trainer has not moved yet
        moved_T = (1e-6 if first else 0.01) * torch.randn(packed.behavior_T.shape)
        logp_T = (packed.behavior_T + moved_T).clamp(max=0.0).requires_grad_(True)
        terms, clipped_T = evaluate(objective, packed, torch.arange(logp_T.numel()), logp_T)
        total_loss(terms, list(packed.weight_KT)).backward()
        self.optimizer.steps += 1
        loss = {term.name: float(term.reduce(weight).detach()) for term, weight in zip(terms, packed.weight_KT, strict=True)}
        assert logp_T.grad is not None
        return Measurement(logp_T=logp_T.detach(), entropy_T=logp_T.detach().abs(), clipped_T=clipped_T, gradient_T=logp_T.grad,
                           loss=loss, stepped=Stepped(grad_norm=0.5, clipped=False, learning_rate=self.optimizer.rate))

    def kl_to_start(self, packed: Packed, logp_T: torch.Tensor) -> float:
        return 0.0


@dataclasses.dataclass
class Steps:
    """Stands for the optimizer: counts."""

    rate: float
    steps: int = 0

    def digest(self) -> str:
        return f"{self.steps:064x}"


class Publisher:
    """Weights are their own number."""

    def __init__(self, ledger: Ledger, sampler: Sampler, optimizer: Steps):
        self.ledger, self.sampler, self.optimizer = ledger, sampler, optimizer
        self.next_index = 0

    @property
    def weights(self) -> str:
        return f"{self.optimizer.steps:064x}"

    def rehash(self) -> str:
        return self.weights

    def publish(self, stage: str, parent: PolicyVersion | None, window: Sequence[str], *, optimizer: str | None) -> PolicyVersion:
        held = Acknowledgement(consumer="synthetic-0", weights=self.weights)
        version = PolicyVersion(index=self.next_index, stage=stage, weights=self.weights, published=self.weights,
                                parent=parent.id if parent else None, updates=len(window), optimizer=optimizer,
                                window=tuple(window), healthy=True, acknowledged=(held,),
                                probe=Probe(token_ids=(1, 2), given=1, consumer=(-1.0,), trainer=(-1.0,), dtype="float32"))
        self.ledger.append(version)
        self.sampler.version = self.next_index
        self.next_index += 1
        return version


def make(out: Path, trajectories: int, *, prompts: int = 64, context: int = 8) -> Iterator[int]:
    """Writes the run, yielding how many trajectories stand after every step; `context` sets the length of answers."""
    whole = resolve(load("magistral-small"), "tiny", ("stages.rl.optimizer.warmup_steps=0", f"stages.rl.prompts={prompts}",
                                                      f"stages.rl.per_task={PER_TASK}", "stages.rl.policy=start",
                                                      "stages.rl.tasks=train", "tasks.max_tokens=64"))
    stage = whole.settings.stages["rl"]
    assert isinstance(stage, PolicyGradient)
    steps = -(-trajectories // (prompts * PER_TASK))
    stage = dataclasses.replace(stage, steps=steps, max_waves=1, groups=prompts, probe_every=0)
    settings = dataclasses.replace(whole.settings, stages={"rl": stage})
    recipe = dataclasses.replace(whole, settings=settings)
    tokenizer, (acquired, sides) = byte_tokenizer(), _tasks(settings)
    sampler = Sampler(tokenizer, {tokenizer.prompt(task.prompt): task.reference for task in sides.train}, context)
    optimizer = Steps(rate=stage.optimizer.learning_rate)
    with (MagistralJudge(settings.reward) as judge,
          Ledger.create(out, {**environment_manifest(), "recipe": content_id(recipe)}) as ledger):
        publisher = Publisher(ledger, sampler, optimizer)
        _sources(ledger, recipe, (acquired.raw, sides.train, sides.heldout), (judge, tokenizer))
        ledger.append(sides.manifest)
        run = PolicyRun(
            stage="rl", ledger=ledger, judge=judge, learner=Learner(optimizer), publisher=publisher,  # type: ignore[arg-type]
            rollouts=Rollouts(sampler=sampler, tokenizer=tokenizer, sampling=stage.sampling, seed=1,
                              max_tokens=settings.tasks.max_tokens),
            objective=from_settings(dict(stage.objective)), admission=AdmissionRule(least=2, drop_uniform=True),
            settings=StepSettings(prompts=prompts, per_task=PER_TASK, groups=prompts, max_waves=1, minibatches=stage.minibatches,
                                  max_batch_tokens=stage.max_batch_tokens, max_length=settings.tasks.max_tokens),
            tasks={task.id: task for task in sides.train})
        start = version = publisher.publish("start", None, (), optimizer=None)
        source = Waves(tasks=TaskStream(sides.train, seed=settings.run.seed, cursor=0))
        for number in range(1, steps + 1):
            version, _ = step(run, source, version, number)
            yield number * prompts * PER_TASK
        ledger.append(StageEnd(stage="rl", kind="PolicyGradient", started=start.id, ended=version.id, checkpoint=None))


def _sources(ledger: Ledger, recipe: ResolvedRecipe, sides: tuple[Sequence[Any], Sequence[Task], Sequence[Task]],
             with_: tuple[MagistralJudge, ChatTokenizer]) -> None:
    raw, train, heldout = sides
    judge, tokenizer = with_
    raw_of = {content_id(one): one for one in raw}
    ledger.append(recipe)
    for name, table in (("raw", raw), ("train", train), ("heldout", heldout)):
        ledger.write_table(f"tasks/{name}", table)
    named = [Side(tasks=tuple(tasks), raws=tuple(raw_of[task.raw] for task in tasks)) for tasks in (train, heldout)]
    ledger.append(decontaminate(named[0], named[1], protocol="heldout", likeness=LIKENESS))
    ledger.append(judge.composition)
    image = single_turn_image(verifier=judge.stamp, dependencies=package_versions())
    ledger.append(image)
    ledger.append(prove(image, judge, recipe.settings.reward, tuple(train)))
    ledger.append(TokenizerFile(tokenizer=tokenizer.digest, template=tokenizer.template_digest,
                                blob=ledger.put(tokenizer.document())))
