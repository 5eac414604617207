"""What no single field shows: combinations that cannot run. Every problem is found, none raised here."""

from __future__ import annotations

from typing import Any

from rollbook.recipes import bounds, families, graph_check, objective, policy_checks, rewards
from rollbook.recipes.stage_checks import (
    check_batch_tokens,
    check_exploring,
    check_lora,
    check_source,
    check_warmup,
    refuse,
    shortest_prompt,
)
from rollbook.records import graph
from rollbook.records.devices import DEVICE
from rollbook.records.problems import Problems
from rollbook.records.recipe import (
    EnvironmentReward,
    Evaluate,
    PassRate,
    PolicyGradient,
    SamplingSettings,
    Settings,
    Sft,
    Stage,
    Tiny,
)


def check(settings: Settings, problems: Problems) -> None:
    """Adds every problem of the settings: ranges, model, tasks, reward, graph, each stage."""
    bounds.check(settings, "", problems)
    if isinstance(settings.model, Tiny):
        _check_tiny(settings.model, problems)
    _check_run(settings, problems)
    _check_context(settings, problems)
    _check_families(settings, problems)
    _check_environment(settings, problems)
    _check_suites(settings, problems)
    rewards.check(settings, problems)
    graph_check.check(settings.stages, problems)
    if isinstance(settings.model, Tiny):
        for problem in graph.pruned_beyond(settings.stages, (settings.model.layers, settings.model.intermediate)):
            problems.add(problem)
    for name, stage in settings.stages.items():
        path = f"stages.{name}"
        check_source(getattr(stage, "tasks", graph.TRAIN), path, settings, problems)
        check_lora(stage, path, settings, problems)
        _check_imitated(stage, path, settings, problems)
        match stage:
            case Evaluate():
                _check_evaluate(stage, path, settings, problems)
            case Sft():
                _check_sft(stage, path, settings, problems)
            case PassRate():
                _check_pass_rate(stage, path, settings, problems)
            case PolicyGradient():
                _check_policy_gradient(stage, path, settings, problems)
            case _:
                families.check(stage, path, settings, problems)


def _check_run(settings: Settings, problems: Problems) -> None:
    device = settings.run.device
    if DEVICE.fullmatch(device) is None:
        refuse(problems, "run.device must be cpu, cuda or cuda:N", repr(device),
               "sampling draws in fp64, which mps does not have" if device == "mps" else "no other device is known",
               "--set run.device=cpu")


def _check_tiny(model: Tiny, problems: Problems) -> None:
    if model.heads and model.hidden % (2 * model.heads):
        refuse(problems, f"model.hidden = {model.hidden} must be a multiple of 2 x model.heads", f"{model.heads} heads",
                "rotary positions need heads of equal and even width", "make model.hidden a multiple of 2 x model.heads")
    if model.kv_heads and model.heads % model.kv_heads:
        refuse(problems, f"model.heads = {model.heads} must be a multiple of model.kv_heads", model.kv_heads,
                "every key-value head serves the same number of query heads", "make model.kv_heads a divisor of model.heads")
    if (model.architecture == "qwen3_moe") != (model.experts > 0):
        refuse(problems, f'model.architecture = "{model.architecture}" does not go with its number of experts',
                f"model.experts = {model.experts}", "qwen3_moe is a mixture of experts, the others are dense",
                "set model.experts >= 1 for qwen3_moe and 0 otherwise")
    elif model.experts and not 1 <= model.experts_per_token <= model.experts:
        refuse(problems, "model.experts_per_token must be between 1 and model.experts", model.experts_per_token,
                f"there are {model.experts} experts to choose from", "lower model.experts_per_token")
    if model.window is not None and model.architecture != "mistral":
        refuse(problems, f'model.window needs model.architecture = "mistral", it is "{model.architecture}"', model.window,
                "only that architecture attends in a sliding window", "set model.window = null")


def _check_context(settings: Settings, problems: Problems) -> None:
    prompt = shortest_prompt(settings)
    if prompt + settings.tasks.max_tokens > settings.model.context:
        refuse(problems, f"model.context = {settings.model.context} is too short for a prompt and tasks.max_tokens",
                f"at least {prompt} + {settings.tasks.max_tokens} = {prompt + settings.tasks.max_tokens} tokens",
                "a sequence longer than the model's context has no positions left",
                "lower tasks.max_tokens, shorten tasks.system_prompt, or choose a model with a longer context")


