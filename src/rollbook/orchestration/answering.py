"""Who answers in an evaluation: a policy in the embedded engine, or an endpoint that is asked over a network.

Either checks that it fits the protocol, says what a record has to know of it, and puts itself on record before it is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from rollbook.evaluation.protocols import Bundle, ProtocolRefused
from rollbook.ledger import Ledger
from rollbook.models.load import Policy
from rollbook.models.weights import weight_hash
from rollbook.orchestration.publish import Publisher
from rollbook.orchestration.surroundings import Surroundings, episodes
from rollbook.records import (
    Dispatch,
    EvaluationProtocol,
    HostRun,
    LedgerError,
    PolicyVersion,
    SamplingEnvelope,
    StageEnd,
    Task,
    TokenizerFile,
    Trace,
)
from rollbook.records.graph import START
from rollbook.records.recipe import EnvironmentSettings
from rollbook.rollouts.endpoint import UNSEEN, Endpoint, EndpointRollouts
from rollbook.rollouts.endpoint_episodes import EndpointEpisodes, Place
from rollbook.rollouts.engines.embedded import EmbeddedEngine
from rollbook.rollouts.solve import Rollouts

HIDDEN = {"events": "it answers in text: neither tokens nor log-probs nor which weights sampled them are shown",
          "publication": "it does not show which weights it holds"}
PARTLY = {"request": "that it sampled as it was asked, and under which template, is not shown"}


class Asks(Protocol):
    """Attempts at tasks, as `Rollouts` makes them."""

    def envelope(self, weights: Any) -> SamplingEnvelope: ...

    def dispatch(self, tasks: Sequence[Task], per_task: int, *, scope: str, envelope: SamplingEnvelope) -> Dispatch: ...

    def solve(self, tasks: Sequence[Task], per_task: int, *, scope: str, envelope: SamplingEnvelope) -> list[Trace]: ...


class Answerer(Protocol):
    """`weights` is their hash, None where they are not seen; `mark` the kind of record with which `begin` ends."""

    weights: str | None
    mark: str

    def facts(self) -> Mapping[str, Any]:
        """What the manifest says of it."""

    def first(self, ledger: Ledger) -> None:
        """What stands on record before everything else."""

    def begin(self, ledger: Ledger, begun: bool) -> None:
        """Ready to answer; on record the first time."""

    def asks(self, protocol: EvaluationProtocol, around: Surroundings | None) -> Asks:
        """What attempts are made with."""

    def ended(self, ledger: Ledger, protocol: EvaluationProtocol) -> tuple[StageEnd, ...]:
        """What is on record once all is answered."""

    def notes(self) -> tuple[str, ...]:
        """What a reader of the result should know."""


class Embedded:
    """A policy whose weights are here; refuses one that would be asked in another form than the protocol's."""

    mark = "PolicyVersion"

    def __init__(self, policy: Policy, bundle: Bundle, dtype: torch.dtype, expected: str | None):
        check_fits(bundle, policy)
        self.policy, self.bundle, self.dtype = policy, bundle, dtype
        self.weights: str | None = weight_hash(policy.decoder.named_parameters())
        if expected is not None and expected != self.weights:
            raise LedgerError("the checkpoint is not the policy that the run published",
                              got=f"{str(self.weights)[:12]} for {expected[:12]}",
                              why="it was changed after the run", fix="restore it from a copy of the run")
        self.engine = EmbeddedEngine(stop_ids=policy.tokenizer.stop_ids, dtype=dtype, decode=policy.tokenizer.decode)

    def facts(self) -> Mapping[str, Any]:
        return {"model": self.policy.source, "tokenizer": self.policy.tokenizer.digest,
                "template": self.policy.tokenizer.template_digest, "dtype": str(self.dtype).removeprefix("torch."),
                "engine": EmbeddedEngine.name, "threads": torch.get_num_threads()}

    def first(self, ledger: Ledger) -> None:
        """What its tokens are read with; its version is published when everything else is on record."""
        tokenizer = self.policy.tokenizer
        ledger.append(TokenizerFile(tokenizer=tokenizer.digest, template=tokenizer.template_digest,
                                    blob=ledger.put(tokenizer.document())))

    def begin(self, ledger: Ledger, begun: bool) -> None:
        publisher = Publisher(ledger, self.policy.decoder, self.engine, next_index=0,
                              probe=self.policy.tokenizer.prompt(self.bundle.tasks[0].prompt))
        if begun:
            publisher.load(0)
        else:
            publisher.publish(START, None, (), optimizer=None)

    def asks(self, protocol: EvaluationProtocol, around: Surroundings | None) -> Asks:
        plain = Rollouts(sampler=self.engine, tokenizer=self.policy.tokenizer, sampling=protocol.sampling, seed=protocol.seed,
                         max_tokens=protocol.max_tokens)
        return plain if around is None else episodes(plain, around, protocol.context or 0)

    def ended(self, ledger: Ledger, protocol: EvaluationProtocol) -> tuple[StageEnd, ...]:
        version = next(ledger.events(PolicyVersion.__name__)).id
        return (StageEnd(stage=protocol.name, kind="Evaluate", started=version, ended=version, checkpoint=None),)

    def notes(self) -> tuple[str, ...]:
        return ()


