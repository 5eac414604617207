"""Progress of a run: a live display for a person, plain lines for a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

SHOWN = {  # metric -> word and format, in the order shown; a metric that was not observed is not shown
    "reward/total_mean": ("reward", "{:.3f}"),
    "reward/format_rate": ("format", "{:.0%}"),
    "eval/heldout_accuracy": ("held-out", "{:.1%}"),
    "sft/loss_nats": ("loss", "{:.3f}"),
    "update/clip_fraction": ("clipped", "{:.2%}"),
    "policy/age_max": ("staleness", "{:.0f}"),
    "rollout/tokens_per_s": ("tokens/s", "{:.0f}"),
}
LINE_EVERY_S = 2.0


class Progress(Protocol):
    """What a run tells while it goes on."""

    def stage(self, name: str, index: int, total: int, steps: int) -> None:
        """Stage `name`, the `index`-th (from 1) of `total`, begins; it has `steps` steps."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """`step` steps of the stage are done."""

    def note(self, text: str) -> None:
        """A line that stays."""


def numbers(metrics: Mapping[str, float]) -> str:
    """The shown metrics in words."""
    return "  ".join(f"{word} {form.format(metrics[name])}" for name, (word, form) in SHOWN.items() if name in metrics)


class Lines:
    """One line per stage, per step at most every two seconds, and always the last step of a stage."""

    def __init__(self) -> None:
        self.name, self.place, self.steps, self.began, self.last = "", "", 0, 0.0, 0.0
        self.start: int | None = None       # steps that were done before: a resumed stage does not begin at 0

    def stage(self, name: str, index: int, total: int, steps: int) -> None:
        self.name, self.place, self.steps = name, f"[{index}/{total}]", steps
        self.began = time.monotonic()
        self.last, self.start = 0.0, None
        self.note(f"{self.place} {name}: {steps} steps")

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        now = time.monotonic()
        self.start = step - 1 if self.start is None else self.start
        if step < self.steps and now - self.last < LINE_EVERY_S:
            return
        self.last = now
        left = (now - self.began) / (step - self.start) * (self.steps - step)
        self.note(f"{self.place} {self.name} {step}/{self.steps}  {numbers(metrics)}  left {left:.0f} s")

    def note(self, text: str) -> None:
        print(text, flush=True)


class Live:
    """One bar per stage, in the terminal."""

    def __init__(self, display: Any) -> None:
        self.display, self.bar = display, None
        self.seen: dict[str, float] = {}

    def stage(self, name: str, index: int, total: int, steps: int) -> None:
        self.seen = {}
        self.bar = self.display.add_task(f"{index}/{total} {name}", total=steps, numbers="")

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.seen.update(metrics)  # a probe's accuracy stays visible until the next probe
        self.display.update(self.bar, completed=step, numbers=numbers(self.seen))

    def note(self, text: str) -> None:
        self.display.console.print(text, markup=False, highlight=False)


@contextmanager
def live_progress() -> Iterator[Progress]:
    """The progress display that fits standard output."""
    if not sys.stdout.isatty():
        yield Lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Display

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
               TextColumn("{task.fields[numbers]}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Display(*columns) as display:
        yield Live(display)
