"""The refusal of this package: what · got · why · fix."""

from __future__ import annotations


class ObjectiveError(ValueError):
    """Input or setting that has no defined meaning here; `str()` is the message, the parts stay readable as fields.

    Example:
        ObjectiveError("Ppo.low must be >= 0", got="-0.2", why="the interval is 1-low .. 1+high", fix="set low >= 0")
    """

    def __init__(self, what: str, *, got: str, why: str, fix: str):
        super().__init__(what, got, why, fix)
        self.what, self.got, self.why, self.fix = what, got, why, fix

    def __str__(self) -> str:
        return f"{self.what}, got {self.got}.\n  why: {self.why}\n  fix: {self.fix}"
