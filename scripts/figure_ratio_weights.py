"""Draw docs/img/ratio_weights.svg: how five objectives weigh a token's gradient as its ratio moves, by running them.

    python scripts/figure_ratio_weights.py [--out FILE]        (needs the `report` extra)
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import Tensor

from rollbook.objectives import ActionTokens, Cispo, Gspo, Ppo, Sao, Sapo, TokenLoss

OUT = Path(__file__).resolve().parents[1] / "docs/img/ratio_weights.svg"
LEAST, MOST, POINTS = 0.25, 8.0, 501
INK, FAINT, DEAD = "#1f2933", "#9aa5b1", "#eef1f4"
COLORS = {1: "#1b6ca8", -1: "#c2512f"}
OBJECTIVES: dict[str, tuple[Callable[[ActionTokens], TokenLoss], str]] = {
    "PPO": (Ppo(), "clip 0.8 … 1.2"),
    "GSPO": (Gspo(), "clip 0.9997 … 1.0004,\nratio of the sequence"),
    "SAPO": (Sapo(), "temperatures 1.0 and 1.05"),
    "CISPO": (Cispo(low=1.0, high=4.0), "cap 5 (an example:\nthe paper prints none)"),
    "SAO": (Sao(low=0.3, high=5.0), "mask 0.7 … 6\n(mathematics)"),
}


def weights(objective: Callable[[ActionTokens], TokenLoss], ratio_T: Tensor, sign: int) -> Tensor:
    """-(d loss / d logp) / A at each ratio, by autograd; every token is a sequence of its own."""
    logp_T = torch.full_like(ratio_T, -1.0, requires_grad=True)
    other_T = logp_T.detach() - ratio_T.log()
    size = ratio_T.numel()
    tokens = ActionTokens(
        logp_T=logp_T,
        advantage_T=torch.full_like(ratio_T, float(sign)),
        anchor_T=other_T,
        behavior_T=other_T,
        seq_T=torch.arange(size),
        length_S=torch.ones(size, dtype=torch.int64),
    )
    (gradient_T,) = torch.autograd.grad(objective(tokens).loss_T.sum(), logp_T)
    return -gradient_T / sign


def draw(out: Path) -> None:
    """One column per objective, one row per sign of the advantage."""
    matplotlib.rcParams.update({"svg.hashsalt": "rollbook", "font.size": 9, "axes.edgecolor": FAINT, "text.color": INK})
    ratio_T = torch.linspace(torch.tensor(LEAST).log2(), torch.tensor(MOST).log2(), POINTS, dtype=torch.float64).exp2()
    figure, axes = plt.subplots(2, len(OBJECTIVES), figsize=(11, 4.9), sharex=True, sharey=True)
    for column, (name, (objective, note)) in enumerate(OBJECTIVES.items()):
        for row, sign in enumerate((1, -1)):
            draw_panel(axes[row, column], ratio_T, weights(objective, ratio_T, sign), COLORS[sign])
        axes[0, column].set_title(name, fontsize=11, fontweight="bold", pad=32)
        axes[0, column].text(0.5, 1.04, note, transform=axes[0, column].transAxes, ha="center", va="bottom", fontsize=8)
        axes[1, column].set_xlabel("ratio")
    for row, words in enumerate(("A > 0: make it likelier", "A < 0: make it less likely")):
        axes[row, 0].set_ylabel(f"{words}\n\ngradient weight", color=INK)
    axes[0, 0].annotate("weight = ratio", (4.4, 4.4), (0.29, 5.3), fontsize=8, color="#6b7785",
                        arrowprops={"arrowstyle": "-", "color": FAINT, "lw": 0.8})  # fmt: skip
    axes[1, 0].text(0.45, 3.2, "no\ngradient", ha="center", va="center", fontsize=8, color="#6b7785")
    figure.subplots_adjust(left=0.085, right=0.99, top=0.83, bottom=0.105, wspace=0.1, hspace=0.12)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None, dpi=130)


def draw_panel(axis: plt.Axes, ratio_T: Tensor, weight_T: Tensor, color: str) -> None:
    """The weight against the ratio, the plain importance weight in grey, dead zones shaded. Jumps are not joined."""
    axis.plot(ratio_T, ratio_T, color=FAINT, lw=0.9, ls=(0, (4, 3)), zorder=1)
    axis.fill_between(ratio_T, 0, 7, where=(weight_T == 0).numpy(), color=DEAD, lw=0, zorder=0)
    jump_T = torch.cat([torch.tensor([False]), (weight_T[1:] == 0) != (weight_T[:-1] == 0)])
    axis.plot(ratio_T, torch.where(jump_T, float("nan"), weight_T), color=color, lw=2.2, solid_capstyle="butt", zorder=2)
    axis.axvline(1, color=FAINT, lw=0.6, zorder=0)
    axis.set_xscale("log", base=2)
    axis.set_xlim(LEAST, MOST)
    axis.set_ylim(-0.25, 7)
    axis.set_xticks([0.25, 0.5, 1, 2, 4, 8], ["¼", "½", "1", "2", "4", "8"])
    axis.set_yticks([0, 1, 2, 4, 6])
    axis.minorticks_off()
    axis.tick_params(colors=INK, length=3, color=FAINT)
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    draw(parser.parse_args().out)
