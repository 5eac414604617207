"""A small complete recipe as text, with one value of every label, for tests that change one line of it."""

from __future__ import annotations

from collections.abc import Sequence

from rollbook.recipes.document import Document, read
from rollbook.recipes.resolve import resolve
from rollbook.records import ResolvedRecipe

TEXT = """\
schema: rollbook.recipe/1
name: small
title: A small recipe
subject: Nothing (2026)
source: this test
settings:
  run: {seed: 1, device: cpu, threads: 0, dtype: auto}
  model: {kind: Pretrained, path: {value: big, label: D, claim: test.big.path}, context: 4096}
  tasks:
    families:
      sums: {generator: chain_sum, weight: 1, parameters: {min_terms: 2, max_terms: 2}}
    train: {value: 9000, label: D, claim: test.big.train}
    heldout: 512
    seed: 1
    system_prompt: ""
    max_tokens: 64
  reward: {composition: magistral, format_reward: 0.1, correct_reward: 0.9, length_penalty: 0.1, length_max: 64, length_cache: 16,
           language_reward: null, verify_seconds: 5, verify_workers: 1}
  stages:
    rl:
      kind: PolicyGradient
      policy: start
      tasks: train
      objective: {kind: Magistral, low: 0.2, high: {value: 0.3, label: D, claim: test.big.high}, ratio_to: behavior,
                  credit: {kind: GroupCentered}}
      steps: {label: U, note: steps of the stage, typical: 100 to 1000}
      prompts: 16
      per_task: {value: 8, label: I, reason: the usual group}
      groups: 16
      max_waves: 2
      minibatches: 2
      max_policy_age: 0
      sampling: {temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.0}
      optimizer: {learning_rate: 1e-5, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.0, warmup_steps: 0, schedule: constant,
                  max_grad_norm: 1.0}
      max_batch_tokens: 4096
      probe: 0
      probe_every: 0
      checkpoint_every: 10
scales:
  lab:
    because: small enough for a test
    stages.rl.steps: 4
    tasks.train: 100
  tiny:
    extends: lab
    because: smaller still
    tasks.train: 50
"""


def changed(old: str, new: str) -> Document:
    """The small recipe with one piece of its text replaced; the piece must be there."""
    assert old in TEXT
    return read(TEXT.replace(old, new), "small.yaml")


def resolved(*overrides: str, scale: str = "lab", document: Document | None = None) -> ResolvedRecipe:
    return resolve(document or read(TEXT, "small.yaml"), scale, overrides)


def names(error: BaseException, words: Sequence[str]) -> bool:
    """Whether the message says all the words."""
    missing = [word for word in words if word not in str(error)]
    assert not missing, f"{missing} not in:\n{error}"
    return True
