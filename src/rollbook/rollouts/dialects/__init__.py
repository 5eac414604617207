"""The four ways in which models write tool calls."""

from typing import assert_never

from rollbook.records import Dialect as DialectName
from rollbook.rollouts.dialects.fenced import Fenced
from rollbook.rollouts.dialects.hermes import Hermes
from rollbook.rollouts.dialects.llama3 import Llama3
from rollbook.rollouts.dialects.mistral import Mistral
from rollbook.rollouts.dialects.reading import Dialect, Made, Malformed, Spoken

__all__ = ["Dialect", "Made", "Malformed", "Spoken", "dialect"]


def dialect(name: DialectName) -> Dialect:
    """The dialect of this name."""
    match name:
        case "hermes":
            return Hermes()
        case "llama3":
            return Llama3()
        case "mistral":
            return Mistral()
        case "fenced":
            return Fenced()
        case _:
            assert_never(name)