class Remote:
    """An endpoint: what it does not show is named once, at the head of the record; refuses what it cannot be asked."""

    weights: str | None = None
    mark = "EnvironmentProof"

    def __init__(self, endpoint: Endpoint, bundle: Bundle):
        protocol = bundle.protocol
        if protocol.world is not None:
            check_asked(protocol.world)
        if protocol.aggregation.selector == "logp":
            raise ProtocolRefused("an endpoint's answers cannot be ranked by their log-probs", got=str(protocol.aggregation),
                                  why="it does not show them at the temperature it sampled at",
                                  fix="freeze the protocol with another aggregation or selector")
        self.endpoint, self.world = endpoint, protocol.world
        self.rollouts = EndpointRollouts(endpoint, protocol.sampling, seed=protocol.seed, max_tokens=protocol.max_tokens)

    def facts(self) -> Mapping[str, Any]:
        calls = {"tool_calls": UNSEEN} if self.world is not None and not self.world.no_tools else {}
        return {"model": self.endpoint.model, "endpoint": self.endpoint.url, "tokenizer": UNSEEN, "template": UNSEEN,
                "dtype": UNSEEN, "engine": UNSEEN, "threads": torch.get_num_threads(), **calls}

    def first(self, ledger: Ledger) -> None:
        ledger.append(HostRun(host="endpoint", version=self.endpoint.model, adapter="rollbook.endpoint/1", unseen=HIDDEN,
                              partly=PARTLY, settings={"url": self.endpoint.url, "model": self.endpoint.model}))

    def begin(self, ledger: Ledger, begun: bool) -> None:
        """Nothing: it is there or every call says that it is not."""

    def asks(self, protocol: EvaluationProtocol, around: Surroundings | None) -> Asks:
        if around is None:
            return self.rollouts
        return EndpointEpisodes(self.rollouts, Place(spec=around.spec, definition=around.definition, services=around.services,
                                                     rules=around.rules, context=protocol.context or 0))

    def ended(self, ledger: Ledger, protocol: EvaluationProtocol) -> tuple[StageEnd, ...]:
        return ()

    def notes(self) -> tuple[str, ...]:
        """How it named itself, and what of it is not shown."""
        named = sorted({f"{model}, fingerprint {fingerprint}" for model, fingerprint in self.rollouts.heard})
        changed = ["it named itself in several ways: it may have been several policies"] if len(named) > 1 else []
        tools = ["tools went to it as chat completions know them: how its template writes them and its calls is not shown"]
        return (*(f"the endpoint answered as {name}" for name in named), *changed,
                *(tools if "tool_calls" in self.facts() else ()),
                "not shown by it: tokens, log-probs, weights, template, precision; counts of tokens are its own")


def check_asked(world: EnvironmentSettings) -> None:
    """Refuses episodes whose harness an endpoint cannot be held to."""
    whole = "world.compaction=none --set world.compact_at=0"
    asked = [(world.compaction != "none", f"world.compaction={world.compaction}", whole,
              "how long a context grows is known to it alone until it was asked"),
             (world.subagents > 0, f"world.subagents={world.subagents}", "world.subagents=0",
              "a delegated task would be one more conversation, which is not built"),
             (not world.announce and not world.no_tools, "world.announce=false", "world.announce=true",
              "it is handed the tools, and its own template describes them")]
    for found, got, other, why in asked:
        if found:
            raise ProtocolRefused("an endpoint cannot be asked for the episodes of this protocol", got=got, why=why,
                                  fix=f"evaluate the weights themselves, or `rollbook protocol vary FILE OUT --set {other}`")


def check_fits(bundle: Bundle, policy: Policy) -> None:
    """Refuses a policy that would be asked in another form than the protocol's."""
    if policy.tokenizer.template_digest != bundle.protocol.template:
        raise ProtocolRefused("this policy speaks with another chat template than the protocol's",
                              got=f"{policy.tokenizer.template_digest[:12]} for {bundle.protocol.template[:12]}",
                              why="it would be asked other text for the same tasks",
                              fix="freeze a protocol with this policy's template, and compare under that")
    longest = max(len(policy.tokenizer.prompt(task.prompt)) for task in bundle.tasks)
    context = policy.decoder.architecture.context
    if bundle.protocol.context is not None and context < bundle.protocol.context:
        raise ProtocolRefused("the protocol's episodes do not fit this policy's context",
                              got=f"{bundle.protocol.context} > {context}",
                              why="they would be cut or compacted earlier than another policy's",
                              fix="freeze a protocol of a run with a smaller model.context, or choose another policy")
    if bundle.protocol.world is None and longest + bundle.protocol.max_tokens > context:
        raise ProtocolRefused("prompts and answers do not fit this policy's context",
                              got=f"longest prompt {longest} + {bundle.protocol.max_tokens} > {context}",
                              why="an answer would be cut by the context and not by its budget",
                              fix="use a protocol with a smaller budget, or another policy")
