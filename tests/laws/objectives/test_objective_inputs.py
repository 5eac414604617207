"""Bad input is refused with what, got, why and fix; settings without a printed number must be supplied."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
import torch
from objective_cases import F64, FIELDS, INSTANCES, build

import rollbook.objectives as ro
from rollbook.objectives import OBJECTIVES, ActionTokens, ObjectiveError, Unstated
from rollbook.objectives.credit import Gae, Measured, assign_credit, supply
from rollbook.objectives.diagnostics import diagnose
from rollbook.objectives.ratios import dual_clipped_surrogate

GOOD = {
    "logp_T": torch.tensor([-1.0, -2.0, -3.0]),
    "seq_T": torch.tensor([0, 0, 1]),
    "length_S": torch.tensor([2, 1]),
}


def refusal(call) -> ObjectiveError:
    with pytest.raises(ObjectiveError) as caught:
        call()
    error = caught.value
    assert isinstance(error, ValueError)
    assert str(error) == f"{error.what}, got {error.got}.\n  why: {error.why}\n  fix: {error.fix}"
    assert all((error.what, error.got, error.why, error.fix))
    return error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"anchor_T": torch.tensor([-1.0, -2.0])}, "anchor_T must have the length"),
        ({"seq_T": torch.tensor([0, 0])}, "seq_T must have the length"),
        ({"logp_T": torch.tensor([[-1.0, -2.0, -3.0]])}, "logp_T must be a vector"),
        ({"logp_T": torch.tensor([-1, -2, -3])}, "logp_T must be float32 or float64"),
        ({"logp_T": torch.tensor([-1.0, -2.0, -3.0], dtype=torch.bfloat16)}, "logp_T must be float32 or float64"),
        ({"advantage_T": torch.tensor([1.0, 1.0, 1.0], dtype=F64)}, "advantage_T must be float32"),
        ({"seq_T": torch.tensor([0.0, 0.0, 1.0])}, "seq_T must be int64"),
        ({"length_S": torch.tensor([2.0, 1.0])}, "length_S must be int64"),
        ({"seq_T": torch.tensor([0, 1, 0])}, "seq_T must be contiguous"),
        ({"seq_T": torch.tensor([0, 0, 2])}, "seq_T must lie in 0 .. 1"),
        ({"seq_T": torch.tensor([-1, 0, 0])}, "seq_T must lie in 0 .. 1"),
        ({"length_S": torch.tensor([1, 1])}, "at least the tokens present"),
        ({"length_S": torch.tensor([2, 1, -1])}, "length_S must be >= 0"),
    ],
)
def test_packed_tokens_that_do_not_belong_together_are_refused(change: dict, message: str) -> None:
    assert message in refusal(lambda: ActionTokens(**{**GOOD, **change})).what


def test_action_tokens_are_keyword_only() -> None:
    with pytest.raises(TypeError):
        ActionTokens(*GOOD.values())


def test_finiteness_is_never_checked_and_structural_length_may_exceed_what_is_present() -> None:
    ActionTokens(**{**GOOD, "anchor_T": torch.full((3,), float("nan")), "length_S": torch.tensor([5, 1])})


@pytest.mark.parametrize("name", INSTANCES)
def test_a_tensor_that_is_read_but_absent_is_refused(name: str) -> None:
    objective = INSTANCES[name]
    tokens = build([2, 1], [0, 0], torch.Generator().manual_seed(0), drift=0.1).tokens
    for field in objective.reads - {"logp_T"}:
        assert field in refusal(lambda field=field: objective(replace(tokens, **{field: None}))).what


@pytest.mark.parametrize("what", [None, "banana", 3, torch.zeros(3), GOOD], ids=["None", "text", "number", "tensor", "mapping"])
def test_what_is_no_micro_batch_is_refused_by_every_objective_and_term(what: object) -> None:
    for objective in INSTANCES.values():
        for call in (objective, *objective.extra_terms):
            error = refusal(lambda call=call: call(what))
            assert error.what.endswith("tokens must be ActionTokens") and error.got == type(what).__name__
    loss = INSTANCES["Ppo"](build([2], [0], torch.Generator().manual_seed(0), drift=0.1).tokens)
    assert "tokens must be ActionTokens" in refusal(lambda: diagnose(what, loss)).what
    tokens = ActionTokens(**GOOD)
    assert "loss must be TokenLoss" in refusal(lambda: diagnose(tokens, what)).what


@pytest.mark.parametrize("name", [name for name in INSTANCES if INSTANCES[name].scope == "sequence"])
def test_sequence_scope_refuses_part_of_a_sequence(name: str) -> None:
    tokens = build([2, 1], [0, 0], torch.Generator().manual_seed(0), drift=0.1).tokens
    partial = replace(tokens, length_S=torch.tensor([3, 1]))
    assert "whole sequences" in refusal(lambda: INSTANCES[name](partial)).what


@pytest.mark.parametrize("name", ["Gspo", "R1Printed", "KimiK15", "KimiK2", "DeepSeekV32"])
def test_one_advantage_per_sequence_is_demanded_where_the_surrogate_is_per_sequence(name: str) -> None:
    tokens = build([2, 1], [0, 0], torch.Generator().manual_seed(0), drift=0.1, per_token=True).tokens
    assert "one advantage per sequence" in refusal(lambda: INSTANCES[name](tokens)).what


@pytest.mark.parametrize("cls", [cls for cls in OBJECTIVES.values() if "low" in {f.name for f in dataclasses.fields(cls)}])
def test_negative_bounds_are_refused(cls: type) -> None:
    example = next(instance for instance in INSTANCES.values() if type(instance) is cls)
    for bound in ("low", "high"):
        if getattr(example, bound) is not None:
            assert bound in refusal(lambda bound=bound: replace(example, **{bound: -0.1})).what
            refusal(lambda bound=bound: replace(example, **{bound: float("nan")}))


@pytest.mark.parametrize(
    "call",
    [
        lambda: ro.KimiK15(tau=0, scale="squared"),
        lambda: ro.KimiK15(tau=0.3, scale="half"),
        lambda: ro.KimiK25(tau=0.3, bound_on="ratio", tau_mask="all", ratio_to="anchor"),
        lambda: ro.KimiK25(tau=0.3, bound_on="ratio", tau_mask="all", ratio_to="anchor", low=0.1, high=0.1, log_low=-1),
        lambda: ro.KimiK25(tau=0.3, bound_on="log_ratio", tau_mask="all", ratio_to="anchor", log_low=0.1, log_high=0.2),
        lambda: ro.Magistral(low=0.2, high=0.3, ratio_to="old"),
        lambda: ro.DecoupledPpo(weight_rule="cap"),
        lambda: ro.DecoupledPpo(weight_rule="none", weight_cap=2.0),
        lambda: ro.DecoupledPpo(weight_rule="clip", weight_cap=2.0),
        lambda: ro.Sapo(tau_positive=0),
        lambda: ro.Glm5Reasoning(beta=0.5),
        lambda: ro.Corrected(objective=ro.Sao(low=0.3, high=5), rule="token_tis", cap=2.0),
        lambda: ro.Corrected(objective=ro.DecoupledPpo(weight_rule="none"), rule="token_tis", cap=2.0),
        lambda: ro.Corrected(objective=ro.Magistral(low=0.2, high=0.3, ratio_to="behavior"), rule="token_tis", cap=2.0),
        lambda: ro.Corrected(objective=ro.Dapo(), rule="token_tis", low=0.5, high=1.0),
        lambda: ro.Corrected(objective=ro.Dapo(), rule="icepop", cap=2.0),
    ],
)
def test_settings_without_a_meaning_are_refused(call) -> None:
    refusal(call)


def test_a_dual_clip_at_or_below_the_clip_is_refused() -> None:
    refusal(lambda: ro.Ppo(dual=1.2))
    refusal(lambda: dual_clipped_surrogate(torch.ones(1), torch.ones(1), low=0.2, high=0.2, dual=1.0))


@pytest.mark.parametrize(
    ("cls", "missing"),
    [
        (ro.Grpo, {"low", "high"}),
        (ro.Cispo, {"low", "high"}),
        (ro.Magistral, {"low", "high", "ratio_to"}),
        (ro.KimiK15, {"tau", "scale"}),
        (ro.KimiK2, {"tau", "scale"}),
        (ro.KimiK25, {"tau", "bound_on", "tau_mask", "ratio_to"}),
        (ro.Sao, {"low", "high"}),
        (ro.Glm5Agentic, {"low", "high"}),
        (ro.DecoupledPpo, {"weight_rule"}),
        (ro.DeepSeekV32, {"low", "high", "delta", "beta"}),
        (ro.MimoMopd, {"low", "high", "alpha"}),
        (ro.ReinforcePlusPlusBaseline, {"beta"}),
        (ro.Dapo, set()),
        (ro.Gspo, set()),
        (ro.Sapo, set()),
    ],
)
def test_what_the_sources_leave_open_has_no_default(cls: type, missing: set[str]) -> None:
    required = {field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING}
    assert required == missing


@pytest.mark.parametrize("cls", [ro.Gspo, ro.Sapo, ro.Dapo, ro.Ppo, ro.Vapo, ro.ReinforcePlusPlus])
def test_credit_with_unprinted_numbers_is_refused_until_supplied(cls: type) -> None:
    assert isinstance(cls().credit, Unstated)
    batch = Measured(reward_S=torch.tensor([1.0]), group_S=torch.tensor([0]), seq_T=torch.tensor([0]))
    assert "credit" in refusal(lambda: assign_credit(cls().credit, batch)).what


def test_a_papers_rule_is_completed_by_what_the_user_supplies() -> None:
    completed = supply(ro.Ppo().credit, lam_policy=0.95, lam_critic=0.9)
    assert completed == Gae(gamma=1.0, lam_policy=0.95, lam_critic=0.9, kl_beta=0.02)
    assert "missing: lam_critic" in refusal(lambda: supply(ro.Ppo().credit, lam_policy=0.95)).got
    assert "unknown: lam" in refusal(lambda: supply(ro.Ppo().credit, lam_policy=0.95, lam_critic=0.9, lam=1.0)).got
    refusal(lambda: supply(Unstated(what="credit")))
    refusal(lambda: supply(completed))
    refusal(lambda: supply(None))


def test_a_printed_number_cannot_be_supplied_otherwise_and_may_be_repeated() -> None:
    open_numbers = {"lam_policy": 0.95, "lam_critic": 0.9}
    assert supply(ro.Ppo().credit, **open_numbers, gamma=1.0) == supply(ro.Ppo().credit, **open_numbers)
    error = refusal(lambda: supply(ro.Ppo().credit, **open_numbers, gamma=0.99))
    assert error.got == "gamma = 0.99 for 1.0" and "Gae(...)" in error.fix
    refusal(lambda: supply(ro.Sao(low=0.3, high=5.0).credit, gamma=1.0, floor=0.0, counts="all_tokens", alpha=0.05))
    with_kl = supply(ro.Sao(low=0.3, high=5.0).credit, gamma=1.0, floor=0.0, counts="all_tokens", kl_beta=0.1)
    assert with_kl.alpha == 1.5 and with_kl.kl_beta == 0.1


def test_objectives_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ro.Gspo().low = 0.2


def test_the_package_imports_torch_and_nothing_else_of_ours() -> None:
    import subprocess
    import sys

    code = (
        "import sys, rollbook.objectives, rollbook.objectives.schema, rollbook.objectives.preference;"
        "print([m for m in sys.modules if m.startswith('rollbook.') and not m.startswith('rollbook.objectives')"
        " or m.split('.')[0] in ('transformers', 'ray', 'vllm')])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_every_field_of_action_tokens_is_under_the_reads_law() -> None:
    assert {field.name for field in dataclasses.fields(ActionTokens)} == {*FIELDS, "seq_T", "length_S"}
