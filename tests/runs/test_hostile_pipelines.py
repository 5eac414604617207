"""Pipelines that cannot run: every problem is named at once, before a model is loaded or a folder is made."""

import dataclasses
import re
from types import SimpleNamespace

import pytest
from small_runs import Quiet
from small_stages import ADAM, LABELS, SAMPLED, SFT, pipeline

from rollbook.models.tokenizer import byte_tokenizer
from rollbook.orchestration import run as producer
from rollbook.orchestration import supported
from rollbook.orchestration.stages.modules import scalar_of
from rollbook.recipes import validate
from rollbook.records import ModuleVersion, RecipeError, graph, problems
from rollbook.records import recipe as r

RM = r.RewardModel(policy="sft", data={"labels": 1.0}, loss="ranked", head_layers=1, steps=2, batch=3, max_batch_tokens=512,
                   optimizer=ADAM)
DISTILL = r.Distill(policy="sft", tasks="train", teachers={"*": "sft"}, direction="reverse", steps=2, prompts=2, per_task=1,
                    sampling=SAMPLED, optimizer=ADAM, max_batch_tokens=512, checkpoint_every=1)
MERGE = r.Merge(policies={"sft": 1.0}, method="average")


def refused(**stages):
    found = problems.Problems()
    validate.check(pipeline(**stages).settings, found)
    with pytest.raises(RecipeError) as caught:
        found.raise_any("this recipe")
    return str(caught.value)


def test_every_cycle_is_named_and_a_shape_that_does_not_fit_beside_them():
    def waits(on):
        return dataclasses.replace(SFT, policy=on)
    told = refused(a=waits("b"), b=waits("a"), c=waits("d"), d=waits("e"), e=waits("c"), behind=waits("a"),
                   narrow=r.Prune(policy="start", layers=(0,), intermediate=32), sft=SFT,
                   mixed=r.Merge(policies={"sft": 1.0, "narrow": 1.0}, method="average"),
                   unknown=r.Merge(policies={"a": 1.0, "narrow": 1.0}, method="average"))
    assert told.count("in a cycle") == 2 and "behind" not in told and "stages.unknown" not in told
    assert re.search(r"got (a -> b -> a|b -> a -> b)", told) and re.search(r"got (c -> d -> e|d -> e -> c|e -> c -> d)", told)
    assert "stages.mixed.policies" in told and "another shape" in told


def test_a_pipeline_that_is_wrong_in_seven_ways_is_refused_once_with_all_of_them():
    best = r.RejectionSampling(policy="sft", tasks="train", prompts=4, samples=2, keep="best", per_task=1, sampling=SAMPLED,
                               scorer="sft")                                # scores nothing
    told = refused(
        sft=SFT, best=best, train=SFT,                                      # a reserved name
        first=dataclasses.replace(SFT, policy="second"), second=dataclasses.replace(SFT, policy="first"),
        labels=dataclasses.replace(LABELS, policy="nobody"),                # a missing input
        rm=dataclasses.replace(RM, data={"sft": 1.0}),                      # no rankings
        taught=dataclasses.replace(DISTILL, teachers={"*": "labels"}),      # a teacher that is no policy
        merged=dataclasses.replace(MERGE, policies={"rm": 1.0}))            # no policy
    assert re.search(r"\b\d+ problems", told)
    other = "names a stage of another kind"
    for what in (r"in a cycle.*(first -> second -> first|second -> first -> second)", r"labels\.policy names no earlier stage",
                 rf"rm\.data\.sft {other}", rf"taught\.teachers\.\* {other}", rf"best\.scorer {other}",
                 rf"merged\.policies\.rm {other}", r"stages\.train is a reserved name"):
        assert re.search(what, told), what


