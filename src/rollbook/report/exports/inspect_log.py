"""An evaluation as a log in the form of Inspect (inspect_ai), read by its viewer and its `read_eval_log`; needs no package.

An attempt without a verdict is a sample with an error and no score: there as here it is in no mean.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rollbook.ledger import Ledger
from rollbook.records import EvaluationProtocol, EvaluationResult, Scored, Task, Trace, Unscored, Verdict
from rollbook.report.exports.series import ExportRefused

STOPS = {"end_of_turn": "stop", "stop_string": "stop", "length": "max_tokens", "context_full": "model_length"}
SCORER = "correctness"


def write(run: Path, out: Path) -> Path:
    """OUT/NAME.json of a finished evaluation."""
    ledger = Ledger.open(run, write=False)
    protocol = next(iter(ledger.records(EvaluationProtocol)), None)
    result = next(iter(ledger.records(EvaluationResult)), None)
    if protocol is None or result is None:
        raise ExportRefused("this is no finished evaluation", got=str(run),
                            why="an Inspect log is of one policy under one protocol",
                            fix="make one: `rollbook eval PROTOCOL --policy RUN --out FOLDER`")
    times = [event.time for event in ledger.events()]
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{ledger.root.name}.json"
    file.write_text(json.dumps(_log(ledger, protocol, result, (times[0], times[-1])), ensure_ascii=False, indent=1),
                    encoding="utf-8", errors="backslashreplace")
    return file


def _log(ledger: Ledger, protocol: EvaluationProtocol, result: EvaluationResult, times: tuple[float, float]) -> dict[str, Any]:
    began, ended = (datetime.fromtimestamp(one, UTC).isoformat() for one in times)
    samples = list(_samples(ledger, result.policy))
    usage = {"input_tokens": result.spend.prompt_tokens, "output_tokens": result.spend.tokens,
             "total_tokens": result.spend.prompt_tokens + result.spend.tokens}
    name = ledger.genesis[:22]
    value = result.value
    metrics = {str(protocol.aggregation): value.estimate, "low": value.low, "high": value.high}
    return {
        "version": 2, "status": "success",
        "eval": {"eval_id": name, "run_id": name, "created": began, "task": protocol.name, "task_id": protocol.tasks[:22],
                 "task_version": 0, "task_args": {}, "task_attribs": {}, "model": f"rollbook/{result.policy}", "model_args": {},
                 "dataset": {"name": protocol.name, "samples": protocol.task_count, "sample_ids": list(result.outcomes)},
                 "model_generate_config": {"temperature": protocol.sampling.temperature, "top_p": protocol.sampling.top_p,
                                           "max_tokens": protocol.max_tokens, "seed": protocol.seed},
                 "config": {"epochs": protocol.trials}, "packages": {},
                 "metadata": {"protocol": protocol.id, "weights": result.weights, "interval": value.method}},
        "plan": {"name": protocol.scaffold, "steps": [], "config": {}},
        "results": {"total_samples": len(samples), "completed_samples": len(samples) - result.unscored_attempts,
                    "scores": [{"name": SCORER, "scorer": SCORER, "params": {}, "scored_samples": value.count,
                                "unscored_samples": result.unscored_tasks,
                                "metrics": {key: {"name": key, "value": one, "params": {}} for key, one in metrics.items()}}]},
        "stats": {"started_at": began, "completed_at": ended, "model_usage": {f"rollbook/{result.policy}": usage}},
        "samples": samples}


def _samples(ledger: Ledger, policy: str) -> Iterator[dict[str, Any]]:
    tasks = {task.id: task for task in ledger.records(Task)}
    for trace, verdict, _ in ledger.read_traces():
        yield _sample(trace, verdict, tasks[trace.task], policy)


def _sample(trace: Trace, verdict: Verdict | None, task: Task, policy: str) -> dict[str, Any]:
    asked = [{"role": message.role, "content": message.content} for message in task.prompt]
    answer = {"role": "assistant", "content": trace.text, "source": "generate"}
    made: dict[str, Any] = {
        "id": trace.task, "epoch": int(trace.attempt.rpartition("/")[2]) + 1, "input": asked, "target": task.reference,
        "messages": [*asked, answer],
        "output": {"model": f"rollbook/{policy}",
                   "choices": [{"message": answer, "stop_reason": STOPS.get(trace.stop_reason, "unknown")}],
                   "usage": {"input_tokens": trace.prompt_count, "output_tokens": trace.action_count,
                             "total_tokens": trace.prompt_count + trace.action_count}},
        "metadata": {"trace": trace.id, "family": task.family}, "store": {}, "events": [], "model_usage": {}, "attachments": {},
        "uuid": hashlib.sha256(trace.id.encode()).hexdigest()[:22]}
    if isinstance(verdict, Scored):
        parts = {part.name: part.value for part in verdict.vector.components}
        detail = next((part.detail for part in verdict.vector.components if part.name == SCORER), "")
        made["scores"] = {SCORER: {"value": verdict.vector.accuracy, "answer": None, "explanation": detail or None,
                                   "metadata": {"parts": parts, "total": verdict.vector.total}}}
    else:
        said = f"{verdict.code}: {verdict.detail}" if isinstance(verdict, Unscored) else "no verdict on record"
        made["error"] = {"message": said, "traceback": "", "traceback_ansi": ""}
    return made
