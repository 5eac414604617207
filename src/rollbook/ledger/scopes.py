"""What the name of a table, census or batch says: the stage, the step, the minibatch."""

from __future__ import annotations


def stage_of(scope: str) -> str:
    """The recipe's stage of a scope: `rl/000001` is rl, `eval/start_eval` start_eval, `eval/rl/probe/000010` rl/probe."""
    parts = scope.split("/")
    if parts[0] == "eval" and len(parts) > 1:
        parts = parts[1:]
    while len(parts) > 1 and parts[-1].isdigit():
        parts.pop()
    return "/".join(parts)


def place_of(scope: str) -> tuple[str, int | None, int | None]:
    """Stage, step and minibatch of a scope: `rl/000003/1` is (rl, 3, 1)."""
    numbers = [int(part) for part in scope.split("/")[1:] if part.isascii() and part.isdigit()]
    step = numbers[0] if numbers else None
    return stage_of(scope), step, numbers[1] if len(numbers) > 1 else None
