"""What flows: frozen records, their ids, their one codec, the errors and the protocols. Standard library only."""

from rollbook.records.codec import canonical, content_id, decode, digest, encode
from rollbook.records.decisions import (
    AuditReport,
    AuditRow,
    Comparison,
    EvalReport,
    GateDecision,
    Interval,
    ProtocolBundle,
    RunEnd,
    Selection,
    SftReport,
    StageEnd,
    StepReport,
)
from rollbook.records.errors import (
    CodecError,
    Diverged,
    LedgerError,
    ModelError,
    RecipeError,
    RecordError,
    RollbookError,
    Stopped,
)
from rollbook.records.experience import Census, Credit, Experience, Outcome
from rollbook.records.learning import Batch, PolicyVersion, TermSpec, Update
from rollbook.records.protocols import Completion, Judge, Request, Sampler, Tokenizer, Verifier, WeightSink
from rollbook.records.recipe import ResolvedRecipe
from rollbook.records.reward import AbsentComponent, Component, RewardVector, Scored, Unscored, Verdict, VerifierStamp
from rollbook.records.rollout import AttemptId, SamplingEnvelope, Segment, Trace, TraceId
from rollbook.records.tasks import (
    Budget,
    Demonstration,
    EnvironmentImage,
    Message,
    RawTask,
    Span,
    SplitManifest,
    Task,
    TaskId,
)

RECORDS = {
    cls.__name__: cls
    for cls in (RawTask, Task, SplitManifest, EnvironmentImage, Demonstration, SamplingEnvelope, Trace, Scored, Unscored,
                Outcome, Census, Credit, Batch, Update, PolicyVersion, ProtocolBundle, EvalReport, Comparison, GateDecision,
                StepReport, SftReport, Selection, StageEnd, RunEnd, AuditReport, ResolvedRecipe)
}

__all__ = [
    "RECORDS",
    "AbsentComponent",
    "AttemptId",
    "AuditReport",
    "AuditRow",
    "Batch",
    "Budget",
    "Census",
    "CodecError",
    "Comparison",
    "Completion",
    "Component",
    "Credit",
    "Demonstration",
    "Diverged",
    "EnvironmentImage",
    "EvalReport",
    "Experience",
    "GateDecision",
    "Interval",
    "Judge",
    "LedgerError",
    "Message",
    "ModelError",
    "Outcome",
    "PolicyVersion",
    "ProtocolBundle",
    "RawTask",
    "RecipeError",
    "RecordError",
    "Request",
    "ResolvedRecipe",
    "RewardVector",
    "RollbookError",
    "RunEnd",
    "Sampler",
    "SamplingEnvelope",
    "Scored",
    "Segment",
    "Selection",
    "SftReport",
    "Span",
    "SplitManifest",
    "StageEnd",
    "StepReport",
    "Stopped",
    "Task",
    "TaskId",
    "TermSpec",
    "Tokenizer",
    "Trace",
    "TraceId",
    "Unscored",
    "Update",
    "Verdict",
    "Verifier",
    "VerifierStamp",
    "WeightSink",
    "canonical",
    "content_id",
    "decode",
    "digest",
    "encode",
]
