"""Which attempts train, and how they are cut into optimizer steps and micro-batches."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollbook.experience.admission import AdmissionRule, admit, group
from rollbook.experience.batches import credited, evaluate, micro_batches, minibatches, pack, with_token_credit
from rollbook.ledger import close_census
from rollbook.objectives import Corrected, Dapo, Magistral, Sao, WithEntropy
from rollbook.objectives.credit import GroupNormalized, LengthAdaptiveGae, MinibatchStandardized
from rollbook.records import (
    Budget,
    Message,
    RecordError,
    RewardVector,
    Scored,
    Segment,
    Task,
    Trace,
    Unscored,
    VerifierStamp,
)

RULE = AdmissionRule(least=2, drop_uniform=True)
OBJECTIVE = Magistral(low=0.2, high=0.3, ratio_to="behavior", credit=MinibatchStandardized(eps=1e-6, ddof=0))
STAMP = VerifierStamp(name="math", version="1", digest="0")
TASK = Task(raw="r", family="sums", prompt=(Message(role="user", content="1 + 1 ="),), reference="2", canonical="sum:1+1",
            predicate="p", initial_state="prompt", tools=(), budget=Budget(max_tokens=8), termination=("length",))
TASKS = {TASK.id: TASK}


def trace(name, which, length=3):
    return Trace(attempt=f"{which}/{name}", task=TASK.id, group=which, envelope="e", stop_reason="end_of_turn", text="",
                 segments=(Segment(owner="user", token_ids=(1, 2)),
                           Segment(owner="policy", token_ids=tuple(range(3, 3 + length)), logps=(-0.5,) * length, version=4)))


def scored(one, total):
    vector = RewardVector(components=(), absent=(), composition="c", composition_digest="d", total=total,
                          accuracy=float(total > 0.5))
    return Scored(trace=one.id, vector=vector)


def made(groups, length=3):
    """Groups of rewards; None is an attempt without a verdict."""
    traces, verdicts = [], []
    for index, rewards in enumerate(groups):
        for place, reward in enumerate(rewards):
            one = trace(place, f"g{index}", length)
            traces.append(one)
            verdicts.append(scored(one, reward) if reward is not None
                            else Unscored(trace=one.id, verifier=STAMP, code="timeout", detail="5 s"))
    return traces, verdicts


@given(st.lists(st.lists(st.sampled_from([0.0, 0.1, 1.0, None]), min_size=1, max_size=5), min_size=1, max_size=6))
def test_every_attempt_gets_one_outcome_and_the_census_closes(groups):
    traces, verdicts = made(groups)
    admission = admit(group(traces, verdicts, TASKS), RULE)
    census = close_census("s", {t.attempt: "sums" for t in traces}, admission.outcomes)
    assert census.total == len(traces)
    assert census.count("accepted") == sum(len(one.members) for one in admission.groups)


def test_a_group_without_variance_is_uniform_and_an_unscored_attempt_is_no_zero():
    traces, verdicts = made([[1.0, 1.0], [0.0, None], [0.0, 1.0, None]])
    codes = [outcome.code for outcome in admit(group(traces, verdicts, TASKS), RULE).outcomes]
    assert codes == ["uniform", "uniform", "group_incomplete", "unscored", "accepted", "accepted", "unscored"]


def test_a_verdict_of_another_trace_is_refused():
    traces, verdicts = made([[0.0, 1.0]])
    with pytest.raises(RecordError, match="another trace"):
        group(traces, verdicts[::-1], TASKS)


@given(st.integers(1, 20), st.integers(1, 6))
def test_minibatches_keep_every_group_whole_and_differ_by_at_most_one(count, parts):
    traces, verdicts = made([[0.0, 1.0]] * count)
    groups = admit(group(traces, verdicts, TASKS), RULE).groups
    cut = minibatches(groups, parts)
    assert [one.id for part in cut for one in part] == [one.id for one in groups]
    sizes = [len(part) for part in cut]
    assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1 and len(cut) == min(parts, count)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(8, 60))
def test_micro_batches_hold_each_sequence_once_and_only_a_single_group_may_exceed_the_budget(lengths, budget):
    groups = []
    for index, length in enumerate(lengths):
        traces, verdicts = made([[]] * index + [[0.0, 1.0]], length)
        groups += admit(group(traces, verdicts, TASKS), RULE).groups
    plan = micro_batches(groups, budget)
    assert sorted(i for part in plan for i in part) == list(range(2 * len(groups)))
    for part in plan:
        owners = {i // 2 for i in part}
        assert len(owners) == 1 or sum(2 + 2 * lengths[o] for o in owners) <= budget


def test_a_step_cut_into_any_micro_batches_has_one_loss():
    traces, verdicts = made([[0.0, 1.0, 1.0], [1.0, 0.1], [0.0, 0.1, 1.0]])
    groups = admit(group(traces, verdicts, TASKS), RULE).groups
    (credit,) = credited([groups], OBJECTIVE, "s")
    losses = []
    for budget in (1, 12, 1000):
        packed = pack(groups, credit, OBJECTIVE, max_tokens=budget, max_length=8)
        logp_T = packed.behavior_T + torch.linspace(-0.6, 0.6, packed.seq_T.numel())
        total = 0.0
        for part in packed.plan:
            index_T = torch.isin(packed.seq_T, torch.tensor(part)).nonzero()[:, 0]
            terms, _ = evaluate(OBJECTIVE, packed, index_T, logp_T[index_T])
            total += float(terms[0].reduce(packed.weight_KT[0, index_T]))
        losses.append(total)
    assert losses == pytest.approx([losses[0]] * 3, abs=1e-12)


def test_advantages_are_standardised_over_their_own_minibatch():
    traces, verdicts = made([[0.0, 1.0], [0.0, 0.1], [1.0, 0.0], [1.0, 0.9]])
    groups = admit(group(traces, verdicts, TASKS), RULE).groups
    for credit in credited(minibatches(groups, 2), OBJECTIVE, "s"):
        values = torch.tensor(credit.advantage, dtype=torch.float64)
        assert values.mean().abs() < 1e-9
        assert float(values.pow(2).mean().sqrt()) == pytest.approx(1.0, abs=1e-4)


def test_dapos_overlong_filter_gives_truncated_answers_no_weight_and_does_not_count_them():
    traces, verdicts = made([[0.0, 1.0], [0.0, 1.0]])
    groups = admit(group(traces, verdicts, TASKS), RULE).groups
    cut = dataclasses.replace(groups[0].members[0].trace, stop_reason="length")
    members = (dataclasses.replace(groups[0].members[0], trace=cut), *groups[0].members[1:])
    part = (dataclasses.replace(groups[0], members=members), groups[1])
    for around in ("nothing", "a correction", "a correction and a bonus"):
        weights = {}
        for filtered in (False, True):
            objective = Dapo(overlong_filter=filtered, credit=GroupNormalized(eps=1e-6, ddof=0), aggregate="token_mean")
            if around != "nothing":
                objective = Corrected(objective=objective, rule="icepop", low=0.5, high=1.0)
            if around == "a correction and a bonus":
                objective = WithEntropy(objective=objective, coefficient=0.1, entropy_aggregate="token_mean")
            [credit] = credited([part], objective, "rl/000001")
            weights[filtered] = pack(part, credit, objective, max_tokens=1000, max_length=None).weight_KT[0]
        assert weights[False].tolist() == pytest.approx([1 / 12] * 12)
        assert weights[True].tolist() == pytest.approx([0.0] * 3 + [1 / 9] * 9)


@pytest.mark.parametrize(("counts", "length"), [("action_tokens", 5), ("all_tokens", 11)])
def test_an_adaptive_lambda_that_counts_all_tokens_counts_observations_too(counts, length):
    """A prompt of 2, actions of 3 and 2 and a tool's reply of 4 tokens; gamma 1, values 0: A_1 = lambda^4."""
    rule = LengthAdaptiveGae(gamma=1.0, alpha=1.5, floor=None, counts=counts, lam_critic=1.0)
    objective = Sao(low=0.3, high=5.0, credit=rule, aggregate="token_mean")
    traces, verdicts = made([[1.0]])
    longer = dataclasses.replace(traces[0], segments=(
        *traces[0].segments, Segment(owner="tool", token_ids=(7, 7, 7, 7)),
        Segment(owner="policy", token_ids=(8, 9), logps=(-0.5, -0.5), version=4)))
    verdict = dataclasses.replace(verdicts[0], trace=longer.id, vector=verdicts[0].vector)
    groups = admit(group([longer], [verdict], TASKS), AdmissionRule(least=1, drop_uniform=False)).groups
    [credit] = credited([groups], objective, "s")
    packed = pack(groups, credit, objective, max_tokens=1000, max_length=None)
    [given] = with_token_credit([packed], rule, [torch.zeros(5)])
    assert float(given.advantage_T[0]) == pytest.approx((1 - 1 / (1.5 * length)) ** 4)
    assert given.return_T.tolist() == pytest.approx([1.0] * 5)
