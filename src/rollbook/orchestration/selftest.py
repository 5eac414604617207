"""Whether the engine samples from the distribution that the trainer scores, for every id of the vocabulary at every position.

Legend: T sampled positions of all sequences, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rollbook.models.decoder import Decoder
from rollbook.models.layout import Layout, Tree, pack
from rollbook.models.load import Policy, locate, news, placed, read_policy
from rollbook.models.logprobs import action_logprobs, full_logprobs
from rollbook.models.runtime import device_of, prepare
from rollbook.models.weights import load_into, published_hash
from rollbook.records import Completion, Message, ModelError, Request
from rollbook.records.recipe import OptimizerSettings, RunSettings
from rollbook.rollouts.engines.embedded import EmbeddedEngine
from rollbook.training.optimizer import Optimizer

ASKED = ("23 + 38 =", "Name a colour.", "What is the greatest common divisor of 84 and 36? Think first, then answer.", "Hello!")
SAMPLES, NEW_TOKENS, ROWS = 2, 24, 5        # fewer rows than requests: some enter while others are being decoded
PREFIX_BYTES = 64 << 20
LEARNING_RATE, STILL_STEPS = 1e-3, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far engine and trainer may be apart: any id's log-prob, a sampled token's log-prob, the mean KL (all nats)."""

    any_logp: float
    sampled_logp: float
    mean_kl: float