def _check_environment(settings: Settings, problems: Problems) -> None:
    """An environment brings its own tasks and its own verifier."""
    environment = settings.environment
    given = isinstance(settings.reward, EnvironmentReward)
    if (environment is not None) != given or any(isinstance(one, EnvironmentReward) for one in settings.rewards.values()):
        refuse(problems, "reward.kind = EnvironmentReward goes with an environment, and with nothing else",
               f"{type(settings.reward).__name__}, {'an environment' if environment else 'no environment'}",
               "an environment's final state is graded by its own verifier, a single answer by its text",
               "make reward.kind EnvironmentReward exactly where there is an environment")
    if environment is None:
        return
    if settings.tasks.families:
        refuse(problems, "tasks.families must be empty where there is an environment", ", ".join(settings.tasks.families),
               "the environment makes the tasks", "set tasks.families to {} and the environment's parameters instead")
    if settings.tasks.system_prompt:
        refuse(problems, "tasks.system_prompt must be empty where there is an environment",
               repr(settings.tasks.system_prompt)[:60], "the environment writes its tasks' messages",
               "use the environment's parameters")
    if (environment.compaction == "none") != (environment.compact_at == 0):
        refuse(problems, "environment.compaction needs environment.compact_at, and the other way round",
               f"{environment.compaction}, {environment.compact_at}", "one says what is done, the other when", "set both or none")
    if (environment.turn_tokens or 0) > settings.tasks.max_tokens:
        refuse(problems, f"environment.turn_tokens must be at most tasks.max_tokens = {settings.tasks.max_tokens}",
               environment.turn_tokens, "a turn cannot have more tokens than the episode", "lower environment.turn_tokens")


def _check_suites(settings: Settings, problems: Problems) -> None:
    asked = settings.suites
    if asked is not None and (not asked.abilities or len(set(asked.abilities)) < len(asked.abilities)):
        refuse(problems, "suites.abilities must name at least one suite, each once", ", ".join(asked.abilities) or "none",
               "each is asked on its own", "for example --set 'suites.abilities=[chat, format]', or leave out suites")


def _check_families(settings: Settings, problems: Problems) -> None:
    curated = settings.tasks.curated
    if curated is not None and (settings.tasks.families or settings.environment is not None):
        refuse(problems, "tasks.curated stands in place of tasks.families and of an environment",
               ", ".join(settings.tasks.families) or "an environment", "tasks come from one source",
               "--set tasks.families=null and no environment, or leave out tasks.curated")
    elif curated is None and settings.tasks.curated_hash is not None:
        refuse(problems, "tasks.curated_hash is the hash of a set that tasks.curated does not name", settings.tasks.curated_hash,
               "no set would be compared with it", "name the set's folder in tasks.curated")
    elif not settings.tasks.families and settings.environment is None and curated is None:
        refuse(problems, "tasks.families must name at least one family", "none", "there would be no tasks",
               "add one, or name a curated set in tasks.curated")
    for name, family in settings.tasks.families.items():
        numbers = family.parameters
        for low in [key for key in numbers if key.startswith("min_")]:
            high = "max_" + low.removeprefix("min_")
            pair = numbers[low], numbers.get(high)
            if all(isinstance(item, (int, float)) for item in pair) and pair[0] > pair[1]:  # type: ignore[operator]
                refuse(problems, f"tasks.families.{name}.parameters.{low} must not be above {high}", f"{pair[0]} > {pair[1]}",
                        "the range is empty", f"lower {low} or raise {high}")


def _check_imitated(stage: Stage, path: str, settings: Settings, problems: Problems) -> None:
    if graph.learns_curated(stage) and settings.tasks.curated is None:
        refuse(problems, f"{path} learns from the traces of a curated set, and the recipe names none", f"data {graph.CURATED}",
               "there would be nothing to imitate", "name the folder of the set in tasks.curated")


def _check_evaluate(stage: Evaluate, path: str, settings: Settings, problems: Problems) -> None:
    if stage.scorer is not None and stage.trials < 2:
        refuse(problems, f"{path}.scorer needs {path}.trials of 2 or more", stage.trials,
               "of one answer there is nothing to pick", f"raise {path}.trials, or leave out {path}.scorer")
    other = settings.stages.get(stage.compare_to or "")
    if not isinstance(other, Evaluate):
        return
    here, there = _protocol(stage, settings), _protocol(other, settings)
    differing = [name for name in here if here[name] != there[name]]
    if differing:
        refuse(problems, f"{path}.compare_to needs the protocol of stages.{stage.compare_to}",
                ", ".join(f"{name} {here[name]} and {there[name]}" for name in differing),
                "the difference would measure the protocol, not the policy", f"make {', '.join(differing)} equal")


def _protocol(stage: Evaluate, settings: Settings) -> dict[str, Any]:
    own = settings.rewards.get(stage.reward, settings.reward) if stage.reward is not None else settings.reward
    sampling = {f"sampling.{name}": getattr(stage.sampling, name) for name in SamplingSettings.__dataclass_fields__}
    return {**sampling, "trials": stage.trials, "seed": stage.seed,
            "reward": "the run's" if own == settings.reward else stage.reward}


