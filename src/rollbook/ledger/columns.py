"""The columns of a trace table: one row per trajectory, lists per token, the verdict vector and the outcome beside it.

`owner` spans partition `token_ids`; `logps` stands beside `token_ids` and is null where the policy did not sample, and in the
policy's own spans where a recorded host did not show them. Where an endpoint showed not even the ids, these are null as well.
Verdict columns are null where there is no verdict; `total` and `components` are null where it is unscored.
"""

from __future__ import annotations

import json

import pyarrow as pa

from rollbook.records import Outcome, Scored, Trace, Unscored

KINDS = {cls.__name__: cls.SCHEMA for cls in (Trace, Scored, Unscored, Outcome)}
VERSIONS = {b"rollbook.versions": json.dumps(KINDS).encode()}
OLDER = ({b"rollbook.versions": json.dumps({**KINDS, "Trace": 2}).encode()},)   # also read: the same rows under the same ids

STAMP = pa.struct([("name", pa.string()), ("version", pa.string()), ("digest", pa.string())])
SPAN = pa.struct([("owner", pa.string()), ("length", pa.int32()), ("version", pa.int32())])
COMPONENT = pa.struct([("name", pa.string()), ("value", pa.float64()), ("confidence", pa.float64()), ("detail", pa.string()),
                       ("verifier", STAMP)])
ABSENT = pa.struct([("name", pa.string()), ("reason", pa.string())])
OBSERVED = pa.map_(pa.string(), pa.float64())

TRACE = [("id", pa.string()), ("attempt", pa.string()), ("task", pa.string()), ("group", pa.string()), ("envelope", pa.string()),
         ("stop_reason", pa.string()), ("text", pa.string()), ("token_ids", pa.list_(pa.int32())),
         ("logps", pa.list_(pa.float32())), ("spans", pa.list_(SPAN)), ("sampled", pa.list_(pa.string())),
         ("observed", OBSERVED)]
VERDICT = [("verdict", pa.string()), ("total", pa.float64()), ("accuracy", pa.float64()), ("components", pa.list_(COMPONENT)),
           ("absent", pa.list_(ABSENT)), ("composition", pa.string()), ("composition_digest", pa.string()),
           ("hidden_test_access", pa.bool_()), ("failure_code", pa.string()), ("failure_detail", pa.string()),
           ("failure_verifier", STAMP), ("verdict_observed", OBSERVED)]
OUTCOME = [("family", pa.string()), ("outcome", pa.string()), ("outcome_detail", pa.string())]
SCHEMA = pa.schema([*TRACE, *VERDICT, *OUTCOME], metadata=VERSIONS)
MORE = ("episode", "parts")      # with `kept` one JSON document in the column `episode` of tables that need it
WITH_EPISODES = SCHEMA.append(pa.field("episode", pa.string()))

REPETITIVE = ["task", "group", "envelope", "stop_reason", "spans.list.element.owner", "spans.list.element.length",
              "spans.list.element.version", "observed.key_value.key", "verdict", "components.list.element.name",
              "components.list.element.value", "components.list.element.confidence", "components.list.element.detail",
              "components.list.element.verifier.name", "components.list.element.verifier.version",
              "components.list.element.verifier.digest", "absent.list.element.name", "absent.list.element.reason",
              "total", "accuracy", "composition", "composition_digest", "failure_code", "failure_detail", "failure_verifier.name",
              "failure_verifier.version", "failure_verifier.digest", "verdict_observed.key_value.key", "family", "outcome",
              "outcome_detail"]
