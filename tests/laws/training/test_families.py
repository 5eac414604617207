"""Update functions of the families beside the policy's: the same however cut, exact where worked by hand, frozen parts still."""

import dataclasses
import math

import pytest
import torch

from rollbook.models.load import load_policy
from rollbook.models.scalar import on_body, read_scalar, save_scalar
from rollbook.orchestration.stages.comparisons import graded, noise
from rollbook.orchestration.stages.elements import order
from rollbook.records import Candidate, LedgerError, Ranking, RecipeError
from rollbook.records import recipe as r
from rollbook.training.merging import merged_weights
from rollbook.training.optimizer import Optimizer
from rollbook.training.preference import PreferenceLearner, optimizer_of, pair_of, preference_update
from rollbook.training.reward_model import reward_model_update, usable

ADAM = r.OptimizerSettings(learning_rate=1e-2, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0, warmup_steps=0,
                           schedule="constant", max_grad_norm=1.0)
TINY = r.Tiny(architecture="llama", layers=1, hidden=16, heads=2, kv_heads=1, intermediate=32, context=64, window=None, experts=0,
              experts_per_token=0, seed=1)


def ranking(task, scores, *, lengths=(3, 5, 4), correct=(True, False, True)):
    held = tuple(Candidate(trace=f"Trace:{task}{place}", token_ids=tuple(range(10 + place, 10 + place + length)), score=score,
                           truth=None, correct=right)
                 for place, (score, length, right) in enumerate(zip(scores, lengths, correct, strict=True)))
    return Ranking(task=task, prompt_ids=(1, 2, 3), candidates=held, labeler="oracle:x", tokenizer="t", template="t",
                   heldout=False)


RANKINGS = [ranking("Task:a", (0.9, 0.1, 0.4)), ranking("Task:b", (0.2, 0.7, 0.6)), ranking("Task:c", (0.0, 1.0, 0.5))]


def reward_stage(loss="ranked", **changes):
    return r.RewardModel(policy="start", data={"labels": 1.0}, loss=loss, head_layers=2, steps=3, batch=3, optimizer=ADAM,
                         max_batch_tokens=1000, **changes)


def trained(stage, steps=2):
    decoder = load_policy(TINY).decoder
    model = on_body(decoder, dict(decoder.named_parameters()), layers=2, seed=1)
    optimizer = Optimizer.of(model, stage.optimizer, 3)
    done = [reward_model_update(model, optimizer, RANKINGS, stage, dtype=torch.float32, where="a step") for _ in range(steps)]
    return done, model


@pytest.mark.parametrize("loss", ["ranked", "margin", "listwise", "soft_label"])
def test_a_reward_models_step_is_the_same_however_it_is_cut_into_micro_batches(loss):
    margins = {"margins": (1.0, 0.5, 0.0)} if loss == "margin" else {}
    whole, _ = trained(reward_stage(loss, **margins))
    cut, _ = trained(dataclasses.replace(reward_stage(loss, **margins), max_batch_tokens=20))
    assert whole[1].loss[loss] == pytest.approx(cut[1].loss[loss], abs=1e-5)
    assert whole[1].stepped.grad_norm == pytest.approx(cut[1].stepped.grad_norm, rel=1e-3)


def test_an_untrained_reward_model_scores_zero_and_loses_log_two():
    done, _ = trained(reward_stage(), steps=1)
    assert done[0].loss["ranked"] == pytest.approx(math.log(2)) and not done[0].tensors["score"].any()


def test_a_saved_scalar_model_reads_back_bit_for_bit(tmp_path):
    policy = load_policy(TINY)
    _, model = trained(reward_stage())
    save_scalar(tmp_path / "rm", model, policy.tokenizer)
    again = dict(read_scalar(tmp_path / "rm", policy.decoder).named_parameters())
    assert all(torch.equal(parameter, again[name]) for name, parameter in model.named_parameters())


def test_a_ranking_without_a_difference_teaches_nothing():
    even = ranking("Task:d", (1.0, 1.0, 1.0), correct=(True, True, True))
    assert not usable(even, "ranked") and not usable(even, "listwise") and usable(RANKINGS[0], "listwise")
    assert pair_of(even, "score") is None and pair_of(even, "correct") is None


def preference(loss, **changes):
    return r.Preference(policy="start", data={"labels": 1.0}, loss=loss, by="score", steps=3, batch=3, optimizer=ADAM,
                        max_batch_tokens=1000, **changes)


def preferred(stage, steps=2):
    decoder, reference = load_policy(TINY).decoder, load_policy(TINY).decoder.requires_grad_(False)
    weights = {name: p.detach().clone() for name, p in decoder.named_parameters()}
    learner = PreferenceLearner(policy=decoder, reference=reference, optimizer=optimizer_of(decoder, stage, weights, None),
                                format_ids=frozenset({12}), dtype=torch.float32)
    pairs = [pair_of(one, "score") for one in RANKINGS]
    return [preference_update(learner, pairs, stage, where="a step") for _ in range(steps)]


@pytest.mark.parametrize("loss", [r.Dpo(beta=0.1), r.Dpo(beta=2.0, normalize=True)])
def test_at_the_reference_dpo_loses_log_two_and_pushes_both_answers_by_half_beta(loss):
    done = preferred(preference(loss), steps=1)[0]
    assert done.loss["Dpo"] == pytest.approx(math.log(2))
    first = 3                           # the chosen answer of the first ranking: 0.9, three tokens; the rejected one has five
    share = loss.beta / 2 / 3 / (first if loss.normalize else 1)
    assert done.tensors["gradient"][:first].tolist() == pytest.approx([-share] * first, rel=1e-4)
    assert (done.tensors["gradient"][first:first + 5] > 0).all()


