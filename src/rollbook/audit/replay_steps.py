"""One training step computed again from what is stored of it, and compared with what the run recorded of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from rollbook.audit import stored
from rollbook.audit.ruler import Ruler
from rollbook.experience.batches import Packed, with_token_credit
from rollbook.experience.mixing import mixed
from rollbook.experience.token_credit import per_token, uses_values
from rollbook.ledger import Event, Ledger
from rollbook.models.weights import weight_hash
from rollbook.objectives import ControlledEntropy
from rollbook.objectives.core import Objective
from rollbook.objectives.credit.rules import BatchNormalized
from rollbook.objectives.settings import from_settings
from rollbook.records import Batch, Credit, Demonstration, SftReport, Update
from rollbook.records.recipe import PolicyGradient, Sft
from rollbook.training.optimizer import Optimizer
from rollbook.training.policy import Measurement, PolicyLearner
from rollbook.training.sft import sft_update
from rollbook.training.value import CriticLearner

ARITHMETIC = 1e-6       # sums in another order: weights and rates that no model computed


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStep:
    """What the log holds of one minibatch; `table` is the event of its trajectories, `update` None where only a critic learnt."""

    batch_id: str
    batch: Batch
    credit: Credit
    table: Event | None
    update: Update | None
    critic: CriticLearner | None = None
    shown: tuple[Demonstration, ...] = ()


def sft_step(ruler: Ruler, learner: PolicyLearner, stage: Sft, batch: Sequence[Demonstration], report: SftReport,
             given: Mapping[str, torch.Tensor]) -> None:
    """Takes the supervised step on `learner`'s weights; `given` is what the report stored."""
    done = sft_update(learner.decoder, learner.optimizer, batch, dtype=learner.dtype, max_tokens=stage.max_batch_tokens,
                      where=f"{report.stage} step {report.step}", repeats=stage.repeats)
    mine = stored.one_sft_blob([one.token_ids for one in batch], done.weight_T)
    ruler.tensor("token_ids", given.get("token_ids"), mine["token_ids"])
    ruler.tensor("length", given.get("length"), mine["length"])
    ruler.tensor("weight", given.get("weight"), mine["weight"], ARITHMETIC)
    ruler.text("tokens", report.tokens, done.tokens)
    ruler.number("loss_nats", report.loss_nats, done.loss_nats, ruler.tolerance.loss, share=False)
    first = learner.optimizer.steps == 1
    ruler.number("grad_norm", report.grad_norm, done.stepped.grad_norm, ruler.tolerance.grad_norm if first else None)
    ruler.number("learning_rate", report.learning_rate, done.stepped.learning_rate, ARITHMETIC)


def policy_step(ruler: Ruler, ledger: Ledger, learner: PolicyLearner, stage: PolicyGradient, step: PolicyStep) -> str:
    """Takes the policy update from its stored batch on `learner`'s weights; the hash of the weights it led to."""
    assert step.update is not None
    ruler.hash("weights_before", step.update.weights_before, weight_hash(learner.decoder.named_parameters()))
    hold(learner, step)
    if stage.optimizer_reset == "publication" and step.batch.scope.endswith("/0"):
        learner.optimizer.forget()
    measured = gradients(ruler, ledger, learner, stage, step, take=True)
    assert measured is not None
    stepped = measured.stepped
    if ruler.exact:
        ruler.text("grad_clipped", step.update.grad_clipped, stepped.clipped)
    ruler.text("index", step.update.index, learner.optimizer.steps)
    ruler.number("learning_rate", step.update.learning_rate, stepped.learning_rate, ARITHMETIC)
    after = weight_hash(learner.decoder.named_parameters())
    ruler.hash("weights_after", step.update.weights_after, after)
    return after


def used(batch: Batch) -> Objective:
    """The batch's objective; where a controller moves its bonus for entropy, with the coefficient of this step."""
    objective = from_settings(dict(batch.objective))
    if batch.control is None or not isinstance(objective, ControlledEntropy):
        return objective
    return objective.at(batch.control.coefficient)


def hold(learner: PolicyLearner, step: PolicyStep) -> None:
    """Before a step's first minibatch: what its later ones are anchored at, and valued by, is kept."""
    if step.batch.scope.endswith("/0"):
        learner.hold_anchor(from_settings(dict(step.batch.objective)))
        if step.critic is not None:
            step.critic.hold()


