"""Advantages per token computed a second time, from rewards, stored values and stored log-probs; numpy, no code shared.

Legend: T action tokens of a minibatch, S its sequences.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Stored = Mapping[str, NDArray[np.generic]]


def token_credit(rule: Mapping[str, object], reward_S: Floats, given: Stored,
                 total_S: NDArray[np.int64] | None) -> dict[str, Floats] | None:
    """What the batch must store under `advantage`, and under `return` and `kl` where the rule has them.

    `total_S` are all tokens of each trajectory: prompt, actions and observations. None for a rule whose advantages need more than
    one minibatch, or lengths that are not known.
    """
    seq_T, length_S = given["seq"].astype(np.int64), given["length"].astype(np.int64)
    kind, beta = rule.get("kind"), rule.get("kl_beta")
    if kind == "FromTeacher":
        return {"advantage": np.zeros(seq_T.shape)}
    found: dict[str, Floats] = {}
    reward_T = np.zeros(seq_T.shape)
    last = np.cumsum(length_S) - 1
    reward_T[last[length_S > 0]] = reward_S[length_S > 0]
    if beta is not None:
        if "anchor" not in given or "reference" not in given:
            return None
        found["kl"] = given["anchor"].astype(np.float64) - given["reference"].astype(np.float64)
        reward_T = reward_T - float(str(beta)) * found["kl"]
    if kind not in ("Gae", "LengthAdaptiveGae") or "value" not in given:
        return None
    gamma = float(str(rule["gamma"]))
    policy_S = np.full(length_S.shape, float(str(rule.get("lam_policy", 0.0))))
    if kind == "LengthAdaptiveGae":
        counted = length_S if rule.get("counts") == "action_tokens" else total_S
        if counted is None:
            return None
        policy_S = 1 - 1 / (float(str(rule["alpha"])) * np.maximum(counted, 1))
        if rule.get("floor") is not None:
            policy_S = np.maximum(policy_S, float(str(rule["floor"])))
    value_T = given["value"].astype(np.float64)
    critic_S = np.full(length_S.shape, float(str(rule["lam_critic"])))
    found["advantage"] = _estimated(reward_T, value_T, length_S, gamma, policy_S)
    found["return"] = _estimated(reward_T, value_T, length_S, gamma, critic_S) + value_T
    return found


def _estimated(reward_T: Floats, value_T: Floats, length_S: NDArray[np.int64], gamma: float, lam_S: Floats) -> Floats:
    """A_t = r_t + gamma V_{t+1} - V_t + gamma lam A_{t+1}, sequence by sequence, from its end."""
    found_T, end = np.zeros(reward_T.shape), 0
    for length, lam in zip(length_S.tolist(), lam_S.tolist(), strict=True):
        end += length
        following, next_value = 0.0, 0.0
        for at in range(end - 1, end - length - 1, -1):
            following = reward_T[at] + gamma * next_value - value_T[at] + gamma * lam * following
            next_value = value_T[at]
            found_T[at] = following
    return found_T