def test_a_preference_step_is_the_same_however_it_is_cut():
    loss = r.Llama3Dpo(beta=0.1, nll_coefficient=0.2, nll_reduction="mean", nll_on="unmasked")
    whole, cut = preferred(preference(loss)), preferred(dataclasses.replace(preference(loss), max_batch_tokens=12))
    assert whole[1].loss["Llama3Dpo"] == pytest.approx(cut[1].loss["Llama3Dpo"], abs=1e-5)
    assert whole[0].tensors["gradient"].allclose(cut[0].tensors["gradient"], atol=1e-6)


def test_frozen_parameters_do_not_move_and_a_pattern_that_names_nothing_is_refused():
    frozen = dataclasses.replace(ADAM, frozen=("body.model.layers.*",))
    decoder = load_policy(TINY).decoder
    before = {name: p.detach().clone() for name, p in decoder.named_parameters()}
    _, model = trained(dataclasses.replace(reward_stage(), optimizer=frozen), steps=3)
    now = dict(model.body.named_parameters())
    assert all(torch.equal(now[name], before[name]) for name in before if "layers" in name)
    assert not torch.equal(now["model.embed_tokens.weight"], before["model.embed_tokens.weight"])
    with pytest.raises(RecipeError, match="names no parameter"):
        Optimizer.of(decoder, dataclasses.replace(ADAM, frozen=("no.such.*",)), 1)


def test_a_frozen_parameter_that_moved_is_found():
    decoder = load_policy(TINY).decoder
    optimizer = Optimizer.of(decoder, dataclasses.replace(ADAM, frozen=("model.norm.*",)), 1)
    assert optimizer.check_standing(decoder) is not None
    with torch.no_grad():
        decoder.model.norm.weight.add_(1e-6)
    with pytest.raises(LedgerError, match="have moved"):
        optimizer.check_standing(decoder)


def test_muon_trains_the_matrices_of_layers_and_continues_bit_for_bit():
    settings = dataclasses.replace(ADAM, muon=r.Muon(learning_rate=1e-3, momentum=0.9, weight_decay=0.0))

    def run(stop):
        decoder = load_policy(TINY).decoder
        optimizer = Optimizer.of(decoder, settings, 4)
        for step in range(4):
            if step == stop:
                held = {name: value.clone() for name, value in optimizer.state().items()}
                optimizer = Optimizer.of(decoder, settings, 4)
                optimizer.load(held)
            for place, parameter in enumerate(decoder.parameters()):
                parameter.grad = torch.full_like(parameter, 0.1 * (step + 1)) + place
            optimizer.step("a step")
        return optimizer.digest(), {name: p.detach().clone() for name, p in decoder.named_parameters()}
    digest, weights = run(-1)
    again, resumed = run(2)
    assert digest == again and all(torch.equal(weights[name], resumed[name]) for name in weights)


def test_merges_worked_by_hand():
    one, two, base = ({"w": torch.tensor([value])} for value in (2.0, 4.0, 1.0))

    def merged(method, parts, base=None, decay=None):
        policies = {f"s{at}": weight for at, (_, weight) in enumerate(parts)}
        return float(merged_weights(r.Merge(policies=policies, method=method, base=None, decay=decay), parts, base)["w"])
    assert merged("average", [(one, 1.0), (two, 3.0)]) == 3.5
    assert merged("task_vector", [(one, 1.0), (two, -0.5)], base) == 1.0 + 1.0 - 1.5
    assert merged("moving_average", [(one, 1.0), (two, 1.0)], decay=0.75) == 0.75 * 2 + 0.25 * 4


def test_every_pass_over_a_pool_shows_each_element_once_and_shares_are_kept():
    shown = order({"a": list("abcd"), "b": list("xy")}, {"a": 2.0, "b": 1.0}, 12, seed=3)
    assert sorted(shown) == sorted("abcd" * 2 + "xy" * 2)
    with pytest.raises(RecipeError, match="left nothing"):
        order({"a": []}, {"a": 1.0}, 3, seed=1)


def test_the_oracles_noise_is_the_answers_own_and_logistic_in_differences():
    oracle = r.Oracle(rule={"accuracy": 1.0}, noise=0.5, seed=7)
    assert noise(oracle, "Trace:1") == noise(oracle, "Trace:1") != noise(oracle, "Trace:2")
    ahead = sum(1.0 + noise(oracle, f"Trace:{n}") > noise(oracle, f"Trace:{n}b") for n in range(2000)) / 2000
    assert ahead == pytest.approx(1 / (1 + math.exp(-2.0)), abs=0.03)
    assert noise(dataclasses.replace(oracle, noise=0.0), "Trace:1") == 0.0


def test_an_oracle_with_grades_leaves_equal_answers_equal_but_for_what_its_noise_moves_by_a_grade():
    oracle = r.Oracle(rule={"accuracy": 1.0}, noise=0.2, seed=7, grades=1.0)
    scores = [graded(oracle, noise(oracle, f"Trace:{n}")) for n in range(2000)]
    assert set(scores) <= {-1.0, 0.0, 1.0, 2.0}
    moved = 1 - math.exp(-math.exp(-0.5 / 0.2))                     # P(Gumbel noise above half a grade)
    assert sum(score > 0 for score in scores) / 2000 == pytest.approx(moved, abs=0.02)
    assert graded(dataclasses.replace(oracle, grades=None), 0.3) == 0.3
