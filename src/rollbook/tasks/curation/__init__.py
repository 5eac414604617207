"""Curation: rows in, filters in a recorded order, an immutable task set out."""

from rollbook.tasks.curation.pipeline import Helpers, Pipeline, curate, load_pipeline
from rollbook.tasks.curation.rows import Candidate, read_candidates

__all__ = ["Candidate", "Helpers", "Pipeline", "curate", "load_pipeline", "read_candidates"]
