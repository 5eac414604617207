"""Prompts are rendered as at serving time, checkpoints are what transformers loads, and what does not fit is refused."""

import json

import pytest
import torch
from policies import ARCHITECTURES, tiny_policy
from tokenizers import Tokenizer

from rollbook.models.architecture import from_config, to_config, without_fast_path
from rollbook.models.load import load_policy, locate, read_policy
from rollbook.models.tokenizer import ChatTokenizer, byte_tokenizer
from rollbook.models.weights import save_checkpoint, weight_hash
from rollbook.records import Message, ModelError
from rollbook.records.recipe import Pretrained, Tiny

CONVERSATION = (Message(role="system", content="Be brief."), Message(role="user", content="3 + 4 = ü\n日本"))


def test_the_prompt_is_the_template_as_transformers_renders_it(tmp_path):
    from transformers import AutoTokenizer
    policy = tiny_policy("llama")
    save_checkpoint(tmp_path / "m", policy.decoder, policy.tokenizer)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "m")
    plain = [{"role": m.role, "content": m.content} for m in CONVERSATION]
    text = theirs.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
    assert policy.tokenizer.render(CONVERSATION, generation_prompt=True) == text
    assert list(policy.tokenizer.prompt(CONVERSATION)) == theirs.encode(text, add_special_tokens=False)


def test_any_text_survives_encoding_and_decoding():
    tokenizer = byte_tokenizer()
    for text in ("<think>\n3+4=7\n</think>\n\\boxed{7}", "ünïcödé \U0001f600", "", "user\n<|im_start|>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_decoding_leaves_out_one_final_end_of_turn_and_shows_every_other_special_token():
    tokenizer = byte_tokenizer()
    stop = min(tokenizer.stop_ids)
    assert tokenizer.decode((*tokenizer.encode("7"), stop)) == "7"
    assert tokenizer.decode((stop, *tokenizer.encode("7"))) == "<|im_end|>7"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_saved_policy_reads_back_with_the_same_hash(architecture, tmp_path):
    policy = tiny_policy(architecture)
    save_checkpoint(tmp_path / "m", policy.decoder, policy.tokenizer)
    again = read_policy(tmp_path / "m", source="test")
    assert weight_hash(again.decoder.named_parameters()) == weight_hash(policy.decoder.named_parameters())
    assert again.tokenizer.digest == policy.tokenizer.digest
    assert again.tokenizer.template_digest == policy.tokenizer.template_digest


def test_a_tied_model_is_saved_with_one_matrix_and_stays_tied_in_transformers(tmp_path):
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM
    policy = tiny_policy("llama")
    save_checkpoint(tmp_path / "m", policy.decoder, policy.tokenizer)
    with safe_open(str(tmp_path / "m" / "model.safetensors"), framework="pt") as handle:
        assert "lm_head.weight" not in set(handle.keys())
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_architecture_survives_its_config(architecture):
    shape = tiny_policy(architecture).decoder.architecture
    assert from_config(json.loads(json.dumps(to_config(shape)))) == shape


@pytest.mark.parametrize(("change", "words"), [
    ({"model_type": "gpt2"}, "no fast path"), ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rotary"),
    ({"attention_bias": True}, "attention_bias"), ({"hidden_act": "gelu"}, "SwiGLU"), ({"partial_rotary_factor": 0.5}, "heads")])
def test_what_the_fast_path_does_not_compute_exactly_it_refuses(change, words):
    config = {**to_config(tiny_policy("llama").decoder.architecture), **change}
    with pytest.raises(ModelError, match=words):
        from_config(config)
    assert words in without_fast_path(config)


@pytest.mark.parametrize(("template", "words"), [
    ("{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}", "no system role"),
    ("{% for message in messages %}", "cannot be read")])
def test_a_chat_template_that_fails_is_a_refusal(template, words):
    with pytest.raises(ModelError, match=words):
        ChatTokenizer(Tokenizer.from_str(json.loads(byte_tokenizer().document())["tokenizer"]), template, stop=["<|im_end|>"],
                      specials={}).prompt(CONVERSATION)


def test_a_missing_model_says_what_would_work(tmp_path):
    with pytest.raises(ModelError, match="no model found"):
        locate(str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match="smollm2-135m-instruct"):
        load_policy(Pretrained(path="./nothing-here", context=128))


def test_a_damaged_checkpoint_is_refused_by_name(tmp_path):
    policy = tiny_policy("llama")
    save_checkpoint(tmp_path / "m", policy.decoder, policy.tokenizer)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(ModelError, match="does not fit"):
        read_policy(tmp_path / "m", source="test")


def test_a_tiny_model_is_decided_by_its_seed():
    settings = {"architecture": "llama", "layers": 1, "hidden": 32, "heads": 2, "kv_heads": 1, "intermediate": 32, "context": 64,
                "window": None, "experts": 0, "experts_per_token": 0}
    hashes = [weight_hash(load_policy(Tiny(**settings, seed=seed)).decoder.named_parameters()) for seed in (1, 1, 2)]
    assert hashes[0] == hashes[1] != hashes[2]
    assert all(torch.isfinite(p).all() for p in load_policy(Tiny(**settings, seed=1)).decoder.parameters())
