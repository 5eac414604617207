"""Believe it? Fourteen detectors over the artifacts of a run, replay of its updates, export of the whole."""

from rollbook.audit.passage import audit_run

__all__ = ["audit_run"]
