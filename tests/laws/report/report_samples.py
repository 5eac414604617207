"""A small run on record, as orchestration would have written it, stage by stage; no model is involved."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollbook.ledger import Ledger, close_census
from rollbook.models.tokenizer import byte_tokenizer
from rollbook.recipes import load, resolve
from rollbook.records import (
    AbsentComponent,
    Acknowledgement,
    Budget,
    Comparison,
    Component,
    EvalReport,
    Interval,
    Message,
    Outcome,
    PolicyVersion,
    ResolvedRecipe,
    RewardVector,
    RunEnd,
    Scored,
    Segment,
    Selection,
    SftReport,
    SplitManifest,
    StageEnd,
    StepReport,
    Task,
    Trace,
    Unscored,
    Verdict,
    VerifierStamp,
    content_id,
)

STAMP = VerifierStamp(name="math", version="1", digest="77" * 32)
MANIFEST = {"name": "magistral-small", "scale": "tiny", "seed": 1, "model": "tiny llama, seed 1", "python": "3.11.2",
            "machine": {"cpu": "a processor", "cores": 2, "memory_bytes": 8 * 2**30},
            "packages": {"torch": "2.13.0", "vllm": None}}
TOKENIZER = byte_tokenizer()
STEPS = 8


def float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def recipe(*overrides: str) -> ResolvedRecipe:
    return resolve(load("magistral-small"), "tiny", overrides)


def task(index: int, question: str = "", reference: str = "") -> Task:
    return Task(raw="RawTask:0", family="add_sub", prompt=(Message(role="user", content=question or f"{index} + 2 ="),),
                reference=reference or str(index + 2), canonical=f"sum:{index}", predicate="math.equivalent",
                initial_state="prompt", tools=(), budget=Budget(max_tokens=64), termination=("end_of_turn",))


def trace(of: Task, text: str, *, version: int = 1, scope: str = "eval/heldout/11") -> Trace:
    ids = TOKENIZER.encode(text)
    chances = random.Random(text)
    prompt = Segment(owner="user", token_ids=TOKENIZER.prompt(of.prompt))
    answer = Segment(owner="policy", token_ids=ids, version=version,
                     logps=tuple(float32(-chances.expovariate(2.0)) for _ in ids))
    return Trace(attempt=f"{scope}/{of.id}/0", task=of.id, group=f"{scope}/{of.id}", envelope="SamplingEnvelope:1",
                 segments=(prompt, answer), stop_reason="end_of_turn", text=text)


def scored(of: Trace, right: bool | None, *, detail: str = "7 = 7") -> Scored:
    """Right, wrong, or a failed format gate (None)."""
    missing = [AbsentComponent(name="language_consistency", reason="not configured")]
    parts = [Component(name="format", value=0.0 if right is None else 0.1, verifier=STAMP)]
    if right is None:
        missing.append(AbsentComponent(name="correctness", reason="format gate failed: no closing tag"))
    else:
        parts.append(Component(name="correctness", value=0.9 if right else 0.0, verifier=STAMP, detail=detail))
    vector = RewardVector(components=tuple(parts), absent=tuple(missing), composition="magistral/1", composition_digest="c0",
                          total=sum(part.value for part in parts), accuracy=float(bool(right)))
    return Scored(trace=of.id, vector=vector)


def unscored(of: Trace) -> Unscored:
    return Unscored(trace=of.id, verifier=STAMP, code="timeout", detail="after 5 s")


def interval(right: int, count: int) -> Interval:
    share = right / count
    return Interval(estimate=share, low=max(0.0, share - 0.11), high=min(1.0, share + 0.1), level=0.95, method="wilson",
                    count=count)


@dataclass(slots=True)
class Writer:
    """Writes stages into a run; keeps the newest policy and the tasks."""

    ledger: Ledger
    tasks: list[Task]
    version: PolicyVersion | None = None
    reports: dict[str, EvalReport] = field(default_factory=dict)

    def publish(self, stage: str) -> PolicyVersion:
        index = self.version.index + 1 if self.version else 0
        parent = self.version.id if self.version else None
        self.version = PolicyVersion(index=index, stage=stage, weights=f"{index:02d}" * 32, parent=parent,
                                     updates=0 if index == 0 else 2, optimizer=None, window=(), healthy=True,
                                     published="ab", probe=None,
                                     acknowledged=(Acknowledgement(consumer="embedded-0", weights="ab"),))
        self.ledger.append(self.version)
        return self.version

    def evaluate(self, stage: str, right: Sequence[bool | None], *, count: int | None = None,
                 texts: Sequence[str] = ()) -> EvalReport:
        assert self.version
        tasks = self.tasks[:count]
        answers = texts or [f"<think>I count to {i}.</think>\\boxed{{{i + (2 if ok else 3)}}}" for i, ok in enumerate(right)]
        traces = [trace(t, a, version=self.version.index) for t, a in zip(tasks, answers, strict=True)]
        verdicts: list[Verdict] = [scored(t, ok) if ok is not None else unscored(t) for t, ok in zip(traces, right, strict=True)]
        outcomes = [Outcome(attempt=t.attempt, family="add_sub", code="accepted" if isinstance(v, Scored) else "unscored")
                    for t, v in zip(traces, verdicts, strict=True)]
        self.ledger.write_traces(f"eval/{stage}", traces, verdicts, outcomes)
        known = [ok for ok in right if ok is not None]
        report = EvalReport(protocol="ProtocolBundle:1", stage=stage, policy=self.version.id, weights=self.version.weights,
                            accuracy=interval(sum(known), len(known)), format_rate=0.75, unscored=len(right) - len(known),
                            in_family=True, outcomes={t.id: None if ok is None else float(ok)
                                                      for t, ok in zip(tasks, right, strict=True)},
                            by_family={"add_sub": sum(known) / len(known)}, mean_tokens=31.5)
        self.ledger.append(report)
        self.reports[stage] = report
        return report

    def compare(self, before: str, after: str) -> Comparison:
        old, new = self.reports[before], self.reports[after]
        gain = new.accuracy.estimate - old.accuracy.estimate
        comparison = Comparison(before=content_id(old), after=content_id(new), changed="policy",
                                claim="gain", p_value=0.0213, gain=Interval(
            estimate=gain, low=gain - 0.08, high=gain + 0.07, level=0.95, method="paired bootstrap", count=len(self.tasks)))
        self.ledger.append(comparison)
        return comparison

    def end(self, stage: str, kind: str, started: PolicyVersion, *, trained: bool) -> None:
        assert self.version
        checkpoint = f"checkpoints/{stage}" if trained else None
        if checkpoint:
            folder = self.ledger.root / checkpoint
            folder.mkdir(parents=True)
            TOKENIZER.save(folder)
        self.ledger.append(StageEnd(stage=stage, kind=kind, started=started.id, ended=self.version.id, checkpoint=checkpoint))

    def step(self, number: int) -> StepReport:
        """One policy step: its census, its version, its numbers; entropy is not observed in step 3."""
        assert self.version
        before = self.version
        scope = f"rl/{number:06d}"
        codes = ["accepted"] * (60 + number) + ["uniform"] * (64 - number) + ["truncated"] * 4
        outcomes = [Outcome(attempt=f"{scope}/{i}", family="add_sub", code=code) for i, code in enumerate(codes)]
        self.ledger.append(close_census(scope, {o.attempt: "add_sub" for o in outcomes}, outcomes))
        metrics = {"reward/total_mean": 0.3 + 0.03 * number, "reward/accuracy": 0.25 + 0.04 * number, "reward/format_rate": 0.9,
                   "reward/format_mean": 0.09, "reward/correctness_mean": 0.2 + 0.04 * number, "reward/length_mean": -0.001,
                   "rollout/length_mean": 40 - 0.7 * number, "rollout/tokens": 4000.0, "rollout/truncated_rate": 0.03,
                   "admission/informative_rate": 0.5, "admission/groups": 8.0, "update/clip_fraction": 0.001 * number,
                   "update/grad_norm": 1.25, "update/kl_to_start_nats": 2e-4 * number, "policy/mismatch_abs_nats": 3.1e-5,
                   "policy/age_max": 0.0, "update/learning_rate": 3e-4}
        if number != 3:
            metrics["policy/entropy_nats"] = 0.8 - 0.05 * number
        after = self.publish("rl")
        report = StepReport(stage="rl", step=number, policy=before.id, published=after.id, census=scope, batches=("Batch:1",),
                            updates=("Update:1",), metrics=metrics,
                            observed={"rollout/tokens_per_s": 12345.6, "time/rollout_s": 2.5, "time/update_s": 1.5})
        self.ledger.append(report)
        return report

    def select(self) -> Selection:
        assert self.version
        counts = {t.id: index % 9 for index, t in enumerate(self.tasks)}
        kept = tuple(name for name, times in counts.items() if 2 <= times <= 6)
        codes = ["accepted"] * (8 * len(self.tasks) - 1) + ["unscored"]
        outcomes = [Outcome(attempt=f"select/{i}", family="add_sub", code=code) for i, code in enumerate(codes)]
        self.ledger.append(close_census("select", {o.attempt: "add_sub" for o in outcomes}, outcomes))
        rejected = {"too_easy": sum(v > 6 for v in counts.values()), "too_hard": sum(v < 2 for v in counts.values())}
        chosen = Selection(stage="select", policy=self.version.id, kept=kept, pass_counts=counts, samples=8, rejected=rejected)
        self.ledger.append(chosen)
        return chosen


def begin(folder: Path, *, tasks: int = 24, overrides: Sequence[str] = ()) -> Writer:
    """A run up to its first published policy."""
    writer = Writer(Ledger.create(folder, MANIFEST), [task(i) for i in range(tasks)])
    writer.ledger.append(recipe(*overrides))
    writer.ledger.write_table("tasks", writer.tasks)
    writer.ledger.append(SplitManifest(unit="canonical problem", generators=("chain_sum",), units={"train": "9f"}, overlap=0,
                                       counts={"train": (256, 250), "heldout": (24, 24)}, in_family=True))
    writer.publish("start")
    return writer


def cold(writer: Writer) -> None:
    """Start evaluation, cold start and its evaluation, selection."""
    first = writer.version
    assert first
    writer.evaluate("start_eval", [i % 4 == 0 for i in range(len(writer.tasks))])
    writer.end("start_eval", "Evaluate", first, trained=False)
    for number in range(1, 6):
        writer.ledger.append(SftReport(stage="cold_start", step=number, demonstrations=(), tokens=900,
                                       tensors=writer.ledger.put(b"tensors"), loss_nats=2.0 / number, grad_norm=1.0,
                                       learning_rate=1e-3))
    after = writer.publish("cold_start")
    writer.end("cold_start", "Sft", first, trained=True)
    writer.evaluate("cold_eval", [None if i == 5 else i % 2 == 0 for i in range(len(writer.tasks))])
    writer.compare("start_eval", "cold_eval")
    writer.end("cold_eval", "Evaluate", after, trained=False)
    writer.select()
    writer.end("select", "PassRate", after, trained=False)


def train(writer: Writer, steps: int) -> None:
    """Policy steps with a probe in the middle; the stage is left open."""
    for number in range(1, steps + 1):
        writer.step(number)
        if number == STEPS // 2:
            writer.evaluate(f"rl/probe/{number:06d}", [i % 2 == 0 for i in range(8)], count=8)


def complete_run(folder: Path, *, overrides: Sequence[str] = ()) -> Writer:
    """A whole run, closed."""
    writer = begin(folder, overrides=overrides)
    cold(writer)
    started = writer.version
    assert started
    train(writer, STEPS)
    writer.end("rl", "PolicyGradient", started, trained=True)
    writer.evaluate("final_eval", [i % 3 != 0 for i in range(len(writer.tasks))])
    writer.compare("cold_eval", "final_eval")
    assert writer.version
    writer.end("final_eval", "Evaluate", writer.version, trained=False)
    writer.ledger.append(RunEnd(status="completed", detail="", observed={"wall_s": 93.0, "peak_rss_gib": 1.375}))
    writer.ledger.close()
    return writer


