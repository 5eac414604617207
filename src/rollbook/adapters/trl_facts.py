"""What a TRL trainer says about itself: its name, the settings that may be recorded, and what of the chain it does not show."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollbook.adapters.recorder import UNPUBLISHED, UNSEEN
from rollbook.adapters.samples import RewardParts
from rollbook.records import HostRun, Message, RecordError, SamplingEnvelope, VerifierStamp, digest
from rollbook.records.recipe import Plain

ADAPTER = "rollbook.adapters.trl/1"
ONLINE, OFFLINE = ("GRPOTrainer", "RLOOTrainer"), ("SFTTrainer", "DPOTrainer")
MAJOR = "1"
SETTINGS = (
    "learning_rate", "lr_scheduler_type", "warmup_steps", "max_steps", "num_train_epochs", "per_device_train_batch_size",
    "gradient_accumulation_steps", "max_grad_norm", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "optim", "seed",
    "bf16", "fp16", "beta", "epsilon", "epsilon_high", "delta", "loss_type", "scale_rewards", "importance_sampling_level",
    "multi_objective_aggregation", "num_generations", "num_iterations", "steps_per_generation", "max_completion_length",
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "mask_truncated_completions", "use_vllm", "vllm_mode",
    "normalize_advantages", "max_length", "packing", "completion_only_loss", "assistant_only_loss", "label_smoothing")
WORD = re.compile(r"[A-Za-z0-9_.+-]{1,40}")
OFFLINE_UNSEEN = dict.fromkeys(("request", "events", "reward", "admission", "credit"),
                               "this trainer samples nothing: it learns from a data set")


def trl_version() -> str:
    """The installed version of TRL; refuses one whose trainers were not looked at."""
    try:
        version = importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError:
        raise RecordError("TRL is not installed", fix="pip install 'rollbook[bench]'") from None
    if version.split(".")[0] != MAJOR:
        raise RecordError("this version of TRL is not known", got=version, why="what its trainers show was read in 1.16",
                          fix="install trl>=1.0,<2, or record a loop of your own with rollbook.adapters.Recorder")
    return version


def trainer_name(trainer: Any) -> str:
    """Which of TRL's trainers this is, or is derived from."""
    names = [cls.__name__ for cls in type(trainer).__mro__]
    known = next((name for name in names if name in (*ONLINE, *OFFLINE)), None)
    if known is None:
        raise RecordError("this trainer cannot be recorded", got=names[0], fix=f"trainers: {', '.join((*ONLINE, *OFFLINE))}")
    return known


def sharded(trainer: Any) -> bool:
    """Whether a process holds only a part of the weights."""
    return bool(getattr(trainer, "is_deepspeed_enabled", False) or getattr(trainer, "is_fsdp_enabled", False))


def processes(trainer: Any) -> int:
    return int(getattr(trainer.accelerator, "num_processes", 1))


def settings(args: Any) -> dict[str, Plain]:
    """The allow-listed settings that are numbers, switches or single words; nothing else of the arguments is looked at."""
    found: dict[str, Plain] = {}
    for name in SETTINGS:
        if not hasattr(args, name):
            continue
        value = getattr(args, name)
        value = getattr(value, "value", value)
        if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
            found[name] = value
        else:
            found[name] = value if isinstance(value, str) and WORD.fullmatch(value) else "withheld"
    return found


def host_run(trainer: Any, *, hashes: bool, reference: str | None) -> HostRun:
    """The record of the host; `hashes` says whether its weights are hashed at every step."""
    name, args = trainer_name(trainer), trainer.args
    unseen = dict(UNSEEN)
    partly: dict[str, str] = {}
    unseen["publication"] = UNPUBLISHED["publication"] if not hashes else (
        "the host keeps no acknowledgement of its sampler: nothing shows that it held the version which the trajectories name")
    if not hashes:
        unseen["events"] = UNPUBLISHED["events"]
        partly["request"] = "the host does not show its weights by hash"
    if name in OFFLINE:
        unseen |= OFFLINE_UNSEEN
    else:
        if credit_rule(trainer) is None:
            unseen["credit"] = "the host's rule for advantages is none that the audit can recompute (see its settings)"
        if not getattr(args, "use_vllm", False):
            partly["events"] = "generation by transformers gives no log-probs, and no engine hashed what it sampled"
        else:
            partly["events"] = "no engine hashed what it sampled"
        if reference is None:
            partly["reward"] = "no column of the data set was named as the reference answer"
        if processes(trainer) > 1:
            partly["admission"] = f"only process 0 of {processes(trainer)} is recorded"
    partly = {stage: why for stage, why in partly.items() if stage not in unseen}
    return HostRun(host=f"trl.{name}", version=trl_version(), adapter=ADAPTER, unseen=unseen, partly=partly,
                   settings={**settings(args), "processes": processes(trainer)})


