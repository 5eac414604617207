"""Small models with random weights of architectures that have no fast path, saved as transformers saves them."""

import torch

from rollbook.models.tokenizer import byte_tokenizer

CONTEXT = 128
SIZES = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
         "max_position_embeddings": CONTEXT}
CONFIGS = {
    "gpt2": {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT},                  # learned positions, tied, dropout
    "gpt_neox": SIZES,                                                                      # parallel residual, partial rotary
    "gemma2": {**SIZES, "num_key_value_heads": 2, "head_dim": 12, "sliding_window": 6, "query_pre_attn_scalar": 12,
               "final_logit_softcapping": 5.0, "attn_logit_softcapping": 8.0},
    "phi": SIZES,                                                                           # an output bias
    "olmo2": {**SIZES, "num_key_value_heads": 2},                                           # norms after the blocks
    "mixtral": {**SIZES, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2},
    "granite": {**SIZES, "num_key_value_heads": 2, "logits_scaling": 3.0},
    "cohere": {**SIZES, "num_key_value_heads": 2, "logit_scale": 0.5},
    "bloom": {"hidden_size": 48, "n_layer": 2, "n_head": 4},                                # counts positions by itself
    "mamba": {"hidden_size": 48, "num_hidden_layers": 2, "state_size": 8},                  # a state in place of keys and values
    "llama": {**SIZES, "num_key_value_heads": 2, "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32}},
}


def other_model(kind, folder, *, seed=0, spread=4.0, **changes):
    """A folder with a model of this kind and the byte tokenizer; weights wide enough that distributions are not flat."""
    from transformers import AutoConfig, AutoModelForCausalLM
    tokenizer = byte_tokenizer()
    stop = min(tokenizer.stop_ids)
    config = AutoConfig.for_model(kind, vocab_size=tokenizer.vocab, eos_token_id=stop, bos_token_id=stop, pad_token_id=stop,
                                  **{**CONFIGS[kind], **changes})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(spread)
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return folder


def plain_model(folder):
    """The folder's model as anyone would load it."""
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
