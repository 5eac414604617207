"""A host that keeps the protocol of TRL's policy trainers: callbacks, reward functions, one generation, one loss; no model."""

from __future__ import annotations

from types import SimpleNamespace

import torch

EOS, PAD = 2, 0
ARGS = {"output_dir": "/home/someone/private", "hub_token": "hf_secret_of_mine", "temperature": 0.7, "top_p": 1.0, "top_k": None,
        "min_p": None, "seed": 3, "max_completion_length": 4, "generation_kwargs": None, "scale_rewards": "group", "beta": 0.0,
        "learning_rate": 1e-5, "use_vllm": False, "loss_type": "/home/someone/loss.py", "optim": "adamw"}


class GRPOTrainer:
    """Two prompts, two completions each; the weights are one number that every optimizer step adds 1 to."""

    def __init__(self, reward_funcs, *, masked=False, **args):
        self.args = SimpleNamespace(**{**ARGS, **args})
        self.reward_funcs = list(reward_funcs)
        self.reward_func_names = [getattr(one, "__name__", "model") for one in reward_funcs]
        self.reward_weights = torch.tensor([1.0, 0.5][:len(reward_funcs)])
        self.model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(self.model.weight)
        self.state = SimpleNamespace(global_step=0)
        self.accelerator = SimpleNamespace(is_main_process=True, num_processes=1)
        self.processing_class = SimpleNamespace(chat_template=None, decode=lambda ids, **_: "".join(map(str, ids)))
        self.eos_token_ids, self.num_generations = [EOS], 2
        self.callbacks, self.masked, self.noise, self.extra = [], masked, 0, {}
        self.losses = []

    def add_callback(self, callback):
        self.callbacks.append(callback)

    def tell(self, event, **given):
        for callback in self.callbacks:
            getattr(callback, event)(self.args, self.state, None, **given)

    def inputs(self):
        return [{"prompt": f"{n} + 1 =", "answer": n + 1} for n in (3, 3, 4, 4)]

    def _generate_and_score_completions(self, inputs):
        """Four completions: two words with an end, one cut off, one that is only an end; left and right padding."""
        step = self.state.global_step
        ids = [[7, 8, EOS], [9 + step, EOS], [7, 8, 7, 8], [EOS]]
        rewards = torch.zeros(4, len(self.reward_funcs))
        for number, function in enumerate(self.reward_funcs):
            if isinstance(function, torch.nn.Module):
                rewards[:, number] = function(torch.arange(4.0)).logits[:, 0]
                continue
            given = function(prompts=[one["prompt"] for one in inputs], completions=list("abcd"), completion_ids=ids,
                             answer=[one["answer"] for one in inputs])
            rewards[:, number] = torch.tensor([float("nan") if value is None else float(value) for value in given])
        total = (rewards * self.reward_weights).nansum(dim=1).view(2, 2)
        advantages = ((total - total.mean(1, keepdim=True)) / (total.std(1, keepdim=True) + 1e-4)).view(-1)
        mask = torch.tensor([[1] * len(one) + [0] * (4 - len(one)) for one in ids])
        if self.masked:
            mask[2] = 0
        return {"prompt_ids": torch.tensor([[PAD, 3, 5], [PAD, 3, 5], [4, 4, 5], [4, 4, 5]]),
                "prompt_mask": torch.tensor([[0, 1, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1]]),
                "completion_ids": torch.tensor([one + [PAD] * (4 - len(one)) for one in ids]), "completion_mask": mask,
                "advantages": advantages, **self.extra}

    def compute_loss(self, model, inputs, num_items_in_batch=None):
        self.losses.append(len(inputs["completion_ids"]))
        return torch.tensor(0.5)

    def generation(self):
        batch = self._generate_and_score_completions(self.inputs())
        order = torch.tensor([2, 0, 3, 1])                                  # TRL shuffles before it cuts
        return {name: value[order] for name, value in batch.items()}

    def train(self, steps, start=0):
        self.state.global_step = start
        with torch.no_grad():
            self.model.weight.fill_(float(start))
        self.tell("on_train_begin")
        for _ in range(start, steps):
            self.tell("on_step_begin")
            batch = self.generation()
            for place in (slice(0, 2), slice(2, 4)):
                part = {name: value[place].clone() for name, value in batch.items()}
                part["completion_ids"][:, 0] += self.noise
                self.compute_loss(self.model, part, num_items_in_batch=4)
            with torch.no_grad():
                self.model.weight += 1
            self.state.global_step += 1
            self.tell("on_step_end")
            self.tell("on_log", logs={"loss": 0.5, "grad_norm": float("nan"), "learning_rate": 1e-5, "kl": 0.1})
        self.tell("on_train_end")
