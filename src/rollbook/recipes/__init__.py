"""Complete runs: recipe documents with labelled values, resolved at a scale into typed settings. Needs no torch."""

from rollbook.recipes.assumed import Assumptions
from rollbook.recipes.document import Document, builtin_names, load
from rollbook.recipes.resolve import SCALES, resolve, unknowns
from rollbook.recipes.values import Entry, entries

__all__ = ["SCALES", "Assumptions", "Document", "Entry", "builtin_names", "entries", "load", "resolve", "unknowns"]