def _check_sft(stage: Sft, path: str, settings: Settings, problems: Problems) -> None:
    if not stage.traces and not stage.data:
        refuse(problems, f"{path} has nothing to learn from", "traces and data are both empty",
               "a stage shows what programs write, or what other stages left", f"set {path}.traces or {path}.data")
    if stage.form == "text" and (stage.data or stage.general_share or settings.environment is not None):
        refuse(problems, f"{path}.form = text is for documents that programs write", f"data {', '.join(stage.data) or 'none'}, "
               f"general_share {stage.general_share:g}, {'an' if settings.environment else 'no'} environment",
               "what other stages and general prompts leave are conversations",
               f"leave out data and set {path}.general_share = 0")
    if stage.fim and stage.form != "text":
        refuse(problems, f"{path}.fim is for {path}.form = text", f"{stage.fim:g}, form {stage.form}",
               "the middle of a conversation is nobody's to fill in", f"set {path}.form = text, or leave out {path}.fim")
    check_warmup(stage.optimizer.warmup_steps, stage.steps, path, problems)
    check_batch_tokens(stage.max_batch_tokens, path, settings, problems)


def _check_pass_rate(stage: PassRate, path: str, settings: Settings, problems: Problems) -> None:
    if stage.low > stage.high:
        refuse(problems, f"{path}.low must not be above {path}.high = {stage.high}", stage.low, "no task could be kept",
                f"lower {path}.low")
    if stage.high > stage.samples:
        refuse(problems, f"{path}.high must be at most {path}.samples = {stage.samples}", stage.high,
                "a task cannot be solved more often than it is tried", f"lower {path}.high")
    if stage.candidates > settings.tasks.train:
        refuse(problems, f"{path}.candidates must be at most tasks.train = {settings.tasks.train}", stage.candidates,
                "only training tasks can be selected", f"lower {path}.candidates")
    check_exploring(stage.sampling, path, problems)


def _check_policy_gradient(stage: PolicyGradient, path: str, settings: Settings, problems: Problems) -> None:
    objective.check(stage.objective, f"{path}.objective", problems)
    if stage.max_tokens is not None and (not 1 <= stage.max_tokens <= settings.tasks.max_tokens or settings.environment):
        refuse(problems, f"{path}.max_tokens must be 1 .. tasks.max_tokens = {settings.tasks.max_tokens}, without an environment",
               stage.max_tokens, "a stage of length is a shorter budget for one answer", f"lower {path}.max_tokens")
    if stage.per_task < 2 and objective.needs_group(stage.objective):
        refuse(problems, f'{path}.objective.kind = "{stage.objective["kind"]}" needs at least 2 rollouts per task',
                f"{path}.per_task = {stage.per_task}",
                "the baseline is the mean of the rollouts of the same task; of one rollout it is its own reward.",
                f"set {path}.per_task >= 2.")
    if stage.minibatches > 0 and (stage.groups < stage.minibatches or stage.groups % stage.minibatches):
        refuse(problems, f"{path}.groups = {stage.groups} is not divisible into minibatches",
                f"{path}.minibatches = {stage.minibatches}",
                "a batch is cut between groups, and minibatches of unequal size would weigh their tokens unequally",
                f"make {path}.groups a multiple of {path}.minibatches")
    if stage.groups > stage.prompts * stage.max_waves:
        refuse(problems, f"{path}.groups = {stage.groups} can never be reached",
                f"{path}.prompts x {path}.max_waves = {stage.prompts} x {stage.max_waves} = {stage.prompts * stage.max_waves}",
                "no more groups than prompts are issued", f"lower {path}.groups or raise {path}.max_waves")
    if stage.tasks == graph.TRAIN and stage.prompts > settings.tasks.train:
        refuse(problems, f"{path}.prompts must be at most tasks.train = {settings.tasks.train}", stage.prompts,
                "one step needs that many different tasks", f"lower {path}.prompts or raise tasks.train")
    policy_checks.check(stage, path, problems)
    if stage.probe > settings.tasks.heldout:
        refuse(problems, f"{path}.probe must be at most tasks.heldout = {settings.tasks.heldout}", stage.probe,
                "the probe is a part of the held-out side", f"lower {path}.probe")
    if stage.probe_every and not stage.probe:
        refuse(problems, f"{path}.probe_every needs a probe", f"{path}.probe = 0", "there is nothing to evaluate",
                f"set {path}.probe >= 1 or {path}.probe_every = 0")
    check_warmup(stage.optimizer.warmup_steps, stage.steps * stage.minibatches, path, problems)
    check_batch_tokens(stage.max_batch_tokens, path, settings, problems)
    check_exploring(stage.sampling, path, problems)
