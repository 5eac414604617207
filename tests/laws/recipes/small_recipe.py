"""A small complete recipe as text, with a value of every label and the claims it cites, for tests that change a line of it."""

from __future__ import annotations

from collections.abc import Sequence

from rollbook.evidence import reading
from rollbook.evidence.errors import EvidenceError
from rollbook.evidence.registry import Registry
from rollbook.recipes import Assumptions, document
from rollbook.recipes.document import Document
from rollbook.recipes.resolve import resolve
from rollbook.records import ResolvedRecipe

CLAIMS = """\
schema: rollbook.claims/1
laboratory: test
name: A laboratory
releases:
  nothing: {name: Nothing, date: "2026"}
  other: {name: Other, date: "2025"}
groups:
  big:
    release: nothing
    stage: rl
    document: case-study
    section: "6.9"
    claims:
      path: {label: D, value: big, says: It starts from a big model.}
      train: {label: D, value: 9000, unit: problems, says: Nine thousand problems are trained on.}
      high: {label: D, value: 0.3, unit: number, says: The upper clip is three tenths., not_for: {other: Other has its own}}
      share: {label: D, value: 0.3, unit: fraction, denominator: of the problems, says: Three tenths are hard.}
      min_p: {label: D, value: 0, unit: number, says: Sampling has no floor.}
      objective: {label: D, value: GRPO with changes, objectives: [Magistral], says: The objective is a changed GRPO.}
      low: {label: U, says: The lower clip is not given.}
      guess: {label: I, value: 8, unit: responses, assumes: [it is usual], says: A prompt gets eight responses.}
      start: {label: D, quantity: start, value: small, says: It starts from a small model.}
      start_elsewhere: {label: D, quantity: start, value: big, contradicts: [test.big.start], note: two sections, says: It starts
        from a big one.}
      listed: {label: D, value: [64, 128], unit: tokens, says: The limit grows in two steps.}
      at_most: {label: D, value: 2, bound: at_most, unit: updates, says: No token is older than two updates.}
      kl: {label: D, value: false, says: There is no KL term.}
  other:
    release: other
    stage: rl
    document: case-study
    section: "6.9"
    claims:
      high: {label: D, value: 0.3, unit: number, says: The upper clip is three tenths.}
"""


def claims(text: str = CLAIMS) -> Registry:
    """The registry of one claims file."""
    problems: list[EvidenceError] = []
    laboratory = reading.read(text, "test.yaml", problems)
    assert not problems, problems
    return Registry(laboratory.releases, laboratory.claims)


REGISTRY = claims()
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
      objective: {kind: {value: Magistral, label: D, claim: test.big.objective}, low: 0.2,
                  high: {value: 0.3, label: D, claim: test.big.high}, ratio_to: behavior, credit: {kind: GroupCentered}}
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


def read(text: str) -> Document:
    """The document of a text that cites the small claims."""
    return document.read(text, "small.yaml", REGISTRY)


def changed(old: str, new: str) -> Document:
    """The small recipe with one piece of its text replaced; the piece must be there."""
    assert old in TEXT
    return read(TEXT.replace(old, new))


def resolved(*overrides: str, scale: str = "lab", document: Document | None = None, assumed: Assumptions | None = None,
             ) -> ResolvedRecipe:
    return resolve(document or read(TEXT), scale, overrides, assumed)


def names(error: BaseException, words: Sequence[str]) -> bool:
    """Whether the message says all the words."""
    missing = [word for word in words if word not in str(error)]
    assert not missing, f"{missing} not in:\n{error}"
    return True
