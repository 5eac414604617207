"""What each number of a recipe counts, in the claims' units, so that a count of tests never stands for a count of steps."""

from __future__ import annotations

from collections.abc import Mapping

_TASKS = ("tasks", "problems", "prompts", "examples", "instances", "environments")
_ANSWERS = ("responses", "samples", "trajectories", "candidates", "runs")
_UPDATES = ("steps", "updates", "iterations")
_PURE, _SHARE = ("number",), ("number", "fraction")

UNITS: Mapping[str, tuple[str, ...]] = {  # the last part of a setting's path -> the units of claims that it may cite
    **dict.fromkeys(("seed", "threads", "verify_workers", "weight_decay", "max_grad_norm", "learning_rate", "beta1", "beta2",
                     "eps", "temperature", "momentum", "noise", "grades", "alpha", "beta", "nll_coefficient", "decay", "ema",
                     "factor", "clip", "format_reward", "correct_reward", "length_penalty", "language_reward",
                     "misfit_penalty"), _PURE),
    **dict.fromkeys(("weight", "top_p", "min_p", "general_share", "traces", "fim", "apart", "keep", "first", "last"), _SHARE),
    **dict.fromkeys(("context", "window", "max_tokens", "length_max", "length_cache", "max_batch_tokens", "turn_tokens",
                     "compact_at", "summary_tokens", "subagent_tokens", "period", "span"), ("tokens",)),
    **dict.fromkeys(("max_turns", "keep_turns"), ("turns",)),
    "max_calls": ("calls",), "subagents": ("calls", "agents"), "reply_characters": ("characters",),
    **dict.fromkeys(("max_seconds", "call_seconds", "request_s", "update_s", "start_s", "patience_s"), ("seconds",)),
    "rows": ("sequences",), "shown": ("tokens",), "ranks": ("processes", "devices"),
    "copies": ("times", "number"),
    **dict.fromkeys(("train", "heldout", "prompts", "groups", "candidates", "probe", "tasks"), _TASKS),
    **dict.fromkeys(("per_task", "samples", "answers", "trials", "low", "high"), _ANSWERS),
    **dict.fromkeys(("steps", "warmup_steps", "probe_every", "checkpoint_every", "max_policy_age", "warmup", "updates", "every"),
                    _UPDATES),
    "batch": ("sequences", "examples", "samples", "responses"), "max_waves": ("rounds",),
    "rounds": ("rounds", "revisions", "number"), "minibatches": ("minibatches",),
    "verify_seconds": ("seconds",), "top_k": ("number", "tokens"), "layers": ("layers",), "hidden": ("dimensions",),
    "intermediate": ("dimensions",),
    "rank": ("dimensions",), "heads": ("heads",), "kv_heads": ("heads",), "experts": ("experts",),
    "experts_per_token": ("experts",),
}
OBJECTIVE = ("number", "fraction", "times", "tokens", *_UPDATES)  # a loss has coefficients, widths, lengths it divides by


def units(path: str) -> tuple[str, ...] | None:
    """The units that a claim cited by the setting may have, or None where any may.

    Example: units("stages.rl.optimizer.learning_rate") == ("number",)
    """
    if ".objective." in path:
        return OBJECTIVE
    return UNITS.get(path.rpartition(".")[2])