def compared(ruler: Ruler, ledger: Ledger, learner: PolicyLearner, stage: PolicyGradient, step: PolicyStep) -> Packed:
    """The stored minibatch, once everything in it was computed again from trajectories, credit and models, and compared."""
    given = stored.tensors(ledger, step.batch.tensors)
    objective = used(step.batch)
    ruler.text("objective", from_settings(dict(stage.objective)), from_settings(dict(step.batch.objective)),
               "the recipe's against the batch's")
    members = stored.members(ledger, step.table, step.batch)
    if stage.observation_loss:
        members = tuple(replace(one, trace=one.trace.as_if_written()) for one in members)
    if stage.subagents_learn:
        members = tuple(replace(one, trace=one.trace.with_subagents()) for one in members)
    sizes = {"max_tokens": stage.max_batch_tokens, "max_length": step.batch.max_length}
    again = stored.rebuilt(members, step.credit, objective, **sizes)
    if step.shown:
        again = replace(again, mixed=mixed(step.shown, objective, **sizes))
    scored = learner.score(again, objective)
    if step.batch.scope.endswith("/0"):
        scored = replace(scored, routes_LYK=None)           # the step's first minibatch meets its own routers
    if per_token(objective.credit):
        scored = _credited(scored, objective, step, given)
    _inputs(ruler, step.batch, given, scored)
    return replace(stored.as_stored(step.batch, given, members, step.credit), mixed=again.mixed)


def _credited(scored: Packed, objective: Objective, step: PolicyStep, given: Mapping[str, torch.Tensor]) -> Packed:
    """Advantages per token again; what a rule over a whole step's batch gave, and values without their critic, is as stored."""
    rule = objective.credit
    if isinstance(rule, BatchNormalized) or (uses_values(rule) and step.critic is None):
        return replace(scored, advantage_T=given["advantage"], value_T=given.get("value"), return_T=given.get("return"),
                       kl_T=given.get("kl"))
    values = None if step.critic is None else [step.critic.values(scored)]
    return with_token_credit([scored], rule, values)[0]


def gradients(ruler: Ruler, ledger: Ledger, learner: PolicyLearner, stage: PolicyGradient, step: PolicyStep, *,
              take: bool) -> Measurement:
    """The update's log-probs, loss and gradients from its stored batch, compared; `take` says whether KL is compared too.

    The optimizer steps: whoever does not want the step keeps the weights elsewhere.
    """
    assert step.update is not None
    found, objective = stored.tensors(ledger, step.update.tensors), used(step.batch)
    packed = compared(ruler, ledger, learner, stage, step)
    if step.batch.control is not None:
        ruler.number("control.entropy_nats", step.batch.control.entropy_nats, learner.entropy(packed), ruler.tolerance.logp_nats,
                     share=False)
    measured = learner.update(packed, objective, where=step.batch.scope)
    slack = ruler.tolerance
    ruler.tensor("logp", found.get("logp"), measured.logp_T, slack.logp_nats)
    ruler.tensor("entropy", found.get("entropy"), measured.entropy_T, slack.logp_nats)
    if measured.mixed_T is not None or "pretraining_logp" in found:
        ruler.tensor("pretraining_logp", found.get("pretraining_logp"), measured.mixed_T, slack.logp_nats)
    if ruler.exact:
        ruler.tensor("gradient", found.get("gradient"), measured.gradient_T)
        ruler.tensor("clipped", found.get("clipped"), measured.clipped_T.to(torch.uint8))
    ruler.text("loss terms", sorted(step.update.loss), sorted(measured.loss))
    for name, value in measured.loss.items():
        ruler.number(f"loss.{name}", step.update.loss.get(name), value, slack.loss, share=False)
    first = learner.optimizer.steps == 1
    ruler.number("grad_norm", step.update.grad_norm, measured.stepped.grad_norm, slack.grad_norm if first else None)
    if step.update.kl_nats is not None:
        ruler.number("kl_nats", step.update.kl_nats, learner.kl_to_start(packed, measured.logp_T), slack.logp_nats, share=False)
    return measured


def _inputs(ruler: Ruler, batch: Batch, given: Mapping[str, torch.Tensor], again: Packed) -> None:
    """The stored batch against the one that trajectories, credit and the trainer's own log-probs give."""
    ruler.text("batch.terms", batch.terms, again.terms)
    ruler.text("batch.plan", batch.plan, again.plan)
    mine = again.tensors()
    for name in sorted({*given, *mine}):
        scored = name in stored.SCORED
        slack = ruler.tolerance.logp_nats if scored else ARITHMETIC if name in ("weight", "pretraining_weight") else None
        ruler.tensor(f"batch.{name}", given.get(name), mine.get(name), slack)


def new_learner(decoder: torch.nn.Module, stage: Sft | PolicyGradient, *, dtype: torch.dtype) -> PolicyLearner:
    """Optimizer and learner as a stage begins with them, from the recipe's settings."""
    total = stage.steps if isinstance(stage, Sft) else stage.steps * stage.minibatches
    optimizer = Optimizer.of(decoder.requires_grad_(True), stage.optimizer, total)
    temperature = 1.0 if isinstance(stage, Sft) else stage.sampling.temperature
    start = decoder if isinstance(stage, Sft) else None          # a supervised stage measures no distance from its start
    learner = PolicyLearner(decoder, optimizer, dtype=dtype, temperature=temperature, start=start)  # type: ignore[arg-type]
    learner.routing = stage.routing if isinstance(stage, PolicyGradient) else "free"
    return learner
