"""A complete recipe at a size that takes seconds."""

from rollbook.recipes import load, resolve

SMALL = (
    "model.layers=2", "model.hidden=64", "model.heads=4", "model.kv_heads=2", "model.intermediate=96", "tasks.train=64",
    "tasks.heldout=16", "tasks.max_tokens=32", "reward.length_max=32", "reward.length_cache=8",
    "stages.cold_start.steps=90", "stages.cold_start.batch=16", "stages.cold_start.optimizer.learning_rate=5e-3",
    "stages.cold_start.optimizer.warmup_steps=4", "stages.select.candidates=16", "stages.select.low=0",
    "stages.select.high=4", "stages.rl.steps=4", "stages.rl.prompts=4", "stages.rl.per_task=4", "stages.rl.groups=2",
    "stages.rl.max_waves=2", "stages.rl.probe=8", "stages.rl.probe_every=2", "stages.rl.checkpoint_every=2",
    "run.threads=1", "reward.verify_workers=1",
)


def small_recipe(*overrides):
    return resolve(load("magistral-small"), "tiny", small_settings(*overrides))


def small_settings(*overrides):
    """The small sizes, each setting once: an override replaces its own."""
    replaced = {one.split("=")[0] for one in overrides}
    return (*(one for one in SMALL if one.split("=")[0] not in replaced), *overrides)


class Quiet:
    """A progress that remembers what it was told; `stop_at` asks a session to stop after so many steps."""

    def __init__(self):
        self.notes, self.steps = [], []

    def stage(self, name, index, total, steps):
        self.steps.append((name, 0))

    def step(self, step, metrics):
        self.steps.append((self.steps[-1][0], step))

    def note(self, text):
        self.notes.append(text)
