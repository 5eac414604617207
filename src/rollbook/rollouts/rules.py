"""How episodes are played, apart from the environment: dialect, reasoning of earlier turns, compaction, subagents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollbook.records import Dialect, ModelError, Reasoning, ToolSchema

SUMMARISE = ("The conversation is about to be cut. Write down everything that is needed to go on: the task, what was tried, what "
             "was found, what is left to do.")
SUMMARY = "What happened before:\n{}"
DELEGATE = ToolSchema(name="delegate", description="Gives a part of the work to an assistant that sees nothing but this text.",
                      parameters={"type": "object", "properties": {"task": {"type": "string"}}, "required": ["task"],
                                  "additionalProperties": False})


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """What happens before a context would grow beyond `at_tokens`.

    `summary`: the policy writes what it needs (at most `summary_tokens`), and goes on with the prompt and that (CompactionRL,
    2607.05378). `discard`: all turns but the last `keep_turns` are left out (GLM-5's keep-recent).

    Example: Compaction(kind="summary", at_tokens=1024, summary_tokens=128)
    """

    kind: Literal["summary", "discard"]
    at_tokens: int
    summary_tokens: int = 256
    keep_turns: int = 1
    instruction: str = SUMMARISE

    def __post_init__(self) -> None:
        if self.at_tokens < 1 or self.summary_tokens < 1 or self.keep_turns < 0:
            raise ModelError("compaction needs at_tokens and summary_tokens above 0 and keep_turns of 0 or more", got=str(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRules:
    """What a harness decides beside the environment and the budget.

    `reasoning` of earlier turns is kept in the context, stripped from it (only the turns of the last context are trained), or
    split: each context is then a sub-trace with exactly the ids its tokens were sampled behind. `announces`: tools are described
    in the system message. `subagents`: how many calls of `delegate` are answered by the policy in a context of its own (K2.5's
    subagents: what they say is an observation). `lockstep`: see `Meeting`. `concurrency` episodes run at a time.

    Example: EpisodeRules(dialect="hermes", reasoning="keep", announces=True)
    """

    dialect: Dialect
    reasoning: Reasoning = "keep"
    announces: bool = True
    compaction: Compaction | None = None
    subagents: int = 0
    subagent_tokens: int = 256
    lockstep: bool = True
    concurrency: int = 512
