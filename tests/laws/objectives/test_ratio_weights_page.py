"""docs/ratio_weights.md says what the five objectives do: the numbers of its table are where their gradients stop."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from refusals import vector

import rollbook.objectives as ro
from rollbook.objectives import ActionTokens

DOCS = Path(__file__).parents[3] / "docs"
DRAWN = {
    "Ppo": ro.Ppo(),
    "Gspo": ro.Gspo(),
    "Sapo": ro.Sapo(),
    "Cispo": ro.Cispo(low=1.0, high=4.0),
    "Sao": ro.Sao(low=0.3, high=5.0),
}


def weight(name: str, ratio: float, sign: int) -> float:
    """-(d loss / d logp) / A of a sequence of one token."""
    logp_T = vector(-1.0).requires_grad_()
    other_T = vector(-1.0 - math.log(ratio))
    tokens = ActionTokens(
        logp_T=logp_T,
        advantage_T=vector(sign),
        anchor_T=other_T,
        behavior_T=other_T,
        seq_T=torch.tensor([0]),
        length_S=torch.tensor([1]),
    )
    return -float(torch.autograd.grad(DRAWN[name](tokens).loss_T.sum(), logp_T)[0]) / sign


def row(name: str) -> tuple[str, str]:
    """What the page's table says for A > 0 and for A < 0."""
    lines = (DOCS / "ratio_weights.md").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"| `{name}` |")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    return cells[3], cells[4]


@pytest.mark.parametrize("name", ["Ppo", "Gspo"])
def test_a_clip_stops_above_for_good_tokens_and_below_for_bad_ones_at_the_pages_numbers(name: str) -> None:
    good, bad = row(name)
    above, below = float(re.match(r"stops above ([\d.]+)$", good)[1]), float(re.match(r"stops below ([\d.]+),", bad)[1])
    assert (1 + DRAWN[name].high, 1 - DRAWN[name].low) == pytest.approx((above, below), abs=1e-12)
    assert weight(name, above + 1e-6, 1) == 0 and weight(name, above - 1e-6, 1) > 0 and weight(name, 0.1, 1) > 0
    assert weight(name, below - 1e-6, -1) == 0 and weight(name, below + 1e-6, -1) > 0
    assert weight(name, 8.0, -1) == pytest.approx(8.0), "grows without bound"


def test_saos_interval_is_the_pages_for_either_sign() -> None:
    low, high = map(float, re.search(r"inside ([\d.]+) … ([\d.]+)", row("Sao")[0]).groups())
    for sign in (1, -1):
        assert weight("Sao", low - 1e-6, sign) == 0 == weight("Sao", high + 1e-6, sign)
        assert weight("Sao", low + 1e-6, sign) > 0 and weight("Sao", high - 1e-6, sign) > 5


def test_cispo_is_capped_and_never_zero_and_sapo_fades() -> None:
    for sign in (1, -1):
        assert weight("Cispo", 5.5, sign) == weight("Cispo", 8.0, sign) == pytest.approx(5.0)
        assert weight("Cispo", 0.01, sign) > 0
        assert 0 < weight("Sapo", 8.0, sign) < 0.1 * weight("Sapo", 1.0, sign)
    assert weight("Sapo", 4.0, -1) < weight("Sapo", 4.0, 1), "a little faster for bad tokens"


def test_on_policy_all_five_agree_and_the_picture_is_there() -> None:
    assert [weight(name, 1.0, sign) for name in DRAWN for sign in (1, -1)] == pytest.approx([1.0] * 10)
    assert (DOCS / "img" / "ratio_weights.svg").stat().st_size > 10_000
