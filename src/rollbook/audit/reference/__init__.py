"""Loss and d loss / d log-prob of a stored step, computed a second time from the papers' formulas.

Plain float64 numpy, per-token formulas and gradients derived by hand. It shares no code with `rollbook.objectives`: agreement
of the two is evidence, and a test asserts it for every objective of the catalogue.
"""

from rollbook.audit.reference.recompute import extra_terms, policy_loss
from rollbook.audit.reference.step import RecomputeError, Reference, Step
from rollbook.audit.reference.terms import term_loss
from rollbook.audit.reference.weights import weights

__all__ = ["RecomputeError", "Reference", "Step", "extra_terms", "policy_loss", "term_loss", "weights"]
