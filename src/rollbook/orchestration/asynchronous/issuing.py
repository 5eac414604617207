"""Dispatches of an asynchronous stage: one per group, on the record before its first token, under the current envelope."""

from __future__ import annotations

import threading

from rollbook.ledger import Ledger
from rollbook.records import Dispatch, LedgerError, SamplingEnvelope, Task, content_id


class Issuer:
    """Numbers the groups of a stage from `next_number` and records each. Thread-safe."""

    def __init__(self, ledger: Ledger, stage: str, *, next_number: int):
        self.ledger, self.stage, self.next_number = ledger, stage, next_number
        self._mutex = threading.Lock()
        self._envelope: str | None = None

    def use(self, envelope: SamplingEnvelope) -> None:
        """From now on groups are issued under this envelope: to the policy as it is published now."""
        with self._mutex:
            if content_id(envelope) != self._envelope:
                self._envelope = self.ledger.append(envelope)

    def issue(self, task: Task, samples: int) -> Dispatch:
        """Records one more group of `samples` attempts at the task."""
        with self._mutex:
            if self._envelope is None:
                raise LedgerError("a group was issued before any envelope", why="its request would not be on the record")
            issued = Dispatch(scope=group_scope(self.stage, self.next_number), tasks=(task.id,), samples=samples,
                              envelope=self._envelope)
            self.ledger.append(issued)
            self.next_number += 1
            return issued


def group_scope(stage: str, number: int) -> str:
    """The scope of the stage's group with this number."""
    return f"{stage}/g/{number:06d}"


def group_number(stage: str, scope: str) -> int | None:
    """The number of a group's scope; None where it is no group of this stage."""
    head, _, number = scope.rpartition("/")
    return int(number) if head == f"{stage}/g" and number.isdigit() else None
