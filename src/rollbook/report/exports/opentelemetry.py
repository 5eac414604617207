"""OpenTelemetry metrics as data points with the times of the run; the only module that imports opentelemetry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rollbook.records.metrics import CATALOGUE
from rollbook.report.exports.series import Handed, missing


def write(run: Handed, out: Path) -> Path:
    """OUT/NAME.json: the SDK's `MetricsData` as JSON, a gauge a metric with one point a step."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{run.name}.json"
    file.write_text(json.dumps(json.loads(_data(run).to_json()), indent=1), encoding="utf-8")
    return file


def _data(run: Handed) -> Any:
    try:
        from opentelemetry.sdk.metrics.export import (
            Gauge,
            Metric,
            MetricsData,
            NumberDataPoint,
            ResourceMetrics,
            ScopeMetrics,
        )
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    except ImportError as error:
        raise missing("opentelemetry-sdk", error) from error
    points: dict[str, list[Any]] = {}
    began = int(1e9 * run.rows[0].time_s)
    for row in run.rows:
        for name, value in row.values.items():
            points.setdefault(name, []).append(NumberDataPoint(
                attributes={"stage": row.stage, "step": row.step}, start_time_unix_nano=began,
                time_unix_nano=int(1e9 * row.time_s), value=value))
    metrics = [Metric(name=name, description=CATALOGUE[name].meaning if name in CATALOGUE else "",
                      unit=CATALOGUE[name].unit if name in CATALOGUE else "1", data=Gauge(data_points=held))
               for name, held in sorted(points.items())]
    scope = ScopeMetrics(scope=InstrumentationScope("rollbook"), metrics=metrics, schema_url="")
    resource = Resource({"service.name": "rollbook", "rollbook.run": run.name, "rollbook.genesis": run.genesis})
    return MetricsData(resource_metrics=[ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")])
