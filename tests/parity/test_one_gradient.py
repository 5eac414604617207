"""Packing, chunking and checkpointing change how a loss is computed, never the loss or a gradient."""

import pytest
import torch
from policies import ARCHITECTURES, completions, prompts, tiny_policy
from transformers import AutoModelForCausalLM

from rollbook.models import logprobs
from rollbook.models.layout import Tree, pack
from rollbook.models.logprobs import action_logprobs
from rollbook.models.weights import save_checkpoint

LIMIT = 1e-5


def rows(policy):
    """Prompts with three answers each, as (prompt, answer) pairs in the order in which trees hold them."""
    asked = prompts(policy)
    return [(prompt, c.token_ids) for prompt, answers in zip(asked, completions(policy, asked, per_prompt=3, temperature=1.0),
                                                             strict=True) for c in answers]


def trees(pairs):
    held = {}
    for prompt, answer in pairs:
        held.setdefault(prompt, []).append(answer)
    return [Tree(prompt=prompt, continuations=tuple(answers), actions=tuple((True,) * len(a) for a in answers))
            for prompt, answers in held.items()]


def weighted(logp_T):
    """A loss in which every token has another weight."""
    return (logp_T * torch.linspace(-1.0, 2.0, logp_T.numel(), dtype=logp_T.dtype)).sum()


def packed(decoder, pairs, dtype=torch.float32):
    """Loss and gradients through the packed layout."""
    decoder.zero_grad()
    layout = pack(trees(pairs), window=decoder.architecture.window)
    loss = weighted(action_logprobs(decoder, layout, temperature=1.0, dtype=dtype).logp_T)
    loss.backward()
    return float(loss.detach()), {name: p.grad.clone() for name, p in decoder.named_parameters() if p.grad is not None}


def padded(policy, pairs, folder):
    """The same through transformers, one padded row per answer and the whole [T, V] of log-probs."""
    save_checkpoint(folder, policy.decoder, policy.tokenizer)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.get_input_embeddings().padding_idx = None       # or the end of turn, which pads too, would get no gradient as an input
    width = max(len(p) + len(a) for p, a in pairs)
    ids = torch.zeros(len(pairs), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (prompt, answer) in enumerate(pairs):
        ids[row, :len(prompt) + len(answer)] = torch.tensor([*prompt, *answer])
        mask[row, :len(prompt) + len(answer)] = 1
    logp = model(input_ids=ids, attention_mask=mask).logits.log_softmax(-1)
    found = [logp[row, place - 1, ids[row, place]] for row, (prompt, answer) in enumerate(pairs)
             for place in range(len(prompt), len(prompt) + len(answer))]
    loss = weighted(torch.stack(found))
    loss.backward()
    return float(loss.detach()), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def same(one, other):
    (loss, gradients), (other_loss, other_gradients) = one, other
    assert abs(loss - other_loss) <= LIMIT * abs(other_loss)
    for name, gradient in gradients.items():
        assert (gradient - other_gradients[name]).abs().max() <= LIMIT * other_gradients[name].abs().max().clamp(min=1e-12), name


@pytest.mark.parametrize("architecture", ["llama", "mistral"])
def test_packed_gives_the_loss_and_gradient_of_padded_rows_in_transformers(architecture, tmp_path):
    policy = tiny_policy(architecture)
    pairs = rows(policy)
    same(packed(policy.decoder, pairs), padded(policy, pairs, tmp_path / "model"))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_head_in_small_chunks_gives_the_loss_and_gradient_of_one_chunk(architecture, monkeypatch):
    policy = tiny_policy(architecture)
    pairs = rows(policy)
    monkeypatch.setattr(logprobs, "CHUNK", 10**6)
    whole = packed(policy.decoder, pairs)
    monkeypatch.setattr(logprobs, "CHUNK", 3)
    same(packed(policy.decoder, pairs), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gradient_checkpointing_changes_no_bit(architecture, dtype):
    policy = tiny_policy(architecture)
    pairs = rows(policy)
    plain = packed(policy.decoder, pairs, dtype)
    policy.decoder.checkpointing = True
    loss, gradients = packed(policy.decoder, pairs, dtype)
    assert loss == plain[0]
    for name, gradient in gradients.items():
        assert torch.equal(gradient, plain[1][name]), name


def test_gradient_checkpointing_keeps_less_for_backward():
    policy = tiny_policy("llama")
    pairs = rows(policy)
    kept = []
    for checkpointing in (False, True):
        policy.decoder.checkpointing = checkpointing
        held = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, held=held: held.append(x.nbytes) or x, lambda x: x):
            policy.decoder(pack(trees(pairs)), torch.float32)
        kept.append(sum(held))
    assert kept[1] < kept[0] / 4