def test_nothing_is_left_behind_by_a_pipeline_whose_objective_does_not_exist(tmp_path):
    rl = r.PolicyGradient(policy="sft", tasks="train", steps=2, prompts=4, per_task=2, groups=4, max_waves=1, minibatches=1,
                          max_policy_age=0, sampling=SAMPLED, optimizer=ADAM, max_batch_tokens=256, probe=0, probe_every=0,
                          checkpoint_every=1, objective={"kind": "Gpro"})
    with pytest.raises(RecipeError, match="Gpro"):
        producer.run_recipe(pipeline(sft=SFT, rl=rl), tmp_path / "run", Quiet())
    assert not list(tmp_path.iterdir())


def test_styles_that_cannot_show_some_task_are_refused_before_anything_starts(tmp_path):
    short, late = (dataclasses.replace(SFT, traces={"columns": 1.0}, policy=policy) for policy in ("start", "sft"))
    with pytest.raises(RecipeError, match=r"stages\.late\.traces for[\s\S]*stages\.sft\.traces for"):
        producer.run_recipe(pipeline(sft=short, late=late), tmp_path / "run", Quiet())
    assert not list(tmp_path.iterdir())


def test_a_reward_model_that_reads_another_template_is_refused_before_it_scores(tmp_path):
    tokenizer = byte_tokenizer()
    version = ModuleVersion(stage="rm", module="reward_model", weights="0", began="PolicyVersion:1", window=(), optimizer="0",
                            checkpoint="checkpoints/rm.reward_model", frozen=None, tokenizer=tokenizer.digest, template="f" * 64)
    session = SimpleNamespace(ledger=SimpleNamespace(records=lambda kind: [version]), policy=SimpleNamespace(tokenizer=tokenizer),
                              root=tmp_path)
    with pytest.raises(RecipeError, match="reads another template than the policy writes"):
        scalar_of(session, "rm", "reward_model")
    strange = dataclasses.replace(version, template=tokenizer.template_digest, tokenizer="e" * 64)
    session.ledger.records = lambda kind: [strange]
    with pytest.raises(RecipeError, match="another template"):
        scalar_of(session, "rm", "reward_model")


def test_layers_and_neurons_that_a_policy_does_not_have_are_refused_with_everything_else(tmp_path):
    cut = r.Prune(policy="start", layers=(0, 5), intermediate=9999)
    narrow = r.Prune(policy="start", layers=(0,), intermediate=32)
    told = refused(cut=cut, narrow=narrow, wide=r.Prune(policy="narrow", layers=(0, 1), intermediate=48),
                   none=dataclasses.replace(SFT, policy="nobody"))
    for what in (r"cut\.layers names layers that start does not have, got 5", r"cut\.intermediate is more neurons than start has",
                 r"wide\.layers names layers that narrow does not have, got 1", r"wide\.intermediate is more neurons than narrow",
                 r"none\.policy names no earlier stage", "has 5 problems"):
        assert re.search(what, told), (what, told)
    assert not graph.pruned_beyond({"narrow": narrow, "same": r.Prune(policy="narrow", layers=(0,), intermediate=32)}, (1, 64))
    with pytest.raises(RecipeError, match=r"cut\.layers"):         # of a model whose shape is known once it is loaded
        decoder = SimpleNamespace(architecture=SimpleNamespace(layers=1, intermediate=64))
        supported.check_pruned(pipeline(cut=cut).settings, SimpleNamespace(slow=None, decoder=decoder))


def test_what_this_runtime_does_not_do_is_refused_all_at_once():
    rl = r.PolicyGradient(policy="start", tasks="train", steps=2, prompts=4, per_task=2, groups=4, max_waves=1, minibatches=1,
                          max_policy_age=3, sampling=dataclasses.replace(SAMPLED, top_k=5), optimizer=ADAM, max_batch_tokens=256,
                          probe=0, probe_every=0, checkpoint_every=1, objective={"kind": "Gpro"}, routing="replayed")
    with pytest.raises(RecipeError) as caught:
        supported.check_supported(pipeline(one=rl, other=rl).settings)
    told = str(caught.value)
    for stage in ("one", "other"):
        for what in (rf"{stage}\.objective", rf"{stage}\.asynchrony", rf"{stage}\.routing", rf"{stage}\.sampling must draw"):
            assert re.search(rf"stages\.{what}", told), (what, told)
