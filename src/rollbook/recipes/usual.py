"""What an unknown setting means, and what is usual elsewhere: the home of both, for every recipe that leaves it open.

A usual range is an inference from other systems and never fills in a value. `claims` are what it is drawn from; without any it
says what this program offers, of which no source could speak.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """A setting's meaning and its usual range, with the claims of other systems that show it.

    Example: usual("stages.rl.per_task").typical == "8 (Qwen2.5), 16 (DAPO), 32 (GLM-5); 64 (DeepSeekMath)"
    """

    means: str
    typical: str
    claims: tuple[str, ...] = ()


def _u(means: str, typical: str, *claims: str) -> Usual:
    return Usual(means=means, typical=typical, claims=claims)


_USUAL: Mapping[str, Usual] = {  # the last part or parts of a setting's path
    "model.path": _u("the checkpoint that post-training starts from", "a base or instruct model of the same family"),
    "model.context": _u("longest sequence in tokens", "131072 (Qwen3-8B) to 262144 (Qwen3-Coder)",
                        "qwen.qwen3-8b.context", "qwen.qwen3-coder.context"),
    "tasks.families": _u("which kinds of tasks are trained on, and their shares",
                         "38000 problems of mathematics beside code (Magistral); more than 20 families later (Qwen3)",
                         "mistral.magistral.math_problems", "qwen.qwen3.general_rl_families"),
    "generator": _u("where the tasks of this family come from", "a public set with a checked answer for each task"),
    "families.weight": _u("share of this family in a batch", "in proportion to the number of its tasks"),
    "tasks.train": _u("different training tasks", "3995 (Qwen3, reasoning stage) to 66000 (Qwen2.5-Math)",
                      "qwen.qwen3.reasoning_rl_pairs", "qwen.qwen2.5-math.rl_prompts"),
    "tasks.heldout": _u("tasks kept apart from training", "256 to 2048"),
    "tasks.system_prompt": _u("text before every task", "two to six sentences about form and length"),
    "tasks.max_tokens": _u("hard limit of one response in training", "1024 (DeepSeekMath) to 131072 (SAO)",
                           "deepseek.deepseekmath.max_tokens", "sao.sao.max_tokens"),
    "reward": _u("how a response is scored, and by whom", "verifiers, reward models, judges, or a composition of them"),
    "reward.composition": _u("the rule that makes one number of the components", "magistral: a format gate, then correctness"),
    "format_reward": _u("reward of a well-formed response", "0.1 (Magistral)", "mistral.magistral.format_reward"),
    "correct_reward": _u("reward of a correct response beside its form", "0.9 (Magistral)", "mistral.magistral.correct_reward"),
    "length_penalty": _u("largest deduction for length", "0.1 (Magistral)", "mistral.magistral.length_penalty"),
    "length_max": _u("length at which the deduction is whole, in tokens", "20480 (DAPO)", "bytedance.dapo.length_max"),
    "length_cache": _u("width of the ramp before length_max, in tokens", "4096 (DAPO)", "bytedance.dapo.length_cache"),
    "language_reward": _u("reward of answering in the language of the task, null for none", "0.1 (Magistral)",
                          "mistral.magistral.language_reward"),
    "verify_seconds": _u("hard limit of one verification", "4 to 10 (Magistral: a test, and compiling)",
                         "mistral.magistral-reward.test_timeout", "mistral.magistral-reward.compile_timeout"),
    "stages": _u("which stages post-training has, and in which order",
                 "cold start, reasoning RL, general RL (Qwen3); SFT, online RL, DPO (Llama 4 Maverick)",
                 "qwen.qwen3.reasoning_rl_algorithm", "meta.llama-4.post_training"),
    "kind": _u("what kind of stage this is", "PolicyGradient after a cold start by Sft"),
    "policy": _u("the stage, or `start`, whose policy this stage begins with", "the stage before it"),
    "tasks": _u("`train`, or the stage whose selection of tasks is used", "train"),
    "objective": _u("the objective with clip widths and rule of credit", "Grpo (DeepSeekMath), Dapo, Gspo, Sapo, Sao, Ppo",
                    "deepseek.deepseekmath.objective"),
    "objective.kind": _u("the objective by its class", "Grpo (DeepSeekMath), Dapo, Gspo, Sapo, Sao, Ppo",
                         "deepseek.deepseekmath.objective"),
    "low": _u("lower clip width", "0.2 (DAPO)", "bytedance.dapo.epsilon_low"),
    "high": _u("upper clip width", "0.2 (PPO of Llama 2) to 0.28 (DAPO)", "meta.llama-2.ppo_clip", "bytedance.dapo.epsilon_high"),
    "objective.beta": _u("weight of the KL term to the reference", "0.001 (R1-Zero) to 0.04 (DeepSeekMath), 0 is none",
                         "deepseek.r1-zero.kl_coefficient", "deepseek.deepseekmath.kl_coefficient"),
    "objective.tau": _u("weight of the squared log-ratio", "0.01 to 1, no laboratory prints its own"),
    "objective.delta": _u("bound on the mean log-ratio of a sequence with negative advantage", "0.0001 to 0.5"),
    "objective.scale": _u("whether the gradient is that of the printed loss or divided by 2 tau", "published"),
    "aggregate": _u("which denominators the token losses have", "token mean, or the mean over sequences of token means"),
    "credit": _u("how rewards become advantages", "centred in the group (Magistral), and divided by its deviation (DeepSeekMath)",
                 "mistral.magistral.group_advantage", "deepseek.deepseekmath.advantage"),
    "credit.kind": _u("how rewards become advantages", "GroupNormalized"),
    "credit.eps": _u("added to the standard deviation of the advantages", "1e-8 to 1e-4"),
    "credit.ddof": _u("0 divides by the count, 1 by the count minus one", "0 or 1"),
    "steps": _u("policy-improvement or optimizer steps of the stage", "170 (Qwen3) to 10400 (R1-Zero)",
                "qwen.qwen3.reasoning_rl_updates", "deepseek.r1-zero.steps"),
    "prompts": _u("prompts issued at a time", "128 (Nemotron-Cascade 2) to 512 (DAPO)",
                  "nvidia.nemotron-cascade-2.prompts_per_batch", "bytedance.dapo.prompts_per_batch"),
    "per_task": _u("responses per prompt, the group size", "8 (Qwen2.5), 16 (DAPO), 32 (GLM-5); 64 (DeepSeekMath)",
                   "qwen.qwen2.5.rl_group_size", "bytedance.dapo.responses_per_prompt", "zhipu.glm-5-reasoning.group_size",
                   "deepseek.deepseekmath.group_size"),
    "groups": _u("informative groups in one batch", "as many as prompts are issued"),
    "max_waves": _u("how often uninformative groups are refilled before a step goes on", "1 to 4"),
    "minibatches": _u("optimizer steps on one batch", "1 (Magistral), 4 (GSPO), 16 (DAPO)",
                      "mistral.magistral.batch_equals_minibatch", "qwen.gspo.minibatches", "bytedance.dapo.updates_per_batch"),
    "max_policy_age": _u("oldest policy version trained on; 0 is synchronous", "0, or 4 to 8 (AReaL)",
                         "community.areal.staleness_code", "community.areal.staleness_math"),
    "temperature": _u("temperature of the samples", "1 (R1-Zero, InstructGPT)", "deepseek.r1-zero.rollout_temperature",
                      "openai.instructgpt.rollout_temperature"),
    "top_p": _u("nucleus of the samples, 1 is all", "1"),
    "top_k": _u("most likely tokens kept, 0 is off", "0"),
    "min_p": _u("floor relative to the most likely token, 0 is off", "0"),
    "learning_rate": _u("peak learning rate", "1e-06 (DAPO) to 1e-05 (Qwen2.5-Math) in RL; to 2e-05 (Llama 2) in SFT",
                        "bytedance.dapo.learning_rate", "qwen.qwen2.5-math.rl_learning_rate_7b",
                        "meta.llama-2.sft_learning_rate"),
    "beta1": _u("AdamW first-moment decay", "0.9 (Llama 2)", "meta.llama-2.ppo_beta1"),
    "beta2": _u("AdamW second-moment decay", "0.95 (Llama 2)", "meta.llama-2.ppo_beta2"),
    "optimizer.eps": _u("AdamW epsilon", "1e-05 (Llama 2) or smaller", "meta.llama-2.ppo_eps"),
    "weight_decay": _u("AdamW weight decay", "0.1 (Llama 2, Qwen2.5)", "meta.llama-2.ppo_weight_decay",
                       "qwen.qwen2.5.sft_weight_decay"),
    "warmup_steps": _u("optimizer steps of linear warm-up", "20 (DAPO) to 30 (Nemotron-Cascade 2)", "bytedance.dapo.warmup",
                       "nvidia.nemotron-cascade-2.warmup"),
    "schedule": _u("constant or cosine after the warm-up", "constant"),
    "max_grad_norm": _u("clip of the gradient's norm", "1 (Llama 2, Qwen2.5)", "meta.llama-2.ppo_max_grad_norm",
                        "qwen.qwen2.5.sft_max_grad_norm"),
    "traces": _u("what the demonstrations are, with their weights", "verified answers of a stronger model"),
    "batch": _u("sequences of one optimizer step", "64 (Llama 2) to 256 (Qwen2.5-Math 72B)", "meta.llama-2.sft_batch",
                "qwen.qwen2.5-math.sft_batch_72b"),
    "general_share": _u("share of general conversation kept in the mixture", "0.1 (Magistral Small)",
                        "mistral.magistral-small.general_share"),
    "trials": _u("answers per held-out task", "1; 64 (Magistral on AIME)", "mistral.magistral.eval_trials_aime"),
    "samples": _u("attempts per task when its difficulty is measured", "8 (Qwen2.5-Math), 16 (Magistral)",
                  "qwen.qwen2.5-math.rl_filter_samples", "mistral.magistral.curation_samples"),
    "candidates": _u("tasks whose difficulty is measured", "every training task"),
}


def usual(path: str) -> Usual | None:
    """What is known of a setting by its path, the longest of its endings first; None where nothing is.

    Example: usual("stages.rl.optimizer.eps") is usual("stages.cold_start.optimizer.eps")
    """
    parts = path.split(".")
    endings = (".".join(parts[start:]) for start in range(len(parts)))
    return next((_USUAL[ending] for ending in endings if ending in _USUAL), None)


def known() -> Mapping[str, Usual]:
    """Every entry by the ending of a path."""
    return _USUAL
