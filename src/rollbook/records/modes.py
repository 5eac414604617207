"""The two control words with which a question chooses a mode of answering, as Qwen3 has them (2505.09388 section 4.3)."""

from __future__ import annotations

THINK, NO_THINK = "/think", "/no_think"
CONTROLS = (THINK, NO_THINK)


def control_of(text: str) -> str | None:
    """The control word that a question begins with; None where it leaves the mode open.

    Example: control_of("/no_think 23 + 38 =") == "/no_think"
    """
    word = text.split(" ", 1)[0]
    return word if word in CONTROLS else None


def without_control(text: str) -> str:
    """The question without its control word.

    Example: without_control("/no_think 23 + 38 =") == "23 + 38 ="
    """
    word = control_of(text)
    return text if word is None else text.removeprefix(word).lstrip()
