"""Verifiers: mathematics, text, JSON, SQL, formats, instructions, language; each with a stamp, a contract and a hard limit."""

from rollbook.rewards.verifiers.base import (
    BadReference,
    CannotJudge,
    Judged,
    Judgement,
    MalformedRow,
    NoReference,
    Unavailable,
    Verifier,
    VerifierSpec,
)
from rollbook.rewards.verifiers.contract import Breach, Contract, breaches
from rollbook.rewards.verifiers.rows import Row, RowsReport, judge_rows, read_rows

__all__ = ["BadReference", "Breach", "CannotJudge", "Contract", "Judged", "Judgement", "MalformedRow", "NoReference", "Row",
           "RowsReport", "Unavailable", "Verifier", "VerifierSpec", "breaches", "judge_rows", "read_rows"]
