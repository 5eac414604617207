"""Comparing what was recorded with what was computed again: bit for bit, or within a stated tolerance on another machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """What another machine may change: mean absolute log-prob (nats per token), loss (nats, plus the same share of it), gradient
    norm at weights that are surely the same (share of it), and the distance of the trained weights as a share of the way they
    went in the stage. Set at two to three times what weights off by 1e-6 of themselves, or the other precision, led to after
    a hundred steps of the small run: differences grow from step to step, and most of all in bfloat16.
    """

    logp_nats: float
    loss: float
    grad_norm: float
    displacement: float


TOLERANCES = {"float32": Tolerance(logp_nats=0.02, loss=0.01, grad_norm=0.01, displacement=0.02),
              "bfloat16": Tolerance(logp_nats=0.3, loss=0.2, grad_norm=0.1, displacement=0.5)}
SHOWN = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One value that does not come out as recorded. `record` is the record that holds it, `tensor` its name there.

    Example: Mismatch(stage="rl", place="rl/000002/0", record="Update:5a..", tensor="gradient", recorded="0.25 at 17",
        computed="0.5 at 17", detail="3 of 120 values differ, by 0.25 at most")
    """

    stage: str
    place: str
    record: str
    tensor: str
    recorded: str
    computed: str
    detail: str

    def __str__(self) -> str:
        return (f"{self.place}: `{self.tensor}` of {self.record} is {self.recorded} in the record, {self.computed} when computed "
                f"again" + (f" ({self.detail})" if self.detail else ""))


class Ruler:
    """Collects what does not fit. `exact` asks for equal bits; otherwise numbers may be apart by the tolerance."""

    def __init__(self, *, exact: bool, tolerance: Tolerance):
        self.exact, self.tolerance = exact, tolerance
        self.found: list[Mismatch] = []
        self.largest: dict[str, float] = {}
        self.off = 0
        self._where = ("", "", "")

    def at(self, stage: str, place: str, record: str) -> None:
        """Where what is compared next belongs."""
        self._where = (stage, place, record)

    def text(self, name: str, recorded: object, computed: object, detail: str = "") -> None:
        """Two things that are equal on any machine."""
        if recorded != computed:
            self.say(name, str(recorded), str(computed), detail)

    def hash(self, name: str, recorded: str | None, computed: str) -> None:
        """A hash of weights or optimizer state; compared only where equal bits are asked for."""
        if recorded is not None and recorded != computed:
            self.off += 1
            if self.exact:
                self.say(name, recorded[:16], computed[:16], "")

    def number(self, name: str, recorded: float | None, computed: float, slack: float | None, *, share: bool = True) -> None:
        """A number; `slack` is what it may be off by elsewhere, as a share of it or (`share` False) also absolutely.

        Without `slack` it is only measured there.
        """
        if recorded is None:
            return
        off = abs(recorded - computed)
        self.off += off != 0
        self._keep(name, off / max(abs(recorded), 1e-12) if share else off)
        if slack is None and not self.exact:
            return
        room = 0.0 if self.exact or slack is None else slack * abs(recorded) + (0.0 if share else slack)
        if not off <= room:
            self.say(name, repr(recorded), repr(computed), "" if self.exact else f"tolerance {room:.3g}")

    def tensor(self, name: str, recorded: Tensor | None, computed: Tensor | None, slack: float | None = None) -> None:
        """A tensor of the same numbers; `slack` is the mean absolute difference allowed elsewhere, None for none at all."""
        if recorded is None or computed is None:
            if (recorded is None) != (computed is None):
                self.say(name, "absent" if recorded is None else "there", "absent" if computed is None else "there", "")
            return
        if recorded.shape != computed.shape or recorded.dtype != computed.dtype:
            self.say(name, f"{recorded.dtype} {tuple(recorded.shape)}", f"{computed.dtype} {tuple(computed.shape)}", "")
            return
        if torch.equal(recorded, computed):
            return
        self.off += 1
        off = (recorded.double() - computed.double()).abs()
        mean = float(off.mean())
        self._keep(name, mean)
        if self.exact or slack is None or not mean <= slack:
            at = int((~(recorded == computed)).flatten().nonzero()[0])
            self.say(name, f"{recorded.flatten()[at].item():.9g} at {at}", f"{computed.flatten()[at].item():.9g} at {at}",
                     f"{int((~(recorded == computed)).sum())} of {off.numel()} values differ, by {float(off.max()):.3g} at most"
                     + ("" if self.exact or slack is None else f", {mean:.3g} in the mean, tolerance {slack:.3g}"))

    def weights(self, recorded: Mapping[str, Tensor], computed: Iterable[tuple[str, Tensor]], way: float) -> None:
        """All parameters; `way` is the distance (L2) the computed weights went in the stage."""
        named = dict(computed)
        if recorded.keys() != named.keys():
            self.say("parameters", ", ".join(sorted(recorded.keys() - named.keys())[:3]) or "-",
                     ", ".join(sorted(named.keys() - recorded.keys())[:3]) or "-", "names on one side only")
            return
        other = [name for name in named if not torch.equal(recorded[name], named[name])]
        if not other:
            return
        self.off += 1
        apart = sum(float((recorded[name].double() - named[name].double()).square().sum()) for name in other) ** 0.5
        self._keep("displacement", apart / max(way, 1e-12))
        if self.exact or not apart <= self.tolerance.displacement * way:
            first = other[0]
            off = (recorded[first].double() - named[first].double()).abs()
            self.say(first, "another tensor", "another tensor",
                     f"{len(other)} of {len(named)} parameters differ; {int((off > 0).sum())} of {off.numel()} values of this "
                     f"one, by {float(off.max()):.3g} at most; distance {apart:.3g}" + (f" on a way of {way:.3g}" if way else ""))

    def say(self, name: str, recorded: str, computed: str, detail: str) -> None:
        """Notes a mismatch at the present place."""
        stage, place, record = self._where
        self.off += 1
        self.found.append(Mismatch(stage=stage, place=place, record=record, tensor=name, recorded=_cut(recorded),
                                   computed=_cut(computed), detail=detail))

    def _keep(self, name: str, off: float) -> None:
        self.largest[name] = max(off, self.largest.get(name, 0.0))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"
