"""A whole small run on record with numbers that are known, stage by stage as a run writes them; no model is involved."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from rollbook.ledger import Ledger, close_census
from rollbook.recipes import load, resolve
from rollbook.records import (
    AbsentComponent,
    Batch,
    Budget,
    Comparison,
    Component,
    Credit,
    Demonstration,
    Dispatch,
    EvalReport,
    Interval,
    Message,
    Outcome,
    PolicyVersion,
    ProtocolBundle,
    RawTask,
    RewardVector,
    RunEnd,
    SamplingEnvelope,
    Scored,
    Segment,
    Selection,
    SftReport,
    Span,
    StageEnd,
    StepReport,
    Task,
    TermSpec,
    Trace,
    Unscored,
    Update,
    Verdict,
    VerifierStamp,
    canonical,
    content_id,
    digest,
)

STAMP = VerifierStamp(name="math", version="1", digest="77" * 32)
FAMILIES = ("sums", "products")
ANSWER = "7\x1b[31m\n"     # a response may hold anything, terminal codes too


def raw(index: int) -> RawTask:
    return RawTask(source="a generator", licence="Apache-2.0", acquired_at="2026-11-29", content=f"{index} + 2 =", language="en",
                   domain="arithmetic", sensitive=(), lineage={"generator": "sums", "index": str(index)})


def task(index: int) -> Task:
    return Task(raw=content_id(raw(index)), family=FAMILIES[index % 2], prompt=(Message(role="user", content=f"{index} + 2 ="),),
                reference=str(index + 2), canonical=f"sum:{index}", predicate="math.equivalent", initial_state="prompt", tools=(),
                budget=Budget(max_tokens=64), termination=("end_of_turn",))


@dataclasses.dataclass
class Writer:
    """Writes a run; `version` is the newest policy. The longest answers and those of products are never admitted."""

    ledger: Ledger
    train: list[Task]
    heldout: list[Task]
    version: PolicyVersion | None = None
    reports: dict[str, EvalReport] = dataclasses.field(default_factory=dict)

    @property
    def policy(self) -> PolicyVersion:
        assert self.version is not None
        return self.version

    @property
    def envelope(self) -> SamplingEnvelope:
        return SamplingEnvelope(policy=self.policy.weights, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=1, max_tokens=64,
                                max_turns=1, max_seconds=None, stop=(), template="b2", scaffold="single_turn/1")

    def publish(self, stage: str, window: Sequence[str] = ()) -> PolicyVersion:
        index = 0 if self.version is None else self.version.index + 1
        self.version = PolicyVersion(index=index, stage=stage, weights=f"{index:02d}" * 32, published=f"{index:02d}" * 32,
                                     parent=None if self.version is None else self.version.id, updates=len(window),
                                     optimizer=None, window=tuple(window), healthy=True, acknowledged=(), probe=None)
        self.ledger.append(self.version)
        return self.version

    def dispatch(self, scope: str, tasks: Sequence[Task], samples: int) -> Dispatch:
        made = Dispatch(scope=scope, tasks=tuple(one.id for one in tasks), samples=samples, envelope=content_id(self.envelope))
        self.ledger.append_many([self.envelope, made])
        return made

    def traces(self, issued: Dispatch) -> list[Trace]:
        """One per attempt; sample n is n + 1 tokens long and took n seconds, sample 0 states no latency."""
        made = []
        for attempt, of in issued.attempts():
            sample = int(attempt.rpartition("/")[2])
            answer = Segment(owner="policy", token_ids=(7,) * (sample + 1), logps=(-0.5,) * (sample + 1),
                             version=self.policy.index)
            made.append(Trace(attempt=attempt, task=of, group=attempt.rpartition("/")[0], envelope=issued.envelope,
                              segments=(Segment(owner="user", token_ids=(1, 2, 3)), answer), stop_reason="end_of_turn",
                              text=ANSWER, observed={"latency_s": float(sample)} if sample else {}))
        return made

    def outcomes(self, traces: Iterable[Trace]) -> list[Outcome]:
        family = {one.id: one.family for one in (*self.train, *self.heldout)}
        return [Outcome(attempt=one.attempt, family=family[one.task], code=code(one, family[one.task])) for one in traces]

    def families(self, issued: Iterable[Dispatch]) -> dict[str, str]:
        family = {one.id: one.family for one in (*self.train, *self.heldout)}
        return {attempt: family[of] for one in issued for attempt, of in one.attempts()}

    def evaluate(self, stage: str, *, name: str = "heldout", count: int | None = None) -> EvalReport:
        tasks = self.heldout[:count]
        bundle = ProtocolBundle(name=name, tasks=digest(canonical([one.id for one in tasks])), task_count=len(tasks),
                                environment="EnvironmentImage:1", verifier="77", template="b2", temperature=0.7, top_p=1.0,
                                max_tokens=64, trials=1, seed=11, aggregation="mean")
        self.ledger.append(bundle)
        issued = self.dispatch(f"eval/{name}/11", tasks, 1)
        traces = self.traces(issued)
        ends = [dataclasses.replace(one, code="accepted") for one in self.outcomes(traces)]
        self.ledger.write_traces(f"eval/{stage}", traces, [scored(one) for one in traces], ends)
        right = Interval(estimate=0.5, low=0.25, high=0.75, level=0.95, method="wilson", count=len(tasks))
        report = EvalReport(protocol=content_id(bundle), stage=stage, policy=self.policy.id, weights=self.policy.weights,
                            accuracy=right, format_rate=1.0, unscored=0, in_family=True, mean_tokens=1.0,
                            outcomes={one.id: float(index % 2) for index, one in enumerate(tasks)}, by_family={"sums": 0.5})
        self.ledger.append_many([close_census(f"eval/{stage}", self.families([issued]), ends), report])
        self.reports[stage] = report
        return report

    def compare(self, before: str, after: str) -> None:
        gain = Interval(estimate=0.125, low=0.0625, high=0.25, level=0.95, method="paired bootstrap", count=4)
        self.ledger.append(Comparison(before=content_id(self.reports[before]), after=content_id(self.reports[after]), gain=gain,
                                      changed="policy", claim="gain", p_value=None))

    def end(self, stage: str, kind: str, started: PolicyVersion) -> None:
        checkpoint = None if started.id == self.policy.id else f"checkpoints/{stage}"
        self.ledger.append(StageEnd(stage=stage, kind=kind, started=started.id, ended=self.policy.id, checkpoint=checkpoint))

    def cold_start(self) -> None:
        started = self.policy
        shown = [Demonstration(task=one.id, messages=(*one.prompt, Message(role="assistant", content=one.reference)),
                               token_ids=(1, 2, 9), owners=(Span(owner="user", length=2), Span(owner="policy", length=1)),
                               tokenizer="a1", template="b2", author="program:sums/1", validation="verified")
                 for one in self.train]
        self.ledger.write_table("cold_start/demonstrations", shown)
        tensors = self.ledger.put(b"what was trained")
        self.ledger.append(SftReport(stage="cold_start", step=1, demonstrations=tuple(content_id(one) for one in shown), tokens=8,
                                     tensors=tensors, loss_nats=1.5, grad_norm=1.0, learning_rate=1e-3))
        self.publish("cold_start")
        self.end("cold_start", "Sft", started)

    def select(self) -> None:
        issued = self.dispatch("select", self.train, 2)
        traces = self.traces(issued)
        ends = [dataclasses.replace(one, code="accepted") for one in self.outcomes(traces)]
        self.ledger.write_traces("select", traces, [scored(one) for one in traces], ends)
        self.ledger.append(close_census("select", self.families([issued]), ends))
        self.ledger.append(Selection(stage="select", policy=self.policy.id, kept=tuple(one.id for one in self.train[:4]),
                                     samples=2, pass_counts={one.id: 1 for one in self.train},
                                     rejected={"too_hard": len(self.train) - 4}))
        self.end("select", "PassRate", self.policy)

    def step(self, number: int, *, lone: int = 0) -> None:
        """Four tasks by four samples in two waves; the last `lone` attempts end without a trajectory."""
        scope, before = f"rl/{number:06d}", self.policy
        issued = [self.dispatch(f"{scope}/{wave}", self.train[2 * wave:2 * wave + 2], 4) for wave in range(2)]
        every = [trace for one in issued for trace in self.traces(one)]
        kept, gone = every[:len(every) - lone], every[len(every) - lone:]
        ends = self.outcomes(kept)
        verdicts: list[Verdict] = [scored(one) for one in kept[:-1]] + [unscored(one) for one in kept[-1:]]
        self.ledger.write_traces(scope, kept, verdicts, ends)
        lost = [dataclasses.replace(one, code="timed_out") for one in self.outcomes(gone)]
        self.ledger.append_many(lost)
        self.ledger.append(close_census(scope, self.families(issued), [*ends, *lost]))
        trained = [one for one, end in zip(kept, ends, strict=True) if end.code == "accepted"]
        batch, update = self.learn(f"{scope}/0", trained, number)
        self.publish("rl", (batch,))
        self.ledger.append(StepReport(stage="rl", step=number, policy=before.id, published=self.policy.id, census="TraceTable:1",
                                      batches=(batch,), updates=(update,), metrics={"reward/total_mean": 0.5},
                                      observed={"time/step_s": 2.0}))

    def learn(self, scope: str, trained: Sequence[Trace], number: int) -> tuple[str, str]:
        ids = tuple(one.id for one in trained)
        self.ledger.append(Credit(scope=scope, rule={"kind": "GroupMean"}, traces=ids, gamma=None, lam=None,
                                  group_of=tuple(one.group for one in trained), reward=(1.0,) * len(ids),
                                  advantage=(0.5,) * len(ids), baseline="group mean", normalized_over="minibatch"))
        terms = (TermSpec(name="policy", coefficient=1.0, aggregate="token_mean", population="actions"),)
        batch = Batch(scope=scope, traces=ids, tensors=self.ledger.put(b"given"), objective={"kind": "Magistral", "high": 0.3},
                      terms=terms, plan=((0,),), action_tokens=9, groups=2, max_age=0, max_length=64, threads=1,
                      deterministic=True, compute_dtype="float32")
        update = Update(batch=batch.id, index=number, tensors=self.ledger.put(b"found"), loss={"policy": -0.25, "kl": 0.125},
                        grad_norm=1.0, grad_clipped=False, clip_fraction=0.0, ratio_min=1.0, ratio_max=1.0, entropy_nats=0.5,
                        kl_nats=None, mismatch_k3_nats=None, learning_rate=1e-4, weights_before="aa", weights_after="bb")
        self.ledger.append_many([batch, update])
        return batch.id, update.id


def code(of: Trace, family: str) -> str:
    return "uniform" if family == "products" else "truncated" if of.action_count == 4 else "accepted"


def scored(of: Trace) -> Scored:
    parts = (Component(name="format", value=0.25, verifier=STAMP), Component(name="correctness", value=0.5, verifier=STAMP))
    vector = RewardVector(components=parts, absent=(AbsentComponent(name="language", reason="not configured"),),
                          composition="magistral/1", composition_digest="c0", total=0.75, accuracy=1.0)
    return Scored(trace=of.id, vector=vector, observed={"seconds": 0.5})


def unscored(of: Trace) -> Unscored:
    return Unscored(trace=of.id, verifier=STAMP, code="timeout", detail="after 5 s")


def begin(folder: Path) -> Writer:
    """A run up to its first published policy: 8 training and 4 held-out tasks."""
    ledger = Ledger.create(folder, {"name": "magistral-small"})
    writer = Writer(ledger, [task(i) for i in range(8)], [task(i) for i in range(8, 12)])
    writer.ledger.append(resolve(load("magistral-small"), "tiny"))
    writer.ledger.write_table("tasks/raw", [raw(i) for i in range(12)])
    writer.ledger.write_table("tasks/train", writer.train)
    writer.ledger.write_table("tasks/heldout", writer.heldout)
    writer.publish("start")
    return writer


def whole_run(folder: Path, *, lone: int = 0) -> Writer:
    """A run from its start to its end, closed."""
    writer = begin(folder)
    writer.evaluate("start_eval")
    writer.end("start_eval", "Evaluate", writer.policy)
    writer.cold_start()
    writer.evaluate("cold_eval")
    writer.compare("start_eval", "cold_eval")
    writer.end("cold_eval", "Evaluate", writer.policy)
    writer.select()
    started = writer.policy
    writer.step(1, lone=lone)
    writer.evaluate("rl/probe/000001", name="probe", count=2)
    writer.step(2)
    writer.end("rl", "PolicyGradient", started)
    writer.evaluate("final_eval")
    writer.compare("cold_eval", "final_eval")
    writer.end("final_eval", "Evaluate", writer.policy)
    writer.ledger.append(RunEnd(status="completed", detail="", observed={"wall_s": 3.0}))
    writer.ledger.close()
    return writer
