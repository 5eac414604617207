"""Refusals of the task package."""

from __future__ import annotations

from rollbook.records import RollbookError


class TaskError(RollbookError):
    """A task, mixture, split or demonstration that cannot be made as asked."""
