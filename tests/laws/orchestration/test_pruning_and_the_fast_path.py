"""A model without a fast path has no layers that could be pruned here: said before a run begins."""

from types import SimpleNamespace

import pytest

from rollbook.orchestration.supported import check_pruned
from rollbook.records import RecipeError
from rollbook.records.recipe import Prune


def test_a_model_that_transformers_computes_is_not_pruned_and_runs_without_that():
    slow = SimpleNamespace(slow="gpt2 has no fast path", decoder=SimpleNamespace(architecture=object()))
    check_pruned(SimpleNamespace(stages={}), slow)
    with pytest.raises(RecipeError, match=r"stages\.smaller prunes a model that transformers computes"):
        check_pruned(SimpleNamespace(stages={"smaller": Prune(policy="start", layers=(0,), intermediate=8)}), slow)
