"""Models without a fast path: engine, trainer and a plain transformers forward give the same numbers, alone or in any batch."""

import copy
import json

import pytest
import torch
from other_models import CONFIGS, other_model, plain_model
from policies import completions, prompts

from rollbook.models import load
from rollbook.models.fallback import Fallback
from rollbook.models.layout import Tree, pack
from rollbook.models.load import load_policy, news, read_policy
from rollbook.models.logprobs import action_logprobs
from rollbook.models.weights import load_into, published_hash, read_tensors, save_checkpoint, weight_hash
from rollbook.records import ModelError, Request
from rollbook.records.recipe import Pretrained
from rollbook.rollouts.engines.embedded import EmbeddedEngine
from rollbook.training.policy import frozen_copy

TOLERANCE = 1e-4
KINDS = tuple(CONFIGS)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model folder and its policy by kind, each made once and changed by no test."""
    held = {}

    def of(kind):
        if kind not in held:
            folder = other_model(kind, tmp_path_factory.mktemp(kind))
            held[kind] = folder, read_policy(folder, source="test")
        return held[kind]
    return of


def trees(asked, answered):
    return [Tree(prompt=prompt, continuations=tuple(c.token_ids for c in answers),
                 actions=tuple((True,) * len(c.token_ids) for c in answers))
            for prompt, answers in zip(asked, answered, strict=True)]


def plain_logps(model, asked, answered, temperature, entropies=None):
    """Log-probs of the answers' tokens by one forward pass for each; their distributions' entropies are added to a list."""
    values = []
    for prompt, answers in zip(asked, answered, strict=True):
        for completion in answers:
            logits = model(torch.tensor([prompt + completion.token_ids])).logits[0].float()
            logp = (logits / temperature).log_softmax(-1)
            values += [logp[len(prompt) - 1 + i, token] for i, token in enumerate(completion.token_ids)]
            if entropies is not None:
                entropies += [-(row.exp() * row).sum() for row in logp[len(prompt) - 1:-1]]
    return torch.stack(values)


@pytest.mark.parametrize("kind", KINDS)
def test_engine_trainer_and_a_plain_forward_agree_without_a_fast_path(kind, made):
    folder, policy = made(kind)
    assert isinstance(policy.decoder, Fallback)
    asked = prompts(policy)
    answered = completions(policy, asked, per_prompt=2, temperature=0.8, max_tokens=12)
    entropies = []
    with torch.no_grad():
        scored = action_logprobs(policy.decoder, pack(trees(asked, answered)), temperature=0.8, dtype=torch.float32)
        plain = plain_logps(plain_model(folder), asked, answered, 0.8, entropies)
    reported = torch.tensor([x for answers in answered for c in answers for x in c.logps])
    assert (scored.logp_T - reported).abs().max() < TOLERANCE
    assert (scored.logp_T - plain).abs().max() < TOLERANCE
    assert (scored.entropy_T - torch.stack(entropies)).abs().max() < TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_draws_the_same_tokens_alone_and_among_rows_that_come_and_go(kind, made):
    _, policy = made(kind)
    asked = [prompt[at:] for at, prompt in enumerate(prompts(policy) * 2)]          # all of different length
    requests = [Request(key=str(at), prompt_ids=prompt, max_tokens=3 + 2 * at, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0,
                        seed=5) for at, prompt in enumerate(asked)]
    engine = EmbeddedEngine(stop_ids=policy.tokenizer.stop_ids, dtype=torch.float32, max_rows=4)
    engine.load(policy.decoder, 0)
    together = engine.sample(requests)
    for request, one in zip(requests, together, strict=True):
        alone = engine.sample([request])[0]
        assert alone.token_ids == one.token_ids
        assert alone.logps == pytest.approx(one.logps, abs=TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_a_plain_forward(kind, made):
    folder, policy = made(kind)
    asked = prompts(policy)[:2]
    answered = completions(policy, asked, per_prompt=2, temperature=1.0, max_tokens=6)
    plain = plain_model(folder)
    for logp_T in (action_logprobs(policy.decoder, pack(trees(asked, answered)), temperature=1.0, dtype=torch.float32).logp_T,
                   plain_logps(plain, asked, answered, 1.0)):
        (logp_T * torch.cos(logp_T.detach())).sum().backward()
    found = {name: p.grad for name, p in policy.decoder.named_parameters()}
    policy.decoder.zero_grad()
    expected = {name: p.grad for name, p in plain.named_parameters()}
    assert found.keys() == expected.keys()
    largest = max(float(gradient.abs().max()) for gradient in expected.values() if gradient is not None)
    for name, gradient in expected.items():
        if gradient is not None:
            assert (found[name] - gradient).abs().max() <= 1e-4 * gradient.abs().max() + 1e-6 * largest, name


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_is_the_same_model_for_transformers_and_for_us(kind, made, tmp_path):
    folder, policy = made(kind)
    decoder = copy.deepcopy(policy.decoder)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(1.01)
    save_checkpoint(tmp_path / "m", decoder, policy.tokenizer)
    wanted = weight_hash(decoder.named_parameters())
    assert weight_hash(plain_model(tmp_path / "m").named_parameters()) == wanted
    other = copy.deepcopy(policy.decoder)
    load_into(other, read_tensors(tmp_path / "m"))
    assert weight_hash(other.named_parameters()) == wanted != weight_hash(policy.decoder.named_parameters())
    kept, original = (json.loads((place / "config.json").read_text()) for place in (tmp_path / "m", folder))
    assert {**kept, "dtype": 0, "torch_dtype": 0} == {**original, "dtype": 0, "torch_dtype": 0}


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "mixtral", "mamba"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_engine_holds_what_was_published_and_samples_from_it(kind, dtype, made):
    _, policy = made(kind)
    engine = EmbeddedEngine(stop_ids=policy.tokenizer.stop_ids, dtype=dtype)
    assert engine.load(policy.decoder, 0) == published_hash(policy.decoder, dtype)
    asked = prompts(policy)
    sampled = completions(policy, asked, per_prompt=2, temperature=1.0, dtype=dtype, max_tokens=8)
    layout = pack(trees(asked, sampled))
    reported = torch.tensor([x for some in sampled for c in some for x in c.logps])
    with torch.no_grad():
        scored = action_logprobs(policy.decoder, layout, temperature=1.0, dtype=dtype).logp_T
        frozen = action_logprobs(frozen_copy(policy.decoder, dtype), layout, temperature=1.0, dtype=dtype).logp_T
    gap = scored - reported
    assert float((torch.exp(gap) - 1 - gap).mean()) < (1e-8 if dtype == torch.float32 else 0.05)
    assert torch.equal(scored, frozen)


def test_the_engines_copy_does_not_move_with_the_learner(made):
    _, policy = made("gpt2")
    decoder = copy.deepcopy(policy.decoder)
    engine = EmbeddedEngine(stop_ids=policy.tokenizer.stop_ids, dtype=torch.float32)
    before = engine.load(decoder, 0)
    with torch.no_grad():
        next(decoder.parameters()).add_(1.0)
    assert weight_hash(engine.weights.named()) == before != weight_hash(decoder.named_parameters())


def test_dropout_stays_off_in_training(made):
    _, policy = made("gpt2")
    assert policy.decoder.model.config.resid_pdrop > 0
    policy.decoder.train()
    layout = pack([Tree(prompt=(1, 2), continuations=((3, 4),), actions=((True, True),))])
    one, other = (action_logprobs(policy.decoder, layout, temperature=1.0, dtype=torch.float32).logp_T for _ in range(2))
    assert torch.equal(one, other)


@pytest.mark.parametrize(("kind", "bend", "tokens"), [
    ("gpt2", "none", False), ("gpt_neox", "none", False), ("gemma2", "softcap", False), ("granite", "divided", False),
    ("cohere", "multiplied", False), ("phi", "none", False), ("mixtral", "none", False), ("bloom", "none", False),
    ("mamba", "none", True)])
def test_what_an_architecture_can_do_is_found_out(kind, bend, tokens, made):
    decoder = made(kind)[1].decoder
    assert (decoder.bend, decoder.architecture.keeps_tokens) == (bend, tokens)


def test_logits_the_architecture_computes_in_a_way_of_its_own_are_taken_from_it(made):
    _, policy = made("gemma2")
    decoder = copy.deepcopy(policy.decoder)
    decoder.bend = None
    layout = pack([Tree(prompt=(1, 2), continuations=((3, 4), (5,)), actions=((True, True), (True,)))])
    own, chunked = (action_logprobs(d, layout, temperature=0.7, dtype=torch.float32) for d in (decoder, policy.decoder))
    assert (own.logp_T - chunked.logp_T).abs().max() < TOLERANCE
    assert (own.entropy_T - chunked.entropy_T).abs().max() < TOLERANCE


def test_the_missing_fast_path_is_told_once_a_process(made, monkeypatch):
    monkeypatch.setattr(load, "_told", set())
    first, again, other = (news(made(kind)[1]) for kind in ("gpt2", "gpt2", "phi"))
    assert "gpt2" in first and "transformers" in first and "qwen3_moe" in first
    assert again is None and "phi" in other


def changed(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(("changes", "words"), [
    ({"model_type": "t5"}, "decoder-only"), ({"model_type": "bart", "is_encoder_decoder": True}, "decoder-only"),
    ({"model_type": "homemade", "auto_map": {"AutoModelForCausalLM": "modeling.Homemade"}}, "its own repository"),
    ({"model_type": "homemade"}, "does not know"), ({"quantization_config": {"quant_method": "gptq"}}, "quantised"),
    ({"n_layer": 3}, "does not fit")])
def test_what_cannot_be_trained_is_refused(changes, words, tmp_path):
    changed(other_model("gpt2", tmp_path), **changes)
    with pytest.raises(ModelError, match=words):
        load_policy(Pretrained(path=str(tmp_path), context=64))


def test_a_model_that_looks_ahead_is_refused(tmp_path):
    from transformers import BertConfig, BertLMHeadModel
    other_model("gpt2", tmp_path)
    BertLMHeadModel(BertConfig(vocab_size=300, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                               intermediate_size=32)).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="later tokens"):
        load_policy(Pretrained(path=str(tmp_path), context=64))


def test_a_model_without_a_chat_template_is_refused(tmp_path):
    other_model("gpt2", tmp_path)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps({key: value for key, value in json.loads(file.read_text()).items() if key != "chat_template"}))
    with pytest.raises(ModelError, match="no chat template"):
        load_policy(Pretrained(path=str(tmp_path), context=64))