TOLERANCES = {torch.float32: Tolerance(any_logp=1e-3, sampled_logp=1e-4, mean_kl=1e-6),
              torch.bfloat16: Tolerance(any_logp=2.0, sampled_logp=0.5, mean_kl=1e-2)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Engine against trainer at one moment. KL is from the engine's distribution to the trainer's; `kept_prompts` came from the
    prefix cache; `moved` is the KL from the engine before the update to the engine after it, None where nothing should move.
    """

    dtype: str
    moment: str
    version: int
    positions: int
    max_any_logp: float
    max_sampled_logp: float
    mean_kl: float
    max_kl: float
    kept_prompts: int
    moved: float | None
    problem: str


@dataclass(frozen=True, slots=True)
class _Sampled:
    """What the engine did: completions, its distribution before every token [T, V], and the layout that scores them."""

    completions: tuple[Completion, ...]
    logp_TV: Tensor
    layout: Layout


def selftest(model: str, *, dtype: str, told: Callable[[str], None], device: str = "cpu") -> list[Compared]:
    """The comparison of a model by built-in name, folder or hub name, in fp32 and in the compute dtype."""
    compute = prepare(RunSettings(seed=0, device=device, threads=0, dtype=dtype))  # type: ignore[arg-type]
    policy = placed(read_policy(locate(model), source=model), device_of(device))
    if (note := news(policy)) is not None:
        told(note)
    return list(compare(policy, dict.fromkeys((torch.float32, compute))))


def compare(policy: Policy, dtypes: Iterable[torch.dtype]) -> Iterator[Compared]:
    """Before and after an update that moves every weight, then over steps at learning rate 0; the weights are put back."""
    start = {name: p.detach().clone() for name, p in policy.decoder.named_parameters()}
    for dtype in dtypes:
        try:
            yield from _in(policy, dtype)
        finally:
            load_into(policy.decoder, start)


def _in(policy: Policy, dtype: torch.dtype) -> Iterator[Compared]:
    decoder = policy.decoder
    engine = EmbeddedEngine(stop_ids=policy.tokenizer.stop_ids, dtype=dtype, max_rows=ROWS, kv_bytes=None,
                            prefix_bytes=PREFIX_BYTES, device=decoder.device)
    requests = _requests(policy)
    before, row = _compared(engine, decoder, requests, ("as loaded", 0))
    yield row
    _step(decoder, before, dtype, LEARNING_RATE)
    after, row = _compared(engine, decoder, requests, ("after an update", 1), before)
    yield row
    for number in range(1, STILL_STEPS + 1):
        _step(decoder, after, dtype, 0.0)
        after, row = _compared(engine, decoder, requests, (f"learning rate 0, step {number}", 1 + number))
        yield row


def _requests(policy: Policy) -> list[Request]:
    prompts = [policy.tokenizer.prompt((Message(role="user", content=text),)) for text in ASKED]
    room = policy.decoder.architecture.context - max(map(len, prompts))
    if room < 1:
        raise ModelError("the model's context is too short for the self-test",
                         got=f"{policy.decoder.architecture.context} tokens")
    return [Request(key=f"selftest/{place}/{sample}", prompt_ids=prompt, max_tokens=min(NEW_TOKENS, room), temperature=1.0,
                    top_p=1.0, top_k=0, min_p=0.0, seed=0) for place, prompt in enumerate(prompts) for sample in range(SAMPLES)]


def _step(decoder: Decoder, sampled: _Sampled, dtype: torch.dtype, learning_rate: float) -> None:
    """One optimizer step towards the tokens that were sampled."""
    settings = OptimizerSettings(learning_rate=learning_rate, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0, warmup_steps=0,
                                 schedule="constant", max_grad_norm=1.0)
    optimizer = Optimizer(decoder.parameters(), settings, 1)
    optimizer.zero()
    (-action_logprobs(decoder, sampled.layout, temperature=1.0, dtype=dtype).logp_T.mean()).backward()
    optimizer.step("the self-test")
    optimizer.zero()


def _compared(engine: EmbeddedEngine, decoder: Decoder, requests: Sequence[Request], at: tuple[str, int],
              before: _Sampled | None = None) -> tuple[_Sampled, Compared]:
    """Publishes the decoder's weights, samples, and scores what was sampled with the trainer."""
    moment, version = at
    hits = engine.prompts.hits
    taken = engine.load(decoder, version)
    sampled = _sample(engine, decoder, requests)
    reported = torch.tensor([logp for one in sampled.completions for logp in one.logps])
    gaps, kls, own = [], [], []
    row = 0
    for trainer in full_logprobs(decoder, sampled.layout, temperature=1.0, dtype=engine.dtype):
        part = slice(row, row := row + len(trainer))
        ours = sampled.logp_TV[part]
        gaps.append((ours - trainer).abs().max())
        kls.append((ours.exp().double() * (ours.double() - trainer.double())).sum(-1))
        own.append((trainer.gather(1, sampled.layout.target_T[part, None])[:, 0] - reported[part]).abs().max())
    kl_T = torch.cat(kls)
    limit = TOLERANCES[engine.dtype]
    moved = None if before is None else _moved(before, sampled)
    stamped = {one for completion in sampled.completions for one in completion.versions}
    found = {"any_logp": float(max(gaps)), "sampled_logp": float(max(own)), "mean_kl": float(kl_T.mean())}
    problems = [f"{name} {value:.3g} exceeds {getattr(limit, name):g}" for name, value in found.items()
                if not value <= getattr(limit, name)]
    if taken != published_hash(decoder, engine.dtype):
        problems.append("the engine holds other weights than were published")
    if stamped != {version}:
        problems.append(f"tokens are stamped with versions {sorted(stamped)}")
    if moved is not None and not moved > limit.mean_kl:
        problems.append(f"the update moved the engine by {moved:.3g} nats only, too little to tell old weights from new")
    return sampled, Compared(
        dtype=str(engine.dtype).removeprefix("torch."), moment=moment, version=version, positions=len(reported),
        max_any_logp=found["any_logp"], max_sampled_logp=found["sampled_logp"], mean_kl=found["mean_kl"],
        max_kl=float(kl_T.max()), kept_prompts=engine.prompts.hits - hits, moved=moved, problem="; ".join(problems))


def _sample(engine: EmbeddedEngine, decoder: Decoder, requests: Sequence[Request]) -> _Sampled:
    seen: dict[str, list[Tensor]] = {}

    def watch(keys: Sequence[str], logits_BV: Tensor) -> None:
        for key, logp_V in zip(keys, logits_BV.log_softmax(-1), strict=True):
            seen.setdefault(key, []).append(logp_V)
    engine.watch = watch
    try:
        done = engine.sample(requests)
    finally:
        engine.watch = None
    for one in done:
        if one.fault is not None:
            raise ModelError("the self-test could not be sampled", got=one.fault.detail)
    trees = [Tree(prompt=requests[at].prompt_ids, continuations=tuple(one.token_ids for one in done[at:at + SAMPLES]),
                  actions=tuple((True,) * len(one.token_ids) for one in done[at:at + SAMPLES]))
             for at in range(0, len(requests), SAMPLES)]
    return _Sampled(completions=tuple(done), logp_TV=torch.stack([logp for one in done for logp in seen[one.key]]),
                    layout=pack(trees, window=decoder.architecture.window))


def _moved(before: _Sampled, after: _Sampled) -> float:
    """Mean KL from the engine before to the engine after, right behind the prompts, where both saw the same tokens (nats)."""
    old, new = (one.logp_TV[_starts(one.completions)].double() for one in (before, after))
    return float((old.exp() * (old - new)).sum(-1).mean())


def _starts(completions: Sequence[Completion]) -> list[int]:
    places, at = [], 0
    for one in completions:
        places.append(at)
        at += len(one.token_ids)
    return places