def credit_rule(trainer: Any) -> Mapping[str, Plain] | None:
    """The rule of `objectives.credit` that the trainer's advantages follow, None where there is none.

    GRPO: (R - mean) / (std + 1e-4) of the group, std with ddof 1, or only centred; RLOO: mean of the others.
    """
    args = trainer.args
    if processes(trainer) > 1:
        return None
    if trainer_name(trainer) == "RLOOTrainer":
        plain = not args.beta and not args.normalize_advantages and not getattr(args, "reward_clip_range", None)
        return {"kind": "LeaveOneOut", "kl_beta": None} if plain else None
    if getattr(args, "multi_objective_aggregation", "sum_then_normalize") != "sum_then_normalize":
        return None
    match str(args.scale_rewards):
        case "group" | "True":
            return {"kind": "GroupNormalized", "eps": 1e-4, "ddof": 1}
        case "none" | "False":
            return {"kind": "GroupCentered"}
        case _:
            return None


def sampling_envelope(trainer: Any, *, policy: str | None, chat: bool) -> SamplingEnvelope | None:
    """How the trainer samples; None where it lets tools run without a limit, which no envelope can state."""
    args = trainer.args
    turns = 1
    if getattr(trainer, "tools", None):
        if getattr(args, "max_tool_calling_iterations", None) is None:
            return None
        turns = 1 + int(args.max_tool_calling_iterations)
    template = getattr(trainer.processing_class, "chat_template", None)
    more = {"repetition_penalty": getattr(args, "repetition_penalty", 1.0), "generation_kwargs": args.generation_kwargs or {},
            "vllm": bool(getattr(args, "use_vllm", False))}
    rest = digest(json.dumps(more, sort_keys=True, default=str).encode())[:16]
    scaffold = f"trl.{trainer_name(trainer)}/{trl_version()} {rest}"
    return SamplingEnvelope(
        policy=policy, temperature=float(args.temperature), top_p=float(args.top_p), top_k=int(args.top_k or 0),
        min_p=float(args.min_p or 0.0), seed=int(args.seed), max_tokens=int(args.max_completion_length), max_turns=turns,
        max_seconds=None, stop=(), scaffold=scaffold,
        template=digest(json.dumps(template, sort_keys=True).encode()) if chat and template else "plain text")


def reward_parts(trainer: Any) -> RewardParts:
    """The trainer's reward functions with their weights; a name that comes twice gets a number."""
    names: list[str] = []
    for name in trainer.reward_func_names:
        names.append(name if name not in names else f"{name}#{names.count(name) + len(names)}")
    weights = dict(zip(names, map(float, trainer.reward_weights), strict=True))
    stamps = {name: _stamp(name, function) for name, function in zip(names, trainer.reward_funcs, strict=True)}
    return RewardParts(name="trl.weighted_sum/1", weights=weights, verifiers=stamps)


def _stamp(name: str, function: Callable[..., Any]) -> VerifierStamp:
    """A digest over the function's own source text; what it calls or closes over is not in it."""
    function = inspect.unwrap(function)
    try:
        source = inspect.getsource(function if inspect.isroutine(function) else type(function))
    except (OSError, TypeError):
        return VerifierStamp(name=name, version="not exposed", digest="not exposed")
    return VerifierStamp(name=name, version="source", digest=digest(source.encode()))


def prompt_of(prompt: Any) -> str | tuple[Message, ...]:
    """A prompt as text or as messages; of content that is not text only its kind is kept."""
    if isinstance(prompt, str):
        return prompt
    return tuple(Message(role=_role(turn), content=_content(turn.get("content")), origin="unstated") for turn in prompt)


def _role(turn: Mapping[str, Any]) -> Any:
    role = str(turn.get("role"))
    return role if role in ("system", "user", "assistant", "tool") else {"developer": "system"}.get(role, "user")


def _content(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    blocks: Sequence[Any] = content
    return "\n".join(str(block.get("text", f"[{block.get('type', 'block')}]")) for block in blocks)
