"""Errors that teach: what was wrong, what was got, why it cannot work, how to mend it."""

from __future__ import annotations


class RollbookError(Exception):
    """A refusal with its four parts; the command line prints it and exits with 2.

    Example:
        RollbookError("objective.low must be >= 0", got="-0.2", why="the interval is 1-low .. 1+high", fix="set it >= 0")
    """

    exit_code = 2

    def __init__(self, what: str, *, got: str | None = None, why: str | None = None, fix: str | None = None):
        super().__init__(what)
        self.what, self.got, self.why, self.fix = what, got, why, fix

    def __str__(self) -> str:
        head = f"{self.what}, got {self.got}." if self.got is not None else self.what
        rest = [f"  {name}: {text}" for name, text in (("why", self.why), ("fix", self.fix)) if text]
        return "\n".join([head, *rest])


class RecordError(RollbookError):
    """A record that breaks its own contract."""


class CodecError(RollbookError):
    """A document that does not decode: unknown key, wrong type, missing field, newer schema; carries its path."""


class RecipeError(RollbookError):
    """A recipe that cannot be run as written."""


class ModelError(RollbookError):
    """A model, tokenizer or template that is missing or unusable."""


class LedgerError(RollbookError):
    """A run directory that is broken, locked or not writable."""


class Diverged(RollbookError):
    """A non-finite loss, gradient or weight; the batch that caused it is kept in the run."""

    exit_code = 3


class Unserved(RollbookError):
    """A server that samples for the run did not do its part; `code` says how: unreachable, timeout, refused, malformed,
    unacknowledged, or not_finite for weights that it was never offered. The run is kept as it stands and can be resumed."""

    exit_code = 5

    def __init__(self, what: str, *, code: str, got: str | None = None, why: str | None = None, fix: str | None = None):
        super().__init__(what, got=f"{got or 'nothing'} ({code})", why=why, fix=fix)
        self.code = code


class Stopped(RollbookError):
    """The user asked to stop; everything up to the last record boundary is kept."""

    exit_code = 130
